/*
 * Tests evalq's verbs that act on one, several or all jobs of a run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/queue/attempt_log.h"
#include "tests/fixture/user.h"

static int setup(void **state)
{
    return fixture_user_setup(state, EVQ_TEST_BIN "/evalq");
}

/* The queue cuts a reason at 64 bytes. The detail of the job has all of it. */
static void lists_show_the_whole_reason_of_a_job(void **state)
{
    struct site *site = *state;
    static const char reason[] =
        "the evaluator ended with exit code 1 and no result; the last line "
        "of its log is: CUDA out of memory";

    fixture_user_fail(site, "long/1/regular/quick", reason, reason);
    EXPECT(site, 0, "dead", "long");
    assert_holds(site->output.out, reason);
    EXPECT(site, 0, "results", "long");
    assert_holds(site->output.out, reason);
}

static void job_verbs_act_on_jobs(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    fixture_user_fail(site, "r/1/regular/quick", "the evaluator \033[31mfailed",
                      "first line\nsecond \033]0;title\a line\n 10%\r 50%\r100%\r\nlast line");
    EXPECT(site, 0, "dead");
    assert_holds(site->output.out, "r/1/regular/quick");
    assert_null(strchr(site->output.out, '\033'));
    EXPECT(site, 0, "dead", "--json");
    json_t *doc = fixture_user_json(site);
    assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 1);
    json_decref(doc);
    EXPECT(site, 0, "logs", "r/1/regular/quick");
    assert_holds(site->output.out, "first line\n");
    // The output is as a terminal shows it.
    assert_holds(site->output.out, " line\n100%\nlast line\n");
    assert_null(strchr(site->output.out, '\033'));
    EXPECT(site, 0, "show", "r/1/regular/quick");
    assert_holds(site->output.out, "dead");
    assert_null(strchr(site->output.out, '\033'));
    EXPECT(site, 0, "show", "r/1/regular/quick", "--json");
    doc = fixture_user_json(site);
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "job"), "state")),
                        "dead");
    json_decref(doc);
    EXPECT(site, 3, "show", "r/2/regular/quick");
    fixture_user_one_line(site);
    EXPECT(site, 2, "logs", "no job");
    fixture_user_one_line(site);
    EXPECT(site, 0, "logs", "r/1/regular/quick", "--json");
    EXPECT(site, 0, "retry", "--dead", "--run", "r");
    assert_string_equal(site->output.out, "r/1/regular/quick  queued\n");
    // A repeated call succeeds, because the first answer may have been lost.
    EXPECT(site, 0, "retry", "r/1/regular/quick");
    assert_string_equal(site->output.out, "r/1/regular/quick  queued\n");
    EXPECT(site, 3, "retry", "r/3/regular/quick");
    EXPECT(site, 0, "--plain", "cancel", "r/1/regular/quick", "--reason", "why not");
    assert_string_equal(site->output.out, "r/1/regular/quick\tcancelled\n");
    EXPECT(site, 3, "cancel", "r/3/regular/quick");
    (void)fixture_submit(fx, "r/4/regular/quick");
    EXPECT(site, 1, "retry", "r/4/regular/quick"); // The job had not failed.
    fixture_user_one_line(site);
    EXPECT(site, 3, "logs", "r/4/regular/quick", "--json"); // The job has no log.
    fixture_user_one_line(site);
    assert_holds(site->output.err, "'r/4/regular/quick' has no log, because no worker has started "
                                   "it (it is queued); `evalq show r/4/regular/quick` says more\n");
    assert_string_equal(site->output.out, "");
    (void)fixture_submit(fx, "r/5/regular/quick");
    EXPECT(site, 2, "cancel", "r");
    assert_holds(site->output.err, "--yes");
    fixture_assert_state(fx, "r/4/regular/quick", "queued");
    EXPECT(site, 0, "cancel", "r", "--yes", "--json");
    doc = fixture_user_json(site);
    assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 2);
    json_decref(doc);
    fixture_assert_state(fx, "r/5/regular/quick", "cancelled");
    EXPECT(site, 2, "forget", "r");
    EXPECT(site, 0, "forget", "r", "--yes");
    EXPECT(site, 3, "forget", "r", "--yes");

    // The record is invalid, so the job is set aside.
    (void)fixture_submit(fx, "aside/1/regular/quick");
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, "job:aside/1/regular/quick"),
                                "place", "x", NULL));
    fixture_claim_none(fx);
    EXPECT(site, 0, "dead", "--bad");
    assert_holds(site->output.out, "aside/1/regular/quick");
    EXPECT(site, 0, "forget", "aside", "--yes");
    assert_holds(site->output.err, "forgot 'aside' with 0 jobs");
    EXPECT(site, 3, "forget", "aside", "--yes");
    fixture_user_one_line(site);
    EXPECT(site, 3, "show", "r/1/regular/quick");
    fixture_audit(fx);
}

