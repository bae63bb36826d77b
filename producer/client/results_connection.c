/* The connection of poll, wait, best, withdraw and idle, and its lock. Declared in client.h. */
#include <errno.h>
#include <time.h>

#include "producer/client/client.h"
#include "shared/base/clock.h"

#define CALL_MS_MAX 5000

int64_t evq_results_deadline(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : evq_clock_mono_ms() + timeout_ms;
}

void evq_results_close(struct evalq_client *client)
{
    evq_queue_close(client->redis);
    evq_conn_close(client->conn);
    client->redis = NULL;
    client->conn = NULL;
}

static enum evq_status results_lock(struct evalq_client *client, int64_t deadline_ms,
                                    struct evq_error *err)
{
    int64_t left = deadline_ms == INT64_MAX ? INT32_MAX : evq_clock_left_ms(deadline_ms);
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until); // The clock of pthread_mutex_timedlock().
    until.tv_sec += left / 1000;
    until.tv_nsec += left % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    int failed = pthread_mutex_timedlock(&client->results_lock, &until);
    if (failed == EDEADLK) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "poll, wait, best, withdraw and idle must not be called from inside "
                             "on_metric");
    }
    return failed == 0 ? EVQ_OK
                       : evq_error_set(err, EVQ_E_TIMEOUT, "another thread is reading results");
}

/* Returns the longest of a few timeouts that ends before the deadline. A connection has one
 * timeout, so few different values mean few new connections. */
static int call_timeout(int64_t deadline_ms)
{
    static const int steps[] = {CALL_MS_MAX, 1000, 250, 50, 10};
    int left = deadline_ms == INT64_MAX ? CALL_MS_MAX : evq_clock_left_ms(deadline_ms);

    for (size_t at = 0; at < sizeof(steps) / sizeof(steps[0]); at++) {
        if (steps[at] <= left) {
            return steps[at];
        }
    }
    return 1;
}

/* Opens the connection at its first use. The caller holds the lock. */
static enum evq_status connection_open(struct evalq_client *client, int64_t deadline_ms,
                                       struct evq_error *err)
{
    const struct evq_config *config = client->sender->config;
    int call_ms = call_timeout(deadline_ms);
    struct evq_conn_config conn = evq_config_conn(config, "evalq-results");

    conn.keep_environment = true; // The environment belongs to the trainer.
    conn.connect_timeout_ms = call_ms;
    conn.call_timeout_ms = call_ms;
    if (client->redis != NULL && client->call_ms <= call_ms &&
        (client->call_ms == call_ms || client->call_ms >= 250)) {
        return EVQ_OK;
    }
    evq_results_close(client);
    enum evq_status status = evq_conn_open(&conn, &client->conn, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(client->conn, client->sender->queue, &client->redis, err);
    }
    if (status != EVQ_OK) {
        evq_results_close(client);
    }
    client->call_ms = call_ms;
    return status;
}

enum evq_status evq_results_begin(struct evalq_client *client, int64_t deadline_ms,
                                  struct evq_error *err)
{
    enum evq_status status = results_lock(client, deadline_ms, err);

    if (status != EVQ_OK) {
        return status;
    }
    status = connection_open(client, deadline_ms, err);
    if (status != EVQ_OK) {
        (void)pthread_mutex_unlock(&client->results_lock); // Held by this thread.
    }
    return status;
}

void evq_results_end(struct evalq_client *client)
{
    (void)pthread_mutex_unlock(&client->results_lock); // Held by this thread.
}
