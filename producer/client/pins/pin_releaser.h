/*
 * The live pins of a run: asks at a low rate whether their jobs ended, and releases them. Jobs that
 * the queue lost with its data are sent again, from the message that their pin keeps. The pin of a
 * dead job stays for `evalq retry`: a day, the newest four of the run, while nobody needs the room.
 * One thread: the client's in the background, the gateway's for pins.
 */
#ifndef EVQ_PRODUCER_PIN_RELEASER_H
#define EVQ_PRODUCER_PIN_RELEASER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "producer/client/pins/pin.h"
#include "shared/queue/queue.h"

#define EVQ_PIN_RELEASER_DEAD_MS       ((int64_t)86400 * 1000)
#define EVQ_PIN_RELEASER_DEAD_PINS_MAX 4

struct evq_pin_releaser_pin {
    char *directory;
    int64_t copied_bytes;
    int64_t dead_ms; // When the job died for which alone it may be kept, unix ms; 0: it is not so.
};

struct evq_pin_releaser {
    struct evq_pin_releaser_pin *pins;
    size_t pin_count;
    size_t pin_room;
    size_t next;    // Round robin.
    char **outputs; // Directories whose pins were looked through.
    size_t output_count;
    int64_t copied_bytes; // All of them.
    int64_t due_ms;       // Next look, monotonic.
    uint64_t sent_again;  // Jobs that the queue had lost.
};

/* Takes over the pins that earlier processes of the run left in output_dir; once for each
 * directory. */
void evq_pin_releaser_visit(struct evq_pin_releaser *releaser, const char *output_dir,
                            const char *queue, const char *run);
void evq_pin_releaser_add(struct evq_pin_releaser *releaser, const char *directory,
                          int64_t copied_bytes);
/* One look at some of the pins; false when Redis failed, err says how. *info is asked anew. */
bool evq_pin_releaser_look(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                           struct evq_queue_info *info, struct evq_error *err);
/* Releases the pins that are kept for a retry alone: their room is needed. Whether there were any.
 */
bool evq_pin_releaser_spare(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                            const struct evq_queue_info *info);
/* Of the pins that are kept for a retry alone, releases all but the newest
 * EVQ_PIN_RELEASER_DEAD_PINS_MAX. One question to Redis for each job that wants a pin. Returns how
 * many pins are gone. */
size_t evq_pin_releaser_trim_dead(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                                  const struct evq_queue_info *info);
/*
 * Notes in a pin what became of a job that wants it, and keeps the job's message beside it for the
 * case that Redis loses its data. sent: the queue's answer; NULL: the job is not in the queue.
 * epoch: as evq_pin_sent(). A failure leaves the pin held until `evalq gc` finds it old.
 */
void evq_pin_releaser_note(const char *directory, const struct evq_job *job,
                           const struct evq_submitted *sent, const char *epoch);
/* Forgets the pins, removes directories left empty. */
void evq_pin_releaser_free(struct evq_pin_releaser *releaser);

/* What Redis says of a job; context is a struct evq_pin_releaser_ask. */
struct evq_pin_releaser_ask {
    struct evq_queue *queue;
    const char *epoch;     // Of evq_queue_info(), now.
    const char *directory; // Of the pin: a lost job of it is sent again. NULL: it is not.
    bool keep_dead;  // A job that died less than EVQ_PIN_RELEASER_DEAD_MS before now_ms is open.
    int64_t now_ms;  // Of evq_queue_info().
    int64_t dead_ms; // When the last of these died.
    uint64_t sent_again;
    struct evq_error error;
    bool failed;
};
enum evq_pin_job evq_pin_releaser_job_state(void *context, const char *queue, const char *job,
                                            const char *epoch);

#endif