/* The last bytes of a log may begin inside a character, and a log may contain any bytes. */
static void logs_prints_any_bytes_of_the_requested_attempt_only(void **state)
{
    struct site *site = *state;
    struct evq_queue_info info;
    char scratch[160];
    char path[PATH_MAX];

    fixture_user_fail(site, "r/1/regular/quick", "failed", "its last words");
    assert_status(evq_queue_info(site->fx->queue, &info, NULL), EVQ_OK);
    (void)snprintf(scratch, sizeof scratch, "%s/scratch", site->dir);
    assert_true(
        evq_attempt_log_path(scratch, info.epoch, "r/1/regular/quick", 1, path, sizeof path));
    (void)snprintf(scratch, sizeof scratch, "%s/scratch/logs", site->dir);
    assert_status(evq_file_make_directories(scratch, 0700, NULL), EVQ_OK);
    assert_status(evq_file_replace(path, "\x88\xe2\x96\x88 caf\xe9", 8, 0600, NULL), EVQ_OK);
    EXPECT(site, 0, "logs", "r/1/regular/quick", "--json");
    json_t *doc = fixture_user_json(site);
    assert_string_equal(json_string_value(json_object_get(doc, "log")),
                        "\xef\xbf\xbd\xe2\x96\x88 caf");
    assert_string_equal(json_string_value(json_object_get(doc, "file")), path);
    json_decref(doc);
    assert_status(evq_file_replace(path, "", 0, 0600, NULL), EVQ_OK);
    EXPECT(site, 0, "logs", "r/1/regular/quick");
    assert_string_equal(site->output.out, "");
    assert_string_equal(site->output.err,
                        "evalq: the log of attempt 1 of 'r/1/regular/quick' is empty, because its "
                        "evaluator printed nothing; `evalq show r/1/regular/quick` says how the "
                        "job ended\n");
    assert_int_equal(unlink(path), 0);
    EXPECT(site, 0, "logs", "r/1/regular/quick");
    assert_holds(site->output.err,
                 "the log of attempt 1 is not on this host; its worker 'worker-1' kept "
                 "this end of it:\n");
    EXPECT(site, 0, "logs", "r/1/regular/quick", "--attempt", "1", "--json");
    doc = fixture_user_json(site);
    assert_string_equal(json_string_value(json_object_get(doc, "detail")), "its last words");
    assert_true(json_is_null(json_object_get(doc, "log")));
    json_decref(doc);
    EXPECT(site, 3, "logs", "r/1/regular/quick", "--attempt", "2", "--json");
    fixture_user_one_line(site);
    EXPECT(site, 3, "logs", "r/1/regular/quick", "--attempt", "2");
    assert_holds(site->output.err, "has no attempt 2; its last attempt is 1\n");
    assert_string_equal(site->output.out, "");
}

/* A wrong run name must not look like a run without jobs. */
static void verbs_of_a_run_report_that_the_run_does_not_exist(void **state)
{
    struct site *site = *state;

    (void)fixture_submit(site->fx, "r/1/regular/quick");
    EXPECT(site, 3, "cancel", "R", "--yes");
    assert_holds(site->output.err, "has no run 'R'");
    fixture_user_one_line(site);
    EXPECT(site, 3, "retry", "--dead", "--run", "R", "--json");
    assert_string_equal(site->output.out, "");
    EXPECT(site, 3, "dead", "R", "--json");
    assert_string_equal(site->output.out, "");
    EXPECT(site, 2, "retry", "--dead", "--run", "no run");
    EXPECT(site, 0, "retry", "--dead", "--run", "r", "--json");
    EXPECT(site, 0, "dead", "r", "--json");
    EXPECT(site, 0, "dead", "--bad", "--json");
    EXPECT(site, 0, "cancel", "r", "--yes");
    // A repeated call succeeds, because the first one may have been cut off after its work.
    EXPECT(site, 0, "cancel", "r", "--yes");
}

