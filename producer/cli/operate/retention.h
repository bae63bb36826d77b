/*
 * Decides which checkpoints of a run to keep: the best by one metric, the newest, and those in use.
 * Also decides which files of the other checkpoints may be removed. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_OPERATE_RETENTION_H
#define EVQ_PRODUCER_CLI_OPERATE_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/config/config.h"
#include "shared/queue/result.h"

enum evq_retention_reason {
    EVQ_RETENTION_NOT, // No reason to keep it: what evalq owns of it is removed.
    EVQ_RETENTION_TOP,
    EVQ_RETENTION_NEWEST,
    EVQ_RETENTION_IN_USE,    // One of its jobs is not done.
    EVQ_RETENTION_MILESTONE, // It was submitted with keep.
    EVQ_RETENTION_UNKNOWN,   // It has no number of the metric.
};

struct evq_retention_checkpoint {
    int64_t step;
    char root[EVQ_JOB_NAME_BYTES_MAX + 1];
    char path[512];   // Relative to the root, as the training saved it. Not the path of a pin.
    char pinned[512]; // The path of evalq's own copy. "": there is none.
    char job[EVQ_JOB_ID_BYTES_MAX]; // One of its jobs.
    char fingerprint[33];           // Fingerprint of the weights that were evaluated; "": unknown.
    bool has_value;
    double value;                         // The best of its values.
    char value_job[EVQ_JOB_ID_BYTES_MAX]; // The job that has this value.
    enum evq_retention_reason why;
    size_t rank; // Its place among the best, from 1. Valid with EVQ_RETENTION_TOP.
    bool lost;   // Its weights are gone or were overwritten. Valid with EVQ_RETENTION_TOP.
};

struct evq_retention {
    char metric[320];
    int direction; // 1: higher is better, 0: lower, -1: not known yet.
    struct evq_retention_checkpoint *checkpoints;
    size_t count;
    size_t room;
    bool failed; // Out of memory.
};

/* Adds one result. Results of other metrics only add their checkpoint. */
void evq_retention_add(struct evq_retention *retention, const struct evq_result *result);
/* Sets why each checkpoint stays: the best `top` (the earlier of equal ones) and the newest `last`.
 * Marks of checkpoints in use and of milestones stay. */
void evq_retention_rank(struct evq_retention *retention, size_t top, size_t last);
void evq_retention_free(struct evq_retention *retention);

/*
 * Finds the absolute path of `relative` beneath the root and checks that it may be removed: it
 * exists, is no symbolic link, and its real path lies strictly within one of the owned directories.
 * EVQ_E_NOT_FOUND: it does not exist. EVQ_E_INVALID: the message says why it may not be removed.
 */
enum evq_status evq_retention_removable_path(const char *root, const char *relative,
                                             const char *const *owned, size_t owned_count,
                                             char *out, size_t out_bytes,
                                             struct evq_error *err) EVQ_CHECK_RESULT;
/* A checkpoint that stays and has the same path or lies within it. NULL: there is none. */
const struct evq_retention_checkpoint *
evq_retention_sharer(const struct evq_retention *retention,
                     const struct evq_retention_checkpoint *one);
/* Removes a path. Renames it to a hidden name first, so that nobody takes the rest of a checkpoint
 * for a checkpoint. */
enum evq_status evq_retention_remove(const char *path, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
