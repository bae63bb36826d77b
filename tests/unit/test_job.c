#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "shared/checkpoint/pin_path.h"
#include "shared/queue/job.h"
#include "tests/fixture/check.h"

static struct evq_job *job_good(void)
{
    struct evq_job *job = evq_job_new();
    assert_non_null(job);
    job->run = "digits";
    job->step = 100;
    job->suite = "quick";
    job->root = "checkpoints";
    job->path = "digits/step-100.safetensors";
    return job;
}

static void job_new_has_the_documented_defaults(void **state)
{
    (void)state;
    struct evq_job *job = evq_job_new();
    assert_non_null(job);
    assert_string_equal(job->variant, "regular");
    assert_true(isnan(job->epoch));
    assert_int_equal(job->priority, 2);
    assert_int_equal(job->policy, EVQ_POLICY_ALL);
    assert_false(job->keep);
    assert_false(job->needs_given);
    assert_string_equal(job->pin, "");
    evq_job_free(job);
    evq_job_free(NULL);
}

static void refused(struct evq_job *job, const char *because)
{
    struct evq_error err = {EVQ_OK, ""};
    assert_status(evq_job_check(job, &err), EVQ_E_INVALID);
    assert_holds(err.message, because);
    evq_job_free(job);
}

#define REFUSED(because, change)                                                                   \
    do {                                                                                           \
        struct evq_job *job = job_good();                                                          \
        change;                                                                                    \
        refused(job, because);                                                                     \
    } while (0)

static void job_check_names_the_field(void **state)
{
    (void)state;
    struct evq_error err;
    struct evq_job *good = job_good();
    const char *labels[EVQ_NEEDS_LABELS_MAX + 1] = {"a", "b c"};
    const struct evq_pair twice[] = {{"k", "1"}, {"k", "2"}};
    const struct evq_pair empty[] = {{"", "1"}};
    const struct evq_pair bytes[] = {{"k", "\xff"}};
    char name[80];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';

    assert_status_err(evq_job_check(good, &err), EVQ_OK, &err);
    evq_job_free(good);
    REFUSED("run is missing", job->run = "");
    REFUSED("run 'a b'", job->run = "a b");
    REFUSED("run", job->run = name);
    REFUSED("run '..'", job->run = "..");
    REFUSED("run '\\x1b[m'", job->run = "\x1b[m");
    REFUSED("variant", job->variant = "");
    REFUSED("suite", job->suite = "a/b");
    REFUSED("suite", job->suite = name + 40);
    REFUSED("root", job->root = "");
    REFUSED("step is -1", job->step = -1);
    REFUSED("step is", job->step = EVQ_JOB_STEP_MAX);
    REFUSED("session_ms", job->session_ms = -1);
    REFUSED("created_ms", job->created_ms = -1);
    REFUSED("epoch", job->epoch = INFINITY);
    REFUSED("priority is 4", job->priority = 4);
    REFUSED("priority is -1", job->priority = -1);
    REFUSED("policy", job->policy = EVQ_POLICY_COUNT);
    REFUSED("path is missing", job->path = "");
    REFUSED("absolute", job->path = "/etc/passwd");
    REFUSED("'..'", job->path = "a/../../b");
    REFUSED("'..'", job->path = "..");
    REFUSED("'..'", job->path = "a/..");
    REFUSED("control", job->path = "a\nb");
    REFUSED("UTF-8", job->path = "a\xff");
    REFUSED("pin 'a/../b'", job->pin = "a/../b");
    REFUSED("fingerprint", job->fingerprint = "0123");
    REFUSED("fingerprint", job->fingerprint = "0123456789ABCDEF0123456789ABCDEF");
    REFUSED("needs.gpus is -1", job->needs.gpus = -1);
    REFUSED("needs.gpus", job->needs.gpus = 1000);
    REFUSED("needs.gpu_memory_bytes", job->needs.gpu_memory_bytes = -1);
    REFUSED("needs.labels", (job->needs.labels = labels, job->needs.label_count = 2));
    REFUSED("needs.labels has 17", (job->needs.labels = labels, job->needs.label_count = 17));
    REFUSED("params has the key 'k' twice", (job->params = twice, job->param_count = 2));
    REFUSED("trackers has an empty key", (job->trackers = empty, job->tracker_count = 1));
    REFUSED("snapshot.token is not",
            (job->snapshot_given = true, job->snapshot.token = "FEDCBA9876543210FEDCBA9876543210"));
    REFUSED("snapshot.checksum is not",
            (job->snapshot_given = true, job->snapshot.checksum = "0123"));
    REFUSED("snapshot.place is not HOST:PORT",
            (job->snapshot_given = true, job->snapshot.place = "host"));
    REFUSED("snapshot.place is not HOST:PORT",
            (job->snapshot_given = true, job->snapshot.place = "ho st:1"));
    REFUSED("snapshot.place is not HOST:PORT",
            (job->snapshot_given = true, job->snapshot.place = "fe80::1:1"));
    REFUSED("snapshot.place is not HOST:PORT",
            (job->snapshot_given = true, job->snapshot.place = "host:65536"));
    REFUSED("snapshot.bytes is not", (job->snapshot_given = true, job->snapshot.bytes = -1));
    REFUSED("tags is not UTF-8", (job->tags = bytes, job->tag_count = 1));
    REFUSED("params has 257", (job->params = twice, job->param_count = 257));
}

