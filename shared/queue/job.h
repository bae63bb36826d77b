/*
 * The message of one job: which checkpoint, which suite, and what the submitter wants of it.
 * docs/protocol.md lists every field with type, unit and default. A record lives in one arena.
 */
#ifndef EVQ_SHARED_QUEUE_JOB_H
#define EVQ_SHARED_QUEUE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/arena.h"
#include "shared/base/pair.h"
#include "shared/queue/job_id.h"
#include "shared/queue/needs.h"
#include "shared/queue/snapshot.h"

#define EVQ_JOB_BYTES_MAX 65536 // An encoded message is at most this long.
#define EVQ_JOB_RUN_INTERNAL                                                                       \
    ".evalq-"                         // Names of runs that begin so are reserved: the queue
                                      // lists no such run, and no sink gets its results.
#define EVQ_JOB_FINGERPRINT_CHARS 32  // XXH3-128 in lower-case hex.
#define EVQ_JOB_BANDS             4   // 0 urgent, 1 high, 2 normal, 3 backfill.
#define EVQ_JOB_PAIRS_MAX         256 // Limit for each of params, trackers, tags.
#define EVQ_JOB_PATH_BYTES_MAX    4095

enum evq_job_state { // In this order everywhere; docs/protocol.md has the names.
    EVQ_JOB_QUEUED,
    EVQ_JOB_DELAYED,
    EVQ_JOB_RUNNING,
    EVQ_JOB_DONE,
    EVQ_JOB_DEAD,
    EVQ_JOB_SKIPPED,
    EVQ_JOB_CANCELLED,
    EVQ_JOB_STATE_COUNT
};

enum evq_job_policy { EVQ_POLICY_ALL, EVQ_POLICY_LATEST, EVQ_POLICY_BACKFILL, EVQ_POLICY_COUNT };

struct evq_job {
    struct evq_arena *arena; // Owns this struct and everything it points to.
    const char *run;
    int64_t session_ms;  // When the training process began, unix ms.
    int64_t step;        // 0 to EVQ_JOB_STEP_MAX - 1.
    double epoch;        // NaN: unknown.
    const char *variant; // "regular", "ema" or a name.
    const char *suite;
    // Name of a configured root, or "shm", then path is the snapshot's name on `host`.
    const char *root;
    const char *path; // Relative to the root.
    // "" or a pinned copy, relative to the same root. It is read if it exists, else path.
    const char *pin;
    const char *format;           // Hint: "", "safetensors", "torch", ...
    const char *fingerprint;      // "" or 32 hex digits.
    const char *manifest;         // "" or file names and sizes, one "name\tbytes\n" a line.
    const char *host;             // Name of the producer's host.
    struct evq_snapshot snapshot; // Only if root is shm.
    bool snapshot_given;
    int64_t created_ms; // When it was submitted, unix ms, producer's clock.
    struct evq_needs needs;
    bool needs_given; // false: the suite's needs hold.
    int32_t priority; // Band, 0 to 3.
    enum evq_job_policy policy;
    bool keep;                     // Never superseded.
    const struct evq_pair *params; // For the evaluator.
    size_t param_count;
    const struct evq_pair *trackers; // "wandb_run_id", "mlflow_run_id", ...
    size_t tracker_count;
    const struct evq_pair *tags;
    size_t tag_count;
    // Fields this build does not know, as msgpack pairs; kept when re-encoded.
    const uint8_t *extra;
    size_t extra_bytes;
    uint32_t extra_count;
};

/* A job with every default set, in an arena of its own; NULL when out of memory. */
struct evq_job *evq_job_new(void);
void evq_job_free(struct evq_job *job);       // Accepts NULL.
const struct evq_job *evq_job_defaults(void); // Static, its arena is NULL.

/* EVQ_E_INVALID names the field that is missing or out of range. */
enum evq_status evq_job_check(const struct evq_job *job, struct evq_error *err) EVQ_CHECK_RESULT;

/* The check of one text (UTF-8), and of a file name (no control bytes either). EVQ_E_INVALID names
 * the field. Both allocate nothing. */
enum evq_status evq_job_check_text(const char *field, const char *value,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_job_check_file(const char *field, const char *path,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Writes "RUN/STEP/VARIANT/SUITE" of a checked job. */
void evq_job_id(const struct evq_job *job, char out[EVQ_JOB_ID_BYTES_MAX]);

const char *evq_job_state_name(enum evq_job_state state);
enum evq_status evq_job_state_parse(const char *word,
                                    enum evq_job_state *ret_state) EVQ_CHECK_RESULT;
const char *evq_job_policy_name(enum evq_job_policy policy);
enum evq_status evq_job_policy_parse(const char *word,
                                     enum evq_job_policy *ret_policy) EVQ_CHECK_RESULT;

#endif
