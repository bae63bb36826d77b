/*
 * Records as msgpack maps with a version, string keys, and a default for every field; unknown
 * fields are kept. The only user of msgpack-c. Bytes from outside first pass a scan that bounds
 * depth (8), nodes (4,096) and every declared length by the bytes that are there. Any thread.
 */
#ifndef EVQ_SHARED_QUEUE_CODEC_H
#define EVQ_SHARED_QUEUE_CODEC_H

#include "shared/base/buffer.h"
#include "shared/queue/job.h"
#include "shared/queue/result.h"

#define EVQ_CODEC_VERSION        1 // Of messages and results.
#define EVQ_CODEC_DEPTH_MAX      8
#define EVQ_CODEC_NODES_MAX      4096
#define EVQ_CODEC_NOTE_BYTES_MAX ((size_t)1 << 20)

/* Scans bytes without allocating. Accepts exactly one object that fills the bytes. EVQ_E_CORRUPT
 * names offset and reason. */
enum evq_status evq_codec_scan(const uint8_t *data, size_t bytes, size_t bytes_max,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Encodes a record at the end of out, which stays unchanged on failure. Fields with their default
 * are left out. EVQ_E_INVALID names the field that evq_job_check() or evq_result_check() refuses;
 * EVQ_E_LIMIT past EVQ_JOB_BYTES_MAX; EVQ_E_NOMEM.
 */
enum evq_status evq_codec_job_encode(const struct evq_job *job, struct evq_buffer *out,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * Decodes a record; the caller frees it. Absent and nil fields get their default. Unknown fields
 * are kept in extra, except inside needs, timing, metrics and sums. EVQ_E_CORRUPT names the field;
 * EVQ_E_VERSION: the version is above ours.
 */
enum evq_status evq_codec_job_decode(const uint8_t *data, size_t bytes, struct evq_job **ret_job,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_codec_result_encode(const struct evq_result *result, struct evq_buffer *out,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_codec_result_decode(const uint8_t *data, size_t bytes,
                                        struct evq_result **ret_result,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * A flat message between supervisor and child: {"type": text, key: text|int|double|bytes ...} of at
 * most EVQ_CODEC_NOTE_BYTES_MAX bytes. Texts may hold any byte but NUL. A decoded note points into
 * its arena.
 */
enum evq_field_type { EVQ_FIELD_TEXT, EVQ_FIELD_INT, EVQ_FIELD_DOUBLE, EVQ_FIELD_BYTES };
struct evq_field {
    const char *key;
    enum evq_field_type type;
    const char *text; // NUL-terminated.
    int64_t integer;
    double real;
    const uint8_t *bytes;
    size_t byte_count;
};
struct evq_note {
    struct evq_arena *arena;
    const char *type;
    struct evq_field *fields;
    size_t field_count;
};
enum evq_status evq_codec_note_encode(const char *type, const struct evq_field *fields,
                                      size_t field_count, struct evq_buffer *out,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_codec_note_decode(const uint8_t *data, size_t bytes, struct evq_note **ret_note,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_codec_note_free(struct evq_note *note); // Accepts NULL.
/* Returns the field of this key, or NULL. */
const struct evq_field *evq_codec_note_field(const struct evq_note *note, const char *key);

#endif
