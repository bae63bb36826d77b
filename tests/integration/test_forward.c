/*
 * Tests one sink that reads its consumer group, in a thread of the test: entries that an earlier
 * logger left, entries that are held back, and the end.
 */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logger/forward.h"
#include "tests/fixture/queue.h"
#include "tests/fixture/receiver.h"

#define RESULTS "evalq:{main}:results"
#define SINK    "sink"

struct scene {
    struct fixture *fx;
    struct evq_config *config;
    struct evq_pair options[2];
    struct evq_sink_config sink;
    const struct evq_sink_config *sinks[1];
    struct evq_forward *forward;
    sem_t started; // Tells another thread that forward is set.
    char directory[64];
};

enum evq_status __wrap_evq_checkpoint_verify_fingerprint(const char *root, const char *path,
                                                         const char *fingerprint,
                                                         struct evq_error *err);

static sem_t answers; // Each post lets one check of the stand-in file server return.
static atomic_int looks;

enum evq_status __wrap_evq_checkpoint_verify_fingerprint(const char *root, const char *path,
                                                         const char *fingerprint,
                                                         struct evq_error *err)
{
    (void)root;
    (void)path;
    (void)fingerprint;
    (void)err;
    atomic_fetch_add(&looks, 1);
    (void)sem_wait(&answers);
    return EVQ_OK;
}

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));
    struct evq_error err;

    assert_non_null(scene);
    assert_int_equal(sem_init(&scene->started, 0, 0), 0);
    assert_int_equal(sem_init(&answers, 0, 0), 0);
    scene->fx = fixture_open(NULL);
    const struct evq_config_source source = {.url = scene->fx->redis->url};
    assert_status_err(evq_config_load(&source, &scene->config, &err), EVQ_OK, &err);
    fixture_dir_make(scene->directory);
    scene->config->logger.directory = scene->directory;
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    for (int i = 0; i < 8; i++) {
        assert_int_equal(sem_post(&answers), 0); // Lets a hanging check continue.
    }
    if (scene->forward != NULL) {
        evq_forward_stop(scene->forward);
        assert_status(evq_forward_join(scene->forward, NULL), EVQ_OK);
    }
    evq_config_free(scene->config);
    fixture_close(scene->fx);
    fixture_dir_remove(scene->directory);
    (void)sem_destroy(&scene->started);
    free(scene);
    return 0;
}

/* Creates and registers a sink with at most two options. */
static void sink_make(struct scene *scene, const char *kind, const char *key, const char *value)
{
    struct evq_error err;

    scene->options[0] = (struct evq_pair){key, value};
    scene->options[1] = (struct evq_pair){"allow_private", "true"};
    scene->sink = (struct evq_sink_config){SINK, kind, scene->options,
                                           strcmp(kind, "webhook") == 0 ? 2 : 1, false};
    scene->sinks[0] = &scene->sink;
    assert_status_err(evq_forward_register(scene->config, scene->sinks, 1, &err), EVQ_OK, &err);
}

static void forward_start(struct scene *scene)
{
    struct evq_error err;

    assert_status_err(evq_forward_start(scene->config, scene->sinks, 1, 0, &scene->forward, &err),
                      EVQ_OK, &err);
    assert_int_equal(sem_post(&scene->started), 0);
}

/* Publishes a result of a flow whose first step is open, so many times. */
static void held_publish(struct scene *scene, const char *times)
{
    static const char again[] =
        "local e = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][2]\n"
        "for i = 2, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], '*', unpack(e)) end\n"
        "return 1";

    (void)fixture_submit(scene->fx, "held/1/regular/quick");
    struct evq_claim *first = fixture_claim(scene->fx);
    (void)fixture_submit(scene->fx, "held/2/regular/quick");
    struct evq_claim *second = fixture_claim(scene->fx);
    fixture_publish(scene->fx, second, "t", 0.5);
    assert_int_equal(fixture_call_integer(scene->fx->raw, "EVAL", again, "1", RESULTS, times, NULL),
                     1);
    evq_claim_free(second);
    evq_claim_free(first);
}

/* Returns how many entries the sink has received and not acknowledged. */
static int64_t delivered(struct scene *scene)
{
    struct evq_reply *reply = fixture_call(scene->fx->raw, "XPENDING", RESULTS, SINK, NULL);
    const int64_t count = reply->items[0]->integer;

    evq_reply_free(reply);
    return count;
}

