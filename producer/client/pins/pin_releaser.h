/*
 * Releases the pins of a run: asks Redis at a low rate whether their jobs have ended. If Redis lost
 * its data, it sends the jobs again, from the messages that the pins keep. The pin of a dead job
 * stays for `evalq retry`: at most a day, only the newest four of the run, and only while no new
 * pin needs the space. One thread: the client's sender, or the gateway's thread for pins.
 */
#ifndef EVQ_PRODUCER_CLIENT_PINS_PIN_RELEASER_H
#define EVQ_PRODUCER_CLIENT_PINS_PIN_RELEASER_H

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
    int64_t dead_ms; // If it is kept only for dead jobs: when the last of them died, unix ms; or 0.
};

struct evq_pin_releaser {
    struct evq_pin_releaser_pin *pins;
    size_t pin_count;
    size_t pin_room; // Allocated entries of pins.
    size_t next;     // The next pin to check, round robin.
    char **outputs;  // Directories whose pins were taken over.
    size_t output_count;
    int64_t copied_bytes; // Copied bytes of all pins.
    int64_t due_ms;       // When to check the next pins, monotonic.
    uint64_t sent_again;  // Jobs that the queue had lost.
};

/* Takes over the pins that earlier processes of the run left in output_dir; once for each
 * directory. */
void evq_pin_releaser_visit(struct evq_pin_releaser *releaser, const char *output_dir,
                            const char *queue, const char *run);
void evq_pin_releaser_add(struct evq_pin_releaser *releaser, const char *directory,
                          int64_t copied_bytes);
/* Checks some of the pins and reads *info again. Returns false if Redis failed; err says how. */
bool evq_pin_releaser_check(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                            struct evq_queue_info *info, struct evq_error *err);
/* Releases all pins that are kept only for a retry, because their space is needed. Returns whether
 * there were any. */
bool evq_pin_releaser_spare(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                            const struct evq_queue_info *info);
/* Releases the pins that are kept only for a retry, except the newest
 * EVQ_PIN_RELEASER_DEAD_PINS_MAX. Makes one call to Redis for each job that wants a pin. Returns
 * how many pins were released. */
size_t evq_pin_releaser_trim_dead(struct evq_pin_releaser *releaser, struct evq_queue *queue,
                                  const struct evq_queue_info *info);
/*
 * Records in a pin whether a job that wants it was sent, and keeps the job's message in the pin in
 * case Redis loses its data. sent: the queue's reply; NULL: the job is not in the queue. epoch: see
 * evq_pin_note_sent(). After a failure the pin stays until it is so old that `evalq gc` removes it.
 */
void evq_pin_releaser_record(const char *directory, const struct evq_job *job,
                             const struct evq_submitted *sent, const char *epoch);
/* Frees the list, not the pins, and removes directories that are empty. */
void evq_pin_releaser_free(struct evq_pin_releaser *releaser);

/* The context of evq_pin_releaser_job_state(). */
struct evq_pin_releaser_ask {
    struct evq_queue *queue;
    const char *epoch;     // The present epoch, by evq_queue_info().
    const char *directory; // The pin whose lost jobs are sent again. NULL: they are not.
    bool keep_dead;  // A job that died less than EVQ_PIN_RELEASER_DEAD_MS before now_ms is open.
    int64_t now_ms;  // The server's time, by evq_queue_info().
    int64_t dead_ms; // When the last of these jobs died.
    uint64_t sent_again;
    struct evq_error error;
    bool failed;
};
/* Asks Redis for the state of a job. An evq_pin_job_fn. */
enum evq_pin_job evq_pin_releaser_job_state(void *context, const char *queue, const char *job,
                                            const char *epoch);

#endif