static void job_check_accepts_names_with_dots_in_paths(void **state)
{
    (void)state;
    struct evq_error err;
    const char *const paths[] = {"a..b/c", "...", "a/.hidden", "gr\xc3\xbc\xc3\x9f/x y", "a//b"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        struct evq_job *job = job_good();
        job->path = paths[i];
        assert_status_err(evq_job_check(job, &err), EVQ_OK, &err);
        evq_job_free(job);
    }
}

static void job_id_and_its_parts_agree(void **state)
{
    (void)state;
    char id[EVQ_JOB_ID_BYTES_MAX];
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    struct evq_job_name name;
    struct evq_error err;
    struct evq_job *job = job_good();
    job->step = EVQ_JOB_STEP_MAX - 1;
    evq_job_id(job, id);
    assert_string_equal(id, "digits/1099511627775/regular/quick");
    assert_status_err(evq_job_id_parse(id, scratch, &name, &err), EVQ_OK, &err);
    assert_string_equal(name.run, "digits");
    assert_true(name.step == job->step);
    assert_string_equal(name.variant, "regular");
    assert_string_equal(name.suite, "quick");
    assert_int_equal(name.generation, 1);
    assert_int_equal(name.shard, -1);
    assert_status(evq_job_id_parse("r/0/ema/s~2", scratch, &name, &err), EVQ_OK);
    assert_int_equal(name.generation, 2);
    assert_status(evq_job_id_parse("r/0/ema/s~12@3", scratch, &name, &err), EVQ_OK);
    assert_int_equal(name.generation, 12);
    assert_int_equal(name.shard, 3);
    assert_status(evq_job_id_parse("r/0/ema/s@0", scratch, &name, &err), EVQ_OK);
    assert_int_equal(name.shard, 0);
    evq_job_free(job);
}

static void job_id_parse_refuses_what_is_no_id(void **state)
{
    (void)state;
    const char *const bad[] = {
        "",
        "r",
        "r/1",
        "r/1/v",
        "r/1/v/s/x",
        "/1/v/s",
        "r//v/s",
        "r/-1/v/s",
        "r/01/v/s",
        "r/1x/v/s",
        "r/1/v/",
        "r/1/v/s~",
        "r/1/v/s~1",
        "r/1/v/s~0",
        "r/1/v/s@",
        "r/1/v/s@x",
        "r/1/v/s@-1",
        "r/1/v/s@1~2",
        "r/1/../s",
        "r/1/v/s t",
        "r/1/v/s~2@1@2",
        "r /1/v/s",
        "r/1.5/v/s",
        "r/1/v\n/s",
        "r/99999999999999999999/v/s",
        "r/1099511627776/v/s",
    };
    char scratch[EVQ_JOB_ID_BYTES_MAX];
    char longer[400];
    struct evq_job_name name = {.run = "untouched"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct evq_error err = {EVQ_OK, ""};
        if (evq_job_id_parse(bad[i], scratch, &name, &err) != EVQ_E_INVALID) {
            fail_msg("'%s' was accepted", bad[i]);
        }
        assert_holds(err.message, "job id");
        assert_string_equal(name.run, "untouched");
    }
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_status(evq_job_id_parse(longer, scratch, &name, NULL), EVQ_E_INVALID);
}

