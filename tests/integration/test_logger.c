/*
 * Tests the program evalq-logger with a real Redis: results are published in any order while it is
 * killed again and again. Each is in the JSONL file once and in the event files once, and the link
 * points to the best checkpoint.
 */
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "logger/forward.h"
#include "logger/tensorboard/event_reader.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/queue/function_library.h"
#include "shared/queue/queue.h"
#include "tests/fixture/program.h"
#include "tests/fixture/random.h"
#include "tests/fixture/redis.h"

#define STEPS   120
#define JOBS    (STEPS + 2)
#define RESULTS "evalq:{main}:results"

extern char **environ;

struct scene {
    struct fixture_redis *redis;
    struct evq_conn *conn;
    struct evq_queue *queue;
    char directory[64];
    uint64_t random;
    pid_t logger;
};

static void logger_start(struct scene *scene)
{
    char *argv[] = {EVQ_TEST_BIN "/evalq-logger",
                    "--url",
                    scene->redis->url,
                    "--directory",
                    scene->directory,
                    "--log-level",
                    "error",
                    NULL};
    posix_spawn_file_actions_t actions;

    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_addchdir_np(&actions, scene->directory), 0);
    assert_int_equal(posix_spawn(&scene->logger, argv[0], &actions, NULL, argv, environ), 0);
    (void)posix_spawn_file_actions_destroy(&actions);
}

static int logger_end(struct scene *scene, int signal)
{
    int status = 0;

    assert_int_equal(kill(scene->logger, signal), 0);
    assert_int_equal(waitpid(scene->logger, &status, 0), scene->logger);
    scene->logger = -1;
    return status;
}

