/*
 * Windows: the stretches of a corpus that go through the model as one sequence each, and how many
 * of their last tokens are scored. One thread.
 */
#ifndef EVQ_WORKER_WINDOW_H
#define EVQ_WORKER_WINDOW_H

#include "worker/datasets/corpus.h"

struct evq_window {
    int64_t first;  // In the corpus's tokens.
    int32_t length; // Tokens; the last is only predicted.
    int32_t scored; // Of its last tokens; each is predicted by the row before it.
    bool prefixed;  // The corpus's prefix stands before the first.
    int64_t group;  // What it counts for: a document, a passage, a batch of samples.
};

struct evq_window_result {
    double loss;    // Minus the log-probability of the scored tokens, nats.
    int32_t greedy; // Scored tokens that were the likeliest ones.
    int32_t nans;   // Scored tokens without a number.
};

struct evq_windows {
    const struct evq_task_config *config;
    const struct evq_corpus *corpus;
    int32_t length_max;         // Rows of a sequence, at most.
    int32_t shard, shard_count; // 0 of 1 when not sharded.
    struct evq_window *items;
    int64_t count, room;
    int64_t dealt;                     // Windows or groups that were offered, of all shards.
    struct evq_window_result *results; // One for each window; NULL until they are scored.
};

/* Appends a window. EVQ_E_LIMIT: it is longer than length_max allows. EVQ_E_NOMEM. */
enum evq_status evq_windows_add(struct evq_windows *windows, struct evq_window window,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether the next of those that are dealt out one by one is this shard's. */
bool evq_windows_deal(struct evq_windows *windows);
/* Whether item i belongs to this shard: i mod shard_count. */
bool evq_windows_own(const struct evq_windows *windows, int64_t i);
void evq_windows_free(struct evq_windows *windows); // The arrays; leaves it empty.

/* One window for each passage of the items of this shard, its group the passage: as much of its end
 * as fits. EVQ_E_LIMIT: what is scored alone is too long. */
enum evq_status evq_windows_of_items(struct evq_windows *windows,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Rows that a window takes: its inputs. */
static inline int32_t evq_window_rows(const struct evq_window *window)
{
    return window->length + (window->prefixed ? 1 : 0) - 1;
}

#endif
