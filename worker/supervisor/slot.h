/*
 * One slot: its devices and the child process that uses them. The supervisor's single thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_SLOT_H
#define EVQ_WORKER_SUPERVISOR_SLOT_H

#include <sys/types.h>

#include "shared/queue/job.h"
#include "worker/child/channel.h"
#include "worker/devices/devices.h"
#include "worker/evaluators/program_log.h"
#include "worker/supervisor/causes.h"

#define EVQ_SLOT_GRACE_MS 7000 // From cancel to SIGKILL; an evaluator gives its program 5 s of it.
#define EVQ_SLOT_HANG_MS  300000 // A child that says nothing for so long while it has a job hangs.
#define EVQ_SLOT_START_MS 120000 // From fork to hello.

struct evq_lease;

/*
 * The states of a slot, and what moves it from one to another. evq_slot_move() holds this table.
 * An event that a row does not name leaves the state as it is.
 *
 *   state        meaning                                    event         next state
 *   NO_GPUS      no child; other workers hold the GPUs      GPUS_GIVEN    DOWN
 *   DOWN         no child; one is started at start_ms       STARTED       STARTING
 *                                                           GPUS_LOST     NO_GPUS
 *   STARTING     the child has not said hello yet           HELLO         IDLE
 *   IDLE         the child waits for a job                  JOB           RUNNING
 *   RUNNING      the child has a job                        END_JOB       ENDING
 *                                                           JOB_OVER      IDLE
 *   ENDING       the child was asked to stop its job;       JOB_OVER      IDLE
 *                it is killed at kill_ms
 *   LEAVING      the child was killed, or exits by itself   CHILD_DIED    DOWN
 *   LOSING_GPUS  the same, and the GPUs are gone            CHILD_DIED    NO_GPUS
 *
 * In every state with a child, LEAVES leads to LEAVING, GPUS_LOST to LOSING_GPUS and CHILD_DIED to
 * DOWN.
 */
enum evq_slot_state {
    EVQ_SLOT_NO_GPUS,
    EVQ_SLOT_DOWN,
    EVQ_SLOT_STARTING,
    EVQ_SLOT_IDLE,
    EVQ_SLOT_RUNNING,
    EVQ_SLOT_ENDING,
    EVQ_SLOT_LEAVING,
    EVQ_SLOT_LOSING_GPUS,
    EVQ_SLOT_STATE_COUNT
};

enum evq_slot_event {
    EVQ_SLOT_ON_GPUS_GIVEN,
    EVQ_SLOT_ON_GPUS_LOST,
    EVQ_SLOT_ON_STARTED,
    EVQ_SLOT_ON_HELLO,
    EVQ_SLOT_ON_JOB,
    EVQ_SLOT_ON_END_JOB,
    EVQ_SLOT_ON_JOB_OVER,
    EVQ_SLOT_ON_LEAVES,
    EVQ_SLOT_ON_CHILD_DIED,
    EVQ_SLOT_EVENT_COUNT
};

struct evq_slot {
    uint32_t number;
    char devices[EVQ_DEVICES_TEXT]; // CUDA_VISIBLE_DEVICES; "" means the CPU.
    int32_t gpus;
    int64_t memory_bytes; // Memory of the smallest of its GPUs; 0: unknown, or no GPU.
    uint64_t fits;        // Bit n-1 is set if the class with number n can run here.

    enum evq_slot_state state;
    pid_t pid;
    struct evq_channel channel;
    struct evq_program_log errors; // The child's standard error, which is passed on to ours.
    struct evq_backoff start;      // The child could not be forked.
    uint32_t failures;             // Failed starts and device faults in a row.
    char note[512];                // What the child's hello said, or why there is no child.
    char evaluators[16];           // "ready", "retry", "failed"; "": none was started.
    int64_t since_unix_ms;         // When the slot came into its state.

    char warm[EVQ_JOB_ID_BYTES_MAX]; // RUN/STEP/VARIANT that its model server has loaded, or "".
    const char *warm_evaluator;      // The evaluator of that server.

    struct evq_lease *lease; // The job that the child has; NULL: none, or one that we gave up.
    enum evq_cause ending;   // Why we end the job. What its child then reports does not count.
    // A piece of samples that waits for Redis, and the time that its job has left; NULL: none.
    struct evq_note *piece;
    int64_t piece_left_ms;
    // All times below are monotonic.
    int64_t start_ms;     // When to start the next child.
    int64_t last_note_ms; // When the child last sent a note.
    // When the job's time is up; 0: no job; INT64_MAX: stopped while a samples piece waits for
    // Redis.
    int64_t limit_ms;
    int64_t kill_ms; // When to kill the child; 0: never.
};

void evq_slot_init(struct evq_slot *slot, uint32_t number);

/* The only function that changes slot->state. */
void evq_slot_move(struct evq_slot *slot, enum evq_slot_event event);

/* Asks the child to end its job, and has it killed after grace_ms. The first cause stays, except
 * that STALE replaces any other. */
void evq_slot_cancel(struct evq_slot *slot, enum evq_cause cause, int64_t grace_ms);
/* When this slot next needs attention, monotonic ms; INT64_MAX: never. */
int64_t evq_slot_due_ms(const struct evq_slot *slot);

bool evq_slot_has_job(const struct evq_slot *slot); // RUNNING, ENDING, or killed with its job.
bool evq_slot_changes(const struct evq_slot *slot); // Its child is starting or about to exit.
bool evq_slot_waits_for_gpus(const struct evq_slot *slot);
/* The word for the state in the worker's status: "down", "starting", "idle" or "running". */
const char *evq_slot_state_name(enum evq_slot_state state);

/* ---- slot_process.c ---- */

struct evq_slot_spawn {
    const char *const *argv; // NULL-terminated argument list of a child.
};

/* Call this first in a forked copy. It makes only async-signal-safe calls: the copy dies with its
 * parent, and all signals are unblocked. */
void evq_slot_forked(pid_t parent);

/* Forks and executes our own binary as the child of the slot. EVQ_E_IO, EVQ_E_NOMEM. */
enum evq_status evq_slot_start(struct evq_slot *slot, const struct evq_slot_spawn *spawn,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Kills the child for a fault of its own. evq_slot_reap() sees its death. */
void evq_slot_kill(struct evq_slot *slot);

/* Returns true once, when the child has died; *ret_wait_status is as waitpid() gives it. */
bool evq_slot_reap(struct evq_slot *slot, int *ret_wait_status);
/* Reads what is left in the child's pipes and closes them. Call it after a reap and before the
 * next start. */
void evq_slot_close(struct evq_slot *slot);

#endif
