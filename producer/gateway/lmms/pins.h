/*
 * Pins the checkpoints of LMMS-Eval's clients, because their trainer may delete a checkpoint that
 * still waits for its evaluation. A pin is made (producer/client/pins/pin.h) before the request is
 * answered. One thread with its own connection to Redis releases pins (pin_releaser.h), with one
 * releaser per run. Pins that a stopped gateway left are taken over by the next gateway that gets a
 * request of the same run, or removed by `evalq gc`.
 */
#ifndef EVQ_PRODUCER_GATEWAY_LMMS_PINS_H
#define EVQ_PRODUCER_GATEWAY_LMMS_PINS_H

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
 * Pins the job's checkpoint, which has its fingerprint, and sets job->pin. It uses reflinks and
 * hard links only, because a client waits for the answer and a copy takes too long. directory: the
 * pin's directory, "" if the checkpoint is not pinned. On an error the job is unchanged. Any
 * thread. pins NULL: pins nothing.
 */
enum evq_status evq_pins_make(struct evq_pins *pins, struct evq_job *job, char directory[PATH_MAX],
                              struct evq_error *err) EVQ_CHECK_RESULT;
/* Records how the submit of a pinned job ended. The pin is released once its job has ended. sent
 * NULL: the job is not in the queue. Any thread, with its own queue. */
void evq_pins_record(struct evq_pins *pins, struct evq_queue *queue, const struct evq_job *job,
                     const char *directory, const struct evq_submitted *sent);

#endif
