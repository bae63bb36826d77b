/*
 * Prints the queue on one screen, for `evalq status` and `evalq top`. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_INSPECT_STATUS_H
#define EVQ_PRODUCER_CLI_INSPECT_STATUS_H

#include "producer/cli/cli.h"

/* Asks the open queue and prints it on stdout, as cli->terminal says. Nothing is printed when the
 * queue cannot be asked. */
enum evq_status evq_status_show(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
