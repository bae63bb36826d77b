#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/nearest.h"
#include "shared/config/config.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"

static struct evq_config *parsed(const char *text)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;
    assert_status_err(evq_config_parse(text, strlen(text), "/etc/evalq/evalq.yaml", &config, &err),
                      EVQ_OK, &err);
    return config;
}

static const char example[] = //
    "redis:\n"
    "  url: redis://queue.example:6380/1\n"
    "  user: worker\n"
    "  password_file: secrets/redis\n"
    "  queue: nightly\n"
    "roots:\n"
    "  checkpoints: /data/checkpoints/\n"
    "  here: ./runs\n"
    "suites:\n" // Before the evaluators that it names.
    "  quick:\n"
    "    needs: {gpus: 1, gpu_memory: 24GiB, labels: [a100, fast]}\n"
    "    limits: {seconds: 600}\n"
    "    shards: 4\n"
    "    every: 10\n"
    "    tasks:\n"
    "      - name: mnist\n"
    "        type: classification\n"
    "        model: {activation: relu, layers: {first: 784}, vocab_path: tok/vocab.json}\n"
    "        data: {format: idx, inputs: mnist/t10k-images.gz, labels: /abs/labels.gz, scale: "
    "0.00392156862745098,\n"
    "               text: 's3://bucket/x', mask: m.npy, types: t.npy}\n"
    "        top_k: [1, 5]\n"
    "        metric_prefix: \"val/\"\n"
    "        empty:\n"
    "  bench:\n"
    "    evaluator: harness\n"
    "    prepare: merge\n"
    "evaluators:\n"
    "  harness: {kind: persistent, argv: [python3, eval.py], env: {HF_HOME: /cache, N: 1}, "
    "env_pass: [PATH],\n"
    "            directory: work, results: lm-eval, start_seconds: 60}\n"
    "  merge: {command: [./merge.sh]}\n"
    "worker: {slots: 2, devices: \"0,1\", labels: [big], scratch: scratch, lease_ms: 30000, "
    "drain_seconds: 5,\n"
    "         threads: 3, log_bytes_max: 1.5MiB, fetch_bytes_max: 8GiB}\n"
    "logger:\n"
    "  directory: out\n"
    "  sinks:\n"
    "    - {kind: jsonl}\n"
    "    - {name: tb, kind: tensorboard, max_hold_seconds: 30, directory: tb, command: [a, b]}\n"
    "gateway: {listen: \"[::1]:80\", tokens: t, lmms_open: true, lmms: {suite: a, results: out, "
    "cancel_running: true}}\n";

static const char *option(const struct evq_pair *pairs, size_t count, const char *key)
{
    return evq_pair_get(pairs, count, key, "(absent)");
}

static void config_parse_gives_a_command_suite_without_tasks_one(void **state)
{
    (void)state;
    struct evq_config *config =
        parsed("evaluators: {e: {argv: [a]}}\nsuites: {mine: {evaluator: e}}\n");
    assert_int_equal(config->suite_count, 1);
    assert_int_equal(config->suites[0].task_count, 1);
    assert_string_equal(config->suites[0].tasks[0].name, "mine");
    assert_string_equal(config->suites[0].tasks[0].type, "");
    evq_config_free(config);
}

