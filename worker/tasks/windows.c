#include "worker/tasks/windows.h"

#include <inttypes.h>
#include <stdlib.h>

#define WINDOWS_MAX ((int64_t)1 << 28)

bool evq_windows_own(const struct evq_windows *windows, int64_t i)
{
    return i % windows->shard_count == windows->shard;
}

bool evq_windows_deal(struct evq_windows *windows)
{
    return evq_windows_own(windows, windows->dealt++);
}

enum evq_status evq_windows_add(struct evq_windows *windows, struct evq_window window,
                                struct evq_error *err)
{
    if (evq_window_rows(&window) > windows->length_max) {
        return evq_error_set(
            err, EVQ_E_LIMIT, "a window of '%s' is %d tokens long, but the model takes %d",
            windows->corpus->name, (int)evq_window_rows(&window), (int)windows->length_max);
    }
    if (windows->count == windows->room) {
        const int64_t room = windows->room > 0 ? 2 * windows->room : 256;
        struct evq_window *grown =
            room <= WINDOWS_MAX ? reallocarray(windows->items, (size_t)room, sizeof(*grown)) : NULL;
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "%" PRId64 " windows of '%s'", room,
                                 windows->corpus->name);
        }
        windows->items = grown;
        windows->room = room;
    }
    windows->items[windows->count++] = window;
    return EVQ_OK;
}

void evq_windows_free(struct evq_windows *windows)
{
    free(windows->items);
    free(windows->results);
    windows->items = NULL;
    windows->results = NULL;
    windows->count = windows->room = 0;
}

static enum evq_status add_passage(struct evq_windows *windows, int64_t at, int64_t item,
                                   struct evq_error *err)
{
    const struct evq_passage *passage = &windows->corpus->passages[at];
    const int64_t scored = passage->count - passage->context;
    // The last token is only predicted and takes no row.
    const int64_t most = (int64_t)windows->length_max + 1;
    const int64_t length = passage->count < most ? passage->count : most;

    if (scored > windows->length_max) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "item %" PRId64 " of '%s': %" PRId64
                             " tokens are to be scored, but the model takes %d",
                             item, windows->corpus->name, scored, (int)windows->length_max);
    }
    return evq_windows_add(windows,
                           (struct evq_window){.first = passage->first + passage->count - length,
                                               .length = (int32_t)length,
                                               .scored = (int32_t)scored,
                                               .group = at},
                           err);
}

enum evq_status evq_windows_of_items(struct evq_windows *windows, struct evq_error *err)
{
    const struct evq_corpus *corpus = windows->corpus;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < corpus->item_count && status == EVQ_OK; i++) {
        const struct evq_item *item = &corpus->items[i];
        if (!evq_windows_own(windows, (int64_t)i)) {
            continue;
        }
        for (int32_t p = 0; p < item->passages && status == EVQ_OK; p++) {
            status = add_passage(windows, item->first + p, (int64_t)i, err);
        }
    }
    return status;
}

enum evq_status evq_windows_of_texts(struct evq_windows *windows, struct evq_error *err)
{
    const struct evq_corpus *corpus = windows->corpus;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < corpus->item_count && status == EVQ_OK; i++) {
        const struct evq_item *item = &corpus->items[i];
        const struct evq_passage *text = &corpus->passages[item->first];
        if (!evq_windows_own(windows, (int64_t)i)) {
            continue;
        }
        if (text->count > windows->length_max) {
            return evq_error_set(err, EVQ_E_LIMIT,
                                 "item %zu of '%s' has %" PRId64
                                 " tokens, but the model takes at most %d (data: {max_length: ...} "
                                 "cuts texts as the tokenizer does)",
                                 i, corpus->name, text->count, (int)windows->length_max);
        }
        status = evq_windows_add(windows,
                                 (struct evq_window){.first = text->first,
                                                     .length = (int32_t)text->count,
                                                     .scored = 1,
                                                     .labelled = true,
                                                     .label = item->gold,
                                                     .group = item->first},
                                 err);
    }
    return status;
}
