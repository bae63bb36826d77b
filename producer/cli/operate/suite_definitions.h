/*
 * The suites of this configuration, put into the queue in the place of other definitions. One
 * thread.
 */
#ifndef EVQ_CLI_OFFER_H
#define EVQ_CLI_OFFER_H

#include "producer/cli/cli.h"

/* Puts the suite into the queue. EVQ_E_CONFLICT: another definition is there, and replace is false.
 */
enum evq_status evq_suite_registry_suite(struct evq_cli *cli, const struct evq_suite *suite,
                                         bool replace, struct evq_error *err) EVQ_CHECK_RESULT;
/* All suites of the configuration, for a queue that no other configuration is for; says which were
 * other ones before. */
enum evq_status evq_offer_all(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
