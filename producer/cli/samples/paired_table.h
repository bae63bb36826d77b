/*
 * Prints the table of `evalq compare A@STEP B@STEP`, which compares two checkpoints item by item.
 * One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_PAIRED_TABLE_H
#define EVQ_PRODUCER_CLI_SAMPLES_PAIRED_TABLE_H

#include "producer/cli/cli.h"

/* Whether an argument names a checkpoint, RUN@STEP, rather than a run. */
bool evq_paired_table_is_place(const char *text);

/* Compares two checkpoints on all their common tasks and scores and prints a line for each. The
 * first argument is the baseline. */
enum evq_status evq_paired_table_run(struct evq_cli *cli, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
