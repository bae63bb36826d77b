/*
 * `evalq best RUN --significant`: finds the earliest step whose samples do not differ significantly
 * from those of the best step. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_BEST_STEP_H
#define EVQ_PRODUCER_CLI_SAMPLES_BEST_STEP_H

#include "producer/cli/cli.h"

/* Reads the samples of all steps of the run and prints the answer. The options choose task, suite
 * and variant. score NULL: the first. */
enum evq_status evq_best_step_run(struct evq_cli *cli, const char *run, const char *score,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

#endif
