/*
 * Registers the suites of this configuration with the queue. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_OPERATE_SUITE_REGISTER_H
#define EVQ_PRODUCER_CLI_OPERATE_SUITE_REGISTER_H

#include "producer/cli/cli.h"

/* Registers the suite. EVQ_E_CONFLICT: the queue has another definition, and replace is false. */
enum evq_status evq_suite_register(struct evq_cli *cli, const struct evq_suite *suite, bool replace,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/* Registers all suites, replaces other definitions, and says which it replaced. For a queue that
 * only this configuration uses. */
enum evq_status evq_suite_register_all(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
