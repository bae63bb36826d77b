/*
 * Takes the pieces of samples files that workers send (samples.send) and stores whole files in
 * samples.directory. A file is checked and has its final name before its pieces are removed from
 * Redis. So a logger that is killed begins again with the pieces that are still there. Its own
 * thread; call the functions below from one.
 */
#ifndef EVQ_LOGGER_SAMPLES_RECEIVER_H
#define EVQ_LOGGER_SAMPLES_RECEIVER_H

#include "shared/config/config.h"

struct evq_samples_receiver;

/* Starts the thread. It waits out every error of Redis and of the disk. EVQ_E_NOMEM. */
enum evq_status evq_samples_receiver_start(const struct evq_config *config,
                                           struct evq_samples_receiver **ret_receiver,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
/* Ends the thread and frees it. Accepts NULL. */
void evq_samples_receiver_stop(struct evq_samples_receiver *receiver);

#endif
