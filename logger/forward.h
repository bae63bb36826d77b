/* The loop of one sink, in a thread of its own: read the consumer group, write, flush, acknowledge.
 * A sink that is down is tried again with back-off and delays no other sink. What it has not
 * acknowledged stays in Redis.
 */
#ifndef EVQ_LOGGER_FORWARD_H
#define EVQ_LOGGER_FORWARD_H

#include "logger/sinks/sink.h"

struct evq_forward;

/* Registers all sinks before the first of them reads, because entries are trimmed once every
 * registered sink has acknowledged them. An error at the start ends the program; later, each sink
 * waits. EVQ_E_INVALID: a sink's kind, the address or the password file.
 */
enum evq_status evq_forward_register(const struct evq_config *config,
                                     const struct evq_sink_config *const *sinks, size_t count,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Starts the thread of sinks[which], which were registered. config and sinks outlive it. */
enum evq_status evq_forward_start(const struct evq_config *config,
                                  const struct evq_sink_config *const *sinks, size_t count,
                                  size_t which, struct evq_forward **ret_forward,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* Asks it to stop, from any thread or a signal handler. What was read is first written, flushed and
 * acknowledged. */
void evq_forward_stop(struct evq_forward *forward);
/* Waits for the thread and frees. Returns why it ended: EVQ_OK after a stop, else an error
 * that no retry can fix. */
enum evq_status evq_forward_join(struct evq_forward *forward, struct evq_error *err);
/* Whether the thread has ended by itself. */
bool evq_forward_ended(const struct evq_forward *forward);

#endif
