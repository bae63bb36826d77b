#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "producer/client/client.h"
#include "shared/base/clock.h"

#define CALL_MS_MAX    5000
#define WAIT_FIRST_MS  20
#define WAIT_MAX_MS    1000
#define EPOCH_EVERY_MS 1000 // How often the queue's epoch is read.

static int64_t deadline_of(int timeout_ms)
{
    return timeout_ms < 0 ? INT64_MAX : evq_clock_mono_ms() + timeout_ms;
}

void evq_client_results_close(struct evalq_client *client)
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
    evq_client_results_close(client);
    enum evq_status status = evq_conn_open(&conn, &client->conn, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(client->conn, client->sender->queue, &client->redis, err);
    }
    if (status != EVQ_OK) {
        evq_client_results_close(client);
    }
    client->call_ms = call_ms;
    return status;
}

/* Takes the lock and opens the connection. After EVQ_OK the caller calls results_end(). */
static enum evq_status results_begin(struct evalq_client *client, int64_t deadline_ms,
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

static void results_end(struct evalq_client *client)
{
    (void)pthread_mutex_unlock(&client->results_lock); // Held by this thread.
}

struct delivery {
    evalq_metric_fn on_metric;
    void *context;
    uint64_t count;
};

static void deliver_result(void *context, const struct evq_result *result)
{
    struct delivery *delivery = context;
    struct evalq_metric_view view = {.job = result->job,
                                     .task = result->task,
                                     .state = evq_job_state_name(result->state),
                                     .reason = result->reason,
                                     .variant = result->variant,
                                     .suite = result->suite,
                                     .step = result->step,
                                     .key = "",
                                     .metric = "",
                                     .n = result->n,
                                     .finished_ms = result->finished_ms};
    char key[512];

    delivery->count++;
    if (delivery->on_metric == NULL) {
        return;
    }
    if (result->task[0] == '\0') {
        delivery->on_metric(delivery->context, &view);
        return;
    }
    for (size_t at = 0; at < result->metric_count; at++) {
        evq_result_metric_key(result, &result->metrics[at], key, sizeof(key));
        view.key = key;
        view.metric = result->metrics[at].name;
        view.value = result->metrics[at].value;
        delivery->on_metric(delivery->context, &view);
    }
}

/* Sets the cursor to 0 if the queue lost its data, because the run's results then begin again. */
static enum evq_status cursor_check(struct evalq_client *client, struct evq_error *err)
{
    struct evq_queue_info info;
    int64_t now = evq_clock_mono_ms();

    if (evq_conn_fd(client->conn) >= 0 && client->known == evq_conn_generation(client->conn) &&
        now - client->asked_ms < EPOCH_EVERY_MS) {
        return EVQ_OK;
    }
    enum evq_status status = evq_queue_info(client->redis, &info, err);
    if (status == EVQ_OK) {
        if (client->info.epoch[0] != '\0' && strcmp(client->info.epoch, info.epoch) != 0) {
            client->cursor = 0;
        }
        client->info = info;
        client->known = evq_conn_generation(client->conn);
        client->asked_ms = now;
    }
    return status;
}

/* Delivers all results that arrived. ret_counts (may be NULL): how many jobs are open. */
static enum evq_status results_round(struct evalq_client *client, struct delivery *delivery,
                                     int64_t deadline_ms, struct evq_run_counts *ret_counts,
                                     struct evq_error *err)
{
    enum evq_status status = results_begin(client, deadline_ms, err);

    if (status != EVQ_OK) {
        return status;
    }
    status = cursor_check(client, err);
    // Count first. The results of all jobs that have ended by now are read afterwards.
    if (status == EVQ_OK && ret_counts != NULL) {
        status = evq_queue_run_counts(client->redis, client->sender->run, ret_counts, err);
    }
    int64_t before = -1;
    do {
        before = client->cursor;
        if (status == EVQ_OK) {
            status = evq_queue_run_results(client->redis, client->sender->run, &client->cursor,
                                           deliver_result, delivery, err);
        }
    } while (status == EVQ_OK && client->cursor != before && evq_clock_mono_ms() < deadline_ms);
    results_end(client);
    return status;
}

int evalq_client_poll(struct evalq_client *client, evalq_metric_fn on_metric, void *context,
                      int timeout_ms)
{
    struct evq_error error = {.status = EVQ_OK};
    struct delivery delivery = {.on_metric = on_metric, .context = context};
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    if (results_round(client, &delivery, deadline_of(timeout_ms), NULL, &error) != EVQ_OK) {
        return evq_client_fail(&error);
    }
    return EVALQ_OK;
}

/* Whether the error may pass, so that it is worth to wait longer. */
static bool outage(enum evq_status status)
{
    return status == EVQ_E_IO || status == EVQ_E_TIMEOUT || status == EVQ_E_RETRY ||
           status == EVQ_E_STOPPED;
}

static void wait_a_moment(int64_t ms, int64_t deadline_ms)
{
    const int64_t full_ms = evq_clock_mono_ms() + ms;
    const int64_t end_ms = full_ms < deadline_ms ? full_ms : deadline_ms;
    int left = 0;

    while ((left = evq_clock_left_ms(end_ms)) > 0) { // A signal ends the sleep early.
        const struct timespec moment = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000L};
        (void)nanosleep(&moment, NULL);
    }
}