static void config_parse_reads_every_section(void **state)
{
    (void)state;
    struct evq_config *config = parsed(example);
    assert_string_equal(config->file, "/etc/evalq/evalq.yaml");
    assert_string_equal(config->redis.url, "redis://queue.example:6380/1");
    assert_string_equal(config->redis.user, "worker");
    assert_string_equal(config->redis.password_file, "/etc/evalq/secrets/redis");
    assert_string_equal(config->redis.queue, "nightly");
    assert_int_equal(config->root_count, 2);
    assert_string_equal(config->roots[0].path, "/data/checkpoints");
    assert_string_equal(config->roots[1].path, "/etc/evalq/runs");
    assert_int_equal(config->worker.slots, 2);
    assert_string_equal(config->worker.devices, "0,1");
    assert_string_equal(config->worker.labels[0], "big");
    assert_string_equal(config->worker.scratch, "/etc/evalq/scratch");
    assert_int_equal(config->worker.lease_ms, 30000);
    assert_int_equal(config->worker.heartbeat_ms, 3000);
    assert_int_equal(config->worker.drain_seconds, 5);
    assert_int_equal(config->worker.threads, 3);
    assert_int_equal(config->worker.log_bytes_max, 1572864);
    assert_int_equal(config->worker.fetch_bytes_max, INT64_C(8) << 30);
    assert_string_equal(config->logger.directory, "/etc/evalq/out");
    assert_true(config->gateway.given);
    assert_true(config->gateway.lmms_open);
    assert_string_equal(config->gateway.listen, "[::1]:80");
    assert_string_equal(config->gateway.tokens, "/etc/evalq/t");
    assert_int_equal(config->logger.sink_count, 2);
    assert_string_equal(config->logger.sinks[0].name, "jsonl");
    assert_string_equal(config->logger.sinks[1].name, "tb");
    assert_string_equal(option(config->logger.sinks[1].options,
                               config->logger.sinks[1].option_count, "max_hold_seconds"),
                        "30");
    assert_string_equal(
        option(config->logger.sinks[1].options, config->logger.sinks[1].option_count, "command.1"),
        "b");
    evq_config_free(config);
}

static void config_parse_reads_suites_and_evaluators(void **state)
{
    (void)state;
    struct evq_config *config = parsed(example);
    const struct evq_suite *suite = evq_config_suite(config, "quick");
    assert_non_null(suite);
    assert_null(evq_config_suite(config, "none"));
    assert_string_equal(suite->evaluator, "native");
    assert_int_equal(suite->needs.gpus, 1);
    assert_true(suite->needs.gpu_memory_bytes == INT64_C(24) << 30);
    assert_int_equal(suite->needs.label_count, 2);
    assert_int_equal(suite->limit_seconds, 600);
    assert_int_equal(suite->shards, 4);
    assert_int_equal(suite->every, 10);
    assert_int_equal(suite->task_count, 1);
    const struct evq_task_config *task = &suite->tasks[0];
    assert_string_equal(task->type, "classification");
    assert_string_equal(option(task->model, task->model_count, "activation"), "relu");
    assert_string_equal(option(task->model, task->model_count, "layers.first"), "784");
    assert_string_equal(option(task->model, task->model_count, "vocab_path"),
                        "/etc/evalq/tok/vocab.json");
    assert_string_equal(option(task->data, task->data_count, "inputs"),
                        "/etc/evalq/mnist/t10k-images.gz");
    assert_string_equal(option(task->data, task->data_count, "labels"), "/abs/labels.gz");
    assert_string_equal(option(task->data, task->data_count, "text"), "s3://bucket/x");
    assert_string_equal(option(task->data, task->data_count, "mask"), "/etc/evalq/m.npy");
    assert_string_equal(option(task->data, task->data_count, "types"), "/etc/evalq/t.npy");
    assert_string_equal(option(task->data, task->data_count, "scale"), "0.00392156862745098");
    assert_string_equal(option(task->options, task->option_count, "top_k.0"), "1");
    assert_string_equal(option(task->options, task->option_count, "top_k.1"), "5");
    assert_string_equal(option(task->options, task->option_count, "metric_prefix"), "val/");
    assert_string_equal(option(task->options, task->option_count, "empty"), "");
    assert_int_equal(task->option_count, 4);

    const struct evq_suite *bench = evq_config_suite(config, "bench");
    assert_string_equal(bench->prepare, "merge");
    assert_int_equal(bench->limit_seconds, 3600);
    assert_int_equal(bench->shards, 1);
    const struct evq_evaluator *harness = evq_config_evaluator(config, "harness");
    assert_int_equal(harness->kind, EVQ_EVALUATOR_PERSISTENT);
    assert_int_equal(harness->argc, 2);
    assert_string_equal(harness->argv[1], "eval.py");
    assert_null(harness->argv[2]);
    assert_string_equal(option(harness->env, harness->env_count, "N"), "1");
    assert_string_equal(harness->env_pass[0], "PATH");
    assert_string_equal(harness->directory, "/etc/evalq/work");
    assert_string_equal(harness->results, "lm-eval");
    assert_int_equal(harness->start_seconds, 60);
    const struct evq_evaluator *merge = evq_config_evaluator(config, "merge");
    assert_int_equal(merge->kind, EVQ_EVALUATOR_COMMAND);
    assert_string_equal(merge->argv[0], "/etc/evalq/merge.sh");
    assert_string_equal(merge->directory, "");
    assert_int_equal(merge->start_seconds, 300);
    evq_config_free(config);
}

