/*
 * One samples file that arrives in pieces: checks that they follow one another, writes them under a
 * temporary name, and gives the file its name when it is whole and has the right digest. One
 * thread.
 */
#ifndef EVQ_LOGGER_SAMPLE_UPLOAD_H
#define EVQ_LOGGER_SAMPLE_UPLOAD_H

#include "shared/queue/sample_pieces.h"

struct evq_sample_upload;

/* Begins the file of this piece. EVQ_E_NOMEM, EVQ_E_LIMIT: the path is too long. */
enum evq_status evq_sample_upload_new(const char *directory, const struct evq_sample_piece *piece,
                                      struct evq_sample_upload **ret_upload,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes what was written, unless it was stored. Accepts NULL. */
void evq_sample_upload_free(struct evq_sample_upload *upload);

/* Whether the piece is of this file: of the same task of the same attempt. */
bool evq_sample_upload_has(const struct evq_sample_upload *upload,
                           const struct evq_sample_piece *piece);

/* Writes the piece. A repeated piece changes nothing. After a piece that does not follow the one
 * before it, or that names another size or digest, the file can never be whole. EVQ_E_IO,
 * EVQ_E_NOMEM: read all its pieces again. */
enum evq_status evq_sample_upload_add(struct evq_sample_upload *upload,
                                      const struct evq_sample_piece *piece,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

bool evq_sample_upload_whole(const struct evq_sample_upload *upload);

/* Stores the whole file. EVQ_E_CORRUPT: its digest is wrong. EVQ_E_IO. */
enum evq_status evq_sample_upload_store(struct evq_sample_upload *upload,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

const char *evq_sample_upload_job(const struct evq_sample_upload *upload);
const char *evq_sample_upload_task(const struct evq_sample_upload *upload);
const char *evq_sample_upload_token(const struct evq_sample_upload *upload);
/* The entries of its pieces, to remove them from the stream. */
const struct evq_piece_entry *evq_sample_upload_entries(const struct evq_sample_upload *upload,
                                                        size_t *ret_count);

#endif
