/*
 * What waits on disk while Redis is away: encoded jobs, in order, in RING.spool beside the ring
 * whose lock guards it. The background thread's alone.
 *
 * A 32-byte header (magic, version, offset of the first record that is not done), then records: a
 * 24-byte head (magic, length, checksum, offset) and the job. A record torn by a crash fails its
 * checksum and is skipped, and so is what the disk no longer reads: nothing behind it waits.
 */
#ifndef EVQ_PRODUCER_SPOOL_H
#define EVQ_PRODUCER_SPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/buffer.h"

struct evq_spool;

/* The spool of a ring's file, with what it holds. The file is made by the first append. bytes_max
 * bounds it. */
enum evq_status evq_spool_open(const char *ring_path, int64_t bytes_max,
                               struct evq_spool **ret_spool,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes the file when nothing is in it. Accepts NULL. */
void evq_spool_close(struct evq_spool *spool);

/* EVQ_E_FULL past bytes_max; EVQ_E_IO: nothing was added. Durable after evq_spool_sync(). */
enum evq_status evq_spool_append(struct evq_spool *spool, const void *data, size_t bytes,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_spool_sync(struct evq_spool *spool, struct evq_error *err) EVQ_CHECK_RESULT;

/* The record at or after *offset (0: the first not done) replaces out's content; *offset moves past
 * it. EVQ_E_NOT_FOUND: none is left; EVQ_E_NOMEM: it is there, and *offset stands before it. */
enum evq_status evq_spool_read(struct evq_spool *spool, uint64_t *offset, struct evq_buffer *out,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* `records` records, up to offset, are done. The last one empties the file. */
void evq_spool_release(struct evq_spool *spool, uint64_t offset, uint64_t records);

uint64_t evq_spool_records(const struct evq_spool *spool); // Not done yet.
uint64_t evq_spool_damaged(const struct evq_spool *spool); // Torn or damaged places met.

#endif