static void config_parse_of_nothing_is_all_defaults(void **state)
{
    (void)state;
    const char *const texts[] = {
        "", "\n# nothing\n", "---\n", "~", "{}", "redis:\nsuites:\nworker:\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct evq_config *config = parsed(texts[i]);
        assert_string_equal(config->redis.url, "redis://127.0.0.1:6379");
        assert_string_equal(config->redis.queue, "main");
        assert_int_equal(config->suite_count + config->root_count + config->evaluator_count, 0);
        assert_int_equal(config->worker.lease_ms, 15000);
        assert_int_equal(config->worker.heartbeat_ms, 3000);
        assert_int_equal(config->worker.drain_seconds, 30);
        assert_int_equal(config->worker.log_bytes_max, 67108864);
        assert_int_equal(config->worker.fetch_bytes_max, INT64_C(1) << 40);
        assert_string_equal(config->worker.devices, "auto");
        assert_int_equal(config->worker.scratch[0], '/');
        assert_string_equal(config->logger.directory, "./evalq-results");
        assert_false(config->gateway.given);
        assert_string_equal(config->gateway.listen, "127.0.0.1:8000");
        evq_config_free(config);
    }
}

/* A shorter lease takes its heartbeat along unless the file says both. */
static void config_parse_fits_the_heartbeat_to_the_lease(void **state)
{
    (void)state;
    struct evq_config *config = parsed("worker: {lease_ms: 1000}");
    assert_int_equal(config->worker.heartbeat_ms, 200);
    evq_config_free(config);
    config = parsed("worker: {lease_ms: 3000, heartbeat_ms: 1000}");
    assert_int_equal(config->worker.heartbeat_ms, 1000);
    evq_config_free(config);
}

