/*
 * The cache of remote checkpoints, which all slots and workers of this user on this machine share.
 * Each checkpoint has the directory DIRECTORY/FINGERPRINT (kept_directory.h). Its lock file
 * contains the size that was reserved for it. The lock file's modification time is the time of the
 * last use. Any thread.
 */
#ifndef EVQ_WORKER_CHILD_CHECKPOINT_CACHE_H
#define EVQ_WORKER_CHILD_CHECKPOINT_CACHE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_checkpoint_cache {
    char directory[PATH_MAX];
    int64_t bytes_max;
};

/* Makes the directory, for this user only. directory "" means SCRATCH/cache. EVQ_E_INCOMPLETE: the
 * directory cannot be used. */
enum evq_status evq_checkpoint_cache_open(const char *directory, const char *scratch,
                                          int64_t bytes_max, struct evq_checkpoint_cache *ret_cache,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Reserves space for a checkpoint whose lock the caller holds exclusively. If there is not enough,
 * removes the least recently used checkpoints, but none that is in use. EVQ_E_RETRY: the checkpoint
 * is larger than the cache. EVQ_E_FULL: the cache is full of checkpoints in use, or the disk is
 * full. EVQ_E_IO, EVQ_E_NOMEM.
 */
enum evq_status evq_checkpoint_cache_reserve(const struct evq_checkpoint_cache *cache,
                                             const char *fingerprint, int lock_fd, int64_t bytes,
                                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Removes the least recently used checkpoint that is neither in use nor `fingerprint`. Call it when
 * the disk is full. Returns false if there is no such checkpoint. */
bool evq_checkpoint_cache_shrink(const struct evq_checkpoint_cache *cache, const char *fingerprint);

/* Marks a checkpoint as used now. */
void evq_checkpoint_cache_touch(int lock_fd);

#endif
