#include "worker/supervisor/link.h"

#include <stdio.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/queue/keys.h"

#define RETRY_FIRST_MS   100
#define RETRY_MAX_MS     5000
#define CALL_TIMEOUT_MAX 5000
#define CALL_TIMEOUT_MIN 500

enum evq_status evq_link_open(struct evq_link *link, const struct evq_config *config,
                              const char *name, int64_t lease_ms, struct evq_error *err)
{
    memset(link, 0, sizeof(*link));
    (void)snprintf(link->name, sizeof(link->name), "%s", name);
    link->seed = evq_clock_random();
    // A heartbeat must have its answer, or a second try, well within a lease.
    link->call_timeout_ms = lease_ms / 3;
    link->call_timeout_ms =
        link->call_timeout_ms > CALL_TIMEOUT_MAX ? CALL_TIMEOUT_MAX : link->call_timeout_ms;
    link->call_timeout_ms =
        link->call_timeout_ms < CALL_TIMEOUT_MIN ? CALL_TIMEOUT_MIN : link->call_timeout_ms;
    struct evq_conn_config conn_config = evq_config_conn(config, link->name);
    conn_config.keep_environment = true;
    conn_config.connect_timeout_ms = (int32_t)link->call_timeout_ms;
    conn_config.call_timeout_ms = (int32_t)link->call_timeout_ms;
    link->second_config = conn_config;
    enum evq_status status = evq_conn_open(&conn_config, &link->conn, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(link->conn, config->redis.queue, &link->queue, err);
    }
    return status;
}

void evq_link_close(struct evq_link *link)
{
    evq_queue_close(link->queue);
    evq_conn_close(link->second);
    evq_conn_close(link->conn);
    memset(link, 0, sizeof(*link));
}

bool evq_link_ready(const struct evq_link *link, int64_t now_ms)
{
    return link->retry_ms <= now_ms;
}

bool evq_link_note(struct evq_link *link, enum evq_status status, const struct evq_error *err)
{
    if (!evq_conn_passes(status)) { // Any other answer is an answer.
        if (link->tries > 0) {
            evq_log(EVQ_LOG_INFO, "redis_back", "url=%s tries=%u", evq_conn_where(link->conn),
                    link->tries);
        }
        link->tries = 0;
        link->told = 0;
        link->retry_ms = 0;
        return true;
    }
    const int64_t wait_ms =
        evq_clock_backoff_ms(&link->seed, link->tries, RETRY_FIRST_MS, RETRY_MAX_MS);
    const uint32_t kind = UINT32_C(1) << status;
    if ((link->told & kind) == 0) { // A Redis that was down may come back without its functions.
        link->told |= kind;
        evq_log(EVQ_LOG_WARN, "redis_away", "status=%s reason=%s", evq_status_name(status),
                err->message);
    }
    link->tries++;
    link->retry_ms = evq_clock_mono_ms() + wait_ms;
    evq_link_wait_drop(link);
    return false;
}

bool evq_link_note_read(struct evq_link *link, enum evq_status status, const struct evq_error *err)
{
    return !evq_conn_passes(status) || evq_link_note(link, status, err);
}

enum evq_status evq_link_check(struct evq_link *link, bool force, bool *ret_new_epoch,
                               struct evq_error *err)
{
    struct evq_queue_info info;

    *ret_new_epoch = false;
    // After a failure the socket is closed: the next call reconnects, and info must be that call.
    if (!force && evq_conn_fd(link->conn) >= 0 && link->known == evq_conn_number(link->conn)) {
        return EVQ_OK;
    }
    const enum evq_status status = evq_queue_info(link->queue, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    link->known = evq_conn_number(link->conn);
    if (strcmp(info.epoch, link->epoch) != 0 || info.epoch[0] == '\0') {
        const size_t data = strcspn(info.epoch, ".");
        *ret_new_epoch = true;
        link->failed_over = data > 0 && data == strcspn(link->epoch, ".") &&
                            memcmp(info.epoch, link->epoch, data) == 0;
        memcpy(link->epoch, info.epoch, sizeof(link->epoch));
    }
    return EVQ_OK;
}

enum evq_status evq_link_wait(struct evq_link *link, const uint32_t *classes, uint32_t class_count,
                              int64_t timeout_ms, bool quiet, struct evq_error *err)
{
    char keys[EVQ_QUEUE_CLASSES_MAX][EVQ_KEYS_BYTES_MAX];
    const char *words[EVQ_QUEUE_CLASSES_MAX + 2] = {"BZPOPMIN"};
    char seconds[32];

    if (!quiet && link->second == NULL) {
        const enum evq_status status = evq_conn_open(&link->second_config, &link->second, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    struct evq_conn *conn = quiet ? link->conn : link->second;
    for (uint32_t i = 0; i < class_count; i++) {
        evq_keys_wake(evq_queue_prefix(link->queue), classes[i], keys[i]);
        words[i + 1] = keys[i];
    }
    timeout_ms = timeout_ms < 1 ? 1 : timeout_ms; // To Redis 0 means for ever.
    (void)snprintf(seconds, sizeof(seconds), "%lld.%03d", (long long)(timeout_ms / 1000),
                   (int)(timeout_ms % 1000));
    words[class_count + 1] = seconds;
    enum evq_status status = evq_conn_append(conn, class_count + 2, words, NULL, err);
    if (status == EVQ_OK) {
        status = evq_conn_flush(conn, err);
    }
    if (status == EVQ_OK) {
        link->waiting = conn;
        link->wait_end_ms = evq_clock_mono_ms() + timeout_ms + link->call_timeout_ms;
    }
    return status;
}

int evq_link_wait_fd(const struct evq_link *link)
{
    return link->waiting != NULL ? evq_conn_fd(link->waiting) : -1;
}

enum evq_status evq_link_wait_end(struct evq_link *link, bool readable, bool *ret_over,
                                  struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    *ret_over = link->waiting == NULL;
    if (link->waiting == NULL || (!readable && evq_clock_mono_ms() < link->wait_end_ms)) {
        return EVQ_OK;
    }
    struct evq_conn *conn = link->waiting;
    readable = readable && evq_conn_arrived(conn);
    if (!readable && evq_clock_mono_ms() < link->wait_end_ms) {
        return EVQ_OK; // Half a reply, or TLS's own.
    }
    link->waiting = NULL;
    *ret_over = true;
    // Readable: the reply is there, or the end of the connection. Overdue: one last look.
    const enum evq_status status =
        evq_conn_read(conn, readable ? 0 : evq_clock_mono_ms() + 1, &reply, err);
    evq_reply_free(reply); // Marker or time-out, a claim follows.
    return status;
}

void evq_link_wait_drop(struct evq_link *link)
{
    if (link->waiting != NULL) {
        evq_conn_drop(link->waiting);
        link->waiting = NULL;
    }
}