static bool all_submitted(uint64_t parked, struct evq_error *err)
{
    if (parked > 0) {
        (void)evq_error_set(err, EVQ_E_NOT_FOUND,
                            "%llu of the checkpoints lies beneath no root: submitted when the "
                            "configuration has it",
                            (unsigned long long)parked);
    }
    return parked == 0;
}

int evalq_client_wait(struct evalq_client *client, evalq_metric_fn on_metric, void *context,
                      int timeout_ms)
{
    struct evq_error error = {.status = EVQ_OK};
    struct delivery delivery = {.on_metric = on_metric, .context = context};
    int64_t deadline = deadline_of(timeout_ms);
    // By this time the sender has read the configuration again for missing roots.
    const int64_t roots_seen = evq_clock_mono_ms() + (int64_t)2 * EVQ_ROOT_LOOK_MS;
    int64_t pause = WAIT_FIRST_MS;
    int64_t open = -1; // Open jobs by Redis' last reply; -1: there was none yet.
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    while (true) {
        struct evq_run_counts counts = {.open = 1};
        uint64_t before = delivery.count;
        uint64_t position = evq_ring_tail(client->sender->ring);
        uint64_t parked = 0; // Read before the counts, which lack later submits.
        bool sent = evq_sender_all_sent(client->sender, position, &parked);
        enum evq_status status = results_round(client, &delivery, deadline, &counts, &error);
        open = status == EVQ_OK ? counts.open : open;
        if (status == EVQ_OK && sent && counts.open == 0) {
            if (all_submitted(parked, &error)) {
                return EVALQ_OK;
            }
            status = evq_clock_mono_ms() < roots_seen ? EVQ_E_RETRY : EVQ_E_NOT_FOUND;
        }
        if (status != EVQ_OK && !outage(status)) {
            return evq_client_fail(&error);
        }
        if (evq_clock_mono_ms() >= deadline) {
            // If the timeout ended a call to Redis, report the last known number of jobs.
            if (status == EVQ_OK || (status == EVQ_E_TIMEOUT && open >= 0)) {
                (void)evq_error_set(&error, EVQ_E_TIMEOUT,
                                    "the timeout passed with %lld job%s of the run still open: "
                                    "`evalq status` says why",
                                    (long long)open, open == 1 ? "" : "s");
            }
            return evq_client_fail(&error);
        }
        pause = delivery.count > before ? WAIT_FIRST_MS : pause * 3 / 2;
        pause = pause > WAIT_MAX_MS ? WAIT_MAX_MS : pause;
        wait_a_moment(pause, deadline);
    }
}

