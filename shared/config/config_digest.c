/*
 * The canonical definition of a suite and its digest. Two workers that offer a suite under one name
 * must compute the same numbers. The definition contains evaluator, command line, prepare and tasks
 * with their model, data and options; maps are sorted by key. Needs, limits, shards and every are
 * left out, because they do not change numbers. Absolute paths count by their base name, so that
 * machines with other directories agree.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/buffer.h"
#include "shared/config/config_read.h"

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const struct evq_pair *)a)->key, ((const struct evq_pair *)b)->key);
}

static void put_key(struct evq_buffer *out, const char *key)
{
    if (out->bytes > 0 && out->data != NULL && out->data[out->bytes - 1] != '{' &&
        out->data[out->bytes - 1] != '[') {
        evq_buffer_text(out, ",");
    }
    evq_buffer_json_text(out, key);
    evq_buffer_text(out, ":");
}

static void put_value(struct evq_buffer *out, const char *value)
{
    const char *slash = value[0] == '/' ? strrchr(value, '/') : NULL;
    if (slash != NULL && slash[1] != '\0') {
        value = slash + 1;
    }
    evq_buffer_json_text(out, value);
}

static void put_source(struct evq_buffer *out, const char *key, const char *path)
{
    if (path[0] != '\0') {
        put_key(out, key);
        put_value(out, path);
    }
}

static bool put_pairs(struct evq_buffer *out, const char *key, const struct evq_pair *pairs,
                      size_t count, struct evq_arena *arena)
{
    if (count == 0) {
        return true;
    }
    struct evq_pair *sorted = evq_arena_array(arena, count, sizeof *sorted);
    if (sorted == NULL) {
        return false;
    }
    memcpy(sorted, pairs, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_pairs);
    put_key(out, key);
    evq_buffer_text(out, "{");
    for (size_t i = 0; i < count; i++) {
        put_key(out, sorted[i].key);
        put_value(out, sorted[i].value);
    }
    evq_buffer_text(out, "}");
    return true;
}

static void put_argv(struct evq_buffer *out, const char *key, const struct evq_evaluator *evaluator)
{
    put_key(out, key);
    evq_buffer_text(out, "[");
    for (size_t i = 0; i < evaluator->argc; i++) {
        evq_buffer_text(out, i > 0 ? "," : "");
        put_value(out, evaluator->argv[i]);
    }
    evq_buffer_text(out, "]");
}

/* On a model server the options are the harness, which stands there already. */
static bool put_task(struct evq_buffer *out, const struct evq_suite *suite,
                     const struct evq_task_config *task, struct evq_arena *arena)
{
    const size_t option_count = suite->harness[0] != '\0' ? 0 : task->option_count;

    evq_buffer_text(out, "{");
    put_key(out, "name");
    evq_buffer_json_text(out, task->name);
    put_key(out, "type");
    evq_buffer_json_text(out, task->type);
    bool good = put_pairs(out, "model", task->model, task->model_count, arena) &&
                put_pairs(out, "data", task->data, task->data_count, arena) &&
                put_pairs(out, "options", task->options, option_count, arena);
    evq_buffer_text(out, "}");
    return good;
}

enum evq_status evq_suite_digest(const struct evq_config_reader *reader, struct evq_suite *suite)
{
    struct evq_buffer out;
    const struct evq_evaluator *evaluator = evq_config_evaluator(reader->config, suite->evaluator);
    const struct evq_evaluator *prepare = evq_config_evaluator(reader->config, suite->prepare);
    bool good = true;

    evq_buffer_init(&out, EVQ_CONFIG_BYTES_MAX * 8);
    evq_buffer_text(&out, "{");
    put_key(&out, "evaluator");
    evq_buffer_json_text(&out, suite->evaluator);
    if (evaluator != NULL) {
        put_argv(&out, "argv", evaluator);
    }
    if (evaluator != NULL && evaluator->settings[0] != '\0') {
        put_key(&out, "server"); // JSON by now.
        evq_buffer_text(&out, evaluator->settings);
        put_key(&out, "harness");
        evq_buffer_text(&out, suite->harness);
        put_source(&out, "base", suite->base);
        put_source(&out, "tokenizer", suite->tokenizer);
    }
    if (prepare != NULL) {
        put_key(&out, "prepare");
        evq_buffer_json_text(&out, prepare->name);
        put_argv(&out, "prepare_argv", prepare);
    }
    put_key(&out, "tasks");
    evq_buffer_text(&out, "[");
    for (size_t i = 0; i < suite->task_count; i++) {
        evq_buffer_text(&out, i > 0 ? "," : "");
        good = good && put_task(&out, suite, &suite->tasks[i], reader->arena);
    }
    evq_buffer_text(&out, "]}");
    const char *text = evq_buffer_string(&out);
    if (text != NULL && good) {
        XXH128_hash_t hash = XXH3_128bits(text, out.bytes);
        (void)snprintf(suite->digest, sizeof suite->digest, "%016" PRIx64 "%016" PRIx64,
                       hash.high64, hash.low64);
        suite->definition = evq_arena_strndup(reader->arena, text, out.bytes);
    }
    evq_buffer_free(&out);
    return suite->definition != NULL ? EVQ_OK : evq_read_nomem(reader);
}
