/*
 * The gateway as a whole: admission, pool and server, started in order, run until a signal, and
 * stopped. One thread.
 */
#ifndef EVQ_GATEWAY_SERVICE_H
#define EVQ_GATEWAY_SERVICE_H

#include <signal.h>

#include "producer/gateway/options.h"

/*
 * Serves until SIGTERM or SIGINT; SIGHUP reads the tokens again. signals: those three, blocked.
 * EVQ_E_INVALID: a fault of the configuration (address, tokens); EVQ_E_IO: the address is taken, or
 * Redis cannot be reached; EVQ_E_AUTH, EVQ_E_VERSION: Redis refuses us, or its library is too old.
 */
enum evq_status evq_service_run(const struct evq_config *config, const struct evq_options *options,
                                const sigset_t *signals, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
