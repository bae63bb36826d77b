/*
 * Pins keep a checkpoint until its jobs have ended, even if the trainer deletes it. One pin is one
 * directory beside the checkpoint:
 *
 *     OUTPUT_DIR/.evalq/pins/STEP-VARIANT-HASH/
 *         CHECKPOINT      the checkpoint's file, or its directory with every file
 *         .pin            the record of the pin as text: the jobs that want it, and their sent ids
 *         .pin-job-HASH   the message of each job, as it was sent
 *
 * A pin is made under a temporary name and then renamed. Its name follows from run and checkpoint,
 * so a repeated submit finds the pin that exists. Files are cloned (reflink) if the file system can
 * do it. Otherwise they are hard-linked, if the caller says that the trainer never writes into them
 * again, or copied, up to a number of bytes. Nothing is written into the checkpoint.
 *
 * The client's sender thread, the gateway and `evalq gc` use pins. Any thread; several processes
 * may work in one directory.
 */
#ifndef EVQ_PRODUCER_CLIENT_PINS_PIN_H
#define EVQ_PRODUCER_CLIENT_PINS_PIN_H

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
}; // The way of the pin's files; if they differ, the last one in this list.

struct evq_pin_request {
    const char *root_path; // Absolute directory of the root.
    const char *path;      // The checkpoint, relative to it.
    const char *queue;
    const char *run;
    int64_t step;
    const char *variant;
    const char *fingerprint; // "": unknown, so each request makes a new pin.
    const char *source;      // The copy to clone instead of path, relative to the root; NULL: path.
    const char *const *jobs; // Ids of the jobs that want the pin.
    size_t job_count;
    bool reflink;                         // false: the file system cannot, so do not try.
    bool hard_link;                       // See evq_pin_hard_link_safe().
    int64_t copy_bytes_max;               // Most bytes to copy; 0: never copy.
    bool (*stopped)(const void *context); // Called between blocks of a copy; may be NULL.
    const void *stop_context;
};

struct evq_pin {
    char path[PATH_MAX];      // Path of the pinned checkpoint, relative to the root.
    char directory[PATH_MAX]; // Absolute path of the pin.
    enum evq_pin_kind kind;
    int64_t copied_bytes;
    bool found;         // The pin existed already.
    bool lacks_reflink; // The file system cannot clone. A try costs making and removing a file.
};

/*
 * Returns how many bytes of a checkpoint's path, relative to the root, are OUTPUT_DIR; 0: the root.
 * It is the directory that contains the checkpoint. Accelerate ends the training if its directory
 * `checkpoints` contains a name other than checkpoint_N, so there it is the directory above.
 */
size_t evq_pin_output_bytes(const char *path);

/*
 * Whether the path may be hard-linked. A hard link shows later writes into the same file, so it is
 * safe only if each step has its own files: the last or last but one part of the path contains the
 * step as a whole number (checkpoint-100, step-000100.safetensors, 100/model.pt). The training may
 * write again into any other path (last.pt, model.safetensors), so that must be copied.
 */
bool evq_pin_hard_link_safe(const char *path, int64_t step);

/*
 * Makes the pin, or finds it and adds the jobs. EVQ_E_GONE, EVQ_E_CHANGED: the checkpoint was
 * removed or changed during the call. EVQ_E_FULL: a copy needs more than copy_bytes_max, or the
 * file system lacks the space of two more such checkpoints, which the trainer's next saves may
 * need. EVQ_E_UNSUPPORTED: the path is the root itself, or contains something that cannot be pinned
 * (a symbolic link out of the root, too many files). EVQ_E_STOPPED. EVQ_E_IO: permissions, no
 * space. A failure leaves nothing behind.
 */
enum evq_status evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks that the new pin has the fingerprint of the request. EVQ_E_CHANGED: the checkpoint changed
 * in between, and the pin was removed. Other errors: those of evq_checkpoint_fingerprint(). */
enum evq_status evq_pin_verify(const struct evq_pin_request *request, const struct evq_pin *pin,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Records in the pin that the job was sent. sent_as: its id in the queue, with its generation.
 * epoch: that of evq_queue_info(); "": unknown. */
enum evq_status evq_pin_note_sent(const char *directory, const char *job, const char *sent_as,
                                  const char *epoch, struct evq_error *err) EVQ_CHECK_RESULT;
/* Records in the pin that the job will never be sent, or had already ended when it was sent. */
enum evq_status evq_pin_note_refused(const char *directory, const char *job,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_pin_job {
    EVQ_PIN_JOB_OPEN,
    EVQ_PIN_JOB_ENDED,  // It ended; its record may have been removed from the queue since.
    EVQ_PIN_JOB_LOST,   // The queue lost its data, so the job must be sent again.
    EVQ_PIN_JOB_UNKNOWN // Its state cannot be read now.
};
/* Returns the state of a job. epoch: the epoch that evq_pin_note_sent() recorded. */
typedef enum evq_pin_job (*evq_pin_job_fn)(void *context, const char *queue, const char *job,
                                           const char *epoch);

/*
 * Releases (removes) the pin if each job that wants it has ended or was refused. Jobs that were
 * never sent, or that the queue lost, keep the pin until it is unsent_ms old (-1: always).
 * *ret_released: the pin was removed, now or earlier.
 */
enum evq_status evq_pin_release_if_ended(const char *directory, evq_pin_job_fn job_state,
                                         void *context, int64_t unsent_ms, bool *ret_released,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_pin_release(const char *directory, struct evq_error *err) EVQ_CHECK_RESULT;

/* Keeps evq_pin_release_if_ended() from releasing the pin until the descriptor is closed. -1: there
 * is no such pin. */
int evq_pin_lock(const char *directory);

/* Keep and read the message of a job that wants the pin, so that the job can be sent again.
 * EVQ_E_NOT_FOUND: no message was kept. */
enum evq_status evq_pin_message_keep(const char *directory, const char *job, const void *data,
                                     size_t bytes, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_pin_message_read(const char *directory, const char *job, struct evq_buffer *out,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_pin_info {
    const char *directory; // Absolute if output_dir is absolute.
    const char *queue;
    const char *run;
    int64_t copied_bytes;
};
typedef void (*evq_pin_fn)(void *context, const struct evq_pin_info *pin);
/* Calls on_pin for each pin in output_dir/.evalq/pins, which need not exist. */
enum evq_status evq_pin_list(const char *output_dir, evq_pin_fn on_pin, void *context,
                             struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Calls evq_pin_release_if_ended() for all pins of output_dir; queue not NULL: only for those of
 * that queue. Also removes unfinished pins that are older than an hour, and the directories if they
 * are empty. *ret_released, *ret_left: how many pins were removed and how many stay.
 */
enum evq_status evq_pin_gc(const char *output_dir, const char *queue, evq_pin_job_fn job_state,
                           void *context, int64_t unsent_ms, int64_t *ret_released,
                           int64_t *ret_left, struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes output_dir/.evalq/pins and output_dir/.evalq if they are empty. */
void evq_pin_tidy(const char *output_dir);

#endif