static int setup_on(void **state, const struct fixture_redis_config *config)
{
    struct scene *scene = calloc(1, sizeof(*scene));
    struct evq_suite_offer offer = {.name = "quick",
                                    .digest = "00000000000000000000000000000001",
                                    .needs = "",
                                    .shards = 1,
                                    .every = 1,
                                    .definition = "{}",
                                    .where = "test"};
    struct evq_error err;
    uint32_t number;
    int64_t build;

    assert_non_null(scene);
    scene->random = fixture_seed();
    scene->logger = -1;
    scene->redis = fixture_redis_start(config);
    scene->conn = fixture_redis_conn(scene->redis);
    fixture_dir_make(scene->directory);
    assert_status_err(evq_function_library_install(scene->conn, &build, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_open(scene->conn, "main", &scene->queue, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_suite_register(scene->queue, &offer, false, &number, &err), EVQ_OK,
                      &err);
    *state = scene;
    return 0;
}

static int setup(void **state)
{
    return setup_on(state, NULL);
}

static int setup_kept(void **state)
{
    return setup_on(state, &(struct fixture_redis_config){.aof = true});
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    if (scene->logger > 0) {
        (void)logger_end(scene, SIGKILL);
    }
    evq_queue_close(scene->queue);
    evq_conn_close(scene->conn);
    fixture_redis_free(scene->redis);
    fixture_dir_remove(scene->directory);
    free(scene);
    return 0;
}

static void job_submit(struct scene *scene, const char *run, int64_t step)
{
    struct evq_submitted submitted;
    struct evq_error err;
    char path[64];
    struct evq_job *job = evq_job_new();

    assert_non_null(job);
    (void)snprintf(path, sizeof(path), "step-%lld", (long long)step);
    job->run = run;
    job->step = step;
    job->suite = "quick";
    job->root = "here";
    job->path = path;
    assert_status_err(evq_queue_submit(scene->queue, job, 0, &submitted, &err), EVQ_OK, &err);
    assert_int_equal(submitted.answer, EVQ_SUBMIT_QUEUED);
    evq_job_free(job);
}

/* Claims all queued jobs; claims has space for STEPS. */
static void jobs_claim(struct scene *scene, struct evq_claim **claims, uint32_t count)
{
    struct evq_class classes[EVQ_QUEUE_CLASSES_MAX];
    struct evq_claimed claimed;
    struct evq_error err;
    char request[32];
    uint32_t class_count;
    int64_t version;
    uint32_t total = 0;

    assert_status_err(evq_queue_classes(scene->queue, classes, &class_count, &version, &err),
                      EVQ_OK, &err);
    assert_true(class_count >= 1);
    while (total < count) {
        (void)snprintf(request, sizeof(request), "request-%u", total);
        struct evq_claim_request ask = {.worker = "w",
                                        .request = request,
                                        .lease_ms = 600000,
                                        .claims_max = count - total < 64 ? count - total : 64,
                                        .classes = &classes[0].number,
                                        .class_count = 1};
        assert_status_err(evq_queue_claim(scene->queue, &ask, claims + total, &claimed, &err),
                          EVQ_OK, &err);
        assert_true(claimed.count > 0);
        total += claimed.count;
    }
}

/* Returns a curve with its maximum at step 77. */
static double accuracy_of(int64_t step)
{
    return 0.9 - 0.001 * (double)(step > 77 ? step - 77 : 77 - step);
}

static void job_finish_with(struct scene *scene, struct evq_claim *claim,
                            const struct evq_metric *metrics, size_t metric_count)
{
    struct evq_error err;
    bool duplicate = true;
    struct evq_result *result = evq_result_new();

    assert_non_null(result);
    assert_non_null(claim->job);
    result->job = claim->id;
    result->run = claim->job->run;
    result->step = claim->job->step;
    result->variant = claim->job->variant;
    result->suite = claim->job->suite;
    result->task = "digits";
    result->state = EVQ_JOB_DONE;
    result->metrics = metrics;
    result->metric_count = metric_count;
    result->checkpoint = "here:checkpoint";
    assert_status_err(
        evq_queue_publish(scene->queue, claim->id, claim->token, result, &duplicate, &err), EVQ_OK,
        &err);
    assert_false(duplicate);
    assert_status_err(evq_queue_complete(scene->queue, claim->id, claim->token, &err), EVQ_OK,
                      &err);
    evq_result_free(result);
}

static void job_finish(struct scene *scene, struct evq_claim *claim)
{
    const struct evq_metric metric = {
        .name = "accuracy", .value = accuracy_of(claim->job->step), .higher_is_better = 1};

    job_finish_with(scene, claim, &metric, 1);
}

/* Returns how many task lines the JSONL file has, and fails if a step occurs twice. */
static int lines_count(const struct scene *scene, int *seen)
{
    char path[128];
    char line[8192];
    int count = 0;

    (void)snprintf(path, sizeof(path), "%s/digits/results.jsonl", scene->directory);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return 0;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        json_t *object = json_loads(line, 0, NULL);
        if (object == NULL) {
            break; // This line is still being written.
        }
        if (json_string_length(json_object_get(object, "task")) > 0) {
            if (seen != NULL) {
                seen[json_integer_value(json_object_get(object, "step"))]++;
            }
            count++;
        }
        json_decref(object);
    }
    (void)fclose(file);
    return count;
}

static bool all_acknowledged(struct scene *scene, size_t wanted)
{
    struct evq_error err;
    char *text = NULL;
    bool all = true;
    size_t sinks = 0;
    size_t at;
    json_t *sink;

    assert_status_err(evq_queue_stats(scene->queue, &text, &err), EVQ_OK, &err);
    json_t *stats = json_loads(text, 0, NULL);
    assert_non_null(stats);
    json_array_foreach(json_object_get(stats, "sinks"), at, sink)
    {
        sinks++;
        all = all && json_integer_value(json_object_get(sink, "lag")) == 0 &&
              json_integer_value(json_object_get(sink, "pending")) == 0;
    }
    json_decref(stats);
    free(text);
    return all && sinks == wanted;
}

/* Asserts that there is one sorted event file in which each point occurs once. */
static void assert_event_files_complete(const struct scene *scene)
{
    struct evq_event_reader reader;
    struct evq_error err;
    char path[PATH_MAX];
    char **names = NULL;
    size_t count = 0;
    bool found = true;
    int64_t step = -1;

    (void)snprintf(path, sizeof(path), "%s/tensorboard/digits", scene->directory);
    assert_status_err(evq_event_names(path, &names, &count, &err), EVQ_OK, &err);
    assert_int_equal(count, 1);
    (void)snprintf(path, sizeof(path), "%s/tensorboard/digits/%s", scene->directory, names[0]);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    evq_event_reader_init(&reader, fd);
    assert_status_err(evq_event_reader_next(&reader, &found, &err), EVQ_OK, &err);
    assert_string_equal(reader.event.tag, ""); // This is the version record.
    for (; found; step++) {
        assert_true(step < 0 ||
                    (reader.event.step == step && reader.event.value == (float)accuracy_of(step)));
        assert_string_equal(reader.event.tag, step < 0 ? "" : "eval/digits/accuracy");
        assert_status_err(evq_event_reader_next(&reader, &found, &err), EVQ_OK, &err);
    }
    assert_int_equal(step, STEPS);
    evq_event_reader_free(&reader);
    evq_file_close(&fd);
    evq_event_names_free(names, count);
}

static bool is_linked(const struct scene *scene, const char *name)
{
    char link[160];
    char target[256] = "";

    (void)snprintf(link, sizeof(link), "%s/digits/%s", scene->directory, name);
    return readlink(link, target, sizeof(target) - 1) > 0 && strcmp(target, "here:checkpoint") == 0;
}

static void logger_records_each_result_once_when_killed_at_random_points(void **state)
{
    struct scene *scene = *state;
    struct evq_claim *claims[JOBS];
    struct evq_error err;
    struct evq_best best;
    int seen[STEPS] = {0};
    int kills = 0;

    for (int64_t i = 0; i < STEPS; i++) {
        job_submit(scene, "digits", i);
    }
    job_submit(scene, ".jsonl.lock", 0); // The entries of these are set aside and delay no others.
    job_submit(scene, ".tensorboard.lock", 0);
    jobs_claim(scene, claims, JOBS);
    for (size_t i = JOBS - 1; i > 0; i--) { // The jobs finish in any order.
        size_t other = (size_t)evq_clock_jitter_ms(&scene->random, 1000000, 90) % (i + 1);
        struct evq_claim *moved = claims[i];
        claims[i] = claims[other];
        claims[other] = moved;
    }
    logger_start(scene);
    for (size_t i = 0; i < JOBS; i++) {
        job_finish(scene, claims[i]);
        evq_claim_free(claims[i]);
        if (i % 6 == 5) {
            // The kill comes between the publication and its acknowledgement, or later.
            int64_t until_ms = fixture_now_ms() + evq_clock_jitter_ms(&scene->random, 40, 100);
            int before = lines_count(scene, NULL);
            while (fixture_now_ms() < until_ms && lines_count(scene, NULL) == before) {
            }
            (void)logger_end(scene, SIGKILL);
            kills++;
            logger_start(scene);
        }
    }
    FIXTURE_UNTIL(all_acknowledged(scene, 3));
    assert_int_equal(WEXITSTATUS(logger_end(scene, SIGTERM)), 0);
    assert_int_equal(kills, STEPS / 6);
    assert_int_equal(lines_count(scene, seen), STEPS);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(seen[i], 1);
    }
    assert_event_files_complete(scene);
    assert_status_err(
        evq_queue_best_get(scene->queue, "digits", "eval/digits/accuracy", &best, &err), EVQ_OK,
        &err);
    assert_int_equal(best.step, 77);
    assert_true(is_linked(scene, "best"));
}

