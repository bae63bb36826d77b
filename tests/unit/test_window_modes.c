/* How documents become windows: held against lm-evaluation-harness's and Transformers' own loops,
 * written out over token lists; and shards against the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/tasks/window_modes.h"

#define PREFIX     1000000
#define TOKENS_MAX 64

/* A corpus of documents of the given lengths over the tokens 0, 1, 2, ... */
struct made {
    struct evq_corpus corpus;
    struct evq_passage passages[4];
    int32_t ids[4 * TOKENS_MAX];
};

static void make(struct made *made, const int64_t *lengths, size_t count)
{
    memset(made, 0, sizeof(*made));
    for (size_t i = 0; i < sizeof(made->ids) / sizeof(made->ids[0]); i++) {
        made->ids[i] = (int32_t)i;
    }
    for (size_t i = 0; i < count; i++) {
        made->passages[i] =
            (struct evq_passage){.first = (int64_t)made->corpus.tokens.count, .count = lengths[i]};
        made->corpus.tokens.count += (size_t)lengths[i];
    }
    made->corpus.name = "made";
    made->corpus.tokens.ids = made->ids;
    made->corpus.passages = made->passages;
    made->corpus.passage_count = count;
    made->corpus.prefix = PREFIX;
}

static struct evq_windows start(const struct made *made, int32_t length)
{
    return (struct evq_windows){
        .corpus = &made->corpus, .length_max = length, .shard = 0, .shard_count = 1};
}

/* What a window feeds and what it predicts, as the harness's pair has it. */
static void assert_window(const struct evq_windows *windows, int64_t at, const int32_t *inputs,
                          int32_t input_count, const int32_t *targets, int32_t target_count)
{
    const struct evq_window *window = &windows->items[at];
    const int32_t shift = window->prefixed ? 1 : 0;

    assert_true(at < windows->count);
    assert_int_equal(evq_window_rows(window), input_count);
    assert_int_equal(window->scored, target_count);
    for (int32_t i = 0; i < input_count + 1; i++) {
        const int32_t token =
            i < shift ? PREFIX : windows->corpus->tokens.ids[window->first + i - shift];
        if (i < input_count) {
            assert_int_equal(token, inputs[i]);
        }
        if (i > input_count - target_count) {
            assert_int_equal(token, targets[i - 1 - (input_count - target_count)]);
        }
    }
}

/* get_rolling_token_windows(ids, PREFIX, length, 1) through make_disjoint_window(): each pair's
 * context, and its predictions; the model is fed both but the last. Returns the number of windows.
 */
static int64_t check_rolling(const struct evq_windows *windows, const int32_t *ids, int32_t count,
                             int32_t length, int64_t at)
{
    int32_t both[2 * TOKENS_MAX];
    int32_t predicted = count < length ? count : length;

    if (count == 0) {
        return at;
    }
    both[0] = PREFIX;
    memcpy(both + 1, ids, (size_t)predicted * sizeof(*ids));
    assert_window(windows, at++, both, predicted, ids, predicted);
    while (predicted < count) {
        const int32_t width = count - predicted < length ? count - predicted : length;
        const int32_t end = predicted + width;
        const int32_t context = length - (width - 1); // What stays of the input's `length` tokens.
        memcpy(both, ids + end - length - 1, (size_t)context * sizeof(*ids));
        memcpy(both + context, ids + end - width, (size_t)width * sizeof(*ids));
        assert_window(windows, at++, both, context + width - 1, ids + end - width, width);
        predicted += width;
    }
    return at;
}

static void cut_rolling_is_the_harness_s(void **state)
{
    (void)state;
    for (int64_t count = 0; count < 40; count++) {
        for (int32_t length = 1; length < 12; length++) {
            const int64_t lengths[] = {count, 7, 0, 40 - count};
            struct made made;
            make(&made, lengths, 4);
            made.passages[1].context = 2; // The template's, left out as the last is.
            made.passages[1].after = 1;
            struct evq_windows windows = start(&made, length);
            int64_t at = 0;
            assert_int_equal(evq_window_modes_rolling(&windows, NULL), EVQ_OK);
            for (size_t i = 0; i < 4; i++) {
                const struct evq_passage *passage = &made.passages[i];
                const int64_t left = passage->count - passage->context - passage->after;
                at = check_rolling(&windows, made.ids + passage->first + passage->context,
                                   (int32_t)left, length, at);
            }
            assert_int_equal(windows.count, at);
            evq_windows_free(&windows);
        }
    }
}

