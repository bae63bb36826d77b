/*
 * Turns requests of LMMS-Eval's clients into jobs. Each request has a ticket, whose name is the
 * client's job_id. A request whose checkpoint holds regular and EMA weights becomes two jobs of one
 * ticket. One thread and queue at a time.
 */
#ifndef EVQ_PRODUCER_GATEWAY_LMMS_LMMS_JOB_H
#define EVQ_PRODUCER_GATEWAY_LMMS_LMMS_JOB_H

#include <jansson.h>

#include "producer/gateway/lmms/lmms_paths.h"
#include "producer/gateway/lmms/pins.h"
#include "shared/queue/queue_ticket.h"

#define EVQ_LMMS_ID_BYTES 37 // A UUID and the NUL.

struct evq_lmms_sent {
    char id[EVQ_LMMS_ID_BYTES];
    int64_t position;
};

/* pins may be NULL. If sent->id is set, from an attempt whose answer was lost, the same ticket is
 * used again. EVQ_E_INVALID, EVQ_E_NOT_FOUND: the message says what is wrong with the checkpoint.
 * Other errors are the queue's. */
enum evq_status evq_lmms_submit(const struct evq_config *config, struct evq_queue *queue,
                                struct evq_pins *pins, const struct evq_lmms_request *request,
                                struct evq_lmms_sent *sent, struct evq_error *err) EVQ_CHECK_RESULT;

struct evq_lmms_merging {
    char id[EVQ_LMMS_ID_BYTES]; // Id of its ticket.
    char output[PATH_MAX];      // The path of the merged checkpoint.
};
/* Submits a merge. EVQ_E_GONE: the checkpoint does not exist. EVQ_E_INVALID, EVQ_E_NOT_FOUND.
 * Other errors are the queue's. */
enum evq_status evq_lmms_submit_merge(const struct evq_config *config, struct evq_queue *queue,
                                      struct evq_pins *pins, const struct evq_lmms_merge *merge,
                                      struct evq_lmms_merging *merging,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* queued, running, completed, failed or cancelled. A job that was skipped because its checkpoint
 * vanished or changed counts as failed, so that its client notices. */
const char *evq_lmms_status(const struct evq_ticket *ticket);

/* The JobInfo of GET /jobs/ID. Writes the results file if there is none. NULL: memory ran out. The
 * caller calls json_decref(). */
json_t *evq_lmms_info(const char *id, const struct evq_ticket *ticket);

/* Formats a time as datetime.isoformat() does: local time without a zone, with microseconds. */
#define EVQ_LMMS_TIME_BYTES 32
void evq_lmms_format_time(int64_t unix_ms, char out[EVQ_LMMS_TIME_BYTES]);

#endif
