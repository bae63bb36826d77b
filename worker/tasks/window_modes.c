#include "worker/tasks/window_modes.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Adds the window over tokens [first, end) of the corpus, unless it belongs to another shard. */
static enum evq_status deal(struct evq_windows *windows, int64_t first, int64_t end, int64_t scored,
                            bool prefixed, int64_t group, struct evq_error *err)
{
    return evq_windows_deal(windows)
               ? evq_windows_add(windows,
                                 (struct evq_window){.first = first,
                                                     .length = (int32_t)(end - first),
                                                     .scored = (int32_t)scored,
                                                     .prefixed = prefixed,
                                                     .group = group},
                                 err)
               : EVQ_OK;
}

static enum evq_status roll(struct evq_windows *windows, int64_t group, struct evq_error *err)
{
    const struct evq_passage *document = &windows->corpus->passages[group];
    const int64_t length = windows->length_max;
    const int64_t first = document->first + document->context;
    const int64_t count = document->count - document->context - document->after;
    int64_t done = least(length, count);
    enum evq_status status = EVQ_OK;

    if (done > 0) {
        status = deal(windows, first, first + done, done, true, group, err);
    }
    while (done < count && status == EVQ_OK) {
        const int64_t scored = least(count - done, length);
        const int64_t end = first + done + scored;
        status = deal(windows, end - length - 1, end, scored, false, group, err);
        done += scored;
    }
    return status;
}

enum evq_status evq_window_modes_rolling(struct evq_windows *windows, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (windows->corpus->prefix < 0) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "mode rolling needs a prefix before the first token of '%s', but the tokenizer has "
            "neither BOS nor EOS: set data: {prefix: TEXT}, or another mode",
            windows->corpus->name);
    }
    for (size_t i = 0; i < windows->corpus->passage_count && status == EVQ_OK; i++) {
        status = roll(windows, (int64_t)i, err);
    }
    return status;
}

static enum evq_status stride_over(struct evq_windows *windows, int64_t group, int32_t stride,
                                   struct evq_error *err)
{
    const struct evq_passage *document = &windows->corpus->passages[group];
    enum evq_status status = EVQ_OK;
    int64_t done = 0;

    for (int64_t begin = 0; done < document->count && status == EVQ_OK; begin += stride) {
        const int64_t end = least(begin + windows->length_max, document->count);
        const int64_t scored = least(end - done, end - begin - 1);
        if (scored > 0) {
            status = deal(windows, document->first + begin, document->first + end, scored, false,
                          group, err);
        }
        done = end;
    }
    return status;
}

enum evq_status evq_window_modes_strided(struct evq_windows *windows, int32_t stride,
                                         struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (stride > windows->length_max) {
        return evq_error_set(err, EVQ_E_INVALID, "stride is %d, expected at most the length %d",
                             (int)stride, (int)windows->length_max);
    }
    for (size_t i = 0; i < windows->corpus->passage_count && status == EVQ_OK; i++) {
        status = stride_over(windows, (int64_t)i, stride, err);
    }
    return status;
}

enum evq_status evq_window_modes_blocks(struct evq_windows *windows, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < windows->corpus->passage_count; i++) {
        const struct evq_passage *document = &windows->corpus->passages[i];
        for (int64_t at = 0; at + 1 < document->count && status == EVQ_OK;
             at += windows->length_max) {
            const int64_t end = least(at + windows->length_max + 1, document->count);
            status = deal(windows, document->first + at, document->first + end, end - at - 1, false,
                          (int64_t)i, err);
        }
    }
    return status;
}

static enum evq_status add_sample(struct evq_windows *windows, int64_t first, int64_t length,
                                  int64_t group, struct evq_error *err)
{
    if (length < 2 || !evq_windows_own(windows, group)) {
        return EVQ_OK;
    }
    return evq_windows_add(windows,
                           (struct evq_window){.first = first,
                                               .length = (int32_t)length,
                                               .scored = (int32_t)(length - 1),
                                               .group = group},
                           err);
}

enum evq_status evq_window_modes_documents(struct evq_windows *windows, int32_t batch_size,
                                           struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < windows->corpus->passage_count && status == EVQ_OK; i++) {
        const struct evq_passage *document = &windows->corpus->passages[i];
        status = add_sample(windows, document->first, least(document->count, windows->length_max),
                            (int64_t)i / batch_size, err);
    }
    return status;
}

enum evq_status evq_window_modes_joined(struct evq_windows *windows, int32_t batch_size,
                                        struct evq_error *err)
{
    const int64_t samples = evq_window_modes_samples(windows, true);
    enum evq_status status = EVQ_OK;

    for (int64_t i = 0; i < samples && status == EVQ_OK; i++) {
        status =
            add_sample(windows, i * windows->length_max, windows->length_max, i / batch_size, err);
    }
    return status;
}

int64_t evq_window_modes_samples(const struct evq_windows *windows, bool joined)
{
    return joined ? (int64_t)windows->corpus->tokens.count / windows->length_max
                  : (int64_t)windows->corpus->passage_count;
}
