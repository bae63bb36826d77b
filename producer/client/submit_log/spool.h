/*
 * Jobs that wait on disk while Redis is away: encoded, in order, in the file RING.spool beside the
 * ring. The ring's lock guards the spool too. Only the sender's thread uses it.
 *
 * The file has a 32-byte header (magic, version, offset of the first record that is not done), then
 * records: a 24-byte head (magic, length, checksum, offset) and the encoded job. A record that a
 * crash tore, or that the disk cannot read, is skipped and does not block the records behind it.
 */
#ifndef EVQ_PRODUCER_CLIENT_SUBMIT_LOG_SPOOL_H
#define EVQ_PRODUCER_CLIENT_SUBMIT_LOG_SPOOL_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/buffer.h"

struct evq_spool;

/* Opens the spool of a ring's file; its records stay. The first append makes the file. bytes_max
 * limits its size. */
enum evq_status evq_spool_open(const char *ring_path, int64_t bytes_max,
                               struct evq_spool **ret_spool,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes the file if it is empty. Accepts NULL. */
void evq_spool_close(struct evq_spool *spool);

/* Adds a record, which is durable after evq_spool_sync(). EVQ_E_FULL: the file would be larger than
 * bytes_max. EVQ_E_IO. After an error nothing was added. */
enum evq_status evq_spool_append(struct evq_spool *spool, const void *data, size_t bytes,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_spool_sync(struct evq_spool *spool, struct evq_error *err) EVQ_CHECK_RESULT;

/* Replaces the content of out by the first record at or after *offset (0: the first that is not
 * done), and moves *offset past it. EVQ_E_NOT_FOUND: no record is left. EVQ_E_NOMEM: *offset is the
 * record's own; try again. */
enum evq_status evq_spool_read(struct evq_spool *spool, uint64_t *offset, struct evq_buffer *out,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* Marks the first `records` records, which end at offset, as done. After the last one the file is
 * empty. */
void evq_spool_release(struct evq_spool *spool, uint64_t offset, uint64_t records);

uint64_t evq_spool_records(const struct evq_spool *spool); // Not done yet.

#endif
