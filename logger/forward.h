/*
 * One sink, one thread: reads its consumer group, writes, flushes, acknowledges. A sink that is
 * down waits with back-off and holds nobody up; what it has not acknowledged stays in Redis.
 */
#ifndef EVQ_LOGGER_FORWARD_H
#define EVQ_LOGGER_FORWARD_H

#include "logger/sinks/sink.h"

struct evq_forward;

/*
 * Registers all sinks before the first of them reads: what one has acknowledged is trimmed unless
 * another that is registered still needs it. At the start a refusal ends the program, later each
 * sink waits it out. EVQ_E_INVALID: a sink's kind, the address or the password file.
 */
enum evq_status evq_forward_register(const struct evq_config *config,
                                     const struct evq_sink_config *const *sinks, size_t count,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Starts the thread of sinks[which], which were registered. config and sinks outlive it. */
enum evq_status evq_forward_start(const struct evq_config *config,
                                  const struct evq_sink_config *const *sinks, size_t count,
                                  size_t which, struct evq_forward **ret_forward,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* Asks it to stop: from any thread or a signal handler. What was read is flushed and acknowledged
 * first. */
void evq_forward_stop(struct evq_forward *forward);
/* Waits for the thread and frees. Returns what ended it: EVQ_OK after stop, else the error that no
 * retry can mend. */
enum evq_status evq_forward_join(struct evq_forward *forward, struct evq_error *err);
/* Whether the thread has ended by itself. */
bool evq_forward_ended(const struct evq_forward *forward);

#endif