/* A checkpoint is not kept because its evaluation was fast. */
static void logger_links_the_best_of_each_metric_but_of_times(void **state)
{
    static const struct evq_metric metrics[] = {{"eval_runtime", 2.5, -1, NAN},
                                                {"eval_steps_per_second", 40, -1, NAN},
                                                {"a.b/c", 0.5, 1, NAN},
                                                {"a/b.c", 0.5, 1, NAN},
                                                {"loss", 0.5, -1, NAN}};
    struct scene *scene = *state;
    struct evq_claim *claim = NULL;

    job_submit(scene, "digits", 0);
    jobs_claim(scene, &claim, 1);
    logger_start(scene);
    job_finish_with(scene, claim, metrics, 5);
    evq_claim_free(claim);
    FIXTURE_UNTIL(all_acknowledged(scene, 3));
    assert_false(is_linked(scene, "best-eval.digits_runtime"));
    assert_false(is_linked(scene, "best-eval.digits_steps_per_second"));
    assert_true(is_linked(scene, "best-eval.digits.loss"));
    // With dots, the names are one.
    assert_true(is_linked(scene, "best-eval-digits-a.b-c-3d8a2b60"));
    assert_true(is_linked(scene, "best-eval-digits-a-b.c-6ce63313"));
    assert_int_equal(WEXITSTATUS(logger_end(scene, SIGTERM)), 0);
}

