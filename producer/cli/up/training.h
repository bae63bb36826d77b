/*
 * Runs the command of `evalq up -- COMMAND`: shows its output above the live results, then waits
 * for its jobs and prints the summary. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_UP_TRAINING_H
#define EVQ_PRODUCER_CLI_UP_TRAINING_H

#include "producer/cli/up/process_manager.h"

/* Runs argv (NULL-terminated) to its end, then waits at most wait_ms for its open jobs. Sets the
 * exit code of the program if the command or a job failed. */
enum evq_status evq_training_run(struct evq_process_manager *manager, char *const *argv,
                                 int64_t wait_ms, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
