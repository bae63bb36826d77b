/*
 * Several supervisors on one machine share its GPUs. worker.gpus has lists of UUIDs. The test needs
 * no GPU, because the evaluators are commands that record the GPU that they were given.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/site.h"

#define BIN EVQ_TEST_BIN "/evalq-worker"

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt}\n"
    "worker: {scratch: $DIR/scratch, slots: 1, gpus: [GPU-a, GPU-b, GPU-c, GPU-d],\n"
    "         lease_ms: 4000, heartbeat_ms: 100, drain_seconds: 1}\n"
    "evaluators:\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "suites:\n"
    "  gate: {evaluator: gate, needs: {gpus: 1}, tasks: [{name: t, type: any}]}\n";
/* Records its GPU, and whether the process that had it before is still alive. */
static const char gate_sh[] =
    "#!/bin/sh\n"
    "gpu=$CUDA_VISIBLE_DEVICES\n"
    "[ -e $DIR/on-$gpu ] && kill -0 $(cat $DIR/on-$gpu) 2>/dev/null && echo $gpu >> $DIR/overlap\n"
    "echo $$ > $DIR/on-$gpu\n"
    "echo $gpu >> $DIR/started\n"
    "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
    "rm $DIR/on-$gpu\n"
    "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site = fixture_site_open(fx, BIN, "", site_yaml);

    fixture_site_write(site, "gate.sh", "", gate_sh);
    *state = site;
    return 0;
}

/* If there is a driver, unknown names are refused. */
static void skip_with_driver(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

    if (library != NULL) {
        (void)dlclose(library);
        print_message("skipped: this machine has an NVIDIA driver, which knows no GPU-a\n");
        skip();
    }
}

/* Returns the letter of the GPU (GPU-a to GPU-d) in line `line` of the text, counted from 0. */
static char start_of(struct fixture_site *site, int line)
{
    const struct fixture_text text = fixture_site_text(site, "started");

    assert_true(strlen(text.text) >= (size_t)(line + 1) * 6);
    return text.text[(size_t)line * 6 + 4];
}

static char leased_to(const struct fixture_worker *worker)
{
    static const char *const words[] = {"devices=GPU-a", "devices=GPU-b", "devices=GPU-c",
                                        "devices=GPU-d"};

    for (int i = 0; i < 4; i++) {
        if (fixture_worker_logged(worker, words[i])) {
            return (char)('a' + i);
        }
    }
    return '?';
}

static bool worker_says(struct fixture_site *site, const char *words)
{
    struct fixture *fx = site->fx;
    char key[128];
    bool found = false;

    struct evq_reply *workers =
        fixture_call(fx->raw, "ZRANGE", fixture_key(fx, "workers"), "0", "-1", NULL);
    for (size_t i = 0; i < workers->item_count && !found; i++) {
        (void)snprintf(key, sizeof(key), "worker:%s", workers->items[i]->text);
        struct evq_reply *json = fixture_call(fx->raw, "HGET", fixture_key(fx, key), "json", NULL);
        found = json->text != NULL && strstr(json->text, words) != NULL;
        evq_reply_free(json);
    }
    evq_reply_free(workers);
    return found;
}

/* Four workers each run a job on their own GPU; a fifth worker waits. */
static void five_start(struct fixture_site *site, struct fixture_worker *workers[5])
{
    bool seen[4] = {false};
    char id[64];

    for (int i = 0; i < 4; i++) {
        workers[i] = fixture_site_worker(site, NULL);
    }
    for (int i = 0; i < 4; i++) {
        FIXTURE_UNTIL(fixture_worker_logged(workers[i], "event=gpu_leased"));
    }
    for (int step = 1; step <= 4; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/gate", step);
        fixture_site_submit(site, id);
    }
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 4);
    for (int i = 0; i < 4; i++) {
        const int gpu = start_of(site, i) - 'a';
        assert_true(gpu >= 0 && gpu < 4);
        assert_false(seen[gpu]);
        seen[gpu] = true;
    }
    workers[4] = fixture_site_worker(site, NULL);
    FIXTURE_UNTIL(fixture_worker_logged(workers[4], "event=gpu_wait"));
    FIXTURE_UNTIL(worker_says(site, "waits for 1 of the 4 GPUs"));
    assert_int_equal(leased_to(workers[4]), '?');
    site->bin = EVQ_TEST_BIN "/evalq";
    assert_int_equal(
        fixture_site_run(site, "status", "status", "--url", site->fx->redis->url, NULL), 0);
    site->bin = BIN;
    assert_true(fixture_site_holds(site, "status", "waits for 1 of the 4 GPUs"));
}