static void logger_continues_when_redis_is_killed_or_flushed(void **state)
{
    struct scene *scene = *state;
    struct evq_claim *claims[STEPS];
    int seen[STEPS] = {0};

    for (int64_t i = 0; i < STEPS; i++) {
        job_submit(scene, "digits", i);
    }
    jobs_claim(scene, claims, STEPS);
    logger_start(scene);
    for (size_t i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) {
            FIXTURE_UNTIL(lines_count(scene, NULL) > 0); // The logger reads.
            fixture_redis_kill(scene->redis);
            fixture_redis_restart(scene->redis);
            evq_conn_drop(scene->conn);
        }
        job_finish(scene, claims[i]);
        evq_claim_free(claims[i]);
    }
    FIXTURE_UNTIL(lines_count(scene, NULL) == STEPS);
    evq_reply_free(
        fixture_call(scene->conn, "FLUSHALL", NULL)); // The group is removed; the functions stay.
    int answer = 0;
    assert_int_equal(waitpid(scene->logger, &answer, WNOHANG), 0);
    job_submit(scene, "digits", 5); // After the loss of data, the same job is new to the queue,
    struct evq_claim *again[1];
    struct evq_claimed claimed;
    struct evq_error err;
    uint32_t number = 1;
    const struct evq_claim_request ask = {.worker = "w",
                                          .request = "again",
                                          .lease_ms = 600000,
                                          .claims_max = 1,
                                          .classes = &number,
                                          .class_count = 1};
    assert_status_err(evq_queue_claim(scene->queue, &ask, again, &claimed, &err), EVQ_OK, &err);
    assert_int_equal(claimed.count, 1);
    job_finish(scene, again[0]);
    evq_claim_free(again[0]);
    FIXTURE_UNTIL(all_acknowledged(scene, 3));
    assert_int_equal(WEXITSTATUS(logger_end(scene, SIGTERM)), 0);
    // and its result is the one that the file has.
    assert_int_equal(lines_count(scene, seen), STEPS);
    assert_int_equal(seen[5], 1);
}

/*
 * Returns how many connections read the stream, or did last. unblock: ends their reads without
 * entries.
 */
static int readers(struct scene *scene, bool unblock)
{
    struct evq_reply *list = fixture_call(scene->conn, "CLIENT", "LIST", NULL);
    char id[24];
    int count = 0;

    for (const char *line = list->text; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        const char *reads = strstr(line, "cmd=xreadgroup");
        if (reads != NULL && end != NULL && reads < end && sscanf(line, "id=%23[0-9]", id) == 1) {
            count++;
            if (unblock) {
                evq_reply_free(fixture_call(scene->conn, "CLIENT", "UNBLOCK", id, NULL));
            }
        }
        line = end != NULL ? end + 1 : NULL;
    }
    evq_reply_free(list);
    return count;
}

/* Replaces the stream by a key of another type before the next read. */
static void stream_spoil(struct scene *scene)
{
    int status = 0;

    assert_int_equal(kill(scene->logger, SIGSTOP), 0);
    assert_int_equal(waitpid(scene->logger, &status, WUNTRACED), scene->logger);
    assert_int_equal(readers(scene, true), 3);
    evq_reply_free(fixture_call(scene->conn, "SET", RESULTS, "rubbish", NULL));
    assert_int_equal(kill(scene->logger, SIGCONT), 0);
}

/*
 * This happens before the first entry and after it. The logger creates the stream again, and reads
 * what arrives.
 */
static void logger_continues_when_its_stream_becomes_another_type(void **state)
{
    struct scene *scene = *state;
    struct evq_claim *claims[2];
    int seen[STEPS] = {0};

    job_submit(scene, "digits", 0);
    job_submit(scene, "digits", 1);
    jobs_claim(scene, claims, 2);
    logger_start(scene);
    for (size_t i = 0; i < 2; i++) {
        FIXTURE_UNTIL(readers(scene, false) == 3);
        stream_spoil(scene);
        FIXTURE_UNTIL(
            strcmp(fixture_call_text(scene->conn, "TYPE", RESULTS, NULL).text, "stream") == 0);
        job_finish(scene, claims[i]);
        evq_claim_free(claims[i]);
        FIXTURE_UNTIL(all_acknowledged(scene, 3));
    }
    assert_int_equal(WEXITSTATUS(logger_end(scene, SIGTERM)), 0);
    assert_int_equal(lines_count(scene, seen), 2);
}

