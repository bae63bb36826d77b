/*
 * Finds the checkpoint of a request, the name of its run, and the directory of its results. Any
 * thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_LMMS_LMMS_PATHS_H
#define EVQ_PRODUCER_GATEWAY_LMMS_LMMS_PATHS_H

#include <limits.h>

#include "producer/gateway/lmms/lmms_request.h"
#include "shared/config/config.h"

struct evq_lmms_paths {
    char run[EVQ_JOB_RUN_BYTES_MAX +
             1];  // Named for the training and the settings of the evaluation.
    int64_t step; // The number in the checkpoint's name; 0: none.
    char root[EVQ_JOB_NAME_BYTES_MAX + 1];
    char path[PATH_MAX]; // Beneath the root.
    char absolute[PATH_MAX];
    char fingerprint[33]; // "": the checkpoint cannot be read from here, or is still being written.
    bool merge;           // It is a directory of shards, which must be merged first.
    bool both;            // It holds regular and EMA weights.
    bool hub;             // There is no checkpoint: path is a file that holds the request.
};

/*
 * settings: what distinguishes evaluations of one checkpoint; becomes part of the run's name.
 * results: the directory for results. EVQ_E_NOT_FOUND: no root contains the checkpoint; the message
 * has the missing line of configuration. EVQ_E_INVALID. EVQ_E_IO: the request could not be written
 * beneath results.
 */
enum evq_status evq_lmms_paths_find(const struct evq_config *config, const char *results,
                                    const struct evq_lmms_request *request, const char *settings,
                                    struct evq_lmms_paths *ret_place,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Finds a checkpoint to merge. EVQ_E_GONE: it does not exist. EVQ_E_INVALID: it has no shards of
 * this variant. */
enum evq_status evq_lmms_paths_merge(const struct evq_config *config, const char *path,
                                     const char *variant, struct evq_lmms_paths *ret_place,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Chooses the directory for files that a client wants in `wanted`. It is `wanted` if that is
 * beneath a root and in no checkpoint, otherwise a folder of `results` with the names of run,
 * checkpoint and folder. So nothing is written into a checkpoint. EVQ_E_LIMIT: the path is too
 * long.
 */
enum evq_status evq_lmms_paths_output(const struct evq_config *config, const char *results,
                                      const struct evq_lmms_paths *place, const char *wanted,
                                      const char *folder, char out[PATH_MAX],
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