/* Suites differ by what changes their numbers, and by nothing else. */
static void config_digest_follows_what_changes_numbers(void **state)
{
    (void)state;
    static const char base[] =
        "suites: {s: {tasks: [{name: t, type: regression, data: {inputs: /a/x.npy, "
        "limit: 5}, model: {b: 1, a: 2}}]}}";
    const char *const same[] = {
        "suites: {s: {tasks: [{name: t, type: regression, data: {limit: 5, inputs: /other/x.npy}, "
        "model: "
        "{a: 2, b: 1}}]}}",
        "suites: {s: {shards: 7, every: 3, limits: {seconds: 9}, needs: {gpus: 1}, evaluator: "
        "native, tasks: "
        "[{name: t, type: regression, data: {inputs: x.npy, limit: 5}, model: {b: 1, a: 2}}]}}",
    };
    const char *const different[] = {
        "suites: {s: {tasks: [{name: t, type: regression, data: {inputs: /a/y.npy, limit: 5}, "
        "model: {b: 1, "
        "a: 2}}]}}",
        "suites: {s: {tasks: [{name: t, type: regression, data: {inputs: /a/x.npy, limit: 6}, "
        "model: {b: 1, "
        "a: 2}}]}}",
        "suites: {s: {tasks: [{name: u, type: regression, data: {inputs: /a/x.npy, limit: 5}, "
        "model: {b: 1, "
        "a: 2}}]}}",
        "suites: {s: {tasks: [{name: t, type: classification, data: {inputs: /a/x.npy, limit: 5}, "
        "model: {b: "
        "1, a: 2}}]}}",
        "suites: {s: {tasks: [{name: t, type: regression, data: {inputs: /a/x.npy, limit: 5}, "
        "model: {b: 1, "
        "a: 2}, k: 1}]}}",
        "evaluators: {e: {argv: [x]}}\nsuites: {s: {evaluator: e, tasks: [{name: t, type: "
        "regression, data: "
        "{inputs: /a/x.npy, limit: 5}, model: {b: 1, a: 2}}]}}",
        "evaluators: {e: {argv: [y]}}\nsuites: {s: {evaluator: e, tasks: [{name: t, type: "
        "regression, data: "
        "{inputs: /a/x.npy, limit: 5}, model: {b: 1, a: 2}}]}}",
        "evaluators: {e: {argv: [x]}}\nsuites: {s: {prepare: e, tasks: [{name: t, type: "
        "regression, data: "
        "{inputs: /a/x.npy, limit: 5}, model: {b: 1, a: 2}}]}}",
    };
    enum { DIFFERENT = sizeof different / sizeof different[0] };
    char digests[DIFFERENT + 1][33];
    struct evq_config *config = parsed(base);
    memcpy(digests[DIFFERENT], config->suites[0].digest, 33);
    assert_string_equal(
        config->suites[0].definition,
        "{\"evaluator\":\"native\",\"tasks\":[{\"name\":\"t\",\"type\":\"regression\","
        "\"model\":{\"a\":\"2\",\"b\":\"1\"},\"data\":{\"inputs\":\"x.npy\",\"limit\":\"5\"}}]}");
    // Fixed: a build that computes another one would refuse every worker of an older build.
    assert_string_equal(config->suites[0].digest, "f81163545501deef3149533ac1501a0e");
    evq_config_free(config);
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        config = parsed(same[i]);
        assert_string_equal(config->suites[0].digest, digests[DIFFERENT]);
        evq_config_free(config);
    }
    for (size_t i = 0; i < DIFFERENT; i++) {
        config = parsed(different[i]);
        memcpy(digests[i], config->suites[0].digest, 33);
        evq_config_free(config);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(digests[i], digests[j]);
        }
        assert_string_not_equal(digests[i], digests[DIFFERENT]);
    }
}

/* ---- finding the file and the address ---- */

struct place {
    struct fixture_folder *folder;
    char directory[512]; // Where the test was before.
};

static int place_setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    void *folder = NULL;
    assert_non_null(place);
    assert_non_null(getcwd(place->directory, sizeof place->directory));
    assert_int_equal(fixture_folder_setup(&folder), 0);
    place->folder = folder;
    assert_int_equal(chdir(place->folder->path), 0);
    (void)unsetenv("EVALQ_CONFIG");
    (void)unsetenv("EVALQ_URL");
    (void)unsetenv("EVALQ_QUEUE");
    *state = place;
    return 0;
}

static int place_teardown(void **state)
{
    struct place *place = *state;
    void *folder = place->folder;
    (void)unsetenv("EVALQ_CONFIG");
    (void)unsetenv("EVALQ_URL");
    (void)unsetenv("EVALQ_QUEUE");
    assert_int_equal(chdir(place->directory), 0);
    free(place);
    return fixture_folder_teardown(&folder);
}

static void place_write(struct place *place, const char *name, const char *text)
{
    fixture_folder_write(place->folder, name, text, strlen(text));
}

static void assert_loads(const struct evq_config_source *source, const char *url, const char *queue)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;
    assert_status_err(evq_config_load(source, &config, &err), EVQ_OK, &err);
    assert_string_equal(config->redis.url, url);
    assert_string_equal(config->redis.queue, queue);
    evq_config_free(config);
}

