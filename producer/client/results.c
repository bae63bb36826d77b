/* The calls of evalq.h that read results: poll, wait and best. */
#include <string.h>
#include <time.h>

#include "producer/client/client.h"
#include "shared/base/clock.h"

#define WAIT_FIRST_MS  20
#define WAIT_MAX_MS    1000
#define EPOCH_EVERY_MS 1000 // How often the queue's epoch is read.

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
    enum evq_status status = evq_results_begin(client, deadline_ms, err);

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
    evq_results_end(client);
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
    if (results_round(client, &delivery, evq_results_deadline(timeout_ms), NULL, &error) !=
        EVQ_OK) {
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
    int64_t deadline = evq_results_deadline(timeout_ms);
    // By this time the sender has read the configuration again for missing roots.
    const int64_t roots_seen = evq_clock_mono_ms() + (int64_t)2 * EVQ_ROOT_CHECK_MS;
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

enum evq_status evq_results_copy_text(const char *field, const char *text, char *out,
                                      size_t out_bytes, struct evq_error *err)
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
    enum evq_status status = evq_results_begin(client, evq_results_deadline(timeout_ms), &error);
    if (status == EVQ_OK) {
        status = evq_queue_best_find(client->redis, client->sender->run,
                                     metric == NULL ? "" : metric, &best, &error);
        evq_results_end(client);
    }
    if (status == EVQ_OK) {
        evq_config_checkpoint_path(client->sender->config, best.checkpoint, path, sizeof(path));
        status = evq_results_copy_text("path_out", path, path_out, path_bytes, &error);
    }
    if (status == EVQ_OK) {
        status = evq_results_copy_text("metric_out", best.metric, metric_out, metric_bytes, &error);
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
