#include "worker/supervisor/redis_session.h"

#include <stdio.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/log.h"
#include "shared/queue/keys.h"

#define CALL_TIMEOUT_MAX 5000
#define CALL_TIMEOUT_MIN 500

enum evq_status evq_redis_session_open(struct evq_redis_session *session,
                                       const struct evq_config *config, const char *name,
                                       int64_t lease_ms, struct evq_error *err)
{
    memset(session, 0, sizeof(*session));
    (void)snprintf(session->name, sizeof(session->name), "%s", name);
    session->seed = evq_clock_random();
    // A heartbeat must be answered, or be repeated, well before the lease lapses.
    session->call_timeout_ms = lease_ms / 3;
    session->call_timeout_ms =
        session->call_timeout_ms > CALL_TIMEOUT_MAX ? CALL_TIMEOUT_MAX : session->call_timeout_ms;
    session->call_timeout_ms =
        session->call_timeout_ms < CALL_TIMEOUT_MIN ? CALL_TIMEOUT_MIN : session->call_timeout_ms;
    struct evq_conn_config conn_config = evq_config_conn(config, session->name);
    conn_config.keep_environment = true;
    conn_config.connect_timeout_ms = (int32_t)session->call_timeout_ms;
    conn_config.call_timeout_ms = (int32_t)session->call_timeout_ms;
    session->second_config = conn_config;
    enum evq_status status = evq_conn_open(&conn_config, &session->conn, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(session->conn, config->redis.queue, &session->queue, err);
    }
    return status;
}

void evq_redis_session_close(struct evq_redis_session *session)
{
    evq_queue_close(session->queue);
    evq_conn_close(session->second);
    evq_conn_close(session->conn);
    memset(session, 0, sizeof(*session));
}

bool evq_redis_session_ready(const struct evq_redis_session *session, int64_t now_ms)
{
    return session->backoff.until_ms <= now_ms;
}

bool evq_redis_session_note(struct evq_redis_session *session, enum evq_status status,
                            const struct evq_error *err)
{
    struct evq_backoff *backoff = &session->backoff;

    if (!evq_conn_is_outage(status)) { // Any other answer shows that Redis works.
        if (backoff->tries > 0) {
            evq_log(EVQ_LOG_INFO, "redis_back", "url=%s tries=%u", evq_conn_where(session->conn),
                    backoff->tries);
        }
        session->logged = 0;
        *backoff = (struct evq_backoff){0};
        return true;
    }
    const uint32_t kind = UINT32_C(1) << status;
    if ((session->logged & kind) == 0) { // A Redis that was down may return without its functions.
        session->logged |= kind;
        evq_log(EVQ_LOG_WARN, "redis_away", "status=%s reason=%s", evq_status_name(status),
                err->message);
    }
    (void)evq_cause_count_failure(EVQ_CAUSE_REDIS_AWAY, backoff, &session->seed);
    evq_redis_session_wait_drop(session);
    return false;
}

bool evq_redis_session_note_read(struct evq_redis_session *session, enum evq_status status,
                                 const struct evq_error *err)
{
    return !evq_conn_is_outage(status) || evq_redis_session_note(session, status, err);
}

enum evq_status evq_redis_session_check(struct evq_redis_session *session, bool force,
                                        bool *ret_new_epoch, struct evq_error *err)
{
    struct evq_queue_info info;

    *ret_new_epoch = false;
    // After a failure the socket is closed, and the next call reconnects. That call must be info.
    if (!force && evq_conn_fd(session->conn) >= 0 &&
        session->known == evq_conn_generation(session->conn)) {
        return EVQ_OK;
    }
    const enum evq_status status = evq_queue_info(session->queue, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    session->known = evq_conn_generation(session->conn);
    if (strcmp(info.epoch, session->epoch) != 0 || info.epoch[0] == '\0') {
        const size_t data = strcspn(info.epoch, ".");
        *ret_new_epoch = true;
        session->failed_over = data > 0 && data == strcspn(session->epoch, ".") &&
                               memcmp(info.epoch, session->epoch, data) == 0;
        memcpy(session->epoch, info.epoch, sizeof(session->epoch));
    }
    return EVQ_OK;
}

enum evq_status evq_redis_session_wait(struct evq_redis_session *session, const uint32_t *classes,
                                       uint32_t class_count, int64_t timeout_ms, bool quiet,
                                       struct evq_error *err)
{
    char keys[EVQ_QUEUE_CLASSES_MAX][EVQ_KEYS_BYTES_MAX];
    const char *words[EVQ_QUEUE_CLASSES_MAX + 2] = {"BZPOPMIN"};
    char seconds[32];

    if (!quiet && session->second == NULL) {
        const enum evq_status status =
            evq_conn_open(&session->second_config, &session->second, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    struct evq_conn *conn = quiet ? session->conn : session->second;
    for (uint32_t i = 0; i < class_count; i++) {
        evq_keys_wake(evq_queue_prefix(session->queue), classes[i], keys[i]);
        words[i + 1] = keys[i];
    }
    timeout_ms = timeout_ms < 1 ? 1 : timeout_ms; // Redis takes 0 as "wait forever".
    (void)snprintf(seconds, sizeof(seconds), "%lld.%03d", (long long)(timeout_ms / 1000),
                   (int)(timeout_ms % 1000));
    words[class_count + 1] = seconds;
    enum evq_status status = evq_conn_append(conn, class_count + 2, words, NULL, err);
    if (status == EVQ_OK) {
        status = evq_conn_flush(conn, err);
    }
    if (status == EVQ_OK) {
        session->waiting = conn;
        session->wait_end_ms = evq_clock_mono_ms() + timeout_ms + session->call_timeout_ms;
    }
    return status;
}

int evq_redis_session_wait_fd(const struct evq_redis_session *session)
{
    return session->waiting != NULL ? evq_conn_fd(session->waiting) : -1;
}

enum evq_status evq_redis_session_wait_end(struct evq_redis_session *session, bool readable,
                                           bool *ret_over, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    *ret_over = session->waiting == NULL;
    if (session->waiting == NULL || (!readable && evq_clock_mono_ms() < session->wait_end_ms)) {
        return EVQ_OK;
    }
    struct evq_conn *conn = session->waiting;
    readable = readable && evq_conn_readable(conn);
    if (!readable && evq_clock_mono_ms() < session->wait_end_ms) {
        return EVQ_OK; // Only half a reply arrived, or only data of TLS itself.
    }
    session->waiting = NULL;
    *ret_over = true;
    // If the socket is readable, the reply or the end of the connection is there. If the reply is
    // overdue, this is the last look.
    const enum evq_status status =
        evq_conn_read(conn, readable ? 0 : evq_clock_mono_ms() + 1, &reply, err);
    evq_reply_free(reply); // A claim follows after a marker and after a time-out alike.
    return status;
}

void evq_redis_session_wait_drop(struct evq_redis_session *session)
{
    if (session->waiting != NULL) {
        evq_conn_drop(session->waiting);
        session->waiting = NULL;
    }
}