static void cut_strided_is_transformers(void **state)
{
    (void)state;
    for (int64_t count = 1; count < 40; count++) {
        for (int32_t length = 2; length < 12; length++) {
            for (int32_t stride = 1; stride <= length; stride++) {
                const int64_t lengths[] = {count};
                struct made made;
                make(&made, lengths, 1);
                struct evq_windows windows = start(&made, length);
                int64_t at = 0;
                int64_t before = 0;
                assert_int_equal(evq_window_modes_strided(&windows, stride, NULL), EVQ_OK);
                for (int64_t begin = 0; begin < count; begin += stride) {
                    const int64_t end = begin + length < count ? begin + length : count;
                    int64_t scored = end - before; // trg_len; its labels shift by one.
                    scored = scored < end - begin - 1 ? scored : end - begin - 1;
                    if (scored > 0) {
                        assert_window(&windows, at++, made.ids + begin, (int32_t)(end - begin - 1),
                                      made.ids + end - scored, (int32_t)scored);
                    }
                    before = end;
                    if (end == count) {
                        break;
                    }
                }
                assert_int_equal(windows.count, at);
                evq_windows_free(&windows);
            }
        }
    }
}

static void cut_blocks_predicts_each_token_but_the_first_once(void **state)
{
    (void)state;
    for (int64_t count = 0; count < 30; count++) {
        for (int32_t length = 1; length < 9; length++) {
            const int64_t lengths[] = {count, 9};
            int seen[TOKENS_MAX] = {0};
            struct made made;
            make(&made, lengths, 2);
            struct evq_windows windows = start(&made, length);
            assert_int_equal(evq_window_modes_blocks(&windows, NULL), EVQ_OK);
            for (int64_t i = 0; i < windows.count; i++) {
                const struct evq_window *window = &windows.items[i];
                assert_int_equal(window->scored, window->length - 1);
                for (int32_t t = 1; t < window->length; t++) {
                    seen[window->first + t]++;
                }
            }
            for (int64_t t = 0; t < count + 9; t++) {
                assert_int_equal(seen[t], t != 0 && t != count);
            }
            evq_windows_free(&windows);
        }
    }
}

static void cut_samples_are_a_trainer_s(void **state)
{
    const int64_t lengths[] = {5, 1, 9, 3};
    struct made made;

    (void)state;
    make(&made, lengths, 4);
    struct evq_windows windows = start(&made, 4);
    assert_int_equal(evq_window_modes_joined(&windows, 3, NULL),
                     EVQ_OK); // 18 tokens: four blocks of 4.
    assert_int_equal(windows.count, 4);
    assert_int_equal(evq_window_modes_samples(&windows, true), 4);
    for (int64_t i = 0; i < 4; i++) {
        assert_window(&windows, i, made.ids + 4 * i, 3, made.ids + 4 * i + 1, 3);
        assert_int_equal(windows.items[i].group, i / 3);
    }
    evq_windows_free(&windows);
    windows = start(&made, 4);
    assert_int_equal(evq_window_modes_documents(&windows, 3, NULL), EVQ_OK);
    assert_int_equal(windows.count, 3); // One token predicts nothing.
    assert_int_equal(evq_window_modes_samples(&windows, false), 4);
    assert_window(&windows, 0, made.ids, 3, made.ids + 1, 3);
    assert_window(&windows, 1, made.ids + 6, 3, made.ids + 7, 3);
    assert_window(&windows, 2, made.ids + 15, 2, made.ids + 16, 2);
    assert_int_equal(windows.items[2].group, 1);
    evq_windows_free(&windows);
}

static enum evq_status cut(struct evq_windows *windows, int mode)
{
    switch (mode) {
    case 0:
        return evq_window_modes_rolling(windows, NULL);
    case 1:
        return evq_window_modes_strided(windows, 3, NULL);
    case 2:
        return evq_window_modes_blocks(windows, NULL);
    case 3:
        return evq_window_modes_documents(windows, 2, NULL);
    default:
        return evq_window_modes_joined(windows, 2, NULL);
    }
}

