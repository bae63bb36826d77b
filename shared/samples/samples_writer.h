/*
 * Writes the samples of one task to a gzip file, under a temporary name until it is complete. Job
 * and task determine the name, and the content has no time in it, so a repeated attempt replaces
 * the file by an equal one. One thread.
 */
#ifndef EVQ_SHARED_SAMPLES_SAMPLES_WRITER_H
#define EVQ_SHARED_SAMPLES_SAMPLES_WRITER_H

#include "shared/samples/sample.h"
#include "shared/samples/temporary_file.h"

struct evq_samples_writer;

/* Writes DIRECTORY/JOB/TASK.jsonl.gz. EVQ_E_LIMIT: it is too long. */
enum evq_status evq_samples_path(const char *directory, const char *job, const char *task,
                                 char out[EVQ_SAMPLES_PATH_BYTES],
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes the directories and opens a file with a temporary name. Items after the first header->limit
 * are dropped. EVQ_E_IO, EVQ_E_NOMEM, EVQ_E_LIMIT. */
enum evq_status evq_samples_writer_open(const char *directory,
                                        const struct evq_samples_header *header,
                                        struct evq_samples_writer **ret_writer,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Adds a sample. EVQ_E_INVALID: its id was added before, a score is not finite, or its scores
 * differ in name from those of the first sample. EVQ_E_LIMIT: the line is too long, or there are
 * too many items. EVQ_E_IO. After an error the writer can only be freed. */
enum evq_status evq_samples_writer_add(struct evq_samples_writer *writer,
                                       const struct evq_sample *sample,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Completes the file with its last line, renames it and frees the writer, whatever it returns.
 * ret_digest: XXH3-128 of the compressed file. On an error there is no file of this writer. */
enum evq_status evq_samples_writer_finish(struct evq_samples_writer *writer, char ret_digest[33],
                                          int64_t *ret_bytes,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* Gives up: removes the temporary file. Accepts NULL. */
void evq_samples_writer_free(struct evq_samples_writer *writer);

#endif
