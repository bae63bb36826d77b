/*
 * Pins: what keeps a checkpoint evaluable after the trainer rotated it away. One pin is one
 * directory,
 *
 *     OUTPUT_DIR/.evalq/pins/STEP-VARIANT-HASH/   beside the checkpoint
 *         CHECKPOINT                              its file, or its directory with every file
 *         .pin                                    text: which jobs want it, what they were sent as
 *         .pin-job-HASH                           the message of each, as it was sent
 *
 * made under another name, then renamed; the same checkpoint of the same run has the same name, so
 * that a repeated submit finds the pin it made before. Files are cloned (reflink); else
 * hard-linked, where the caller says that the trainer never writes into them again; else copied, up
 * to a number of bytes. Nothing is written into the checkpoint.
 *
 * Used by the client's background thread, the gateway and `evalq gc`. Any thread; different
 * processes may work on one directory.
 */
#ifndef EVQ_PRODUCER_PIN_H
#define EVQ_PRODUCER_PIN_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/buffer.h"
#include "shared/queue/job.h"

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
    const char *source; // What is cloned in its place, relative to the root; NULL: path itself.
    const char *const *jobs; // Ids that want it.
    size_t job_count;
    bool reflink;                         // false: do not try; the file system is known.
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
    bool found;         // It was there already.
    bool lacks_reflink; // Found out: the file system knows none. Trying makes and removes a file.
};

/*
 * How much of a checkpoint's path, relative to the root, is OUTPUT_DIR: the directory that it lies
 * in. Accelerate takes all that lies in its directory `checkpoints` for its checkpoint_N, and ends
 * the training at any other name: there it is the directory above, 0 for the root.
 */
size_t evq_pin_output_bytes(const char *path);

/*
 * A hard link shows later writes into the same file, so it is safe only where each step has files
 * of its own: when the last or last but one part of the path holds the step as a whole number
 * (checkpoint-100, step-000100.safetensors, 100/model.pt). A path without it (last.pt,
 * model.safetensors) may be written again in place: it is copied.
 */
bool evq_pin_hard_link_safe(const char *path, int64_t step);

/*
 * EVQ_E_GONE, EVQ_E_CHANGED: the checkpoint went or changed meanwhile. EVQ_E_FULL: a copy would
 * take more than copy_bytes_max, or the file system has not got the room of two more checkpoints
 * like it, which the trainer's next save may need. EVQ_E_UNSUPPORTED: it is the root itself, or
 * holds what cannot be pinned (a symbolic link out of the root, too many files). EVQ_E_STOPPED.
 * EVQ_E_IO: permissions, no space. Nothing is left behind by a failure.
 */
enum evq_status evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/* That what was just pinned is what the fingerprint says. EVQ_E_CHANGED: it changed between the
 * two, and the pin is gone again; else as evq_checkpoint_fingerprint(). */
enum evq_status evq_pin_verify(const struct evq_pin_request *request, const struct evq_pin *pin,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Notes in the pin's directory that the job it is wanted by was sent, as which id (generations),
 * and in which life of the queue's data (evq_queue_info's epoch; "": not known). */
enum evq_status evq_pin_sent(const char *directory, const char *job, const char *sent_as,
                             const char *epoch, struct evq_error *err) EVQ_CHECK_RESULT;
/* Notes that the job will never be sent, or had ended when it was. */
enum evq_status evq_pin_refused(const char *directory, const char *job,
                                struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_pin_job {
    EVQ_PIN_JOB_OPEN,
    EVQ_PIN_JOB_ENDED,  // Or the queue, which knew it, has forgotten it.
    EVQ_PIN_JOB_LOST,   // The queue lost its data: it has to be sent again.
    EVQ_PIN_JOB_UNKNOWN // Nothing can be said of it now.
};
/* epoch: as evq_pin_sent() noted it. */
typedef enum evq_pin_job (*evq_pin_job_fn)(void *context, const char *queue, const char *job,
                                           const char *epoch);

/*
 * Releases (removes) the pin when each job that wants it was sent and has ended, or was refused;
 * *ret_released says so. Jobs never sent, or lost, hold it for unsent_ms from its making (-1: for
 * ever). A pin that is gone counts as released.
 */
enum evq_status evq_pin_check(const char *directory, evq_pin_job_fn job_state, void *context,
                              int64_t unsent_ms, bool *ret_released,
                              struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_pin_release(const char *directory, struct evq_error *err) EVQ_CHECK_RESULT;

/* Holds off evq_pin_check()'s release until the descriptor is closed; -1: there is no such pin. */
int evq_pin_lock(const char *directory);

/* The message of a job that wants the pin, kept beside it so that the job can be sent again.
 * EVQ_E_NOT_FOUND: none was kept. */
enum evq_status evq_pin_message_keep(const char *directory, const char *job, const void *data,
                                     size_t bytes, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_pin_message_read(const char *directory, const char *job, struct evq_buffer *out,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_pin_info {
    const char *directory; // Absolute where output_dir is.
    const char *queue;
    const char *run;
    int64_t copied_bytes;
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