/* Returns how many entries the sink has not received yet. */
static int64_t undelivered(struct scene *scene)
{
    struct evq_reply *reply = fixture_call(scene->fx->raw, "XINFO", "GROUPS", RESULTS, NULL);
    int64_t lag = -1;

    for (size_t i = 0; i + 1 < reply->items[0]->item_count; i += 2) {
        if (strcmp(reply->items[0]->items[i]->text, "lag") == 0) {
            lag = reply->items[0]->items[i + 1]->integer;
        }
    }
    evq_reply_free(reply);
    return lag;
}

/*
 * An earlier process left more held-back entries than one read returns. The entries behind them
 * must not wait.
 */
static void forward_takes_entries_behind_many_that_are_held_back(void **state)
{
    enum { HELD = 600 };
    struct scene *scene = *state;

    sink_make(scene, "tensorboard", "max_hold_seconds", "3600");
    held_publish(scene, "600");
    fixture_finish(scene->fx, "free/1/regular/quick", 0.5);
    evq_reply_free(fixture_call(scene->fx->raw, "XREADGROUP", "GROUP", SINK, "logger", "COUNT",
                                "1000", "STREAMS", RESULTS, ">", NULL));
    assert_int_equal(delivered(scene), HELD + 2); // The end of free/1 is there too.
    forward_start(scene);
    FIXTURE_UNTIL(delivered(scene) == HELD);
}

/*
 * The order is only best effort: if too many entries are held back, they are written out of order.
 */
static void forward_writes_entries_that_it_cannot_hold_back(void **state)
{
    enum { TIMES = 9000, ROOM = 4096 };
    struct scene *scene = *state;

    sink_make(scene, "tensorboard", "max_hold_seconds", "3600");
    held_publish(scene, "9000");
    forward_start(scene);
    FIXTURE_UNTIL(undelivered(scene) == 0 && delivered(scene) < ROOM);
    const struct fixture_text said =
        fixture_call_text(scene->fx->raw, "HGET", "evalq:{main}:sink:" SINK, "error", NULL);
    assert_string_equal(said.text, "");
}

/* While no logger runs, the files of a sink must be complete. */
static void forward_writes_what_is_held_back_before_it_ends(void **state)
{
    struct scene *scene = *state;

    sink_make(scene, "tensorboard", "max_hold_seconds", "3600");
    held_publish(scene, "3");
    forward_start(scene);
    FIXTURE_UNTIL(undelivered(scene) == 0 && delivered(scene) == 3);
    evq_forward_stop(scene->forward);
    assert_status(evq_forward_join(scene->forward, NULL), EVQ_OK);
    scene->forward = NULL;
    assert_int_equal(delivered(scene), 0);
}

/* Returns what the logger reports about the sink in `evalq status`. */
static bool said_of_sink(struct scene *scene, const char *words)
{
    const struct fixture_text said =
        fixture_call_text(scene->fx->raw, "HGET", "evalq:{main}:sink:" SINK, "error", NULL);

    return words[0] == '\0' ? said.text[0] == '\0' : strstr(said.text, words) != NULL;
}

/* Each logger gets some of the results, and writes them into its own directory. */
static void forward_says_that_another_logger_takes_results_of_its_sink(void **state)
{
    struct scene *scene = *state;
    struct evq_forward *other = NULL;
    struct evq_error err;

    sink_make(scene, "exec", "command.0", "cat");
    forward_start(scene);
    FIXTURE_UNTIL(fixture_call_integer(scene->fx->raw, "HEXISTS", "evalq:{main}:sink:" SINK,
                                       "logger", NULL) == 1);
    // Two loggers one after the other are not two at the same time.
    evq_forward_stop(scene->forward);
    assert_status(evq_forward_join(scene->forward, NULL), EVQ_OK);
    forward_start(scene);
    fixture_finish(scene->fx, "digits/1/regular/quick", 0.5);
    FIXTURE_UNTIL(undelivered(scene) == 0 && delivered(scene) == 0);
    assert_true(said_of_sink(scene, ""));
    assert_status_err(evq_forward_start(scene->config, scene->sinks, 1, 0, &other, &err), EVQ_OK,
                      &err);
    FIXTURE_UNTIL(said_of_sink(scene, "two loggers take results of this sink, into "));
    assert_true(said_of_sink(scene, scene->directory));
    fixture_finish(scene->fx, "digits/2/regular/quick", 0.5);
    FIXTURE_UNTIL(undelivered(scene) == 0 && delivered(scene) == 0);
    FIXTURE_UNTIL(said_of_sink(scene, "two loggers")); // The warning stays when both know.
    evq_forward_stop(other);
    assert_status(evq_forward_join(other, NULL), EVQ_OK);
    FIXTURE_UNTIL(said_of_sink(scene, ""));
}

