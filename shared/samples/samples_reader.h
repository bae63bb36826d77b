/*
 * Reads samples line by line: files of evq_samples_writer, and the samples.jsonl of a program,
 * which has no header line. The bytes are not trusted, and memory is bounded by the longest line
 * allowed. One thread.
 */
#ifndef EVQ_SHARED_SAMPLES_SAMPLES_READER_H
#define EVQ_SHARED_SAMPLES_SAMPLES_READER_H

#include "shared/samples/sample.h"

struct evq_samples_reader;

struct evq_samples_limits { // How much of a file is read before it is refused with EVQ_E_LIMIT.
    size_t bytes;           // Uncompressed.
    int64_t items;
};

/*
 * Opens a regular file; links are not followed. Reads the header line into *ret_header. ret_header
 * is NULL for a file without a header line. EVQ_E_NOT_FOUND, EVQ_E_INVALID (not a regular file),
 * EVQ_E_CORRUPT, EVQ_E_UNSUPPORTED, EVQ_E_IO, EVQ_E_NOMEM.
 */
enum evq_status evq_samples_reader_open(const char *path, struct evq_samples_header *ret_header,
                                        struct evq_samples_reader **ret_reader,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Replaces the limits of the format. */
void evq_samples_reader_limit(struct evq_samples_reader *reader,
                              const struct evq_samples_limits *limits);
/* Leaves output and target out of the samples that follow, which reads them several times as fast.
 */
void evq_samples_reader_skip_texts(struct evq_samples_reader *reader);
void evq_samples_reader_close(struct evq_samples_reader *reader); // Accepts NULL.

/* Reads the next line as JSON. *ret_object is valid until the next call; NULL: the file ended.
 * EVQ_E_CORRUPT: it is truncated, or a line is not UTF-8 or not JSON; the message has the number of
 * the line. EVQ_E_LIMIT: a line is too long. */
enum evq_status evq_samples_reader_object(struct evq_samples_reader *reader,
                                          const json_t **ret_object,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads the next line as a sample. *ret_end: the file ended. The texts are valid until the next
 * call. Errors: also those of evq_sample_read(). EVQ_E_CORRUPT at the end: the last line is missing
 * or does not match the file. */
enum evq_status evq_samples_reader_next(struct evq_samples_reader *reader,
                                        struct evq_sample *ret_sample, bool *ret_end,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Puts "'PATH', line N: " before an error about the line read last. Returns its status. */
enum evq_status evq_samples_reader_at(const struct evq_samples_reader *reader,
                                      struct evq_error *err);

#endif
