/*
 * Pins of the checkpoints that requests of LMMS-Eval's clients name: their trainer rotates what
 * waits to be evaluated, and knows nothing of evalq. Made where a request is answered, by
 * producer/client/pins/pin.h; a thread of their own, with its own connection to Redis, looks after
 * them by producer/client/pins/pin_releaser.h, one releaser a run. What a gateway leaves behind is
 * taken over by the next one that has a request of the same run, or removed by `evalq gc`.
 */
#ifndef EVQ_GATEWAY_PINS_H
#define EVQ_GATEWAY_PINS_H

#include <limits.h>

#include "shared/config/config.h"
#include "shared/queue/queue.h"

struct evq_pins;

/* config is borrowed. Opens a connection (no I/O yet) and starts the thread. Errors as
 * evq_conn_open(), EVQ_E_NOMEM. */
enum evq_status evq_pins_start(const struct evq_config *config, struct evq_pins **ret_pins,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* The pins stay. Accepts NULL. */
void evq_pins_stop(struct evq_pins *pins);

/*
 * Pins the job's checkpoint, which has its fingerprint, and names the pin in the job. Only by
 * clones and hard links, where those are safe: nothing is copied, since somebody waits for an
 * answer. directory: of the pin; "" where this configuration or this checkpoint is not pinned.
 * Errors: why it could not be; the job is as it was. Any thread; pins NULL: not pinned.
 */
enum evq_status evq_pins_make(struct evq_pins *pins, struct evq_job *job, char directory[PATH_MAX],
                              struct evq_error *err) EVQ_CHECK_RESULT;
/* What became of the job that was pinned: its end releases the pin. sent NULL: it is not in the
 * queue. Any thread, with its own queue. */
void evq_pins_note(struct evq_pins *pins, struct evq_queue *queue, const struct evq_job *job,
                   const char *directory, const struct evq_submitted *sent);

#endif