/* Copies a text as a whole or not at all, because a truncated name may be that of something else.
 * out NULL or out_bytes 0: the caller does not want it. */
static enum evq_status text_out(const char *field, const char *text, char *out, size_t out_bytes,
                                struct evq_error *err)
{
    const size_t bytes = strlen(text) + 1;

    if (out == NULL || out_bytes == 0) {
        return EVQ_OK;
    }
    if (bytes > out_bytes) {
        return evq_error_set(err, EVQ_E_INVALID, "%s has room for %zu bytes, %zu are needed", field,
                             out_bytes, bytes);
    }
    memcpy(out, text, bytes);
    return EVQ_OK;
}

int evalq_client_best(struct evalq_client *client, const char *metric, double *ret_value,
                      int64_t *ret_step, char *path_out, size_t path_bytes, int timeout_ms)
{
    return evalq_client_best_metric(client, metric, ret_value, ret_step, path_out, path_bytes, NULL,
                                    0, timeout_ms);
}

int evalq_client_best_metric(struct evalq_client *client, const char *metric, double *ret_value,
                             int64_t *ret_step, char *path_out, size_t path_bytes, char *metric_out,
                             size_t metric_bytes, int timeout_ms)
{
    struct evq_error error = {.status = EVQ_OK};
    struct evq_best best;
    char path[2 * PATH_MAX]; // A root's path and a path beneath it.
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    enum evq_status status = results_begin(client, deadline_of(timeout_ms), &error);
    if (status == EVQ_OK) {
        status = evq_queue_best_find(client->redis, client->sender->run,
                                     metric == NULL ? "" : metric, &best, &error);
        results_end(client);
    }
    if (status == EVQ_OK) {
        evq_config_checkpoint_path(client->sender->config, best.checkpoint, path, sizeof(path));
        status = text_out("path_out", path, path_out, path_bytes, &error);
    }
    if (status == EVQ_OK) {
        status = text_out("metric_out", best.metric, metric_out, metric_bytes, &error);
    }
    if (status != EVQ_OK) {
        return evq_client_fail(&error);
    }
    if (ret_value != NULL) {
        *ret_value = best.value;
    }
    if (ret_step != NULL) {
        *ret_step = best.step;
    }
    return EVALQ_OK;
}

int evalq_client_withdraw_job(struct evalq_client *client, const char *job, const char *reason,
                              int timeout_ms)
{
    struct evq_error error = {.status = EVQ_OK};
    enum evq_job_state state = EVQ_JOB_QUEUED;
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    enum evq_status status = results_begin(client, deadline_of(timeout_ms), &error);
    if (status == EVQ_OK) {
        status = evq_queue_withdraw(client->redis, job == NULL ? "" : job,
                                    reason == NULL ? "" : reason, &state, &error);
        results_end(client);
    }
    if (status == EVQ_OK && state == EVQ_JOB_RUNNING) {
        (void)evq_error_set(&error, EVQ_E_CONFLICT, "a worker is at %s", job);
        (void)evq_client_fail(&error);
        return EVALQ_BUSY;
    }
    return status == EVQ_OK ? EVALQ_OK : evq_client_fail(&error);
}

int evalq_client_job(struct evalq_client *client, const char *path, const char *suite,
                     char *job_out, size_t job_bytes)
{
    struct evq_error error = {.status = EVQ_OK};
    char job[EVQ_JOB_ID_BYTES_MAX];
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    if (path == NULL || suite == NULL || job_out == NULL || job_bytes == 0) {
        (void)evq_error_set(&error, EVQ_E_INVALID, "job wants path, suite and room for a job's id");
    } else if (!evq_sent_jobs_find(&client->sender->sent_jobs, path, suite, job)) {
        (void)evq_error_set(&error, EVQ_E_NOT_FOUND, "'%s' is not in Redis yet", path);
    } else {
        (void)!text_out("job_out", job, job_out, job_bytes, &error);
    }
    return error.status == EVQ_OK ? EVALQ_OK : evq_client_fail(&error);
}

