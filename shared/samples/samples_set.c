#include "shared/samples/samples_set.h"

#include <stdlib.h>
#include <string.h>

static int by_id(const void *a, const void *b)
{
    return strcmp(((const struct evq_samples_item *)a)->id,
                  ((const struct evq_samples_item *)b)->id);
}

static enum evq_status full(const struct evq_samples_set *set, struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_LIMIT,
                         "'%s' does not fit into memory, or into the limit of %zu GiB", set->path,
                         EVQ_SAMPLES_SET_BYTES_MAX >> 30);
}

static enum evq_status take_names(struct evq_samples_set *set, const struct evq_sample *sample,
                                  struct evq_error *err)
{
    for (size_t i = 0; i < sample->score_count; i++) {
        set->names[i] = evq_arena_strdup(set->arena, sample->scores[i].name);
        if (set->names[i] == NULL) {
            return full(set, err);
        }
    }
    set->name_count = sample->score_count;
    return EVQ_OK;
}

/* Copies a text that may be NULL. False: memory ran out. */
static bool copy(struct evq_arena *arena, const char *text, const char **ret)
{
    *ret = evq_arena_strdup(arena, text);
    return text == NULL || *ret != NULL;
}

static enum evq_status take_item(struct evq_samples_set *set, const struct evq_sample *sample,
                                 bool texts, struct evq_error *err)
{
    struct evq_samples_item item = {
        .logprob = sample->logprob, .tokens = sample->tokens, .number = (int64_t)set->count};
    double *scores = evq_arena_array(set->arena, set->name_count, sizeof *scores);

    if (scores == NULL || !copy(set->arena, sample->id, &item.id) ||
        !copy(set->arena, sample->cluster, &item.cluster) ||
        !copy(set->arena, texts ? sample->output : NULL, &item.output) ||
        !copy(set->arena, texts ? sample->target : NULL, &item.target)) {
        return full(set, err);
    }
    for (size_t i = 0; i < set->name_count; i++) {
        const struct evq_sample_score *score = evq_sample_score(sample, set->names[i]);
        if (score == NULL || sample->score_count != set->name_count) {
            return evq_error_set(err, EVQ_E_CORRUPT,
                                 "the item has other scores than the first item, whose scores "
                                 "begin with '%s'",
                                 set->names[i]);
        }
        scores[i] = score->value;
    }
    item.scores = scores;
    set->items[set->count++] = item;
    return EVQ_OK;
}

static enum evq_status read_items(struct evq_samples_set *set, struct evq_samples_reader *reader,
                                  bool texts, struct evq_error *err)
{
    size_t room = 0;
    bool end = false;

    for (;;) {
        struct evq_sample sample;
        enum evq_status status = evq_samples_reader_next(reader, &sample, &end, err);
        if (status != EVQ_OK || end) {
            return status;
        }
        if (set->count == room) {
            room = room == 0 ? 1024 : 2 * room;
            struct evq_samples_item *items = reallocarray(set->items, room, sizeof *items);
            if (items == NULL) {
                return full(set, err);
            }
            set->items = items;
        }
        status = set->count == 0 ? take_names(set, &sample, err) : EVQ_OK;
        if (status == EVQ_OK) {
            status = take_item(set, &sample, texts, err);
        }
        if (status != EVQ_OK) {
            return status == EVQ_E_CORRUPT ? evq_samples_reader_at(reader, err) : status;
        }
    }
}

