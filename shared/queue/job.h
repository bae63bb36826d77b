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
#include "shared/queue/snapshot.h"

#define EVQ_JOB_BYTES_MAX     65536 // An encoded message is at most this long.
#define EVQ_JOB_RUN_BYTES_MAX 64    // Names of runs.
#define EVQ_JOB_RUN_INTERNAL                                                                       \
    ".evalq-"                         // Names of runs that begin so are reserved: the queue
                                      // lists no such run, and no sink gets its results.
#define EVQ_JOB_NAME_BYTES_MAX    32  // Names of variants, suites, tasks.
#define EVQ_JOB_ID_BYTES_MAX      192 // RUN/STEP/VARIANT/SUITE[~G][@SHARD] and the NUL.
#define EVQ_JOB_FINGERPRINT_CHARS 32  // XXH3-128 in lower-case hex.
#define EVQ_JOB_BANDS             4   // 0 urgent, 1 high, 2 normal, 3 backfill.
#define EVQ_JOB_STEP_MAX          ((int64_t)1 << 40)
#define EVQ_JOB_PAIRS_MAX         256 // Limit for each of params, trackers, tags.
#define EVQ_JOB_PATH_BYTES_MAX    4095
#define EVQ_NEEDS_LABELS_MAX      16
#define EVQ_NEEDS_GPUS_MAX        64
#define EVQ_NEEDS_BYTES_MAX       512 // Room for needs as text, with the NUL.

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

struct evq_pair { // Both NUL-terminated.
    const char *key;
    const char *value;
};

struct evq_needs {
    int32_t gpus;              // 0: none needed.
    int64_t gpu_memory_bytes;  // Per GPU; 0: any.
    const char *const *labels; // All must be among the worker's.
    size_t label_count;
};

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

/* The parts of an id. They point into scratch, which must hold EVQ_JOB_ID_BYTES_MAX. */
struct evq_job_name {
    const char *run;
    int64_t step;
    const char *variant;
    const char *suite;
    int32_t generation; // 1 for none given.
    int32_t shard;      // -1: not a shard.
};
enum evq_status evq_job_id_parse(const char *id, char scratch[EVQ_JOB_ID_BYTES_MAX],
                                 struct evq_job_name *ret_name,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Maps any text to a legal name of at most bytes_max bytes of [A-Za-z0-9._-]; a name that had to be
 * changed gets "-" and 8 hex digits of its hash, so that different texts stay different. out holds
 * bytes_max + 1.
 */
void evq_job_map_name(const char *text, size_t bytes_max, char *out);

/*
 * Writes to out where the training saved the checkpoint of a path: OUT/.evalq/pins/PIN/NAME is a
 * temporary copy of OUT/NAME; any other path is itself. Cut to out_bytes. Returns whether path was
 * in a pin.
 */
bool evq_job_saved_path(const char *path, char *out, size_t out_bytes);
/* Length of the pin's directory OUT/.evalq/pins/PIN in such a path; NAME may have several parts. 0:
 * not in a pin. */
size_t evq_job_pin_bytes(const char *path);
bool evq_job_name_valid(const char *text, size_t bytes_max);

/*
 * Writes the canonical text of needs, which is the key of a class: "" or
 * "gpus=1,gpu_memory=25769803776,labels=a+b" (labels sorted). Parsing also accepts units, as people
 * write them: gpu_memory=24GiB.
 */
enum evq_status evq_needs_text(const struct evq_needs *needs, char *out, size_t out_bytes,
                               struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_needs_parse(const char *text, struct evq_arena *arena,
                                struct evq_needs *ret_needs,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether text can be parsed. Allocates nothing. */
enum evq_status evq_needs_check(const char *text, struct evq_error *err) EVQ_CHECK_RESULT;

const char *evq_job_state_name(enum evq_job_state state);
enum evq_status evq_job_state_parse(const char *word,
                                    enum evq_job_state *ret_state) EVQ_CHECK_RESULT;
const char *evq_job_policy_name(enum evq_job_policy policy);
enum evq_status evq_job_policy_parse(const char *word,
                                     enum evq_job_policy *ret_policy) EVQ_CHECK_RESULT;

#endif