static void verbs_of_a_run_name_the_newest_runs_if_it_is_missing(void **state)
{
    struct site *site = *state;

    (void)fixture_submit(site->fx, "r/1/regular/quick");
    EXPECT(site, 2, "best");
    assert_holds(site->output.err, "usage: evalq best RUN [METRIC] [--significant]; "
                                   "the newest runs are r\n");
    fixture_user_one_line(site);
    for (char id[] = "a/1/regular/quick"; id[0] <= 'd'; id[0]++) {
        (void)fixture_submit(site->fx, id);
    }
    EXPECT(site, 2, "forget");
    assert_holds(site->output.err, "and 2 more\n");
    fixture_user_one_line(site);
    EXPECT(site, 2, "best", "a", "b", "c"); // No run is missing.
    assert_null(strstr(site->output.err, "newest"));
    EXPECT(site, 2, "--url", "redis://127.0.0.1:1", "best"); // Redis does not answer.
    assert_holds(site->output.err, "[--significant]\n");
    fixture_user_one_line(site);
}

/* Returns a number of Redis' INFO. */
static long long redis_number(struct fixture *fx, const char *field)
{
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "stats", NULL);
    const char *at = strstr(reply->text, field);

    assert_non_null(at);
    const long long number = strtoll(at + strlen(field) + 1, NULL, 10);
    evq_reply_free(reply);
    return number;
}

enum { RUN_JOBS = 300 }; // The number of jobs needs several slices; the last one is not full.

static void submit_run(struct fixture *fx)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    for (int i = 1; i <= RUN_JOBS; i++) {
        (void)snprintf(id, sizeof id, "r/%d/regular/quick", i);
        (void)fixture_submit(fx, id);
    }
}

/* Returns how many jobs in the JSON output are in a state. */
static size_t count_of(struct site *site, const char *state)
{
    json_t *doc = fixture_user_json(site);
    size_t index, count = 0;
    const json_t *job;

    json_array_foreach(json_object_get(doc, "jobs"), index, job)
    {
        count += strcmp(json_string_value(json_object_get(job, "state")), state) == 0;
    }
    json_decref(doc);
    return count;
}

/* Thousands of jobs must not need thousands of round trips, so many requests are sent together. */
static void many_jobs_are_changed_in_few_round_trips(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;

    submit_run(fx);
    struct evq_claim *claim = fixture_claim(fx);
    long long reads = redis_number(fx, "total_reads_processed");
    EXPECT(site, 0, "cancel", "r", "--yes", "--json");
    reads = redis_number(fx, "total_reads_processed") - reads;
    assert_in_range(reads, 1, RUN_JOBS / 4);
    assert_int_equal(count_of(site, "cancelled"), RUN_JOBS - 1);
    assert_int_equal(count_of(site, "running"), 1);
    // The call is repeated, as after an interruption.
    EXPECT(site, 0, "cancel", "r", "--yes", "--json");
    assert_int_equal(count_of(site, "running"), 1);
    assert_int_equal(count_of(site, "cancelled"), 0);
    // Redis rejects writes. The error is printed once, not for each job.
    evq_reply_free(fixture_call(fx->raw, "CONFIG", "SET", "min-replicas-to-write", "1", NULL));
    EXPECT(site, 5, "retry", "r/1/regular/quick", "r/2/regular/quick");
    assert_holds(site->output.err,
                 "evalq: 0 of 2 jobs were answered; run the command again for the rest");
    char *said = strstr(site->output.err, "NOREPLICAS");
    assert_non_null(said);
    assert_null(strstr(said + 1, "NOREPLICAS"));
    evq_reply_free(fixture_call(fx->raw, "CONFIG", "SET", "min-replicas-to-write", "0", NULL));
    // A missing job does not keep the others from being changed.
    EXPECT(site, 3, "retry", "r/999/regular/quick", "r/300/regular/quick", "r/998/regular/quick",
           "--json");
    assert_int_equal(count_of(site, "queued"), 1);
    assert_holds(site->output.err, "no job r/999/regular/quick");
    assert_holds(site->output.err, "no job r/998/regular/quick");
    evq_claim_free(claim);
    fixture_audit(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lists_show_the_whole_reason_of_a_job, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(job_verbs_act_on_jobs, setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(logs_prints_any_bytes_of_the_requested_attempt_only, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(verbs_of_a_run_report_that_the_run_does_not_exist, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(verbs_of_a_run_name_the_newest_runs_if_it_is_missing, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(many_jobs_are_changed_in_few_round_trips, setup,
                                        fixture_user_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
