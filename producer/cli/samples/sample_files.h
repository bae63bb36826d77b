/*
 * Finds samples files of checkpoints that a user names as RUN@STEP, by the options of a verb. One
 * thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_FILES_H
#define EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_FILES_H

#include "producer/cli/cli.h"
#include "shared/samples/samples_find.h"

/* The options that every verb about samples has: --task, --suite, --variant. */
#define EVQ_SAMPLE_FILES_OPTIONS                                                                   \
    {"task", 't', EVQ_OPTION_TEXT, "TASK", "only the samples of this task", 0, 0},                 \
        {"suite", 's', EVQ_OPTION_TEXT, "SUITE", "only the samples of this suite", 0, 0},          \
    {                                                                                              \
        "variant", 0, EVQ_OPTION_TEXT, "NAME", "which weights; default: regular", 0, 0             \
    }

/* Reads "RUN@STEP". Reports wrong use if it is not one. */
enum evq_status evq_sample_place_parse(struct evq_cli *cli, const char *text,
                                       struct evq_sample_place *ret,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Lists the samples files of a checkpoint that the options choose. The configuration is loaded. The
 * caller frees ret->files. EVQ_E_NOT_FOUND: there is none; the message says what there is.
 */
enum evq_status evq_sample_files_find(struct evq_cli *cli, const struct evq_sample_place *place,
                                      struct evq_sample_files *ret,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Chooses exactly one file. Reports wrong use if several suites or tasks are left. */
enum evq_status evq_sample_files_one(struct evq_cli *cli, const struct evq_sample_place *place,
                                     struct evq_sample_file *ret,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
