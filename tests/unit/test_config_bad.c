#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/config/config.h"
#include "tests/fixture/check.h"

#define S  "suites: {s: {tasks: [{name: t, type: x}]"
#define T  "suites: {s: {tasks: ["
#define E  "evaluators: {e: {argv: [x]"
#define M  "evaluators: {m: {kind: model_server, "
#define MS M "server: vllm}}\nsuites: {s: {evaluator: m"

/* Each file is refused, with its place and what is wrong with it. */
static const struct {
    const char *text;
    const char *message;
} bad[] = {
    // Not YAML, or YAML that is not allowed.
    {"a: b: c", "f.yaml:1:5: mapping values are not allowed"},
    {"roots: [1, 2", "f.yaml:2:1: did not find expected"},
    {"roots: {a: /b", "f.yaml:2:1: did not find expected"},
    {"\troots: {}", "f.yaml:1:1: "},
    {"roots: \"x", "f.yaml:1:"},
    {"roots:\n  a: /b\n c: /d\n", "f.yaml:3:"},
    {"roots: {a: \xff}", "f.yaml: byte 11"},
    {"roots: {a: \x01}", "f.yaml: byte 11"},
    {"a: &x 1\nb: *x\n", "f.yaml:1:4: anchors and tags are not allowed"},
    {"roots: &x {a: /b}\n", "f.yaml:1:8: anchors and tags"},
    {"suites: &x [a]\n", "f.yaml:1:9: anchors and tags"},
    {"a: *x\n", "f.yaml:1:4: aliases are not allowed"},
    {"a: !!python/object:os.system x\n", "f.yaml:1:4: anchors and tags"},
    {"roots: {}\n---\nroots: {}\n", "f.yaml:2:1: a second document"},
    {"? [a, b]\n: c\n", "f.yaml:1:3: a key is a map or list"},
    {"'': 1\n", "f.yaml:1:1: a key is empty"},
    {"roots: {a: \"x\\0y\"}", "f.yaml:1:12: a value holds a NUL"},
    {"a: [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "f.yaml:1:19: nested deeper than 16"},
    {"redis: {}\nredis: {}\n", "f.yaml:2:1: key \"redis\" comes twice, first on line 1"},
    {"redis:\n  url: redis://x\n  url: redis://y\n",
     "f.yaml:3:3: key \"url\" comes twice, first on line 2"},
    {"suites: {s: {tasks: []}, s: {}}", "f.yaml:1:26: key \"s\" comes twice"},
    // The file and its sections.
    {"- a", "f.yaml:1:1: the file is a list, expected a map"},
    {"hello", "f.yaml:1:1: the file is a single value, expected a map"},
    {"suite: {}", "f.yaml:1:1: unknown key \"suite\" in the file, did you mean \"suites\"?"},
    {"banana: {}", "f.yaml:1:1: unknown key \"banana\" in the file, expected one of: redis roots"},
    {"\"a\\x1b[2J\": {}", "unknown key \"a\\x1b[2J\""},
    {"redis: []", "f.yaml:1:8: redis is a list, expected a map"},
    {"redis: {ulr: x}", "f.yaml:1:9: unknown key \"ulr\" in redis, did you mean \"url\"?"},
    {"redis: {password: x}", "unknown key \"password\" in redis"},
    {"redis: {url: localhost}",
     "f.yaml:1:14: redis.url is not an address such as redis://HOST:PORT"},
    {"redis: {url: [a]}", "redis.url is a list, expected a single value"},
    {"redis: {url: redis://h, tls: {ca: a}}",
     "redis.tls is given, but redis.url speaks no TLS: write it as rediss://HOST:PORT"},
    {"redis: {tls: {verify: false}}", "unknown key \"verify\" in redis.tls"},
    {"redis: {queue: a b}", "f.yaml:1:16: redis.queue is \"a b\", expected 1 to 64"},
    {"roots: x", "f.yaml:1:8: roots is a single value, expected a map"},
    {"roots: {a: ftp://h/x}",
     "f.yaml:1:12: roots.a: the address 'ftp://...' has an unknown scheme"},
    {"roots: {a: \"https://me:pw@h/x\"}",
     "f.yaml:1:12: roots.a: the address 'https://...' has a password"},
    {"roots: {shm: s3://b/x}", "f.yaml:1:14: roots.shm is an address, expected a directory"},
    {"worker: {cache: {bytes: 0}}", "worker.cache.bytes is \"0\""},
    {"worker: {cache: {size: 1GB}}", "unknown key \"size\" in worker.cache"},
    {"worker: {python: [python3]}", "worker.python is a list, expected a single value"},
    {"roots: {a b: /x}", "f.yaml:1:9: root name \"a b\" is not"},
    {"roots: {shm: [/x]}", "f.yaml:1:14: roots.shm is a list, expected a directory"},
    {"roots: {a: }", "roots.a is nothing, expected a directory"},
    {"roots: {a: ''}", "roots.a is empty, expected a directory"},
    {"roots: {a: [/x]}", "f.yaml:1:12: roots.a is a list, expected a directory"},
    {"gateway: x", "gateway is a single value, expected a map"},
    // Workers.
    {"worker: {slots: -1}",
     "f.yaml:1:17: worker.slots is \"-1\", expected an integer from 0 to 1024"},
    {"worker: {slots: two}", "worker.slots is \"two\", expected an integer"},
    {"worker: {slots: 1.5}", "worker.slots is \"1.5\", expected an integer"},
    {"worker: {slots: 99999999999999999999}", "worker.slots is \"99999999999999999999\""},
    {"worker: {slots: [1]}", "worker.slots is a list, expected a single value"},
    {"worker: {devices: gpu}", "worker.devices is \"gpu\", expected auto, cpu, or numbers"},
    {"worker: {gpus: [\"0\"]}", "worker.gpus: \"0\" is not a UUID"},
    {"worker: {gpus: [GPU-a, GPU-a]}",
     "worker.gpus: \"GPU-a\" is not a UUID such as GPU-1f2e... named once"},
    {"worker: {gpus: [\"GPU-a,GPU-b\"]}", "worker.gpus: \"GPU-a,GPU-b\" is not a name"},
    {"worker: {gpus_per_slot: 0}", "worker.gpus_per_slot"},
    {"worker: {devices: \"0,,1\"}", "worker.devices is \"0,,1\""},
    {"worker: {devices: \"0,\"}", "worker.devices is \"0,\""},
    {"worker: {labels: fast}", "worker.labels is a single value, expected a list"},
    {"worker: {labels: [a b]}", "f.yaml:1:19: worker.labels: \"a b\" is not a name"},
    {"worker: {labels: [[a]]}", "worker.labels: entry 1 is a list, expected text"},
    {"worker: {lease_ms: 2000, heartbeat_ms: 1000}",
     "f.yaml:1:9: worker: lease_ms is 2000, expected at least 3 "
     "times heartbeat_ms, which is 1000"},
    {"worker: {heartbeat_ms: 6000}",
     "lease_ms is 15000, expected at least 3 times heartbeat_ms, which is 6000"},
    {"worker: {lease_ms: 10}", "worker.lease_ms is \"10\", expected an integer from 300"},
    {"worker: {log_bytes_max: 64 megs}", "worker.log_bytes_max is \"64 megs\", expected bytes"},
    {"worker: {log_bytes_max: 1}", "worker.log_bytes_max is \"1\""},
    {"worker: {log_bytes_max: 99999999TiB}", "worker.log_bytes_max is"},
    {"worker: {drain_second: 1}", "did you mean \"drain_seconds\"?"},
    // Loggers.
    {"logger: {sinks: {kind: jsonl}}", "logger.sinks is a map, expected a list"},
    {"logger: {sinks: [a b]}", "f.yaml:1:18: logger.sinks[0] is not 1 to 32 of the bytes"},
    {"logger: {sinks: [[jsonl]]}", "f.yaml:1:18: logger.sinks[0] is a list, expected a map"},
    {"logger: {sinks: [{kind: jsonl, enabled: false}]}",
     "logger.sinks[0] turns jsonl off, which is the complete record of all results"},
    {"logger: {sinks: [{kind: best, enabled: off}]}",
     "logger.sinks[0].enabled is \"off\", expected true or false"},
    {"logger: {sinks: [{name: a}]}", "logger.sinks[0] has no \"kind\""},
    {"logger: {sinks: [{kind: a b}]}", "logger.sinks[0].kind is not"},
    {"logger: {sinks: [{kind: a, name: [x]}]}", "logger.sinks[0].name is not"},
    {"logger: {sinks: [{kind: jsonl}, {kind: jsonl}]}",
     "logger.sinks: sink name \"jsonl\" comes twice"},
    {"logger: {dir: x}", "unknown key \"dir\" in logger"},
    // Evaluators.
    {"evaluators: {native: {argv: [x]}}", "f.yaml:1:14: \"native\" is built in"},
    {"evaluators: {a/b: {argv: [x]}}", "evaluator name \"a/b\" is not"},
    {"evaluators: {e: {}}", "evaluators.e has no \"argv\""},
    {"evaluators: {e: x}", "evaluators.e is a single value, expected a map"},
    {"evaluators: {e: }", "evaluators.e is nothing, expected a map"},
    {"evaluators: {e: {argv: python3 eval.py}}",
     "f.yaml:1:24: evaluators.e.argv is a single value, expected a list"},
    {"evaluators: {e: {argv: []}}", "evaluators.e.argv is empty"},
    {"evaluators: {e: {argv: ['']}}", "evaluators.e.argv is empty"},
    {"evaluators: {e: {argv: [a], command: [b]}}", "argv and command are the same"},
    {E ", kind: shell}}", "expected command, persistent or model_server"},
    {M "sever: vllm}}",
     "f.yaml:1:38: unknown key \"sever\" in evaluators.m, did you mean \"server\"?"},
    {M "server: vlm}}", "f.yaml:1:46: evaluators.m.server is \"vlm\": did you mean 'vllm'?"},
    {M "argv: [x]}}", "unknown key \"argv\" in evaluators.m"},
    {M "server: custom}}", "and server is custom, but it is not given"},
    {M "custom: {start: [x]}}}", "f.yaml:1:38: evaluators.m: \"custom\" says how to start"},
    {M "start_seconds: 0}}", "evaluators.m.start_seconds is \"0\""},
    {MS "}}", "f.yaml:2:10: suites.s has no \"harness\", which a model server runs"},
    {MS ", harness: {}, tasks: [{name: a}]}}", "suites.s.tasks belong into suites.s.harness"},
    {MS ", harness: {tasks: [a]}}}", "suites.s.harness has no \"kind\""},
    {MS ", harness: {kind: lmeval}}}",
     "suites.s.harness.kind is \"lmeval\": did you mean 'lm-eval'?"},
    {MS ", harness: {kind: lm-eval}}}", "suites.s.harness has no \"tasks\""},
    {MS ", harness: {kind: lm-eval, task: [a]}}}", "did you mean \"tasks\"?"},
    {MS ", harness: {kind: lm-eval, tasks: [a, a]}}}", "suites.s.harness.tasks names \"a\" twice"},
    {MS ", harness: {kind: lm-eval, tasks: [a], limit: 0}}}", "suites.s.harness.limit is \"0\""},
    {MS ", harness: {kind: lm-eval, tasks: [a], chat: yes}}}", "expected true or false"},
    {MS ", harness: {kind: python, function: f}}}", "no \"function\" as \"module:function\""},
    {MS ", harness: {kind: command, argv: x}}}", "suites.s.harness has no \"argv\""},
    {E "}}\nsuites: {s: {evaluator: e, harness: {kind: python}}}",
     "suites.s.harness needs an evaluator of kind model_server"},
    {E ", env: [a]}}", "evaluators.e.env is a list, expected a map"},
    {E ", env: {\"A B\": 1}}}", "\"A B\" is not the name of an environment variable"},
    {E ", env_pass: [\"A=B\"]}}", "\"A=B\" is not the name of an environment variable"},
    {E ", env_pass: [\"*\"]}}", "\"*\" is not the name of an environment variable"},
    {E ", env_pass: [\"A*B\"]}}", "\"A*B\" is not the name of an environment variable"},
    {E ", results: csv}}", "evaluators.e.results is \"csv\""},
    {E ", start_seconds: 0}}", "evaluators.e.start_seconds is \"0\""},
    {E ", evn: {}}}", "unknown key \"evn\" in evaluators.e, did you mean \"env\"?"},
    // Suites.
    {"suites: [s]", "suites is a list, expected a map"},
    {"suites: {a/b: {}}", "f.yaml:1:10: suite name \"a/b\" is not"},
    {"suites: {s: }", "suites.s is nothing, expected a map"},
    {"suites: {s: {}}", "f.yaml:1:10: suites.s has no tasks"},
    {"suites:\n  quick:\n    shrads: 2\n",
     "f.yaml:3:5: unknown key \"shrads\" in suites.quick, did you mean \"shards\"?"},
    {S ", shards: 0}}", "suites.s.shards is \"0\", expected an integer from 1 to 1024"},
    {S ", every: 0}}", "suites.s.every is \"0\""},
    {S ", evaluator: harnes}}",
     "suites.s.evaluator names \"harnes\", which is not in the section evaluators"},
    {S ", evaluator: natve}}", "did you mean \"native\"?"},
    {S ", prepare: native}}",
     "suites.s.prepare names \"native\", which is not in the section evaluators"},
    {"evaluators: {e: {kind: persistent, argv: [x]}}\n" S ", prepare: e}}",
     "which is persistent, expected a command"},
    {S ", limits: {second: 1}}}",
     "unknown key \"second\" in suites.s.limits, did you mean \"seconds\"?"},
    {S ", limits: {seconds: 0}}}", "suites.s.limits.seconds is \"0\""},
    {S ", needs: 1}}", "suites.s.needs is a single value, expected a map"},
    {S ", needs: {gpu: 1}}}", "unknown key \"gpu\" in suites.s.needs, did you mean \"gpus\"?"},
    {S ", needs: {gpus: 65}}}", "suites.s.needs.gpus is \"65\""},
    {S ", needs: {gpu_memory: 24 gigs}}}",
     "suites.s.needs.gpu_memory is \"24 gigs\", expected bytes"},
    {S ", needs: {gpu_memory: -1}}}", "suites.s.needs.gpu_memory is \"-1\""},
    {S ", needs: {labels: [a, b c]}}}", "suites.s.needs.labels: \"b c\" is not a name"},
    {S ", needs: {labels: [a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]}}}",
     "suites.s.needs.labels has 17 entries, allowed 16"},
    // Tasks.
    {"suites: {s: {tasks: {}}}", "suites.s.tasks is a map, expected a list"},
    {T "x]}}", "f.yaml:1:22: suites.s.tasks[0] is a single value, expected a map"},
    {T "{type: x}]}}", "suites.s.tasks[0] has no \"name\""},
    {T "{name: t}]}}", "suites.s.tasks[0] has no \"type\""},
    {T "{name: a b, type: x}]}}", "task name \"a b\" is not"},
    {T "{name: [t], type: x}]}}", "suites.s.tasks[0].name is a list, expected a single value"},
    {T "{name: t, type: x}, {name: t, type: y}]}}", "suites.s.tasks: task name \"t\" comes twice"},
    {T "{name: t, type: x, model: relu}]}}",
     "suites.s.tasks[0].model is a single value, expected a map"},
    {T "{name: t, type: x, data: [a]}]}}", "suites.s.tasks[0].data is a list, expected a map"},
    {T "{name: t, type: x, model: {a.b: 1, a: {b: 2}}}]}}",
     "suites.s.tasks[0].model has \"a.b\" twice"},
};

static void config_parse_refuses_bad_files_with_place_and_reason(void **state)
{
    (void)state;
    size_t wrong = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        struct evq_config *config = NULL;
        size_t bytes = strlen(bad[i].text);
        char *exact = malloc(bytes); // Not terminated: nothing may rely on it.
        assert_non_null(exact);
        memcpy(exact, bad[i].text, bytes);
        enum evq_status status = evq_config_parse(exact, bytes, "f.yaml", &config, &err);
        free(exact);
        bool refused = status == EVQ_E_INVALID || status == EVQ_E_LIMIT;
        if (!refused || config != NULL || strstr(err.message, bad[i].message) == NULL ||
            strncmp(err.message, "f.yaml", 6) != 0 || strchr(err.message, '\n') != NULL) {
            print_error("%s\n    gave %s: %s\n    expected %s\n", bad[i].text,
                        evq_status_name(status), err.message, bad[i].message);
            wrong++;
        }
        evq_config_free(config);
    }
    assert_int_equal(wrong, 0);
    assert_true(sizeof bad / sizeof bad[0] >= 60);
    print_message("%zu configuration files refused\n", sizeof(bad) / sizeof(bad[0]));
}

