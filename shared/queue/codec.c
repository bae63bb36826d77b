#include "shared/queue/codec.h"

#include <string.h>

#include "shared/queue/codec_msgpack.h"

static enum evq_status encode(const struct evq_schema *schema, const void *record,
                              const void *defaults, const uint8_t *extra, size_t extra_bytes,
                              uint32_t extra_count, size_t bytes_max, struct evq_buffer *out,
                              struct evq_error *err)
{
    struct evq_codec_writer writer;
    size_t start = out->bytes;

    evq_codec_writer_init(&writer, out, err);
    evq_codec_write_struct(&writer, schema, record, defaults, "version", extra_count);
    evq_buffer_append(out, extra, extra_bytes);
    if (writer.status == EVQ_OK && out->failed) {
        writer.status = evq_error_set(err, EVQ_E_NOMEM, "%s", schema->name);
    }
    if (writer.status == EVQ_OK && out->bytes - start > bytes_max) {
        writer.status = evq_error_set(err, EVQ_E_LIMIT, "%s takes %zu bytes, allowed %zu",
                                      schema->name, out->bytes - start, bytes_max);
    }
    if (writer.status == EVQ_OK &&
        evq_codec_scan(out->data + start, out->bytes - start, bytes_max, err) != EVQ_OK) {
        // Nobody could read it back: it has too many entries, or the extra bytes are not pairs.
        writer.status = evq_error_set(err, EVQ_E_LIMIT, "%s holds more than %d values",
                                      schema->name, EVQ_CODEC_NODES_MAX);
    }
    if (writer.status != EVQ_OK && !out->failed) {
        out->bytes = start;
        out->data[start] = '\0';
    }
    return writer.status;
}

enum evq_status evq_codec_job_encode(const struct evq_job *job, struct evq_buffer *out,
                                     struct evq_error *err)
{
    enum evq_status status = evq_job_check(job, err);
    return status != EVQ_OK
               ? status
               : encode(&evq_schema_job, job, evq_job_defaults(), job->extra, job->extra_bytes,
                        job->extra_count, EVQ_JOB_BYTES_MAX, out, err);
}

enum evq_status evq_codec_result_encode(const struct evq_result *result, struct evq_buffer *out,
                                        struct evq_error *err)
{
    enum evq_status status = evq_result_check(result, err);
    return status != EVQ_OK
               ? status
               : encode(&evq_schema_result, result, evq_result_defaults(), result->extra,
                        result->extra_bytes, result->extra_count, EVQ_RESULT_BYTES_MAX, out, err);
}

static enum evq_status decode_map(const struct evq_codec_reader *reader,
                                  const struct evq_schema *schema, const uint8_t *data,
                                  size_t bytes, const msgpack_object *object, void *record,
                                  struct evq_codec_extra *extra)
{
    if (object->type != MSGPACK_OBJECT_MAP) {
        return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s is %s, expected map", reader->record,
                             evq_codec_object_kind(object));
    }
    const msgpack_object_map *map = &object->via.map;
    bool unknown = false;
    enum evq_status status = evq_codec_read_version(reader, map, EVQ_CODEC_VERSION);
    if (status == EVQ_OK) {
        status = evq_codec_read_struct(reader, schema, NULL, map, record, &unknown);
    }
    if (status == EVQ_OK && unknown) {
        status = evq_codec_read_extra(reader, schema, data, bytes, extra);
    }
    return status;
}

static enum evq_status decode(const struct evq_schema *schema, const uint8_t *data, size_t bytes,
                              size_t bytes_max, struct evq_arena *arena, void *record,
                              struct evq_codec_extra *extra, struct evq_error *err)
{
    const struct evq_codec_reader reader = {.arena = arena, .err = err, .record = schema->name};
    msgpack_unpacked unpacked;

    msgpack_unpacked_init(&unpacked);
    enum evq_status status = evq_codec_unpack(data, bytes, bytes_max, schema->name, &unpacked, err);
    if (status == EVQ_OK) {
        status = decode_map(&reader, schema, data, bytes, &unpacked.data, record, extra);
    }
    msgpack_unpacked_destroy(&unpacked);
    return status;
}

/* A check that fails on bytes from outside means corrupt bytes, not a wrong argument. */
static enum evq_status refused(const char *record, enum evq_status status, struct evq_error *err)
{
    (void)evq_error_prefix(err, "%s", record);
    if (status != EVQ_E_INVALID) {
        return status;
    }
    if (err != NULL) {
        err->status = EVQ_E_CORRUPT;
    }
    return EVQ_E_CORRUPT;
}

enum evq_status evq_codec_job_decode(const uint8_t *data, size_t bytes, struct evq_job **ret_job,
                                     struct evq_error *err)
{
    struct evq_codec_extra extra = {0};
    struct evq_job *job = evq_job_new();
    if (job == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "message");
    }
    enum evq_status status =
        decode(&evq_schema_job, data, bytes, EVQ_JOB_BYTES_MAX, job->arena, job, &extra, err);
    if (status == EVQ_OK && (status = evq_job_check(job, err)) != EVQ_OK) {
        status = refused("message", status, err);
    }
    if (status != EVQ_OK) {
        evq_job_free(job);
        return status;
    }
    job->extra = extra.data;
    job->extra_bytes = extra.bytes;
    job->extra_count = extra.count;
    *ret_job = job;
    return EVQ_OK;
}

enum evq_status evq_codec_result_decode(const uint8_t *data, size_t bytes,
                                        struct evq_result **ret_result, struct evq_error *err)
{
    struct evq_codec_extra extra = {0};
    struct evq_result *result = evq_result_new();
    if (result == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "result");
    }
    enum evq_status status = decode(&evq_schema_result, data, bytes, EVQ_RESULT_BYTES_MAX,
                                    result->arena, result, &extra, err);
    if (status == EVQ_OK && (status = evq_result_check(result, err)) != EVQ_OK) {
        status = refused("result", status, err);
    }
    if (status != EVQ_OK) {
        evq_result_free(result);
        return status;
    }
    result->extra = extra.data;
    result->extra_bytes = extra.bytes;
    result->extra_count = extra.count;
    *ret_result = result;
    return EVQ_OK;
}