static enum evq_status check_unique(struct evq_samples_set *set, struct evq_error *err)
{
    qsort(set->items, set->count, sizeof *set->items, by_id);
    for (size_t i = 1; i < set->count; i++) {
        if (strcmp(set->items[i - 1].id, set->items[i].id) == 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "'%s': the id '%s' comes twice", set->path,
                                 set->items[i].id);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_samples_set_read(const char *path, bool texts,
                                     const struct evq_samples_limits *limits,
                                     struct evq_samples_set **ret_set, struct evq_error *err)
{
    struct evq_samples_set *set = calloc(1, sizeof *set);
    struct evq_samples_reader *reader = NULL;
    enum evq_status status = EVQ_OK;

    if (set != NULL) {
        set->arena = evq_arena_new(EVQ_SAMPLES_SET_BYTES_MAX);
        set->path = strdup(path);
    }
    if (set == NULL || set->arena == NULL || set->path == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory to read '%s'", path);
        goto out;
    }
    status = evq_samples_reader_open(path, &set->header, &reader, err);
    if (status == EVQ_OK && limits != NULL) {
        evq_samples_reader_limit(reader, limits);
    }
    if (status == EVQ_OK && !texts) {
        evq_samples_reader_skip_texts(reader);
    }
    if (status == EVQ_OK) {
        status = read_items(set, reader, texts, err);
    }
    if (status == EVQ_OK && set->count > 0) {
        status = check_unique(set, err);
    }
out:
    evq_samples_reader_close(reader);
    if (status != EVQ_OK) {
        evq_samples_set_free(set);
        return status;
    }
    *ret_set = set;
    return EVQ_OK;
}

void evq_samples_set_free(struct evq_samples_set *set)
{
    if (set != NULL) {
        evq_arena_free(set->arena);
        free(set->items);
        free(set->path);
        free(set);
    }
}

size_t evq_samples_set_name(const struct evq_samples_set *set, const char *name)
{
    for (size_t i = 0; i < set->name_count; i++) {
        if (strcmp(set->names[i], name) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

static enum evq_status check_same(const struct evq_samples_set *a, const struct evq_samples_set *b,
                                  struct evq_error *err)
{
    const struct evq_samples_header *x = &a->header;
    const struct evq_samples_header *y = &b->header;
    const char *what = strcmp(x->task, y->task) != 0                   ? "tasks"
                       : strcmp(x->suite_digest, y->suite_digest) != 0 ? "definitions of the suite"
                       : strcmp(x->data_digest, y->data_digest) != 0   ? "data"
                                                                       : NULL;

    return what == NULL ? EVQ_OK
                        : evq_error_set(err, EVQ_E_CONFLICT,
                                        "'%s' (task %s) and '%s' (task %s) are samples of "
                                        "different %s, so their items are not the same",
                                        x->job, x->task, y->job, y->task, what);
}

static int by_number(const void *a, const void *b)
{
    const int64_t x = ((const struct evq_samples_pair *)a)->a->number;
    const int64_t y = ((const struct evq_samples_pair *)b)->a->number;

    return (x > y) - (x < y);
}

enum evq_status evq_samples_pairs_make(const struct evq_samples_set *a,
                                       const struct evq_samples_set *b,
                                       struct evq_samples_pairs *ret, struct evq_error *err)
{
    struct evq_samples_pairs out = {.count = 0};
    const enum evq_status status = check_same(a, b, err);
    size_t i = 0;
    size_t k = 0;

    if (status != EVQ_OK) {
        return status;
    }
    out.pairs = calloc(a->count + 1, sizeof *out.pairs);
    if (out.pairs == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to compare '%s'", a->path);
    }
    while (i < a->count || k < b->count) {
        const int order = i == a->count   ? 1
                          : k == b->count ? -1
                                          : strcmp(a->items[i].id, b->items[k].id);
        if (order == 0) {
            out.pairs[out.count++] = (struct evq_samples_pair){&a->items[i++], &b->items[k++]};
        } else if (order < 0) {
            out.first_only_a = out.only_a++ == 0 ? a->items[i].id : out.first_only_a;
            i++;
        } else {
            out.first_only_b = out.only_b++ == 0 ? b->items[k].id : out.first_only_b;
            k++;
        }
    }
    qsort(out.pairs, out.count, sizeof *out.pairs, by_number);
    *ret = out;
    return EVQ_OK;
}
