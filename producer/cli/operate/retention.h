/*
 * Which checkpoints of a run are worth keeping: the best by one metric, the newest, and those still
 * in use; and what may be removed of the others. One thread.
 */
#ifndef EVQ_CLI_RETENTION_H
#define EVQ_CLI_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/config/config.h"
#include "shared/queue/result.h"

enum evq_retention_reason {
    EVQ_RETENTION_NOT, // Nothing speaks for it: what is ours of it goes.
    EVQ_RETENTION_TOP,
    EVQ_RETENTION_NEWEST,
    EVQ_RETENTION_IN_USE,    // A job of it is not done.
    EVQ_RETENTION_MILESTONE, // Was submitted with keep.
    EVQ_RETENTION_UNKNOWN,   // It has no number of the metric.
};

struct evq_retention_checkpoint { // A checkpoint.
    int64_t step;
    char root[EVQ_JOB_NAME_BYTES_MAX + 1];
    char path[512];   // Relative to the root, as the training saved it (no pin's path).
    char pinned[512]; // Of evalq's own copy, "": there was none.
    char job[EVQ_JOB_ID_BYTES_MAX]; // One of its jobs.
    char fingerprint[33];           // Of what was evaluated; "": not known.
    bool has_value;
    double value;                         // The best of several,
    char value_job[EVQ_JOB_ID_BYTES_MAX]; // of this job.
    enum evq_retention_reason why;
    size_t rank; // With EVQ_RETENTION_TOP: from 1.
    bool lost;   // With EVQ_RETENTION_TOP: its weights are gone, or others have its name.
};

struct evq_retention {
    char metric[320];
    int direction; // 1: higher is better, 0: lower, -1: not known yet.
    struct evq_retention_checkpoint *checkpoints;
    size_t count;
    size_t room;
    bool failed; // Out of memory.
};

/* Takes in one result; those of other metrics tell of their checkpoint alone. */
void evq_retention_add(struct evq_retention *retention, const struct evq_result *result);
/* Says of each why it stays: the best `top` (of equal ones the earlier), the newest `last`. Those
 * marked as in use or as milestones before stay so. */
void evq_retention_rank(struct evq_retention *retention, size_t top, size_t last);
void evq_retention_free(struct evq_retention *retention);

/*
 * The absolute path of relative beneath the root, once it is sure that it may be removed: it is
 * there, no symbolic link, and lies, with all links followed, strictly within one of the
 * directories. EVQ_E_NOT_FOUND: it is not there; EVQ_E_INVALID says what stands against it.
 */
enum evq_status evq_retention_owned(const char *root, const char *relative,
                                    const char *const *owned, size_t owned_count, char *out,
                                    size_t out_bytes, struct evq_error *err) EVQ_CHECK_RESULT;
/* One that stays and lies under the same name, or within it; NULL: none. */
const struct evq_retention_checkpoint *
evq_retention_sharer(const struct evq_retention *retention,
                     const struct evq_retention_checkpoint *one);
/* Renames it to a hidden name first, so that a half-removed checkpoint is never one. */
enum evq_status evq_retention_remove(const char *path, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