static void cut_shards_make_up_the_whole(void **state)
{
    const int64_t lengths[] = {17, 0, 33, 4};
    struct made made;

    (void)state;
    make(&made, lengths, 4);
    for (int mode = 0; mode < 5; mode++) {
        for (int32_t shards = 1; shards < 9; shards++) {
            struct evq_windows whole = start(&made, 5);
            int64_t found = 0;
            assert_int_equal(cut(&whole, mode), EVQ_OK);
            for (int32_t shard = 0; shard < shards; shard++) {
                struct evq_windows part = start(&made, 5);
                int64_t at = 0;
                part.shard = shard;
                part.shard_count = shards;
                assert_int_equal(cut(&part, mode), EVQ_OK);
                for (int64_t i = 0; i < part.count; i++, found++) { // In the whole's order.
                    while (at < whole.count &&
                           memcmp(&whole.items[at], &part.items[i], sizeof(part.items[i])) != 0) {
                        at++;
                    }
                    assert_true(at < whole.count);
                }
                evq_windows_free(&part);
            }
            assert_int_equal(found, whole.count);
            evq_windows_free(&whole);
        }
    }
}

static void cut_refuses_what_cannot_be(void **state)
{
    const int64_t lengths[] = {9};
    struct made made;
    struct evq_error err = {0};

    (void)state;
    make(&made, lengths, 1);
    struct evq_windows windows = start(&made, 4);
    assert_int_equal(evq_window_modes_strided(&windows, 5, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "stride is 5, expected at most the length 4"));
    made.corpus.prefix = -1;
    assert_int_equal(evq_window_modes_rolling(&windows, &err), EVQ_E_INVALID);
    assert_non_null(strstr(err.message, "set data: {prefix: TEXT}"));
    assert_int_equal(evq_windows_add(&windows, (struct evq_window){.length = 6}, &err),
                     EVQ_E_LIMIT);
    assert_non_null(
        strstr(err.message, "a window of 'made' is 5 tokens long, but the model takes 4"));
    assert_int_equal(evq_windows_add(&windows, (struct evq_window){.length = 5}, &err), EVQ_OK);
    evq_windows_free(&windows);
}

static void items_keep_the_end_of_a_long_context(void **state)
{
    struct evq_item items[] = {{.first = 0, .passages = 2}, {.first = 2, .passages = 1}};
    const int64_t lengths[] = {12, 5, 9};
    struct made made;
    struct evq_error err = {0};

    (void)state;
    make(&made, lengths, 3);
    made.passages[0].context = 9;
    made.passages[1].context = 4;
    made.passages[2].context = 2;
    made.corpus.items = items;
    made.corpus.item_count = 2;
    struct evq_windows windows = start(&made, 7);
    assert_int_equal(evq_windows_of_items(&windows, &err), EVQ_OK);
    assert_int_equal(windows.count, 3);
    assert_window(&windows, 0, made.ids + 4, 7, made.ids + 9,
                  3); // (context + continuation)[-8:][:-1]
    assert_window(&windows, 1, made.ids + 12, 4, made.ids + 16, 1);
    assert_window(&windows, 2, made.ids + 18, 7, made.ids + 19, 7);
    evq_windows_free(&windows);
    windows = start(&made, 6);
    assert_int_equal(evq_windows_of_items(&windows, &err), EVQ_E_LIMIT);
    assert_string_equal(err.message,
                        "item 1 of 'made': 7 tokens are to be scored, but the model takes 6");
    evq_windows_free(&windows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_rolling_is_the_harness_s),
        cmocka_unit_test(cut_strided_is_transformers),
        cmocka_unit_test(cut_blocks_predicts_each_token_but_the_first_once),
        cmocka_unit_test(cut_samples_are_a_trainer_s),
        cmocka_unit_test(cut_shards_make_up_the_whole),
        cmocka_unit_test(cut_refuses_what_cannot_be),
        cmocka_unit_test(items_keep_the_end_of_a_long_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