static void job_map_name_keeps_legal_names_and_tells_others_apart(void **state)
{
    (void)state;
    const char *const texts[] = {"my run",
                                 "my-run",
                                 "my/run",
                                 "my\trun",
                                 "",
                                 ".",
                                 "..",
                                 "\xc3\xbc",
                                 "-",
                                 "a very long name that goes on and on beyond thirty two bytes",
                                 "a very long name that goes on and on beyond thirty two bytez"};
    enum { COUNT = sizeof texts / sizeof texts[0] };
    char names[COUNT][EVQ_JOB_NAME_BYTES_MAX + 1];
    for (int i = 0; i < COUNT; i++) {
        evq_job_map_name(texts[i], EVQ_JOB_NAME_BYTES_MAX, names[i]);
        assert_true(evq_job_name_valid(names[i], EVQ_JOB_NAME_BYTES_MAX));
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(names[i], names[j]);
        }
    }
    assert_string_equal(names[1], "my-run");
    assert_int_equal(strncmp(names[0], "my-run-", 7), 0);
    assert_int_equal(strlen(names[0]), strlen("my-run-") + 8);
    for (size_t room = 9; room <= EVQ_JOB_RUN_BYTES_MAX; room++) {
        char out[EVQ_JOB_RUN_BYTES_MAX + 1];
        evq_job_map_name(texts[9], room, out);
        assert_true(evq_job_name_valid(out, room));
    }
}

static void needs_text_is_canonical(void **state)
{
    (void)state;
    char out[128];
    struct evq_error err;
    struct evq_arena *arena = evq_arena_new(0);
    const char *labels[] = {"fast", "a100", "fast"};
    struct evq_needs needs = {0};
    struct evq_needs back = {0};
    assert_status_err(evq_needs_text(&needs, out, sizeof out, &err), EVQ_OK, &err);
    assert_string_equal(out, "");
    needs = (struct evq_needs){1, INT64_C(25769803776), labels, 3};
    assert_status_err(evq_needs_text(&needs, out, sizeof out, &err), EVQ_OK, &err);
    assert_string_equal(out, "gpus=1,gpu_memory=25769803776,labels=a100+fast");
    assert_status_err(evq_needs_parse(out, arena, &back, &err), EVQ_OK, &err);
    assert_int_equal(back.gpus, 1);
    assert_true(back.gpu_memory_bytes == INT64_C(25769803776));
    assert_int_equal(back.label_count, 2);
    assert_string_equal(back.labels[0], "a100");
    assert_string_equal(back.labels[1], "fast");
    for (size_t room = 0; room <= strlen(out); room++) {
        char small[64];
        assert_status(evq_needs_text(&needs, small, room, NULL), EVQ_E_LIMIT);
    }
    needs = (struct evq_needs){0, 0, labels, 1};
    assert_status(evq_needs_text(&needs, out, sizeof "labels=fast", NULL), EVQ_OK);
    assert_string_equal(out, "labels=fast");
    assert_status(evq_needs_parse("gpu_memory=1.5GiB", arena, &back, &err), EVQ_OK);
    assert_int_equal(back.gpu_memory_bytes, INT64_C(1610612736));
    assert_status(evq_needs_parse("", arena, &back, &err), EVQ_OK);
    assert_int_equal(back.gpus + (int)back.label_count, 0);
    evq_arena_free(arena);
}