/* Command line before environment before ./.evalq/url before the file. */
static void config_load_resolves_address_and_queue_in_order(void **state)
{
    struct place *place = *state;
    const struct evq_config_source none = {NULL};
    const struct evq_config_source all = {.url = "redis://line", .queue = "line"};
    const struct evq_config_source other = {.file = "other.yaml"};

    assert_loads(&none, "redis://127.0.0.1:6379", "main");
    place_write(place, "evalq.yaml", "redis: {url: redis://here, queue: here}\n");
    assert_loads(&none, "redis://here", "here");
    place_write(place, "other.yaml",
                "redis: {url: redis://other, queue: other, user: u, password_file: p}\n");
    assert_loads(&other, "redis://other", "other");
    (void)setenv("EVALQ_CONFIG", "other.yaml", 1);
    assert_loads(&none, "redis://other", "other");
    fixture_folder_mkdir(place->folder, ".evalq");
    place_write(place, ".evalq/url", "unix:///run/x.sock\n");
    assert_loads(&none, "unix:///run/x.sock", "other");

    struct evq_config *config = NULL;
    assert_status(evq_config_load(&none, &config, NULL), EVQ_OK);
    assert_string_equal(config->redis.user,
                        ""); // They belong to the file's Redis, not to this one.
    assert_string_equal(config->redis.password_file, "");
    evq_config_free(config);

    (void)setenv("EVALQ_URL", "redis://environment", 1);
    (void)setenv("EVALQ_QUEUE", "environment", 1);
    assert_loads(&none, "redis://environment", "environment");
    assert_loads(&all, "redis://line", "line");
    (void)setenv("EVALQ_URL", "", 1); // Empty is unset.
    assert_loads(&none, "unix:///run/x.sock", "environment");
}

/* `evalq up` leaves a file for the programs started beside it; one's own comes first. */
static void config_load_finds_the_file_of_evalq_up(void **state)
{
    struct place *place = *state;
    const struct evq_config_source none = {NULL};
    fixture_folder_mkdir(place->folder, ".evalq");
    place_write(place, ".evalq/evalq.yaml", "redis: {queue: up}\n");
    assert_loads(&none, "redis://127.0.0.1:6379", "up");
    place_write(place, "evalq.yaml", "redis: {queue: own}\n");
    assert_loads(&none, "redis://127.0.0.1:6379", "own");
}

/* What is documented and what is shipped must be read without a word. */
static void config_parse_reads_the_documented_example(void **state)
{
    (void)state;
    const struct evq_config_source shipped = {.file = EVQ_TEST_SOURCE "/deploy/evalq.yaml"};
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;
    size_t bytes = 0;
    uint8_t *page = fixture_file_load(EVQ_TEST_SOURCE "/docs/configuration.md", &bytes);
    struct evq_buffer text;
    evq_buffer_init(&text, 0);
    evq_buffer_append(&text, page, bytes);
    free(page);
    const char *begin = strstr(evq_buffer_string(&text), "```yaml\n");
    assert_non_null(begin);
    begin += strlen("```yaml\n");
    const char *end = strstr(begin, "```");
    assert_non_null(end);
    assert_status_err(
        evq_config_parse(begin, (size_t)(end - begin), "/etc/evalq.yaml", &config, &err), EVQ_OK,
        &err);
    assert_int_equal(config->suite_count, 2);
    assert_int_equal(config->logger.sink_count, 4);
    evq_config_free(config);
    evq_buffer_free(&text);
    assert_status_err(evq_config_load(&shipped, &config, &err), EVQ_OK, &err);
    assert_true(config->suite_count > 0);
    evq_config_free(config);
}

static void load_refused(const struct evq_config_source *source, enum evq_status want,
                         const char *because)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;
    assert_status_err(evq_config_load(source, &config, &err), want, &err);
    assert_holds(err.message, because);
    assert_null(config);
}

