/* Notes between supervisor and child, declared in codec.h. */
#include <string.h>

#include "shared/queue/codec_msgpack.h"

static void write_note_field(struct evq_codec_writer *writer, const struct evq_field *field)
{
    evq_codec_write_key(writer, field->key);
    switch (field->type) {
    case EVQ_FIELD_TEXT:
        evq_codec_write_key(writer, field->text != NULL ? field->text : "");
        break;
    case EVQ_FIELD_INT:
        (void)msgpack_pack_int64(&writer->packer, field->integer);
        break;
    case EVQ_FIELD_DOUBLE:
        (void)msgpack_pack_double(&writer->packer, field->real);
        break;
    case EVQ_FIELD_BYTES:
        (void)msgpack_pack_bin(&writer->packer, field->byte_count);
        (void)msgpack_pack_bin_body(&writer->packer, field->bytes, field->byte_count);
        break;
    }
}

enum evq_status evq_codec_note_encode(const char *type, const struct evq_field *fields,
                                      size_t field_count, struct evq_buffer *out,
                                      struct evq_error *err)
{
    struct evq_codec_writer writer;
    size_t start = out->bytes;
    enum evq_status status = EVQ_OK;

    evq_codec_writer_init(&writer, out, err);
    (void)msgpack_pack_map(&writer.packer, field_count + 1);
    evq_codec_write_key(&writer, "type");
    evq_codec_write_key(&writer, type);
    for (size_t i = 0; i < field_count; i++) {
        write_note_field(&writer, &fields[i]);
    }
    if (out->failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "note '%s'", type);
    } else {
        status =
            evq_codec_scan(out->data + start, out->bytes - start, EVQ_CODEC_NOTE_BYTES_MAX, err);
        if (status != EVQ_OK) {
            status = evq_error_set(err, EVQ_E_LIMIT, "note '%s' takes %zu bytes, allowed %zu", type,
                                   out->bytes - start, EVQ_CODEC_NOTE_BYTES_MAX);
            out->bytes = start;
        }
    }
    return status;
}

static enum evq_status note_text(struct evq_arena *arena, const msgpack_object *object,
                                 const char **ret, struct evq_error *err)
{
    if (object->type != MSGPACK_OBJECT_STR) {
        return evq_error_set(err, EVQ_E_CORRUPT, "note: expected text without NUL, got %s",
                             evq_codec_object_kind(object));
    }
    // An empty text may have a NULL pointer.
    if (object->via.str.size > 0 &&
        memchr(object->via.str.ptr, '\0', object->via.str.size) != NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "note: expected text without NUL, got one with");
    }
    *ret = evq_arena_strndup(arena, object->via.str.ptr, object->via.str.size);
    return *ret != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "note");
}

static enum evq_status note_field(struct evq_arena *arena, const msgpack_object *object,
                                  struct evq_field *field, struct evq_error *err)
{
    switch (object->type) {
    case MSGPACK_OBJECT_STR:
        field->type = EVQ_FIELD_TEXT;
        return note_text(arena, object, &field->text, err);
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        field->type = EVQ_FIELD_INT;
        if (object->type == MSGPACK_OBJECT_POSITIVE_INTEGER && object->via.u64 > INT64_MAX) {
            return evq_error_set(err, EVQ_E_CORRUPT, "note field '%.80s': out of range",
                                 field->key);
        }
        field->integer = object->via.i64;
        return EVQ_OK;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        field->type = EVQ_FIELD_DOUBLE;
        field->real = object->via.f64;
        return EVQ_OK;
    case MSGPACK_OBJECT_BIN: {
        field->type = EVQ_FIELD_BYTES;
        field->byte_count = object->via.bin.size;
        uint8_t *bytes = evq_arena_alloc(arena, field->byte_count);
        if (bytes == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "note");
        }
        if (field->byte_count > 0) {
            memcpy(bytes, object->via.bin.ptr, field->byte_count);
        }
        field->bytes = bytes;
        return EVQ_OK;
    }
    default:
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "note field '%.80s': %s is none of text, integer, float, bytes",
                             field->key, evq_codec_object_kind(object));
    }
}

static enum evq_status note_read(struct evq_note *note, const msgpack_object *object,
                                 struct evq_error *err)
{
    const struct evq_codec_reader reader = {.arena = note->arena, .err = err, .record = "note"};
    if (object->type != MSGPACK_OBJECT_MAP) {
        return evq_error_set(err, EVQ_E_CORRUPT, "note is %s, expected map",
                             evq_codec_object_kind(object));
    }
    const msgpack_object_map *map = &object->via.map;
    enum evq_status status = evq_codec_read_keys(&reader, NULL, map);
    note->fields = evq_arena_array(note->arena, map->size, sizeof *note->fields);
    if (status == EVQ_OK && note->fields == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "note");
    }
    for (uint32_t i = 0; i < map->size && status == EVQ_OK; i++) {
        if (evq_codec_object_is(&map->ptr[i].key, "type")) {
            status = note_text(note->arena, &map->ptr[i].val, &note->type, err);
            continue;
        }
        struct evq_field *field = &note->fields[note->field_count++];
        status = note_text(note->arena, &map->ptr[i].key, &field->key, err);
        if (status == EVQ_OK) {
            status = note_field(note->arena, &map->ptr[i].val, field, err);
        }
    }
    if (status == EVQ_OK && note->type == NULL) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "note has no type");
    }
    return status;
}

enum evq_status evq_codec_note_decode(const uint8_t *data, size_t bytes, struct evq_note **ret_note,
                                      struct evq_error *err)
{
    msgpack_unpacked unpacked;
    struct evq_note *note = NULL;
    struct evq_arena *arena = evq_arena_new(0);
    if (arena != NULL) {
        note = evq_arena_alloc(arena, sizeof *note);
    }
    if (note == NULL) {
        evq_arena_free(arena);
        return evq_error_set(err, EVQ_E_NOMEM, "note");
    }
    note->arena = arena;
    msgpack_unpacked_init(&unpacked);
    enum evq_status status =
        evq_codec_unpack(data, bytes, EVQ_CODEC_NOTE_BYTES_MAX, "note", &unpacked, err);
    if (status == EVQ_OK) {
        status = note_read(note, &unpacked.data, err);
    }
    msgpack_unpacked_destroy(&unpacked);
    if (status != EVQ_OK) {
        evq_codec_note_free(note);
        return status;
    }
    *ret_note = note;
    return EVQ_OK;
}

void evq_codec_note_free(struct evq_note *note)
{
    if (note != NULL) {
        evq_arena_free(note->arena);
    }
}

const struct evq_field *evq_codec_note_field(const struct evq_note *note, const char *key)
{
    for (size_t i = 0; i < note->field_count; i++) {
        if (strcmp(note->fields[i].key, key) == 0) {
            return &note->fields[i];
        }
    }
    return NULL;
}
