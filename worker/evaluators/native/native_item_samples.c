/* What the native tasks keep of each item. The id of an item is its number and a digest of its
 * input, so that equal inputs stay different items. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <xxhash.h>

#include "shared/base/hex.h"
#include "worker/evaluators/native/native_run.h"

#define ID_BYTES (EVQ_DECIMAL_BYTES + 1 + 17)

static void write_id(int64_t number, uint64_t hash, char out[ID_BYTES])
{
    const size_t used = evq_decimal_integer(number, out);

    out[used] = '-';
    evq_hex_64(hash, out + used + 1);
}

static const struct evq_sample empty = {.logprob = (double)NAN, .tokens = -1};

void evq_native_keep_rows(struct evq_native_run *run, struct evq_dataset *dataset, int64_t first,
                          int64_t stride, int32_t rows, const int32_t *labels,
                          const struct evq_row_result *results)
{
    const size_t columns = (size_t)dataset->columns;
    const float *inputs = run->native->inputs;
    struct evq_sample sample = empty; // It has a thousand bytes, so it is set up once.

    if (run->kept == NULL && first == 0) {
        run->kept = evq_sample_store_new(run->request, run->config->name, run->data_digest, "");
    }
    for (int32_t i = 0; run->kept != NULL && i < rows; i++) {
        const int64_t number = first + i * stride;
        struct evq_task_texts texts;
        char id[ID_BYTES];
        write_id(number, evq_dataset_hash(dataset, number, inputs + (size_t)i * columns), id);
        sample.id = id;
        sample.score_count = 0;
        run->task->samples->keep(run->config, &results[i], labels != NULL ? labels[i] : 0,
                                 run->native->model->outputs, &sample, &texts);
        evq_sample_store_add(run->kept, &sample);
    }
}

/* Keeps one item of a corpus. tokens: of its input. cluster: "" for none. */
static void keep_tokens(struct evq_native_run *run, const struct evq_windows *windows,
                        int64_t window, const struct evq_item *item, int64_t number, int64_t begin,
                        int64_t end, const char *cluster)
{
    struct evq_sample sample = empty;
    struct evq_task_texts texts;
    const int32_t *ids = windows->corpus->tokens.ids;
    char id[ID_BYTES];

    write_id(number, XXH3_64bits(ids + begin, (size_t)(end - begin) * sizeof(*ids)), id);
    sample.id = id;
    sample.cluster = cluster[0] != '\0' ? cluster : NULL;
    run->task->tokens->keep(windows, window, item, &sample, &texts);
    evq_sample_store_add(run->kept, &sample);
}

void evq_native_keep_windows(struct evq_native_run *run, const struct evq_windows *windows)
{
    const struct evq_corpus *corpus = windows->corpus;
    int64_t window = 0;

    run->kept = evq_sample_store_new(run->request, run->config->name, run->data_digest,
                                     run->task->tokens->weighted);
    if (run->kept == NULL) {
        return;
    }
    for (size_t i = 0; i < corpus->item_count; i++) {
        const struct evq_item *item = &corpus->items[i];
        const struct evq_passage *first = &corpus->passages[item->first];
        const struct evq_passage *last = &corpus->passages[item->first + item->passages - 1];
        keep_tokens(run, windows, window, item, (int64_t)i, first->first, last->first + last->count,
                    "");
        window += item->passages;
    }
    for (int64_t i = 0; corpus->item_count == 0 && i < windows->count; i++) {
        const struct evq_window *one = &windows->items[i];
        char cluster[ID_BYTES] = "";
        if (corpus->passage_count > 1) { // Windows of one document are not independent.
            (void)snprintf(cluster, sizeof(cluster), "%" PRId64, one->group);
        }
        keep_tokens(run, windows, i, NULL, i, one->first, one->first + one->length, cluster);
    }
}