static void five_end(struct fixture_site *site)
{
    char id[64];

    fixture_site_touch(site, "go");
    for (int step = 1; step <= 4; step++) {
        (void)snprintf(id, sizeof(id), "run/%d/regular/gate", step);
        SITE_STATE_UNTIL(site, id, "done");
        const struct fixture_published found = fixture_site_published(site, id, "t", "one");
        assert_int_equal(found.tasks, 1);
        assert_int_equal(found.ends, 1);
    }
    fixture_audit(site->fx);
}

static void gpu_of_a_dead_worker_comes_free(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *workers[5];

    skip_with_driver();
    five_start(site, workers);
    const char gpu = leased_to(workers[2]);
    fixture_worker_signal(workers[2], SIGKILL);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 5);
    assert_int_equal(start_of(site, 4), gpu);
    assert_int_equal(leased_to(workers[4]), gpu);
    assert_false(fixture_site_has(site, "overlap"));
    five_end(site);
}

static void worker_that_ends_releases_its_gpu_at_once(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *workers[5];

    skip_with_driver();
    five_start(site, workers);
    const char gpu = leased_to(workers[1]);
    fixture_worker_signal(workers[1], SIGTERM);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 5);
    assert_int_equal(start_of(site, 4), gpu);
    assert_false(fixture_site_has(site, "overlap"));
    five_end(site);
}

/*
 * The supervisor is stopped until its lease lapses, but its command runs. When the supervisor
 * continues, it kills the command and waits.
 */
static void worker_that_was_stopped_releases_its_gpu(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *workers[5];
    char on[16];

    skip_with_driver();
    five_start(site, workers);
    const char gpu = leased_to(workers[0]);
    (void)snprintf(on, sizeof(on), "on-GPU-%c", gpu);
    const pid_t command = atoi(fixture_site_text(site, on).text);
    fixture_worker_signal(workers[0], SIGSTOP);
    FIXTURE_UNTIL(fixture_site_lines(site, "started") == 5);
    assert_int_equal(start_of(site, 4), gpu);
    fixture_worker_signal(workers[0], SIGCONT);
    FIXTURE_UNTIL(fixture_worker_logged(workers[0], "event=gpu_lost"));
    FIXTURE_UNTIL(!fixture_process_lives(command));
    FIXTURE_UNTIL(fixture_worker_logged(workers[0], "event=gpu_wait"));
    five_end(site);
}

/* ---- the function itself ---- */

static void gpus_ask(struct fixture *fx, const char *worker, int64_t lease_ms, uint32_t want,
                     uint32_t several, struct evq_gpu_lease *gpus, uint32_t count)
{
    const struct evq_gpu_request request = {
        .worker = worker, .boot = "boot", .lease_ms = lease_ms, .want = want, .several = several};
    struct evq_error err;

    assert_status_err(evq_queue_gpus_lease(fx->queue, &request, gpus, count, &err), EVQ_OK, &err);
}

static uint32_t held(const struct evq_gpu_lease *gpus, uint32_t count)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < count; i++) {
        sum += gpus[i].token[0] != '\0';
    }
    return sum;
}