static void needs_parse_refuses_bad_text(void **state)
{
    (void)state;
    const char *const bad[] = {"gpus=",
                               "gpus=x",
                               "gpus=-1",
                               "gpus=65",
                               "gpus=1,gpus=2",
                               "gpus=1,",
                               ",gpus=1",
                               "memory=1",
                               "gpu_memory=1Gi",
                               "labels=",
                               "labels=a+",
                               "labels=a b",
                               "labels=a,labels=b",
                               "gpu_memory=9999999999999999999",
                               "gpu_memory=6000000000GiB",
                               "gpus=1 ",
                               "gpus=1\n",
                               "\x1b[2J"};
    struct evq_arena *arena = evq_arena_new(0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct evq_needs needs = {.gpus = 77};
        if (evq_needs_parse(bad[i], arena, &needs, NULL) != EVQ_E_INVALID ||
            evq_needs_check(bad[i], NULL) != EVQ_E_INVALID) {
            fail_msg("'%s' was accepted", bad[i]);
        }
        assert_int_equal(needs.gpus, 77);
    }
    evq_arena_free(arena);
}

static void job_words_map_both_ways(void **state)
{
    (void)state;
    const char *const states[] = {"queued", "delayed", "running",  "done",
                                  "dead",   "skipped", "cancelled"};
    enum evq_job_state job_state;
    enum evq_job_policy policy;
    for (int i = 0; i < EVQ_JOB_STATE_COUNT; i++) {
        assert_string_equal(evq_job_state_name((enum evq_job_state)i), states[i]);
        assert_status(evq_job_state_parse(states[i], &job_state), EVQ_OK);
        assert_int_equal(job_state, i);
    }
    for (int i = 0; i < EVQ_POLICY_COUNT; i++) {
        assert_status(evq_job_policy_parse(evq_job_policy_name((enum evq_job_policy)i), &policy),
                      EVQ_OK);
        assert_int_equal(policy, i);
    }
    assert_status(evq_job_state_parse("Done", &job_state), EVQ_E_INVALID);
    assert_status(evq_job_state_parse(NULL, &job_state), EVQ_E_INVALID);
    assert_status(evq_job_policy_parse("", &policy), EVQ_E_INVALID);
    assert_string_equal(evq_job_state_name((enum evq_job_state)77), "unknown");
}

static void job_path_as_saved_is_the_one_without_the_pin(void **state)
{
    static const char *const cases[][2] = {
        {"out/checkpoint-100", "out/checkpoint-100"},
        {"out/.evalq/pins/100-regular-ab12/checkpoint-100", "out/checkpoint-100"},
        {".evalq/pins/100-regular-ab12/checkpoint-100", "checkpoint-100"},
        {"a/b/.evalq/pins/p/c/d.pt", "a/b/c/d.pt"},
        {"out/.evalq/pins/100", "out/.evalq/pins/100"},
        {"out/.evalq/pins/100/", "out/.evalq/pins/100/"},
        {"xevalq/pins/1/2", "xevalq/pins/1/2"},
        {"", ""},
    };
    char out[64];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool pinned = evq_pin_path_saved(cases[i][0], out, sizeof out);
        assert_string_equal(out, cases[i][1]);
        assert_int_equal(pinned, strcmp(cases[i][0], cases[i][1]) != 0);
        assert_int_equal(evq_pin_path_bytes(cases[i][0]) > 0, pinned);
    }
    assert_int_equal(evq_pin_path_bytes(cases[1][0]), strlen("out/.evalq/pins/100-regular-ab12"));
    assert_int_equal(evq_pin_path_bytes(cases[2][0]), strlen(".evalq/pins/100-regular-ab12"));
    assert_int_equal(evq_pin_path_bytes(cases[3][0]), strlen("a/b/.evalq/pins/p"));
    assert_true(evq_pin_path_saved(cases[1][0], out, 5)); // Cut, and terminated.
    assert_string_equal(out, "out/");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(job_new_has_the_documented_defaults),
        cmocka_unit_test(job_check_names_the_field),
        cmocka_unit_test(job_check_accepts_names_with_dots_in_paths),
        cmocka_unit_test(job_id_and_its_parts_agree),
        cmocka_unit_test(job_id_parse_refuses_what_is_no_id),
        cmocka_unit_test(job_map_name_keeps_legal_names_and_tells_others_apart),
        cmocka_unit_test(needs_text_is_canonical),
        cmocka_unit_test(needs_parse_refuses_bad_text),
        cmocka_unit_test(job_words_map_both_ways),
        cmocka_unit_test(job_path_as_saved_is_the_one_without_the_pin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
