/*
 * A sample: the scores, output and target of one item of a task. Reads and writes samples and the
 * first and last line of a samples file as JSON. docs/samples.md describes the format. Any thread.
 */
#ifndef EVQ_SHARED_SAMPLES_SAMPLE_H
#define EVQ_SHARED_SAMPLES_SAMPLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "shared/base/buffer.h"
#include "shared/queue/job.h"

#define EVQ_SAMPLES_LINE_BYTES_MAX ((size_t)8 << 20)
#define EVQ_SAMPLES_ITEMS_MAX      16000000
#define EVQ_SAMPLE_SCORES_MAX      64
#define EVQ_SAMPLE_ID_BYTES_MAX    128
#define EVQ_SAMPLES_FORMAT         2                   // "evalq_samples" of the first line.
#define EVQ_SAMPLES_END            "evalq_samples_end" // The first key of the last line.

struct evq_sample_score {
    const char *name;
    double value; // Finite.
};

struct evq_sample {
    const char *id; // The same for the same input of every checkpoint; unique in its file.
    struct evq_sample_score scores[EVQ_SAMPLE_SCORES_MAX];
    size_t score_count;
    const char *output;  // What the model said; NULL: unknown.
    const char *target;  // What it should have said; NULL: unknown.
    const char *cluster; // Items of one document or question group have the same; NULL: none.
    double logprob;      // Log-probability of the target, in nats; NaN: unknown.
    int64_t tokens;      // Tokens of the target; -1: unknown.
};

struct evq_samples_header {
    char job[EVQ_JOB_ID_BYTES_MAX]; // The job's id with its generation.
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char suite_digest[33];
    char data_digest[33]; // "": unknown, because a program evaluated.
    char weighted[136];   // The score that is a mean over the tokens of an item; "": none.
    int64_t limit;        // Only the first items of the task were kept; 0: all.
};

/* Appends one line. Bytes of texts that are not UTF-8 become U+FFFD. */
void evq_sample_write(const struct evq_sample *sample, struct evq_buffer *out);
void evq_samples_header_write(const struct evq_samples_header *header, struct evq_buffer *out);
/* Appends the last line. crc: CRC-32 of all bytes before it. A file without it is truncated. */
void evq_samples_end_write(int64_t items, uint32_t crc, struct evq_buffer *out);
/* Whether an object is the last line of a file with these items and this CRC-32 before it. */
bool evq_samples_end_matches(const json_t *object, int64_t items, uint32_t crc);

/*
 * Reads one item from a JSON object. The texts belong to the object. EVQ_E_INVALID names the field:
 * an id or score name that is missing, too long or has control characters, a score that is not a
 * finite number, another type than expected, or an unknown field.
 */
enum evq_status evq_sample_read(const json_t *object, struct evq_sample *ret,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* EVQ_E_CORRUPT: not the first line of a samples file. EVQ_E_UNSUPPORTED: a newer format. */
enum evq_status evq_samples_header_read(const json_t *object, struct evq_samples_header *ret,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Returns the score of that name, or NULL. */
const struct evq_sample_score *evq_sample_score(const struct evq_sample *sample, const char *name);

#endif
