/*
 * Decides when a checkpoint that `evalq scan` found is complete. A submit says so itself; here one
 * of three rules decides:
 *   1. A suite of the configuration names a marker file (`ready`): once every such file is in the
 *      checkpoint's directory.
 *   2. evalq reads the format: once the content is whole.
 *   3. Any other file or directory: once the names and sizes of its files have stayed the same for
 *      EVQ_READY_MS.
 * One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SUBMIT_READY_H
#define EVQ_PRODUCER_CLI_SUBMIT_READY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"
#include "shared/config/config.h"
#include "shared/remote/remote.h"

#define EVQ_READY_MS         2000
#define EVQ_READY_SUITES_MAX 32

struct evq_ready_seen { // A checkpoint that rule 3 has seen before.
    char *path;
    uint64_t stamp;   // evq_file_list_hash() of its files,
    int64_t since_ms; // which has not changed since then, by evq_clock_mono_ms().
};

struct evq_ready {
    const struct evq_suite *suites[EVQ_READY_SUITES_MAX]; // The suites of the submission that the
                                                          // configuration defines.
    size_t suite_count;
    struct evq_ready_seen *seen; // Owned.
    size_t seen_count;
    size_t seen_capacity;
    size_t waiting; // How many checkpoints wait by rule 3. Set it to 0 before a pass.
};

/*
 * EVQ_OK: path beneath root_fd can be submitted, or will be refused with a reason. EVQ_E_INCOMPLETE
 * with a sentence: not yet. EVQ_E_UNSUPPORTED: a suite is native, and evalq does not read the
 * format. EVQ_E_NOMEM.
 */
enum evq_status evq_ready_check(struct evq_ready *ready, int root_fd, const char *path,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for a remote checkpoint with this listing: rule 1, else rule 3. manifest has a line
 * "name TAB bytes" for each file. */
enum evq_status evq_ready_check_listing(struct evq_ready *ready, const char *path,
                                        const struct evq_remote_listing *listing,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether rule 3 waits for the checkpoint of that name (without its directory). */
bool evq_ready_waits(const struct evq_ready *ready, const char *name);
void evq_ready_free(struct evq_ready *ready); // Accepts a zeroed one.

#endif
