/*
 * Where the rings of this user are, unless an option says otherwise. Any thread.
 */
#ifndef EVQ_PRODUCER_LOG_DIRECTORY_H
#define EVQ_PRODUCER_LOG_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

/*
 * The first of $XDG_STATE_HOME/evalq (else ~/.local/state/evalq), /var/tmp/evalq-UID and
 * /dev/shm/evalq-UID that is this user's, can be written to, has room_bytes left and is not on a
 * network: writing to a mapping of a file there may wait for a server, and training must not. It is
 * made. EVQ_E_INVALID when none will do. *at: 0 for the first; a call with what the last one left
 * there finds the next.
 */
enum evq_status evq_log_directory_find(unsigned *at, int64_t room_bytes, char *out,
                                       size_t out_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes directory with its parents; its own mode becomes 0700. */
enum evq_status evq_log_directory_make(const char *directory,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
