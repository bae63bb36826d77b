/*
 * The submit ring: records in a file mapping, so that they outlive the process. Many threads push,
 * one takes.
 *
 * File QUEUE@RUN.ring, or QUEUE@RUN@N.ring for a second process of the same run; its owner holds
 * flock() on it. A page of header, then a power of two of data. A record is a 32-byte head (commit
 * word, length, checksum, position) and its payload, at a multiple of 32, wrapping at the end.
 * Positions only rise; offset = position modulo size.
 *
 *     push   reserve by compare-and-swap of `tail`, copy, checksum, then the commit word: position
 * ^ nonce take   wait for the commit word at the cursor, check, copy out; release() moves `head`,
 * which frees room death  between reserving and committing leaves a torn record: whoever opens the
 * file next sees neither commit word nor checksum there and goes on at the next multiple of 32
 * where both, and the position, are right
 *
 * Blocks are reserved when the file is made, so that a full disk cannot fault the trainer.
 */
#ifndef EVQ_PRODUCER_RING_H
#define EVQ_PRODUCER_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_RING_PAYLOAD_BYTES_MAX 16384
#define EVQ_RING_BYTES_MIN         65536
#define EVQ_RING_BYTES_DEFAULT     1048576
#define EVQ_RING_BYTES_MAX         (64u << 20)
#define EVQ_RING_FILES_MAX         64 // Processes of one run on one machine, at once.

struct evq_ring;

/*
 * Opens, in directory, the first ring of (queue, run) that no living process owns, with what it
 * still holds, or makes one of data_bytes (rounded up to a power of two; an existing file keeps its
 * size). A file that is no ring is set aside as *.bad. EVQ_E_INVALID: no locks or mappings on this
 * file system; EVQ_E_LIMIT: EVQ_RING_FILES_MAX in use.
 */
enum evq_status evq_ring_open(const char *directory, const char *queue, const char *run,
                              size_t data_bytes, struct evq_ring **ret_ring,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens up to rings_max further rings of (queue, run) whose owners are dead. */
enum evq_status evq_ring_adopt(const char *directory, const char *queue, const char *run,
                               struct evq_ring **ret_rings, size_t rings_max, size_t *ret_count,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Unmaps and unlocks; removes the file, too, if asked and it is empty. Accepts NULL. */
void evq_ring_close(struct evq_ring *ring, bool remove);

/* Any thread. EVQ_E_FULL, EVQ_E_LIMIT. Takes no lock and calls no system. */
enum evq_status evq_ring_push(struct evq_ring *ring, const void *payload,
                              size_t bytes) EVQ_CHECK_RESULT;

/*
 * The next committed record at or after *cursor (from evq_ring_head() on) is copied into out, which
 * holds EVQ_RING_PAYLOAD_BYTES_MAX; *cursor moves past it. EVQ_E_NOT_FOUND: none yet. The taking
 * thread only.
 */
enum evq_status evq_ring_take(struct evq_ring *ring, uint64_t *cursor, void *out,
                              size_t *ret_bytes) EVQ_CHECK_RESULT;
/* take would find something to look at. */
bool evq_ring_ready(const struct evq_ring *ring, uint64_t cursor);
void evq_ring_release(struct evq_ring *ring, uint64_t position); // Everything before it is done.

uint64_t evq_ring_head(const struct evq_ring *ring);
uint64_t evq_ring_tail(const struct evq_ring *ring);
size_t evq_ring_bytes(const struct evq_ring *ring);  // Size of the data part.
uint64_t evq_ring_torn(const struct evq_ring *ring); // Bytes skipped as torn since it was opened.
uint64_t
evq_ring_corrupt(const struct evq_ring *ring); // Committed records that failed their checksum.
int evq_ring_fd(const struct evq_ring *ring);  // For fork handlers: a child closes it.
const char *evq_ring_path(const struct evq_ring *ring);

/* Says in the file that its owner lives: where writes through a mapping leave its time alone, as on
 * tmpfs, the sweep would else take it for as old as it was when it was opened. */
void evq_ring_touch(struct evq_ring *ring);

/*
 * Of rings whose owners are dead: those with nothing in them go, those that nobody wrote into or
 * touched for keep_ms too, with their spools, and what stays takes no more room than it holds.
 * Returns how many went that held something. Any process, at any time.
 */
size_t evq_ring_sweep(const char *directory, int64_t keep_ms);

/* Calls on_run once for each (queue, run) that has a ring in directory, owned or left. */
typedef void (*evq_ring_fn)(void *context, const char *queue, const char *run);
enum evq_status evq_ring_list(const char *directory, evq_ring_fn on_run, void *context,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
