/*
 * Starts admission, thread pool and server in order, runs them until a signal, and stops them. One
 * thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_GATEWAY_H
#define EVQ_PRODUCER_GATEWAY_GATEWAY_H

#include <signal.h>

#include "producer/gateway/options.h"

/*
 * Serves until SIGTERM or SIGINT. SIGHUP reads the tokens again. signals: those three, blocked.
 * EVQ_E_INVALID: the configuration is wrong (address, tokens). EVQ_E_IO: the address is in use, or
 * Redis cannot be reached. EVQ_E_AUTH: Redis refuses us. EVQ_E_VERSION: its function library is too
 * old.
 */
enum evq_status evq_gateway_run(const struct evq_config *config, const struct evq_options *options,
                                const sigset_t *signals, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
