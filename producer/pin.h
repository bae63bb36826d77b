/*
 * Pins: what keeps a checkpoint evaluable after the trainer rotated it away. One pin is one
 * directory,
 *
 *     OUTPUT_DIR/.evalq/pins/STEP-VARIANT-HASH/   beside the checkpoint
 *         CHECKPOINT                              its file, or its directory with every file
 *         .pin                                    text: which jobs want it, what they were sent as
 *
 * made under another name, then renamed; the same checkpoint of the same run has the same name, so
 * that a repeated submit finds the pin it made before. Files are cloned (reflink); else
 * hard-linked, where the caller says that the trainer never writes into them again; else copied, up
 * to a number of bytes. Nothing is written into the checkpoint.
 *
 * Used by the client's background thread and by `evalq gc`. Any thread; different processes may
 * work on one directory.
 */
#ifndef EVQ_PRODUCER_PIN_H
#define EVQ_PRODUCER_PIN_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/job.h"

#define EVQ_PIN_FILES_MAX 4096
#define EVQ_PIN_DEPTH_MAX 8
#define EVQ_PIN_JOBS_MAX  256

enum evq_pin_kind {
    EVQ_PIN_REFLINK,
    EVQ_PIN_HARD_LINK,
    EVQ_PIN_COPY
}; // The weakest that one of its files needed.

struct evq_pin_request {
    const char *root_path; // Absolute directory of the root.
    const char *path;      // The checkpoint, relative to it.
    const char *queue;
    const char *run;
    int64_t step;
    const char *variant;
    const char *fingerprint; // "" : every pin of it is another one.
    const char *const *jobs; // Ids that want it.
    size_t job_count;
    bool reflink;                         // false: do not try (tests).
    bool hard_link;                       // See evq_pin_hard_link_safe().
    int64_t copy_bytes_max;               // What copying may take; 0: never copy.
    bool (*stopped)(const void *context); // Asked between blocks of a copy; may be NULL.
    const void *stop_context;
};

struct evq_pin {
    char path[PATH_MAX];      // Of the pinned checkpoint, relative to the root.
    char directory[PATH_MAX]; // Of the pin, absolute.
    enum evq_pin_kind kind;
    int64_t copied_bytes;
    bool found; // It was there already.
};

/*
 * A hard link shows later writes into the same file, so it is safe only where each step has files
 * of its own: when the last or last but one part of the path holds the step as a whole number
 * (checkpoint-100, step-000100.safetensors, 100/model.pt). A path without it (last.pt,
 * model.safetensors) may be written again in place: it is copied.
 */
bool evq_pin_hard_link_safe(const char *path, int64_t step);

/*
 * EVQ_E_GONE, EVQ_E_CHANGED: the checkpoint went or changed meanwhile. EVQ_E_FULL: a copy would
 * take more than copy_bytes_max. EVQ_E_UNSUPPORTED: it is the root itself, or holds what cannot be
 * pinned (a symbolic link out of the root, too many files). EVQ_E_STOPPED. EVQ_E_IO: permissions,
 * no space. Nothing is left behind by a failure.
 */
enum evq_status evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Notes in the pin's directory that the job it is wanted by was sent, and as which id
 * (generations). */
enum evq_status evq_pin_sent(const char *directory, const char *job, const char *sent_as,
                             struct evq_error *err) EVQ_CHECK_RESULT;
/* Notes that the job will never be sent. */
enum evq_status evq_pin_refused(const char *directory, const char *job,
                                struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_pin_job {
    EVQ_PIN_JOB_OPEN,
    EVQ_PIN_JOB_ENDED,
    EVQ_PIN_JOB_UNKNOWN
}; // Ended or not known to the queue: ENDED.
typedef enum evq_pin_job (*evq_pin_job_fn)(void *context, const char *queue, const char *job);

/*
 * Releases (removes) the pin when each job that wants it was sent and has ended, or was refused;
 * *ret_released says so. Jobs never sent hold it for unsent_ms from its making (-1: for ever). A
 * pin that is gone counts as released.
 */
enum evq_status evq_pin_check(const char *directory, evq_pin_job_fn job_state, void *context,
                              int64_t unsent_ms, bool *ret_released,
                              struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_pin_release(const char *directory, struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_pin_info {
    const char *directory; // Absolute where output_dir is.
    const char *queue;
    const char *run;
    int64_t copied_bytes;
    int64_t created_ms;
};
typedef void (*evq_pin_fn)(void *context, const struct evq_pin_info *pin);
/* The pins in output_dir/.evalq/pins; none when that is not there. */
enum evq_status evq_pin_list(const char *output_dir, evq_pin_fn on_pin, void *context,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * evq_pin_check() for all pins of output_dir, of queue alone unless it is NULL; half-made ones
 * older than an hour go, too, and so do the directories when empty.
 */
enum evq_status evq_pin_gc(const char *output_dir, const char *queue, evq_pin_job_fn job_state,
                           void *context, int64_t unsent_ms, int64_t *ret_released,
                           int64_t *ret_left, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes output_dir/.evalq/pins and output_dir/.evalq when they are empty. */
void evq_pin_tidy(const char *output_dir);

#endif
