/*
 * Tests evalq with a real Redis: the verbs that show, operate, wait and administer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fixture/user.h"

static int setup(void **state)
{
    return fixture_user_setup(state, EVQ_TEST_BIN "/evalq");
}

static void pause_holds_until_resume(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    static const char *const kinds[][2] = {{"queue", NULL}, {"suite", "quick"}, {"run", "r"}};
    (void)fixture_submit(fx, "r/1/regular/quick");
    for (size_t i = 0; i < 3; i++) {
        EXPECT(site, 0, "pause", kinds[i][0], kinds[i][1]);
        fixture_claim_none(fx);
        EXPECT(site, 0, "show", "r/1/regular/quick");
        if (i < 2) { // There is no worker, which is the first reason even of a paused run.
            assert_holds(site->output.out, "paused");
        }
        EXPECT(site, 0, "resume", kinds[i][0], kinds[i][1]);
        struct evq_claim *claim = fixture_claim(fx);
        assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        evq_claim_free(claim);
    }
}

static void limits_hold_until_they_are_lifted(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    static const char *const kinds[][2] = {{"run", "r"}, {"suite", "quick"}};
    (void)fixture_submit(fx, "r/1/regular/quick");
    (void)fixture_submit(fx, "r/2/regular/quick");
    for (size_t i = 0; i < 2; i++) {
        EXPECT(site, 0, "admin", "limit", kinds[i][0], kinds[i][1], "--cap", "1");
        assert_holds(site->output.err, "at most 1 job of");
        struct evq_claim *claim = fixture_claim(fx);
        fixture_claim_none(fx);
        EXPECT(site, 0, "admin", "limit", kinds[i][0], kinds[i][1], "--cap", "0");
        struct evq_claim *other = fixture_claim(fx);
        assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
        assert_status(evq_queue_release(fx->queue, other->id, other->token, NULL), EVQ_OK);
        evq_claim_free(claim);
        evq_claim_free(other);
    }
    EXPECT(site, 0, "admin", "limit", "run", "r", "--weight", "300");
    EXPECT(site, 2, "admin", "limit", "run", "r");
    EXPECT(site, 2, "admin", "limit", "suite", "quick", "--weight", "300");
    EXPECT(site, 2, "admin", "limit", "queue", "main", "--cap", "1");
    fixture_user_one_line(site);
}

/* Retention has removed the first hundreds of results of a long training. */
static void results_are_shown_when_retention_removed_earlier_ones(void **state)
{
    struct site *site = *state;

    fixture_finish_and_retain_one(site->fx, "r");
    EXPECT(site, 0, "results", "r");
    assert_holds(site->output.out, "99");
    EXPECT(site, 0, "compare", "r");
    EXPECT(site, 0, "watch", "r");
    assert_holds(site->output.out, "at step 99");
}

static void results_come_as_table_csv_and_json(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    EXPECT(site, 3, "results", "r");
    fixture_user_one_line(site);
    EXPECT(site, 0, "results");
    fixture_finish(fx, "r/1/regular/quick", 0.25);
    fixture_finish(fx, "r/2/regular/quick", 0.75);
    fixture_finish(fx, "r/3/regular/quick", 0.5);
    EXPECT(site, 0, "results", "r");
    assert_holds(site->output.out, "accuracy");
    assert_holds(site->output.out, "0.75*");
    assert_null(strstr(site->output.out, "0.5*"));
    EXPECT(site, 0, "results", "r", "--csv");
    assert_int_equal(strncmp(site->output.out, "run,step,variant,suite,task,metric,value,", 41), 0);
    int lines = 0;
    for (const char *at = site->output.out; (at = strstr(at, "\r\n")) != NULL; at += 2) {
        lines++;
    }
    assert_int_equal(lines, 4);
    assert_holds(site->output.out, "r,2,regular,quick,t,accuracy,0.75,");
    EXPECT(site, 0, "results", "r", "--json");
    json_t *doc = fixture_user_json(site);
    assert_int_equal(json_array_size(json_object_get(doc, "results")),
                     6); // There are three tasks and three ends of jobs.
    json_decref(doc);
    EXPECT(site, 0, "results", "--json");
    json_decref(fixture_user_json(site));
    EXPECT(site, 2, "results", "r", "--json", "--csv");
    EXPECT(site, 0, "watch", "r");
    assert_holds(site->output.out, "best accuracy 0.75 at step 2");
    EXPECT(site, 3, "watch", "none");
    EXPECT(site, 3, "best", "r");
    fixture_user_one_line(site);
    struct evq_best best = {.run = "r",
                            .metric = "eval/t/accuracy",
                            .value = 0.75,
                            .step = 2,
                            .job = "r/2/regular/quick",
                            .checkpoint = "work:out/step-2"};
    assert_status(evq_queue_best_put(fx->queue, &best, NULL), EVQ_OK);
    EXPECT(site, 0, "best", "r", "eval/t/accuracy", "--json");
    doc = fixture_user_json(site);
    assert_int_equal(json_integer_value(json_object_get(doc, "step")), 2);
    json_decref(doc);
    EXPECT(site, 0, "--plain", "best", "r");
    // The checkpoint does not exist: its weights were not kept.
    assert_string_equal(site->output.out, "2\t0.75\teval/t/accuracy\t\n");
    EXPECT(site, 3, "results", "--replay", "nosink");
}

