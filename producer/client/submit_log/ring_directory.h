/*
 * Finds and makes the directory of this user's rings, if no option names one. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_SUBMIT_LOG_RING_DIRECTORY_H
#define EVQ_PRODUCER_CLIENT_SUBMIT_LOG_RING_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

/*
 * Tries $XDG_STATE_HOME/evalq (if unset, ~/.local/state/evalq), then /var/tmp/evalq-UID, then
 * /dev/shm/evalq-UID. Writes to out the first one that belongs to this user, can be written to, has
 * room_bytes free and is not on a network file system, where a write into a mapping can wait for a
 * server and block the training. The directory is made. *at is 0 at the first call; a further call
 * with the same variable finds the next directory. EVQ_E_INVALID: no directory is usable.
 */
enum evq_status evq_ring_directory_find(unsigned *at, int64_t room_bytes, char *out,
                                        size_t out_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes the directory and its parents. The mode of the directory becomes 0700. */
enum evq_status evq_ring_directory_make(const char *directory,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

#endif