static void config_load_refuses_what_it_cannot_read(void **state)
{
    struct place *place = *state;
    const struct evq_config_source none = {NULL};
    const struct evq_config_source absent = {.file = "absent.yaml"};
    const struct evq_config_source folder = {.file = "."};
    const struct evq_config_source pipe = {.file = "pipe"};
    const struct evq_config_source queue = {.queue = "a b"};
    const struct evq_config_source its_file = {.file = "absent.yaml", .library = true};
    const struct evq_config_source its_queue = {.queue = "a b", .library = true};
    const struct evq_config_source big = {.file = "big.yaml"};

    load_refused(&absent, EVQ_E_NOT_FOUND, "named by --config: open 'absent.yaml'");
    load_refused(&its_file, EVQ_E_NOT_FOUND, "named by config: open 'absent.yaml'");
    load_refused(&its_queue, EVQ_E_INVALID, "given by queue is");
    load_refused(&folder, EVQ_E_INVALID, "not a regular file");
    assert_int_equal(mkfifo("pipe", 0600), 0);
    load_refused(&pipe, EVQ_E_INVALID, "not a regular file");
    load_refused(&queue, EVQ_E_INVALID, "given by --queue");
    (void)setenv("EVALQ_CONFIG", "nowhere.yaml", 1);
    load_refused(&none, EVQ_E_NOT_FOUND, "named by $EVALQ_CONFIG");
    (void)unsetenv("EVALQ_CONFIG");
    (void)setenv("EVALQ_QUEUE", "a/b", 1);
    load_refused(&none, EVQ_E_INVALID, "given by $EVALQ_QUEUE");
    (void)unsetenv("EVALQ_QUEUE");
    fixture_folder_mkdir(place->folder, ".evalq");
    place_write(place, ".evalq/url", " \n");
    load_refused(&none, EVQ_E_INVALID, "'.evalq/url' is empty");
    place_write(place, "evalq.yaml", "redis: {url: x}\n");
    load_refused(&none, EVQ_E_INVALID, "evalq.yaml:1:14: redis.url is not an address");

    char *text = malloc((1 << 20) + 2);
    assert_non_null(text);
    memset(text, '#', (1 << 20) + 1);
    fixture_folder_write(place->folder, "big.yaml", text, (1 << 20) + 1);
    free(text);
    load_refused(&big, EVQ_E_LIMIT, "'big.yaml' holds more than 1048576 bytes");
}

static void assert_matches(const struct evq_config *config, const char *path, const char *root,
                           const char *rest)
{
    struct evq_error err = {EVQ_OK, ""};
    const struct evq_root *found = NULL;
    const char *tail = NULL;
    char real[PATH_MAX];
    assert_status_err(evq_config_root_resolve(config, path, real, &found, &tail, &err), EVQ_OK,
                      &err);
    assert_string_equal(found->name, root);
    assert_string_equal(tail, rest);
}