/* A loss is cleared when the results of all runs have been repeated. Runs are listed in pages. */
static void replay_repeats_what_the_last_of_many_runs_lost(void **state)
{
    static const char fill[] = "for i = 1, 1000 do redis.call('ZADD', KEYS[1], i, 'run' .. i) end";
    struct site *site = *state;
    struct fixture *fx = site->fx;

    assert_status(evq_queue_sink_open(fx->queue, "jsonl", NULL), EVQ_OK);
    fixture_finish(fx, "old/1/regular/quick", 0.5);
    evq_reply_free(fixture_call(fx->raw, "EVAL", fill, "1", fixture_key(fx, "runs"), NULL));
    evq_reply_free(fixture_call(fx->raw, "ZADD", fixture_key(fx, "runs"), "0", "old", NULL));
    evq_reply_free(fixture_call(fx->raw, "RPUSH", fixture_key(fx, "loss"),
                                "{\"sink\":\"jsonl\",\"from\":\"1-0\",\"to\":\"9999999999999-0\"}",
                                NULL));
    EXPECT(site, 0, "results", "--replay", "jsonl");
    assert_holds(site->output.err, "evalq: 2 lost results will be delivered too");
    assert_int_equal(fixture_call_integer(fx->raw, "LLEN", fixture_key(fx, "loss"), NULL), 0);
    evq_reply_free(fixture_call(fx->raw, "ZADD", fixture_key(fx, "runs"), "0", "bare", NULL));
    EXPECT(site, 0, "forget", "bare", "--yes"); // The run has no jobs, and is on the last page.
}

