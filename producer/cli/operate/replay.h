/*
 * Delivering results to a sink again: all that the stream still holds, and what it lost before the
 * sink had it.
 */
#ifndef EVQ_CLI_REPLAY_H
#define EVQ_CLI_REPLAY_H

#include "producer/cli/cli.h"

/* Puts the sink back to the start of the stream, repeats its recorded losses from the runs' stored
 * results and strikes them off. Says what it did. EVQ_E_NOT_FOUND: no such sink. May be repeated
 * after any error. */
enum evq_status evq_replay(struct evq_cli *cli, const char *sink,
                           struct evq_error *err) EVQ_CHECK_RESULT;

#endif