static void config_root_match_takes_the_longest_by_component(void **state)
{
    struct place *place = *state;
    char text[512];
    char path[512];
    struct evq_error err = {EVQ_OK, ""};
    const struct evq_root *found = NULL;
    const char *tail = NULL;
    const char *here = place->folder->path;
    char real[PATH_MAX];

    fixture_folder_mkdir(place->folder, "data");
    fixture_folder_mkdir(place->folder, "data/run");
    place_write(place, "data/run/x", "x");
    assert_int_equal(symlink("data", "link"), 0);
    assert_int_equal(symlink("data/run", "deep"), 0);
    (void)snprintf(text, sizeof text,
                   "roots: {data: %.100s/data, run: %.100s/data/run/, gone: /gone/far, viaLink: "
                   "%.100s/link/run}",
                   here, here, here);
    struct evq_config *config = parsed(text);
    assert_matches(config, "/gone/far/a/b", "gone", "a/b");
    assert_matches(config, "/gone/far", "gone", ".");
    assert_matches(config, "/gone/far//a", "gone", "a");
    (void)snprintf(path, sizeof path, "%s/data/other/y", here);
    assert_matches(config, path, "data", "other/y");
    (void)snprintf(path, sizeof path, "%s/data/run/x", here);
    assert_matches(config, path, "run", "x");
    (void)snprintf(path, sizeof path, "%s/data/runner/x", here);
    assert_matches(config, path, "data", "runner/x");
    (void)snprintf(path, sizeof path, "%s/deep/x", here); // Through a link that is no root.
    assert_matches(config, path, "run", "x");
    (void)snprintf(path, sizeof path, "%s/data/../data/run/./x", here);
    assert_matches(config, path, "run", "x");
    assert_status(evq_config_root_resolve(config, "/gone/farther/a", real, &found, &tail, &err),
                  EVQ_E_NOT_FOUND);
    assert_holds(err.message,
                 "'/gone/farther/a' lies beneath no root; add to /etc/evalq/evalq.yaml: roots: "
                 "{farther: /gone/farther} (present: data=");
    assert_status(evq_config_root_resolve(config, "/gone/far/../a", real, &found, &tail, &err),
                  EVQ_E_NOT_FOUND);
    assert_status(evq_config_root_resolve(config, "relative", real, &found, &tail, &err),
                  EVQ_E_INVALID);
    assert_null(found);
    evq_config_free(config);
    config = parsed("");
    assert_status(
        evq_config_root_resolve(config, "/home/me/run 1/step-5.pt", real, &found, &tail, &err),
        EVQ_E_NOT_FOUND);
    assert_holds(err.message, "(present: none)");
    assert_holds(err.message, "roots: {run-1-");
    assert_holds(err.message, ": /home/me/run 1}");
    evq_config_free(config);
    config = parsed("roots: {all: /}");
    assert_matches(config, "/x/y", "all", "x/y");
    (void)snprintf(path, sizeof path, "/dev/shm/evalq-%ju/a/b", (uintmax_t)getuid());
    assert_matches(config, path, "shm", "a/b"); // Built in.
    evq_config_free(config);
    config = parsed("roots: {shm: /memory}");
    assert_int_equal(config->root_count, 0);
    assert_matches(config, "/memory/a", "shm", "a");
    evq_config_free(config);
}

static void config_nearest_finds_slips_only(void **state)
{
    (void)state;
    const char *const words[] = {"shards", "every", "tasks", "limits", "needs", "evaluator"};
    const struct {
        const char *word;
        const char *want;
    } cases[] = {
        {"shrads", "shards"}, {"shard", "shards"}, {"evry", "every"},
        {"task", "tasks"},    {"limit", "limits"}, {"evaluater", "evaluator"},
        {"Needs", "needs"},   {"banana", NULL},    {"", NULL},
        {"x", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *near = evq_nearest_word(cases[i].word, words, 6);
        if (cases[i].want == NULL ? near != NULL
                                  : near == NULL || strcmp(near, cases[i].want) != 0) {
            fail_msg("'%s' gave '%s'", cases[i].word, near != NULL ? near : "nothing");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_parse_reads_every_section),
        cmocka_unit_test(config_parse_gives_a_command_suite_without_tasks_one),
        cmocka_unit_test(config_parse_reads_suites_and_evaluators),
        cmocka_unit_test(config_parse_of_nothing_is_all_defaults),
        cmocka_unit_test(config_parse_fits_the_heartbeat_to_the_lease),
        cmocka_unit_test(config_digest_follows_what_changes_numbers),
        cmocka_unit_test_setup_teardown(config_load_resolves_address_and_queue_in_order,
                                        place_setup, place_teardown),
        cmocka_unit_test_setup_teardown(config_load_finds_the_file_of_evalq_up, place_setup,
                                        place_teardown),
        cmocka_unit_test(config_parse_reads_the_documented_example),
        cmocka_unit_test_setup_teardown(config_load_refuses_what_it_cannot_read, place_setup,
                                        place_teardown),
        cmocka_unit_test_setup_teardown(config_root_match_takes_the_longest_by_component,
                                        place_setup, place_teardown),
        cmocka_unit_test(config_nearest_finds_slips_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