/*
 * A hanging file server must delay neither the links to the best checkpoints nor the results of
 * other runs.
 */
static void forward_continues_when_a_checkpoint_does_not_answer(void **state)
{
    static const struct evq_root root = {.name = "ckpt", .path = "/"};
    struct scene *scene = *state;

    scene->config->roots = &root;
    scene->config->root_count = 1;
    sink_make(scene, "best", "metric", "");
    forward_start(scene);
    fixture_finish(scene->fx, "digits/1/regular/quick", 0.5);
    fixture_finish(scene->fx, "other/1/regular/quick", 0.5);
    FIXTURE_UNTIL(undelivered(scene) == 0 && delivered(scene) == 0);
    assert_int_equal(atomic_load(&looks), 1);
    evq_forward_stop(scene->forward);
    assert_status(evq_forward_join(scene->forward, NULL), EVQ_OK); // This does not wait either.
    scene->forward = NULL;
}

static void forward_clears_the_error_of_an_earlier_process(void **state)
{
    struct scene *scene = *state;

    sink_make(scene, "exec", "command.0", "cat");
    evq_reply_free(fixture_call(scene->fx->raw, "HSET", "evalq:{main}:sink:" SINK, "error",
                                "two loggers", NULL));
    forward_start(scene);
    FIXTURE_UNTIL(said_of_sink(scene, ""));
}

static void stop_at_the_first(void *context, size_t number,
                              const struct fixture_receiver_request *request,
                              struct fixture_receiver_answer *ret)
{
    struct scene *scene = context;

    (void)number;
    (void)request;
    (void)ret; // 200.
    (void)sem_wait(&scene->started);
    evq_forward_stop(scene->forward);
    (void)sem_post(&scene->started);
}

/*
 * A slow receiver may need longer for a batch than the time before a kill. What was sent by then
 * would be sent again.
 */
static void forward_ends_between_two_that_are_sent(void **state)
{
    enum { JOBS = 5 };
    struct scene *scene = *state;
    char id[64];

    if (evq_sink_find("webhook") == NULL) {
        skip();
    }
    struct fixture_receiver *receiver = fixture_receiver_start(stop_at_the_first, scene);
    sink_make(scene, "webhook", "url", receiver->url);
    for (int step = 1; step <= JOBS; step++) {
        (void)snprintf(id, sizeof(id), "digits/%d/regular/quick", step);
        fixture_finish(scene->fx, id, 0.5);
    }
    forward_start(scene);
    assert_status(evq_forward_join(scene->forward, NULL), EVQ_OK);
    scene->forward = NULL;
    assert_int_equal(atomic_load(&receiver->count), 1);
    assert_int_equal(delivered(scene), 2 * JOBS - 1);
    fixture_receiver_stop(receiver);
}

/*
 * An entry that one sink has acknowledged is trimmed, unless another registered sink still needs
 * it.
 */
static void forward_registers_all_sinks_before_one_reads(void **state)
{
    struct scene *scene = *state;
    const struct evq_sink_config first = {"jsonl", "jsonl", NULL, 0, false};
    const struct evq_sink_config second = {"late", "jsonl", NULL, 0, false};
    const struct evq_sink_config odd = {"odd", "jsonnl", NULL, 0, false};
    const struct evq_sink_config *sinks[] = {&first, &second, &odd};
    struct evq_error err;
    char *text = NULL;

    assert_status(evq_forward_register(scene->config, sinks, 3, &err), EVQ_E_INVALID);
    assert_holds(err.message, "'jsonnl' is unknown");
    assert_status_err(evq_forward_register(scene->config, sinks, 2, &err), EVQ_OK, &err);
    assert_status_err(evq_queue_stats(scene->fx->queue, &text, &err), EVQ_OK, &err);
    assert_holds(text, "\"jsonl\"");
    assert_holds(text, "\"late\"");
    assert_null(strstr(text, "\"odd\""));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(forward_registers_all_sinks_before_one_reads, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(forward_takes_entries_behind_many_that_are_held_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(forward_writes_entries_that_it_cannot_hold_back, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(forward_writes_what_is_held_back_before_it_ends, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(forward_says_that_another_logger_takes_results_of_its_sink,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(forward_continues_when_a_checkpoint_does_not_answer, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(forward_clears_the_error_of_an_earlier_process, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(forward_ends_between_two_that_are_sent, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
