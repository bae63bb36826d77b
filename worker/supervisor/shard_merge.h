/*
 * Merges the parts of a sharded job. Sums are added in shard order, and metrics are formed once, by
 * the same code as without shards. One thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_SHARD_MERGE_H
#define EVQ_WORKER_SUPERVISOR_SHARD_MERGE_H

#include "shared/queue/queue.h"
#include "worker/evaluators/result_files.h"

/*
 * Fetches all parts of a job whose shards are complete, and merges them into one result per task,
 * in the order of the suite. EVQ_E_CHANGED: the shards saw different weights or data.
 * EVQ_E_CORRUPT: a part is malformed or lacks a task. Also the errors of evq_queue_shard_parts().
 */
enum evq_status evq_shard_merge_run(struct evq_queue *queue, const char *id, const char *token,
                                    const struct evq_suite *suite, struct evq_results *ret_results,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* The same for parts that the caller already has: part_count byte strings in shard order. */
enum evq_status evq_shard_merge_parts(const struct evq_suite *suite, const uint8_t *const *parts,
                                      const size_t *part_bytes, size_t part_count,
                                      struct evq_results *ret_results,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
