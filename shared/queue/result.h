/* The result of one task of a job, or (task "") how a job ended. Everything is in one arena. One
 * thread at a time. */
#ifndef EVQ_SHARED_QUEUE_RESULT_H
#define EVQ_SHARED_QUEUE_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/queue/job.h"

#define EVQ_RESULT_METRICS_MAX  256
#define EVQ_RESULT_BYTES_MAX    65536
#define EVQ_RESULT_ID_BYTES_MAX 256 // JOB#TASK and the NUL.

struct evq_metric {
    const char *name; // Printable UTF-8 without control bytes, at most 128 bytes: "accuracy",
                      // "acc_norm,none".
    double value;     // May be NaN or infinite; such a value is never the best.
    int32_t higher_is_better; // 1 yes, 0 no, -1 not said.
    double std_error;         // NaN: none.
};

struct evq_sum { // Raw sums, added over shards in shard order.
    const char *name;
    bool is_count; // count holds it, else value.
    double value;
    int64_t count;
};

struct evq_timing {
    int64_t queued_ms; // From submit to claim.
    int64_t load_us;
    int64_t compute_us;
    int64_t bytes; // Read from the checkpoint.
    int64_t samples;
    int64_t tokens;
};

struct evq_result {
    struct evq_arena *arena; // Owns this struct and everything it points to.
    const char *job;         // Id, with its generation.
    const char *task;        // "" for the end of a job.
    const char *run;
    int64_t step;
    double epoch; // NaN: unknown.
    const char *variant;
    const char *suite;
    enum evq_job_state state; // EVQ_JOB_DONE for a task; how the job ended for an end.
    const char *reason;       // "" or why it was skipped, cancelled, dead.
    // Prefix of metric names. "": "eval/<task>/" or "eval_<variant>/<task>/". Otherwise it replaces
    // that, and a variant other than regular is added: "val/" becomes "val_<variant>/", "eval_"
    // becomes "eval_<variant>_".
    const char *metric_prefix;
    const struct evq_metric *metrics;
    size_t metric_count;
    int64_t n; // Number of samples behind the metrics; -1: not known.
    const struct evq_sum *sums;
    size_t sum_count;
    struct evq_timing timing;
    const char *weights_digest; // "" or 32 hex digits.
    const char *suite_digest;
    const char *data_digest;
    const char *samples_digest; // "" or 32 hex digits: of the samples file of this task.
    int64_t samples_bytes;      // Its size; 0: there is none.
    const char *backend;        // "cpu", "cuda", "command", "persistent".
    const char *device;
    const char
        *compute;     // Of the native evaluator: "fp32", "bf16"; "mixed": shards differed. Else "".
    const char *note; // "" or a sentence on how it was computed: a batch that had to be smaller.
    const char *worker;
    const char *evalq_version;
    int32_t attempt;
    int32_t retries; // Number of retries by hand under this id before this end; 0 for a done job.
    int64_t finished_ms;    // Server time of publication, unix ms.
    const char *checkpoint; // "root:path" for people and for the best link.
    const struct evq_pair *trackers;
    size_t tracker_count;
    const uint8_t *extra;
    size_t extra_bytes;
    uint32_t extra_count;
};

struct evq_result *evq_result_new(void);            // NULL when out of memory.
void evq_result_free(struct evq_result *result);    // Accepts NULL.
const struct evq_result *evq_result_defaults(void); // Static, its arena is NULL.

/* EVQ_E_INVALID names the field that is missing or out of range. */
enum evq_status evq_result_check(const struct evq_result *result,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Writes the deterministic id by which sinks deduplicate: JOB#TASK; for an end JOB#=STATE.ATTEMPT,
 * for a retried job JOB#=STATE.ATTEMPT.RETRIES. */
void evq_result_id(const struct evq_result *result, char out[EVQ_RESULT_ID_BYTES_MAX]);

/*
 * The name of a metric's curve, the same for all sinks, `evalq best` and `results`:
 *   eval/TASK/METRIC          in general;
 *   eval/METRIC               a metric eval_METRIC of the task "eval", as a Trainer of Transformers
 *                             writes its metrics to trackers;
 *   eval/TASK_METRIC          eval_METRIC or eval_TASK_METRIC of another task, as the Trainer does
 *                             for one of several data sets.
 * With a variant other than "regular", eval_VARIANT/ stands for eval/. A metric_prefix of the
 * result replaces all before the metric's own name. Cut to out_bytes.
 */
void evq_result_metric_key(const struct evq_result *result, const struct evq_metric *metric,
                           char *out, size_t out_bytes);

/*
 * The whole record as one JSON object without newline (the JSONL sink, --json): result_id,
 * global_step (= step), finished_at (ISO), then every field under the name it has in the struct.
 * metrics is {name: value}; metrics_detail {name: {higher_is_better, std_error}} follows only where
 * one of the two is known (the first as evq_metric_direction() tells); sums is {name: value}.
 * retries stands there where it is above 0.
 * Doubles carry 17 digits; NaN, Infinity and -Infinity are strings; an unknown epoch or n is null.
 */
struct evq_buffer;
void evq_result_json(const struct evq_result *result, struct evq_buffer *out);

#define EVQ_METRIC_NAME_BYTES_MAX 128

/* Length of the beginning of name that is printable UTF-8: all of a name that may be published.
 * Control characters, also U+0080 to U+009F, are not printable. */
size_t evq_metric_name_printable(const char *name);

/*
 * 1: higher is better, 0: lower is better, as the metric says, else by its name (loss, error,
 * perplexity: lower). -1: neither, it measures the evaluation itself (runtime, samples_per_second).
 */
int evq_metric_direction(const struct evq_metric *metric);

#endif
