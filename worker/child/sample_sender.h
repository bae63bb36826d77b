/*
 * Sends the samples file of a finished task to the logger: in pieces, which the supervisor passes
 * on to Redis. One thread.
 */
#ifndef EVQ_WORKER_CHILD_SAMPLE_SENDER_H
#define EVQ_WORKER_CHILD_SAMPLE_SENDER_H

#include "shared/config/config.h"
#include "shared/queue/result.h"
#include "shared/queue/sample_pieces.h"

#define EVQ_SAMPLE_SENDER_NOTE_BYTES 2048

struct evq_sample_sender {
    const struct evq_config *config;
    const char *scratch; // Of the attempt; the file is below it.
    void *context;
    /* Hands over one piece and waits for the answer. EVQ_E_FULL: Redis has no room now.
     * EVQ_E_STOPPED: the job is stopped. Any other error: no piece of this file will be taken. */
    enum evq_status (*piece)(void *context, const struct evq_sample_piece *piece,
                             struct evq_error *err);
    /* Waits a moment and shows that the child is alive. EVQ_E_STOPPED. */
    enum evq_status (*wait)(void *context);
};

/*
 * Sends the file that the result names, and removes it. If Redis takes it, or the result names
 * none, the result stays as it is. Otherwise the result names no file any more, and its note,
 * written to note, says why. EVQ_E_STOPPED.
 */
enum evq_status evq_sample_sender_send(const struct evq_sample_sender *sender,
                                       struct evq_result *result,
                                       char note[EVQ_SAMPLE_SENDER_NOTE_BYTES],
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