static void gpus_are_taken_whole_renewed_and_freed(void **state)
{
    struct fixture_site *site = *state;
    struct fixture *fx = site->fx;
    struct evq_gpu_lease a[3] = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}, {.uuid = "GPU-c"}};
    struct evq_gpu_lease b[3] = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}, {.uuid = "GPU-c"}};

    gpus_ask(fx, "A", 60000, 2, 2, a, 3);
    assert_int_equal(held(a, 3), 2);
    gpus_ask(fx, "B", 60000, 2, 2, b, 3); // One GPU is left, half of what the job needs.
    assert_int_equal(held(b, 3), 0);
    gpus_ask(fx, "B", 60000, 1, 1, b, 3);
    assert_int_equal(held(b, 3), 1);
    assert_string_not_equal(b[2].token, "");
    const struct evq_gpu_lease before = a[0];
    gpus_ask(fx, "A", 60000, 2, 2, a, 3);
    assert_string_equal(a[0].token, before.token);
    a[0].token[0] = '\0'; // The call is repeated, as after a lost answer.
    gpus_ask(fx, "A", 60000, 2, 2, a, 3);
    assert_string_equal(a[0].token, before.token);
    gpus_ask(fx, "A", 60000, 0, 1, a, 0);
    gpus_ask(fx, "B", 60000, 3, 1, b, 3);
    assert_int_equal(held(b, 3), 3);
    gpus_ask(fx, "A", 60000, 2, 2, a, 3); // The call uses the old tokens.
    assert_int_equal(held(a, 3), 0);
    fixture_audit(fx);
}

static void gpu_is_checked_twice_before_it_is_free(void **state)
{
    struct fixture_site *site = *state;
    struct fixture *fx = site->fx;
    struct evq_gpu_lease a = {.uuid = "GPU-a"};
    struct evq_gpu_lease b = {.uuid = "GPU-a"};
    char key[] = "gpus:boot";

    gpus_ask(fx, "A", 60000, 1, 1, &a, 1);
    // The state of A after its lease: the time of the check has passed, but nobody has checked.
    char text[64];
    (void)snprintf(text, sizeof(text), "A %s 60000 1 0", a.token);
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, key), "GPU-a", text, NULL));
    gpus_ask(fx, "B", 60000, 1, 1, &b, 1);
    assert_int_equal(held(&b, 1), 0);
    gpus_ask(fx, "A", 60000, 1, 1, &a, 1); // The holder lives, so the mark is removed.
    assert_int_equal(held(&a, 1), 1);
    (void)snprintf(text, sizeof(text), "A %s 60000 1 1", a.token);
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, key), "GPU-a", text, NULL));
    gpus_ask(fx, "B", 60000, 1, 1, &b, 1);
    assert_int_equal(held(&b, 1), 1);
    gpus_ask(fx, "A", 60000, 1, 1, &a, 1);
    assert_int_equal(held(&a, 1), 0);
    // A clock that was set back by years delays the release by one lease, not by years.
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, key), "GPU-a",
                                "B 9 1 9000000000000 1", NULL));
    FIXTURE_UNTIL((gpus_ask(fx, "A", 60000, 1, 1, &a, 1), held(&a, 1) == 1));
    evq_reply_free(fixture_call(fx->raw, "HSET", fixture_key(fx, key), "GPU-b", "no lease", NULL));
    struct evq_reply *audit = fixture_call(fx->raw, "FCALL_RO", "evalq_v1_audit", "1",
                                           evq_queue_prefix(fx->queue), "", NULL);
    assert_non_null(strstr(audit->text, "a lease that is none"));
    evq_reply_free(audit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gpus_are_taken_whole_renewed_and_freed, setup,
                                        fixture_site_teardown),
        cmocka_unit_test_setup_teardown(gpu_is_checked_twice_before_it_is_free, setup,
                                        fixture_site_teardown),
        cmocka_unit_test_setup_teardown(gpu_of_a_dead_worker_comes_free, setup,
                                        fixture_site_teardown),
        cmocka_unit_test_setup_teardown(worker_that_ends_releases_its_gpu_at_once, setup,
                                        fixture_site_teardown),
        cmocka_unit_test_setup_teardown(worker_that_was_stopped_releases_its_gpu, setup,
                                        fixture_site_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
