/*
 * Delivers results to a sink again: all results in the stream, and those that were removed from the
 * stream before the sink got them. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_OPERATE_REPLAY_H
#define EVQ_PRODUCER_CLI_OPERATE_REPLAY_H

#include "producer/cli/cli.h"

/* Moves the sink back to the start of the stream, publishes its lost results again from the stored
 * results, and clears the record of the loss. Prints what it did. EVQ_E_NOT_FOUND: there is no such
 * sink. May be repeated after any error. */
enum evq_status evq_replay(struct evq_cli *cli, const char *sink,
                           struct evq_error *err) EVQ_CHECK_RESULT;

#endif
