/*
 * One slot: its devices and the child process that uses them. The supervisor's single thread.
 */
#ifndef EVQ_WORKER_SLOT_H
#define EVQ_WORKER_SLOT_H

#include <sys/types.h>

#include "worker/child/channel.h"
#include "worker/devices/devices.h"
#include "worker/evaluators/program_log.h"

#define EVQ_SLOT_GRACE_MS 7000 // From cancel to SIGKILL; an evaluator gives its program 5 s of it.
#define EVQ_SLOT_HANG_MS  300000 // A child that says nothing for so long while it has a job hangs.
#define EVQ_SLOT_START_MS 120000 // From fork to hello.

struct evq_lease;

enum evq_slot_state {
    EVQ_SLOT_DOWN,     // No child; one is started at start_ms.
    EVQ_SLOT_STARTING, // Not yet said hello.
    EVQ_SLOT_IDLE,
    EVQ_SLOT_RUNNING
};

enum evq_slot_ending { // Why we ended the running job; what its child says of it then no longer
                       // counts.
    EVQ_ENDING_NONE,
    EVQ_ENDING_TIMEOUT,
    EVQ_ENDING_HANG,
    EVQ_ENDING_CANCELLED,
    EVQ_ENDING_STALE,
    EVQ_ENDING_RELEASED,
    EVQ_ENDING_NO_ROOM // Not by us: the machine lacked what it needs.
};

struct evq_slot {
    uint32_t number;
    char devices[EVQ_DEVICES_TEXT]; // CUDA_VISIBLE_DEVICES; "" the CPU.
    int32_t gpus;
    int64_t memory_bytes; // Of the smallest of its GPUs; 0: unknown or none.
    bool waits_for_gpus;  // For GPUs: no child is started, no job asked for.
    uint64_t fits;        // Bit n-1: the class with number n can run here.

    enum evq_slot_state state;
    pid_t pid;
    struct evq_channel channel;
    struct evq_program_log errors; // Its standard error, passed on to ours.
    uint32_t failures;             // Starts, or runs, that ended in a device fault, in a row.
    uint32_t start_tries;          // Of a child that could not even be forked, in a row.
    char note[160];                // What hello said, or why it is down.
    int64_t since_unix_ms;         // Of its state.

    struct evq_lease *lease; // While running.
    enum evq_slot_ending ending;
    int64_t start_ms;     // Monotonic, like all below. When DOWN: the next start.
    int64_t last_note_ms; // The last note.
    int64_t limit_ms;     // The job's time limit; 0: none.
    int64_t kill_ms;      // After a cancel; 0: none.
};

struct evq_slot_spawn {
    const char *const *argv; // NULL-terminated: how a child is started.
};

/* Our environment without the way to Redis, which a process that opens checkpoints must not know,
 * and with devices_line. The caller frees the array alone; NULL: out of memory. */
char **evq_slot_environment(char *devices_line);

/* In a forked copy, by async-signal-safe calls alone: it dies with its parent, and no signal is
 * blocked. */
void evq_slot_forked(pid_t parent);

void evq_slot_init(struct evq_slot *slot, uint32_t number);

/* fork and exec of our own binary. EVQ_E_IO. */
enum evq_status evq_slot_start(struct evq_slot *slot, const struct evq_slot_spawn *spawn,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Asks the child to end the running job; evq_slot_kill() after grace_ms. A reason given before
 * stays. */
void evq_slot_cancel(struct evq_slot *slot, enum evq_slot_ending ending, int64_t grace_ms);
void evq_slot_kill(struct evq_slot *slot); // SIGKILL; the death is seen by evq_slot_reap().

/* True once when the child has died: *ret_wait_status as waitpid() gives it. The slot is DOWN then,
 * lease kept. */
bool evq_slot_reap(struct evq_slot *slot, int *ret_wait_status);
/* What is left in its pipes is read; descriptors are closed. After a reap, before the next start.
 */
void evq_slot_close(struct evq_slot *slot);

/* The next monotonic ms at which this slot wants attention; INT64_MAX: none. */
int64_t evq_slot_due_ms(const struct evq_slot *slot);

void evq_slot_set(struct evq_slot *slot, enum evq_slot_state state);
const char *evq_slot_state_name(enum evq_slot_state state);
const char *evq_slot_ending_name(enum evq_slot_ending ending);

#endif