static void wait_reports_how_the_jobs_ended(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    EXPECT(site, 3, "wait", "r");
    fixture_user_one_line(site);
    EXPECT(site, 3, "wait", "r/1/regular/quick");
    (void)fixture_submit(fx, "r/1/regular/quick");
    EXPECT(site, 124, "wait", "r", "--timeout", "0");
    fixture_user_one_line(site);
    EXPECT(site, 124, "wait", "r/1/regular/quick", "--timeout", "0");
    fixture_user_one_line(site);
    static const char blocked[] = "r/1/regular/quick waits: no worker offers suite quick\n";
    EXPECT(site, 124, "wait", "r", "--timeout", "2");
    assert_non_null(strstr(site->output.err, blocked));
    EXPECT(site, 124, "wait", "r/1/regular/quick", "--timeout", "2");
    assert_non_null(strstr(site->output.err, blocked));
    pid_t pid =
        fixture_program_start(&site->program, "wait", "wait", "r", "--timeout", "30", (char *)NULL);
    struct evq_claim *claim = fixture_claim(fx);
    fixture_publish(fx, claim, "t", 0.5);
    assert_status(evq_queue_complete(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    evq_claim_free(claim);
    assert_int_equal(fixture_program_wait(pid), 0);
    EXPECT(site, 0, "wait", "r/1/regular/quick", "--json");
    json_t *doc = fixture_user_json(site);
    assert_int_equal(json_array_size(json_object_get(doc, "results")), 1);
    json_decref(doc);
    fixture_user_fail(site, "r/2/regular/quick", "cannot be", "");
    EXPECT(site, 4, "wait", "r");
    EXPECT(site, 4, "wait", "r/2/regular/quick");
    assert_holds(site->output.err, "cannot be");
    (void)fixture_submit(fx, "r/3/regular/quick");
    evq_reply_free(fixture_call(fx->raw, "UNLINK", fixture_key(fx, "job:r/3/regular/quick"), NULL));
    fixture_claim_none(fx);
    EXPECT(site, 9, "wait", "r/3/regular/quick");
    assert_holds(site->output.err, "was set aside: ");
    fixture_user_one_line(site);
}

static void *reload(void *context)
{
    evq_reply_free(fixture_call(context, "DEBUG", "RELOAD", NULL));
    return NULL;
}

static bool loads(struct fixture *fx)
{
    return fixture_ping(fx->raw, NULL) == EVQ_E_RETRY;
}

/* A Redis that loads its data until it is told to finish, independent of the machine's speed. */
struct loading {
    struct fixture *fx;
    struct evq_conn *conn; // This connection asked for the load, and gets its answer at the end.
    pthread_t thread;
};

static void loading_delay(struct fixture *fx, const char *key_us)
{
    evq_reply_free(fixture_call(fx->raw, "CONFIG", "SET", "key-load-delay", key_us, NULL));
}

/* 10,000 keys of at least 10 ms each take at least 100 s, ten times longer than a verb waits. */
static struct loading loading_begin(struct fixture *fx)
{
    struct loading loading = {.fx = fx, .conn = fixture_redis_conn(fx->redis)};

    evq_reply_free(fixture_call(fx->raw, "DEBUG", "POPULATE", "10000", NULL));
    evq_reply_free(fixture_call(fx->raw, "CONFIG", "SET", "loading-process-events-interval-bytes",
                                "1024", NULL));
    loading_delay(fx, "10000");
    assert_int_equal(pthread_create(&loading.thread, NULL, reload, loading.conn), 0);
    FIXTURE_UNTIL(loads(fx));
    return loading;
}

static void loading_end(struct loading *loading)
{
    loading_delay(loading->fx, "0");
    assert_int_equal(pthread_join(loading->thread, NULL), 0);
    evq_conn_close(loading->conn);
    assert_false(loads(loading->fx));
}

static int clients_connected(struct fixture *fx)
{
    struct evq_reply *reply = fixture_call(fx->raw, "INFO", "clients", NULL);
    const char *at = strstr(reply->text, "connected_clients:");
    assert_non_null(at);
    const int count = atoi(at + strlen("connected_clients:"));
    evq_reply_free(reply);
    return count;
}

static void wait_begins_while_redis_loads_its_data(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;

    fixture_finish(fx, "r/1/regular/quick", 0.5);
    struct loading loading = loading_begin(fx);
    const int before = clients_connected(fx);
    EXPECT(site, 124, "wait", "r", "--timeout", "0");
    fixture_user_one_line(site);
    FIXTURE_UNTIL(clients_connected(fx) == before); // Redis has noticed that the client left.
    const pid_t wait =
        fixture_program_start(&site->program, "wait", "wait", "r", "--timeout", "60", (char *)NULL);
    const pid_t watch = fixture_program_start(&site->program, "watch", "watch", "r", "--timeout",
                                              "60", (char *)NULL);
    FIXTURE_UNTIL(clients_connected(fx) == before + 2); // Both clients have asked, and must wait.
    loading_end(&loading);
    assert_int_equal(fixture_program_wait(wait), 0);
    assert_int_equal(fixture_program_wait(watch), 0);
}

/* A verb that normally answers at once also waits for the load, but only for a limited time. */
static void every_verb_waits_a_while_for_redis_to_load_its_data(void **state)
{
    static const char says[] = "Redis asks to wait; trying for at most 10 s";
    struct site *site = *state;
    struct loading loading = loading_begin(site->fx);

    const pid_t pid = fixture_program_start(&site->program, "status", "status", (char *)NULL);
    FIXTURE_UNTIL(fixture_file_holds(site->program.dir, "status.err", says) == 1);
    loading_end(&loading);
    assert_int_equal(fixture_program_wait(pid), 0);
    assert_int_equal(fixture_file_holds(site->program.dir, "status.err", "LOADING"), 0);

    loading = loading_begin(site->fx);
    EXPECT(site, 5, "status");
    assert_holds(site->output.err, says);
    assert_holds(site->output.err, "LOADING");
    loading_end(&loading);
}

/* A job ends. After a time without open jobs, another one is submitted. */
static void watch_follows_over_the_gap_between_checkpoints(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    char path[128];
    char line[4096];

    EXPECT(site, 3, "watch", "r");
    EXPECT(site, 3, "watch", "r", "--follow", "--timeout", "0");
    pid_t pid = fixture_program_start(&site->program, "watch", "watch", "r", "--follow", "--json",
                                      (char *)NULL);
    snprintf(path, sizeof path, "%s/watch.out", site->program.dir);
    for (int step = 1; step <= 2; step++) {
        char id[64];
        snprintf(id, sizeof id, "r/%d/regular/quick", step);
        fixture_finish(fx, id, 0.25 * step); // The task and the job end.
        FIXTURE_UNTIL(fixture_file_holds(site->program.dir, "watch.out", "{") == 2 * step);
    }
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(fixture_program_wait(pid), -SIGINT); // The program was still running.
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int at = 0; at < 4; at++) {
        assert_non_null(fgets(line, sizeof line, file));
        json_t *doc = json_loads(line, 0, NULL);
        assert_non_null(doc);
        assert_int_equal(json_integer_value(json_object_get(doc, "step")), 1 + at / 2);
        json_decref(doc);
    }
    fclose(file);
    EXPECT(site, 0, "watch", "r"); // Without --follow, watch ends when no job is open.
}

static void status_warns_first_and_says_why_jobs_wait(void **state)
{
    struct site *site = *state;
    struct fixture *fx = site->fx;
    (void)fixture_submit(fx, "r/1/regular/nobody");
    EXPECT(site, 0, "status");
    assert_int_equal(strncmp(site->output.out, "problem: 1 job waits and no worker is alive", 43),
                     0);
    assert_holds(site->output.out, "AOF is off");
    assert_holds(site->output.out, "no worker offers suite nobody");
    assert_null(strchr(site->output.out, '\033'));
    EXPECT(site, 0, "status", "--color=always");
    assert_non_null(strchr(site->output.out, '\033'));
    struct evq_reply *reply =
        fixture_call(fx->raw, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru", NULL);
    evq_reply_free(reply);
    EXPECT(site, 0, "status", "--json");
    json_t *doc = fixture_user_json(site);
    assert_int_equal(json_array_size(json_object_get(doc, "waiting")), 1);
    assert_holds(site->output.out, "the eviction policy is allkeys-lru");
    json_decref(doc);
    EXPECT(site, 0, "status", "--plain");
    assert_holds(site->output.out, "\ncount\tqueued\t1\n");
    EXPECT(site, 1, "doctor", "--json");
    doc = fixture_user_json(site);
    assert_true(json_integer_value(json_object_get(doc, "failed")) >=
                2); // There are two warnings: no worker, and no data files.
    json_decref(doc);
    EXPECT(site, 5, "--url", "unix:///nowhere/at.all", "doctor");
    assert_holds(site->output.out, "connection");
    assert_holds(site->output.out, "roots");
    assert_status(evq_queue_quarantine(fx->queue, "rubbish", 7, "not \033 a record", NULL), EVQ_OK);
    EXPECT(site, 0, "dead", "--bad");
    assert_holds(site->output.out, "a record");
    assert_null(strchr(site->output.out, '\033'));
}

static void doctor_reports_missing_data_files_of_any_name(void **state)
{
    struct site *site = *state;
    fixture_file_write(site->dir, "own.yaml",
                       "suites:\n  s:\n    tasks:\n      - name: t\n        type: classification\n"
                       "        data: {format: idx, inputs: there, labels: [gone, gone.too], "
                       "tokens: hub://elsewhere}\n");
    fixture_file_write(site->dir, "there", "x");
    EXPECT(site, 1, "doctor", "--config", "own.yaml");
    assert_holds(site->output.out, "/gone': No such file");
    assert_holds(site->output.out, "/gone.too': No such file");
    assert_null(strstr(site->output.out, "/there'"));
    assert_null(strstr(site->output.out, "elsewhere"));
    assert_null(strstr(site->output.out, "data files of all suites"));
}

static void doctor_reports_a_missing_evaluator_program(void **state)
{
    struct site *site = *state;
    fixture_file_write(site->dir, "own.yaml",
                       "evaluators:\n  here: {argv: [/bin/sh]}\n  gone: {argv: [/no/program]}\n");
    EXPECT(site, 1, "doctor", "--config", "own.yaml");
    assert_holds(site->output.out, "gone: the program '/no/program' is not there");
    assert_holds(site->output.out, "here: /bin/sh\n");
}

static void suites_are_listed_and_replaced(void **state)
{
    struct site *site = *state;
    EXPECT(site, 0, "admin", "suite", "list");
    assert_holds(site->output.out, "quick");
    EXPECT(site, 0, "admin", "suite", "list", "--json");
    json_decref(fixture_user_json(site));
    EXPECT(site, 2, "admin", "suite", "replace", "quick");
    assert_holds(site->output.err, "--yes");
    EXPECT(site, 0, "admin", "suite", "replace", "quick", "--yes");
    EXPECT(site, 0, "admin", "suite", "list");
    assert_holds(site->output.out, "evalq.yaml");
    EXPECT(site, 3, "admin", "suite", "replace", "quikc", "--yes");
    fixture_user_one_line(site);
    assert_holds(site->output.err, "did you mean 'quick'? There are ");
}

/* A server accepts the ACL file, and its roles have exactly the permissions that they need. */
static void acl_file_is_accepted_and_separates_roles(void **state)
{
    struct site *site = *state;
    char path[256];
    char url[256];
    fixture_file_write(site->dir, "passwords",
                       "init i\nproducer p\nworker w\nlogger l\ngateway g\nviewer v\nadmin a\n");
    (void)snprintf(path, sizeof path, "%s/passwords", site->dir);
    assert_int_equal(chmod(path, 0644), 0);
    EXPECT(site, 1, "admin", "acl", "--passwords", "passwords");
    assert_int_equal(chmod(path, 0600), 0);
    EXPECT(site, 0, "admin", "acl", "--passwords", "passwords", "--offline");
    assert_null(strstr(site->output.out, "client|setinfo"));
    EXPECT(site, 0, "admin", "acl", "--passwords", "passwords");
    assert_holds(site->output.out, "user default off");
    assert_null(strstr(site->output.out, " p "));
    static char whole[sizeof site->output.out];
    (void)snprintf(whole, sizeof whole, "%s", site->output.out);
    // A directory with one file for each role gives the same ACL. Without a server, the ACL is for
    // version 7.0.
    char secrets[128];
    (void)snprintf(secrets, sizeof secrets, "%s/secrets", site->dir);
    assert_int_equal(mkdir(secrets, 0700), 0);
    static const char *const files[][2] = {{"init", "i"},   {"producer", "p"}, {"worker", "w"},
                                           {"logger", "l"}, {"gateway", "g"},  {"viewer", "v"},
                                           {"admin", "a\n"}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        fixture_file_write(secrets, files[i][0], files[i][1]);
        char file[256];
        (void)snprintf(file, sizeof file, "%s/%s", secrets, files[i][0]);
        assert_int_equal(chmod(file, 0600), 0);
    }
    EXPECT(site, 0, "admin", "acl", "--passwords", "secrets");
    assert_string_equal(site->output.out, whole);
    EXPECT(site, 0, "--url", "unix:///nowhere/at.all", "admin", "acl", "--passwords", "secrets");
    assert_holds(site->output.err, "no server to ask");
    assert_holds(site->output.out, "user worker on #");
    (void)snprintf(path, sizeof path, "%s/users.acl", site->dir);
    const char *options[] = {"--aclfile", path, NULL};
    // The fixture's own connections use the default user, which the ACL file disables. Its password
    // check would fail.
    char with_default[sizeof site->output.out];
    (void)snprintf(with_default, sizeof with_default, "user default on nopass ~* &* +@all\n%s",
                   strchr(whole, '\n') + 1);
    fixture_file_write(site->dir, "users.acl", with_default);
    struct fixture_redis *redis =
        fixture_redis_start(&(struct fixture_redis_config){.options = options});
    static const char *const steps[][5] = {
        {"init", "i", "0", "admin", "install"}, {"viewer", "v", "0", "status", NULL},
        {"viewer", "v", "6", "pause", NULL},    {"producer", "p", "0", "results", NULL},
        {"worker", "w", "0", "dead", NULL},     {"logger", "l", "0", "results", NULL},
        {"gateway", "g", "0", "status", NULL},  {"admin", "a", "0", "status", NULL},
        {"admin", "a", "0", "pause", NULL},     {"admin", "a", "0", "admin", "install"},
        {"viewer", "x", "6", "status", NULL},
    };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        char password[128];
        (void)snprintf(password, sizeof password, "%s/secret", site->dir);
        fixture_file_write(site->dir, "secret", steps[i][1]);
        assert_int_equal(chmod(password, 0600), 0);
        (void)snprintf(url, sizeof url, "unix://%s@%s", steps[i][0], redis->socket);
        site->program.url = url;
        site->program.password = password;
        FIXTURE_RUN(site, steps[i][3], steps[i][4]);
        if (site->output.exit_code != atoi(steps[i][2])) {
            fail_msg("%s: %s: exit code %d: %s", steps[i][0], steps[i][3], site->output.exit_code,
                     site->output.err);
        }
    }
    fixture_redis_free(redis);
}

static void man_pages_are_written_for_every_verb(void **state)
{
    struct site *site = *state;
    char path[256];
    (void)snprintf(path, sizeof path, "%s/out", site->dir);
    EXPECT(site, 0, "--write-man", path);
    assert_true(fixture_file_holds(site->dir, "out/evalq.1", "  submit ") > 0);
    assert_true(fixture_file_holds(site->dir, "out/evalq-submit.1", "\\-\\-suite") > 0);
    assert_true(fixture_file_holds(site->dir, "out/evalq-admin.1", ".TH EVALQ-ADMIN 1") > 0);
    // Words that a user types are printed literally, on lines that are not filled.
    assert_true(fixture_file_holds(site->dir, "out/evalq-admin.1", "NAME [\\-\\-cap N]") > 0);
    assert_true(fixture_file_holds(site->dir, "out/evalq-logs.1", "a job\\(aqs last attempt") > 0);
    assert_true(fixture_file_holds(site->dir, "out/evalq-admin.1", ".nf") > 0);
    EXPECT(site, 1, "--write-man", "/nowhere");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pause_holds_until_resume, setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(limits_hold_until_they_are_lifted, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(results_are_shown_when_retention_removed_earlier_ones,
                                        setup, fixture_user_teardown),
        cmocka_unit_test_setup_teardown(results_come_as_table_csv_and_json, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(replay_repeats_what_the_last_of_many_runs_lost, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(wait_reports_how_the_jobs_ended, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(wait_begins_while_redis_loads_its_data, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(every_verb_waits_a_while_for_redis_to_load_its_data, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(watch_follows_over_the_gap_between_checkpoints, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(status_warns_first_and_says_why_jobs_wait, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(doctor_reports_a_missing_evaluator_program, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(doctor_reports_missing_data_files_of_any_name, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(suites_are_listed_and_replaced, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(acl_file_is_accepted_and_separates_roles, setup,
                                        fixture_user_teardown),
        cmocka_unit_test_setup_teardown(man_pages_are_written_for_every_verb, setup,
                                        fixture_user_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