/* Files that are small to write and large to hold. */
static void config_parse_bounds_what_a_file_may_hold(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;
    struct evq_buffer text;
    evq_buffer_init(&text, 4 << 20);
    evq_buffer_text(&text, "roots:\n");
    for (int i = 0; i < 5000; i++) {
        evq_buffer_printf(&text, "  r%d: /x\n", i);
    }
    assert_status(evq_config_parse(evq_buffer_string(&text), text.bytes, "f.yaml", &config, &err),
                  EVQ_E_LIMIT);
    assert_holds(err.message, "f.yaml:4098:10: more than 4096 entries");

    evq_buffer_clear(&text);
    evq_buffer_text(&text, "gateway: {a: [\n");
    for (int i = 0; i < 60; i++) {
        evq_buffer_text(&text, "[");
        for (int j = 0; j < 2000; j++) {
            evq_buffer_text(&text, "1,");
        }
        evq_buffer_text(&text, "],\n");
    }
    evq_buffer_text(&text, "]}\n");
    assert_status(evq_config_parse(evq_buffer_string(&text), text.bytes, "f.yaml", &config, &err),
                  EVQ_E_LIMIT);
    assert_holds(err.message, "more than 100000 values");

    evq_buffer_clear(&text);
    for (int i = 0; i < 1 << 20; i++) {
        evq_buffer_text(&text, "[");
    }
    assert_status(evq_config_parse(evq_buffer_string(&text), text.bytes, "f.yaml", &config, &err),
                  EVQ_E_LIMIT);
    assert_holds(err.message, "f.yaml:1:17: nested deeper than 16");
    evq_buffer_text(&text, "#");
    assert_status(evq_config_parse(evq_buffer_string(&text), text.bytes, "f.yaml", &config, &err),
                  EVQ_E_LIMIT);
    assert_holds(err.message, "allowed 1048576");
    assert_null(config);
    evq_buffer_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_parse_refuses_bad_files_with_place_and_reason),
        cmocka_unit_test(config_parse_bounds_what_a_file_may_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