/* The logger prints one line that says what is wrong, and exits with the code of its kind. */
static void refuses(struct scene *scene, const char *url, const char *option, const char *value,
                    int code, const char *words)
{
    struct fixture_program logger = {
        .path = EVQ_TEST_BIN "/evalq-logger", .dir = scene->directory, .url = url};
    static struct fixture_output got;

    fixture_program_run(&logger, &got, option, value, NULL);
    assert_int_equal(got.exit_code, code);
    assert_non_null(strstr(got.err, words));
    assert_ptr_equal(strchr(got.err, '\n'), got.err + strlen(got.err) - 1);
}

static void logger_refuses_with_a_line_and_a_code(void **state)
{
    struct scene *scene = *state;
    const char *url = scene->redis->url;
    char away[64];

    (void)snprintf(away, sizeof(away), "redis://127.0.0.1:%d", fixture_free_port());
    refuses(scene, url, "--log-level", "loud", EVQ_EXIT_USAGE, "loud");
    refuses(scene, url, "--config", "missing.yaml", EVQ_EXIT_CONFIG, "missing.yaml");
    refuses(scene, url, "--directory", "/proc/none", EVQ_EXIT_CONFIG, "'/proc/none'");
    refuses(scene, "redis://127.0.0.1:99999", "--queue", "main", EVQ_EXIT_CONFIG, "port");
    refuses(scene, away, "--queue", "main", EVQ_EXIT_UNREACHABLE, "Connection refused");
    evq_reply_free(fixture_call(scene->conn, "FUNCTION", "FLUSH", NULL));
    refuses(scene, url, "--queue", "main", EVQ_EXIT_VERSION, "evalq admin install");
}

/* Returns how many XACK Redis has executed. */
static long acknowledgements(struct scene *scene)
{
    static const char *const info[] = {"INFO", "commandstats"};
    struct evq_reply *reply = NULL;
    struct evq_error err;

    assert_status_err(evq_conn_call(scene->conn, 2, info, NULL, 0, &reply, &err), EVQ_OK, &err);
    const char *found = strstr(reply->text, "cmdstat_xack:calls=");
    const long count = found != NULL ? strtol(strchr(found, '=') + 1, NULL, 10) : 0;
    evq_reply_free(reply);
    return count;
}

/*
 * There are more entries than a sink takes without a flush, all of them the same repeated result.
 * Files are flushed rarely while more wait, and nothing is recorded twice.
 */
static void logger_flushes_files_seldom_while_more_wait(void **state)
{
    enum { MORE = 10000, READ = 256, SINKS = 2 };
    static const char config[] = "logger: {sinks: [tensorboard, {kind: best, enabled: false}]}\n";
    static const char *const fill[] = {
        "EVAL",
        "local e = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][2]\n"
        "for i = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', unpack(e)) end",
        "1", "evalq:{main}:results", "10000"};
    struct scene *scene = *state;
    struct evq_claim *claim = NULL;
    struct evq_reply *reply = NULL;
    struct evq_error err;
    char path[128];
    int seen[STEPS] = {0};

    (void)snprintf(path, sizeof(path), "%s/evalq.yaml", scene->directory);
    assert_status_err(evq_file_replace(path, config, strlen(config), 0600, &err), EVQ_OK, &err);
    job_submit(scene, "digits", 7);
    jobs_claim(scene, &claim, 1);
    job_finish(scene, claim);
    evq_claim_free(claim);
    assert_status_err(evq_conn_call(scene->conn, 5, fill, NULL, 0, &reply, &err), EVQ_OK, &err);
    evq_reply_free(reply);
    logger_start(scene);
    FIXTURE_UNTIL(all_acknowledged(scene, SINKS));
    // Each XACK has at most 1,000 ids. With one XACK for each read, there would be more.
    assert_in_range(acknowledgements(scene), SINKS * MORE / 1000, SINKS * MORE / READ * 3 / 4);
    assert_int_equal(lines_count(scene, seen), 1);
    assert_int_equal(seen[7], 1);
    assert_int_equal(logger_end(scene, SIGTERM), 0);
}

#define LOGGER_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOGGER_TEST(logger_refuses_with_a_line_and_a_code),
        LOGGER_TEST(logger_records_each_result_once_when_killed_at_random_points),
        LOGGER_TEST(logger_flushes_files_seldom_while_more_wait),
        LOGGER_TEST(logger_links_the_best_of_each_metric_but_of_times),
        LOGGER_TEST(logger_continues_when_its_stream_becomes_another_type),
        cmocka_unit_test_setup_teardown(logger_continues_when_redis_is_killed_or_flushed,
                                        setup_kept, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
