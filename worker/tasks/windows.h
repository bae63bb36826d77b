/*
 * Windows: the parts of a corpus that go through the model as one sequence each, and how many of
 * their last tokens are scored. One thread.
 */
#ifndef EVQ_WORKER_TASKS_WINDOWS_H
#define EVQ_WORKER_TASKS_WINDOWS_H

#include "worker/datasets/corpus.h"

struct evq_window {
    int64_t first;  // Position in the corpus's tokens.
    int32_t length; // Number of tokens; the last is only predicted, unless there is a label.
    // Number of its last tokens that are scored; each is predicted by the row before it.
    int32_t scored;
    bool prefixed; // The corpus's prefix is put before the first token.
    // The window is a text with a label: its first row is scored by the label, no token is
    // predicted, and scored is 1.
    bool labelled;
    int32_t label;
    int64_t group; // The document, passage or batch of samples that the window belongs to.
};

struct evq_window_result {
    double loss;    // Minus the log-probability of the scored tokens, in nats.
    int32_t greedy; // Scored tokens that were the most likely ones.
    int32_t nans;   // Scored tokens whose score is NaN.
    // For a window with a label: the most likely class or -1, and whether the label is among the
    // top_k.
    int32_t predicted;
    bool in_top_k;
};

struct evq_windows {
    const struct evq_task_config *config;
    const struct evq_corpus *corpus;
    int32_t length_max;         // Most rows of a sequence.
    int32_t shard, shard_count; // 0 of 1 without shards.
    struct evq_window *items;
    int64_t count, room;
    int64_t dealt;                     // Windows or groups of all shards that were offered so far.
    struct evq_window_result *results; // One for each window; NULL until they are scored.
};

/* Appends a window. EVQ_E_LIMIT: it is longer than length_max allows. EVQ_E_NOMEM. */
enum evq_status evq_windows_add(struct evq_windows *windows, struct evq_window window,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Counts one more window or group. True: it belongs to this shard. */
bool evq_windows_deal(struct evq_windows *windows);
/* Whether item i belongs to this shard: i mod shard_count. */
bool evq_windows_own(const struct evq_windows *windows, int64_t i);
void evq_windows_free(struct evq_windows *windows); // Frees the arrays and leaves it empty.

/* Adds one window for each passage of this shard's items: as much of the passage's end as fits. The
 * window's group is the passage. EVQ_E_LIMIT: the scored part alone is too long. */
enum evq_status evq_windows_of_items(struct evq_windows *windows,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds one window for each text of this shard. EVQ_E_LIMIT: a text is longer than the model takes.
 */
enum evq_status evq_windows_of_texts(struct evq_windows *windows,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Rows that a window takes, one for each input. */
static inline int32_t evq_window_rows(const struct evq_window *window)
{
    return window->length + (window->prefixed ? 1 : 0) - (window->labelled ? 0 : 1);
}

#endif