/* Splits the list of suites into out. EVQ_E_INVALID says what is wrong. */
static enum evq_status suites_read(const char *suites,
                                   char out[EVQ_SUBMIT_SUITES_MAX][EVQ_SUBMIT_SUITE_BYTES],
                                   uint32_t *ret_count, struct evq_error *err)
{
    char name[EVQ_SUBMIT_SUITE_BYTES];
    uint32_t count = 0;

    while (evq_submit_record_suite(&suites, name)) {
        if (count == EVQ_SUBMIT_SUITES_MAX || !evq_job_name_valid(name, EVQ_JOB_NAME_BYTES_MAX)) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "suites: '%s' is not the name of a suite, or the 65th of them",
                                 name);
        }
        memcpy(out[count++], name, sizeof(name));
    }
    *ret_count = count;
    return count > 0 ? EVQ_OK : evq_error_set(err, EVQ_E_INVALID, "suites is empty");
}

/* Translates needs as users write them into their canonical text. NULL and "" give "". */
static enum evq_status needs_read(const char *needs, char out[EVQ_NEEDS_BYTES_MAX],
                                  struct evq_error *err)
{
    struct evq_needs parsed;

    out[0] = '\0';
    if (needs == NULL || needs[0] == '\0') {
        return EVQ_OK;
    }
    struct evq_arena *arena = evq_arena_new(0);
    if (arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "needs");
    }
    enum evq_status status = evq_needs_parse(needs, arena, &parsed, err);
    if (status == EVQ_OK) {
        status = evq_needs_text(&parsed, out, EVQ_NEEDS_BYTES_MAX, err);
    }
    evq_arena_free(arena);
    return status;
}

/* Writes the names whose bit is set in mask, separated by commas. Returns false if there are none,
 * or if out is too small. */
static bool suites_write(const char *const *names, uint32_t count, uint64_t mask, char *out,
                         size_t out_bytes)
{
    size_t used = 0;

    for (uint32_t i = 0; i < count; i++) {
        if ((mask >> i & 1) != 0) {
            const int bytes =
                snprintf(out + used, out_bytes - used, "%s%s", used > 0 ? "," : "", names[i]);
            if (bytes < 0 || (size_t)bytes >= out_bytes - used) {
                return false;
            }
            used += (size_t)bytes;
        }
    }
    return used > 0;
}

int evalq_client_idle(struct evalq_client *client, const char *suites, const char *needs,
                      char *suites_out, size_t suites_bytes, int timeout_ms)
{
    char names[EVQ_SUBMIT_SUITES_MAX][EVQ_SUBMIT_SUITE_BYTES];
    const char *list[EVQ_SUBMIT_SUITES_MAX];
    char canonical[EVQ_NEEDS_BYTES_MAX];
    struct evq_error error = {.status = EVQ_OK};
    uint32_t count = 0;
    uint64_t found = 0;
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    enum evq_status status = suites_read(suites == NULL ? "" : suites, names, &count, &error);
    if (status == EVQ_OK && (suites_out == NULL || suites_bytes < strlen(suites) + 1)) {
        status = evq_error_set(&error, EVQ_E_INVALID, "suites_out has no room for the names");
    }
    if (status == EVQ_OK) {
        status = needs_read(needs, canonical, &error);
    }
    for (uint32_t i = 0; i < count; i++) {
        list[i] = names[i];
    }
    if (status == EVQ_OK) {
        status = results_begin(client, deadline_of(timeout_ms), &error);
    }
    if (status == EVQ_OK) {
        status = evq_queue_idle_workers(client->redis, client->sender->run,
                                        needs != NULL && needs[0] != '\0' ? canonical : NULL, list,
                                        count, &found, &error);
        results_end(client);
    }
    if (status == EVQ_OK && !suites_write(list, count, found, suites_out, suites_bytes)) {
        status = evq_error_set(&error, EVQ_E_NOT_FOUND, "no worker is free");
    }
    return status == EVQ_OK ? EVALQ_OK : evq_client_fail(&error);
}
