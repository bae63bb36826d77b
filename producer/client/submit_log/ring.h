/*
 * The submit ring: submits as records in a file mapping, so that they outlive the process. Any
 * thread may push; one thread takes and releases.
 *
 * The file is QUEUE@RUN.ring, or QUEUE@RUN@N.ring for a further process of the same run. Its owner
 * holds flock() on it. It has one page of header and then the data, whose size is a power of two. A
 * record begins at a multiple of 32: a 32-byte head (commit word, length, checksum, position), then
 * the payload, which wraps at the end of the data. Positions only rise; the offset in the data is
 * the position modulo the size.
 *
 *   push     reserves space by a compare-and-swap of `tail`, copies, adds the checksum,
 *            and writes the commit word last: position ^ nonce
 *   take     looks for the commit word at the cursor, checks the record and copies it out
 *   release  moves `head`, which frees the space
 *
 * If a process dies between reserving and committing, it leaves a torn record. The next owner skips
 * it: it continues at the next multiple of 32 where commit word, checksum and position are right.
 *
 * The file's blocks are allocated when it is made, so that a full disk cannot kill the trainer.
 */
#ifndef EVQ_PRODUCER_CLIENT_SUBMIT_LOG_RING_H
#define EVQ_PRODUCER_CLIENT_SUBMIT_LOG_RING_H

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
 * Opens the first ring of (queue, run) in directory that no living process owns; its records stay.
 * If there is none, makes one of data_bytes, rounded up to a power of two. A file that is not a
 * ring is renamed to *.bad. EVQ_E_INVALID: the file system has no locks or mappings. EVQ_E_LIMIT:
 * living processes own EVQ_RING_FILES_MAX rings.
 */
enum evq_status evq_ring_open(const char *directory, const char *queue, const char *run,
                              size_t data_bytes, struct evq_ring **ret_ring,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens up to rings_max further rings of (queue, run) whose owners are dead. */
enum evq_status evq_ring_adopt(const char *directory, const char *queue, const char *run,
                               struct evq_ring **ret_rings, size_t rings_max, size_t *ret_count,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Unmaps and unlocks the file. remove: also removes it if it is empty. Accepts NULL. */
void evq_ring_close(struct evq_ring *ring, bool remove);

/* Any thread. Takes no lock and makes no system call. EVQ_E_FULL: there is no space. EVQ_E_LIMIT:
 * the payload is too long. */
enum evq_status evq_ring_push(struct evq_ring *ring, const void *payload,
                              size_t bytes) EVQ_CHECK_RESULT;

/*
 * Copies the next committed record at or after *cursor into out, which has room for
 * EVQ_RING_PAYLOAD_BYTES_MAX, and moves *cursor past it. The first cursor is evq_ring_head().
 * EVQ_E_NOT_FOUND: there is no record yet. Only one thread may call it.
 */
enum evq_status evq_ring_take(struct evq_ring *ring, uint64_t *cursor, void *out,
                              size_t *ret_bytes) EVQ_CHECK_RESULT;
/* Whether evq_ring_take() has something to look at. */
bool evq_ring_ready(const struct evq_ring *ring, uint64_t cursor);
/* Frees the space of all records before the position. */
void evq_ring_release(struct evq_ring *ring, uint64_t position);

uint64_t evq_ring_head(const struct evq_ring *ring);
uint64_t evq_ring_tail(const struct evq_ring *ring);
size_t evq_ring_bytes(const struct evq_ring *ring); // Size of the data part.
uint64_t
evq_ring_corrupt(const struct evq_ring *ring); // Committed records that failed their checksum.
int evq_ring_fd(const struct evq_ring *ring);  // For fork handlers: a child closes it.
const char *evq_ring_path(const struct evq_ring *ring);

/* Sets the file's time to now, as a sign that its owner lives. On tmpfs, writes through a mapping
 * do not change the time, so evq_ring_sweep() would take the file for older than it is. */
void evq_ring_touch(struct evq_ring *ring);

/*
 * Cleans up rings whose owners are dead. Removes those that are empty, and those that nobody wrote
 * into or touched for keep_ms, with their spools. The others shrink to the disk space that their
 * records need. Returns how many of the removed rings held records. Any process may call it at any
 * time.
 */
size_t evq_ring_sweep(const char *directory, int64_t keep_ms);

/* Calls on_run once for each (queue, run) that has a ring in directory, owned or not. */
typedef void (*evq_ring_fn)(void *context, const char *queue, const char *run);
enum evq_status evq_ring_list(const char *directory, evq_ring_fn on_run, void *context,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
