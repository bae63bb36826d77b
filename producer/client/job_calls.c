/* The calls of evalq.h about jobs: withdraw, job and idle. */
#include <stdio.h>
#include <string.h>

#include "producer/client/client.h"

int evalq_client_withdraw_job(struct evalq_client *client, const char *job, const char *reason,
                              int timeout_ms)
{
    struct evq_error error = {.status = EVQ_OK};
    enum evq_job_state state = EVQ_JOB_QUEUED;
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    enum evq_status status = evq_results_begin(client, evq_results_deadline(timeout_ms), &error);
    if (status == EVQ_OK) {
        status = evq_queue_withdraw(client->redis, job == NULL ? "" : job,
                                    reason == NULL ? "" : reason, &state, &error);
        evq_results_end(client);
    }
    if (status == EVQ_OK && state == EVQ_JOB_RUNNING) {
        (void)evq_error_set(&error, EVQ_E_CONFLICT, "a worker has claimed %s", job);
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
        (void)evq_error_set(&error, EVQ_E_INVALID,
                            "job needs a path, a suite and space for a job's id");
    } else if (!evq_sent_jobs_find(&client->sender->sent_jobs, path, suite, job)) {
        (void)evq_error_set(&error, EVQ_E_NOT_FOUND, "'%s' is not in Redis yet", path);
    } else {
        (void)!evq_results_copy_text("job_out", job, job_out, job_bytes, &error);
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
            return evq_error_set(
                err, EVQ_E_INVALID,
                "suites: '%s' is not the name of a suite, or there are more than 64", name);
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
        status = evq_error_set(&error, EVQ_E_INVALID, "suites_out is too small for the names");
    }
    if (status == EVQ_OK) {
        status = needs_read(needs, canonical, &error);
    }
    for (uint32_t i = 0; i < count; i++) {
        list[i] = names[i];
    }
    if (status == EVQ_OK) {
        status = evq_results_begin(client, evq_results_deadline(timeout_ms), &error);
    }
    if (status == EVQ_OK) {
        status = evq_queue_free_workers_take(client->redis, client->sender->run,
                                             needs != NULL && needs[0] != '\0' ? canonical : NULL,
                                             list, count, &found, &error);
        evq_results_end(client);
    }
    if (status == EVQ_OK && !suites_write(list, count, found, suites_out, suites_bytes)) {
        status = evq_error_set(&error, EVQ_E_NOT_FOUND, "no worker is free");
    }
    return status == EVQ_OK ? EVALQ_OK : evq_client_fail(&error);
}
