/*
 * Guards paths that a training saves several steps to. docs/client.md has the contract: a step is
 * submitted after its save; if the path is submitted again, or its files change, before the step is
 * pinned, the step is skipped as overwritten. A path that names the step is never affected. The
 * sender's thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_OVERWRITE_H
#define EVQ_PRODUCER_CLIENT_OVERWRITE_H

#include "producer/client/locate.h"
#include "producer/client/sender.h"

struct evq_files {      // The files of a checkpoint at one moment.
    int64_t written_ns; // When the newest of them was last written, unix.
    uint64_t identity;  // A hash over inode, size and time of writing of each file; never 0.
};

/* The fingerprint of a job whose step was overwritten. No checkpoint has it, so no worker evaluates
 * other weights for the job, whatever lies at its path. */
#define EVQ_OVERWRITTEN_FINGERPRINT "00000000000000000000000000000000"
bool evq_overwrite_is_marked(const struct evq_job *job); // Whether the job has this fingerprint.

/*
 * Looks at the files of place->source. EVQ_E_CHANGED: they are not the item's own, and err says
 * why; any other error: they cannot be looked at now.
 */
enum evq_status evq_overwrite_look(struct evq_sender *sender, const struct evq_pending *item,
                                   const struct evq_place *place, struct evq_files *ret_files,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Call it after the files were pinned. EVQ_OK: the files have not changed since
 * evq_overwrite_look(), and nobody submitted the path for another step. So the pinned files are
 * those of the step. EVQ_E_CHANGED: they may be another step's; err says why.
 */
enum evq_status evq_overwrite_recheck(struct evq_sender *sender, const struct evq_pending *item,
                                      const struct evq_place *place, const struct evq_files *files,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Remembers which step was found at the path, and sets item->reused if it was another one before.
 * files: NULL if the path names the step.
 */
void evq_overwrite_note(struct evq_sender *sender, struct evq_pending *item,
                        const struct evq_files *files);

#endif
