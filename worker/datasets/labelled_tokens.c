/* Reads texts with labels from arrays of tokens: [texts, length] with the padding behind each text,
 * as a tokenizer of Transformers returns them. */
#include <inttypes.h>
#include <stdlib.h>

#include "worker/datasets/corpus_build.h"
#include "worker/datasets/dataset.h"

enum { TOKENS, LABELS, MASK, TYPES, ARRAYS }; // As in evq_corpus.paths.

struct arrays {
    const struct evq_corpus *corpus;
    struct evq_array items[ARRAYS]; // data NULL: there is no such file.
    int64_t length;
};

enum evq_status evq_labelled_tokens_check(const struct evq_task_config *task, struct evq_error *err)
{
    return evq_corpus_option(task, "labels", "")[0] != '\0'
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_INVALID,
                               "data: labels is missing, a file npy with one whole number for each "
                               "text");
}

static enum evq_status read_array(struct arrays *arrays, int32_t which, struct evq_error *err)
{
    const char *path = arrays->corpus->paths[which];
    const struct evq_array_source from = {.path = path, .bytes_max = EVQ_ARRAY_BYTES_MAX};
    struct evq_array *array = &arrays->items[which];
    const struct evq_array *tokens = &arrays->items[TOKENS];

    if (path[0] == '\0') {
        return EVQ_OK;
    }
    const enum evq_status status = evq_dataset_npy.read(&from, array, err);
    if (status != EVQ_OK) {
        return status;
    }
    const int32_t rank = which == LABELS ? 1 : 2;
    if (array->dtype == EVQ_DTYPE_F32 || array->dtype == EVQ_DTYPE_F64 || array->rank != rank) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' is an array of %s with %d dimensions, expected whole numbers in "
                             "%d",
                             path, evq_dtype_name(array->dtype), (int)array->rank, (int)rank);
    }
    if (array->shape[0] != tokens->shape[0] || (rank == 2 && array->shape[1] != tokens->shape[1])) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "'%s' has another shape than '%s', which holds %" PRId64 " texts of %" PRId64 " tokens",
            path, arrays->corpus->paths[TOKENS], tokens->shape[0], tokens->shape[1]);
    }
    return EVQ_OK;
}

/* Counts the tokens of a text. The mask must have ones for them, and then zeros for the padding. */
static enum evq_status length_of(const struct arrays *arrays, int64_t text, int64_t *ret_length,
                                 struct evq_error *err)
{
    const struct evq_array *mask = &arrays->items[MASK];
    int64_t length = mask->data == NULL ? arrays->length : 0;
    bool good = true;

    for (int64_t i = 0; i < arrays->length && mask->data != NULL; i++) {
        const int64_t value = evq_array_integer(mask, text * arrays->length + i);
        good = good && (value == 0 || (value == 1 && length == i));
        length += value == 1;
    }
    if (!good || length == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "text %" PRId64 " of '%s' is not a row of ones and then zeros, "
                             "expected the padding behind the tokens",
                             text, arrays->corpus->paths[mask->data != NULL ? MASK : TOKENS]);
    }
    *ret_length = length;
    return EVQ_OK;
}

static enum evq_status number_at(const struct arrays *arrays, int32_t which, int64_t at,
                                 int32_t *ret_number, struct evq_error *err)
{
    const int64_t number = evq_array_integer(&arrays->items[which], at);

    if (number < 0 || number > INT32_MAX) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "value %" PRId64 " of '%s' is %" PRId64 ", expected 0 to %d", at,
                             arrays->corpus->paths[which], number, INT32_MAX);
    }
    *ret_number = (int32_t)number;
    return EVQ_OK;
}

static enum evq_status add_text(struct evq_corpus_build *build, const struct arrays *arrays,
                                int64_t text, struct evq_error *err)
{
    struct evq_corpus *corpus = build->corpus;
    const struct evq_passage passage = {.first = (int64_t)corpus->tokens.count};
    int64_t length = 0;
    int32_t number = 0;

    enum evq_status status = length_of(arrays, text, &length, err);
    for (int64_t i = 0; i < length && status == EVQ_OK; i++) {
        status = number_at(arrays, TOKENS, text * arrays->length + i, &number, err);
        if (status == EVQ_OK) {
            status = evq_corpus_append_tokens(corpus, &number, 1, err);
        }
        if (status == EVQ_OK && arrays->items[TYPES].data != NULL) {
            status = number_at(arrays, TYPES, text * arrays->length + i, &number, err);
            if (status == EVQ_OK) {
                status = evq_corpus_append_types(corpus, &number, 1, err);
            }
        }
    }
    if (status == EVQ_OK) {
        status = evq_corpus_add_passage(build, passage, NULL, 0, err);
    }
    if (status == EVQ_OK) {
        status = number_at(arrays, LABELS, text, &number, err);
    }
    return status == EVQ_OK ? evq_corpus_add_item(build, 1, number, err) : status;
}

enum evq_status evq_labelled_tokens_read(struct evq_corpus_build *build, struct evq_error *err)
{
    struct arrays arrays = {.corpus = build->corpus};
    enum evq_status status = EVQ_OK;

    for (int32_t i = 0; i < ARRAYS && status == EVQ_OK; i++) {
        status = read_array(&arrays, i, err);
        arrays.length = i == TOKENS && status == EVQ_OK ? arrays.items[i].shape[1] : arrays.length;
    }
    for (int64_t i = 0; status == EVQ_OK && i < arrays.items[TOKENS].shape[0] && i < build->limit;
         i++) {
        status = add_text(build, &arrays, i, err);
    }
    for (int32_t i = 0; i < ARRAYS; i++) {
        free(arrays.items[i].data);
    }
    return status;
}
