#include "shared/codec.h"

#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

#include "shared/codec_schema.h"

/* ---- writing ---- */

struct writer {
    msgpack_packer packer;
    struct evq_buffer *out;
    struct evq_error *err;
    enum evq_status status; // The first failure; later writes do nothing of use.
};

static int writer_append(void *context, const char *data, size_t bytes)
{
    struct evq_buffer *out = context;
    evq_buffer_append(out, data, bytes);
    return out->failed ? -1 : 0;
}

static void writer_init(struct writer *writer, struct evq_buffer *out, struct evq_error *err)
{
    writer->out = out;
    writer->err = err;
    writer->status = EVQ_OK;
    msgpack_packer_init(&writer->packer, out, writer_append);
}

/* Results of msgpack_pack_* are not looked at: all they can report is in out->failed. */
static void write_text(struct writer *writer, const char *text, size_t bytes)
{
    (void)msgpack_pack_str(&writer->packer, bytes);
    (void)msgpack_pack_str_body(&writer->packer, text, bytes);
}

static void write_key(struct writer *writer, const char *text)
{
    write_text(writer, text, strlen(text));
}

static bool text_valid(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t length = text[at] != '\0' ? evq_buffer_utf8(text + at, bytes - at) : 0;
        if (length == 0) {
            return false;
        }
        at += length;
    }
    return true;
}

static void write_checked(struct writer *writer, const char *field, const char *text)
{
    size_t bytes = strlen(text);
    if (writer->status == EVQ_OK && !text_valid(text, bytes)) {
        writer->status = evq_error_set(writer->err, EVQ_E_INVALID, "%s is not UTF-8", field);
    }
    write_text(writer, text, bytes);
}

static void write_struct(struct writer *writer, const struct evq_schema *schema, const void *base,
                         const void *defaults, const char *version, uint32_t extra_count);

static void write_pairs(struct writer *writer, const struct evq_schema_field *field,
                        const void *base)
{
    const struct evq_pair *pairs;
    size_t count = evq_schema_count(base, field->count_offset);
    memcpy(&pairs, evq_schema_at(base, field->offset), sizeof pairs);
    (void)msgpack_pack_map(&writer->packer, count);
    for (size_t i = 0; i < count; i++) {
        write_checked(writer, field->name, pairs[i].key);
        write_checked(writer, field->name, pairs[i].value);
    }
}

static void write_list(struct writer *writer, const struct evq_schema_field *field,
                       const void *base)
{
    const unsigned char *items;
    size_t count = evq_schema_count(base, field->count_offset);
    memcpy(&items, evq_schema_at(base, field->offset), sizeof items);
    (void)msgpack_pack_array(&writer->packer, count);
    for (size_t i = 0; i < count; i++) {
        write_struct(writer, field->table, items + i * field->table->bytes, field->table->defaults,
                     NULL, 0);
    }
}

static void write_texts(struct writer *writer, const struct evq_schema_field *field,
                        const void *base)
{
    const char *const *texts;
    size_t count = evq_schema_count(base, field->count_offset);
    memcpy(&texts, evq_schema_at(base, field->offset), sizeof texts);
    (void)msgpack_pack_array(&writer->packer, count);
    for (size_t i = 0; i < count; i++) {
        write_checked(writer, field->name, texts[i]);
    }
}

static void write_integer(struct writer *writer, const struct evq_schema_field *field,
                          const void *base)
{
    int64_t value = evq_schema_integer(field, base);
    if (writer->status == EVQ_OK && (value < field->min || value > field->max)) {
        writer->status =
            evq_error_set(writer->err, EVQ_E_INVALID, "%s is %jd, expected %jd to %jd", field->name,
                          (intmax_t)value, (intmax_t)field->min, (intmax_t)field->max);
    }
    (void)msgpack_pack_int64(&writer->packer, value);
}

static void write_field(struct writer *writer, const struct evq_schema_field *field,
                        const void *base, const void *defaults)
{
    switch (field->type) {
    case EVQ_SCHEMA_TEXT:
        write_checked(writer, field->name, evq_schema_text(base, field->offset));
        break;
    case EVQ_SCHEMA_INT64:
    case EVQ_SCHEMA_INT32:
        write_integer(writer, field, base);
        break;
    case EVQ_SCHEMA_DOUBLE:
        (void)msgpack_pack_double(&writer->packer, evq_schema_double(base, field->offset));
        break;
    case EVQ_SCHEMA_BOOL:
        (void)(evq_schema_flag_value(base, field->offset) ? msgpack_pack_true(&writer->packer)
                                                          : msgpack_pack_false(&writer->packer));
        break;
    case EVQ_SCHEMA_WORD:
        write_key(writer, field->word(evq_schema_word(base, field->offset)));
        break;
    case EVQ_SCHEMA_TEXTS:
        write_texts(writer, field, base);
        break;
    case EVQ_SCHEMA_PAIRS:
        write_pairs(writer, field, base);
        break;
    case EVQ_SCHEMA_STRUCT:
        write_struct(writer, field->table, evq_schema_at(base, field->offset),
                     evq_schema_at(defaults, field->offset), NULL, 0);
        break;
    case EVQ_SCHEMA_LIST:
        write_list(writer, field, base);
        break;
    }
}

/* version: NULL, or the name of the version field, which comes first. The caller appends the extra
 * pairs. */
static void write_struct(struct writer *writer, const struct evq_schema *schema, const void *base,
                         const void *defaults, const char *version, uint32_t extra_count)
{
    uint64_t given = 0;
    size_t count = extra_count + (version != NULL ? 1 : 0);
    for (size_t i = 0; i < schema->field_count; i++) {
        if (evq_schema_given(&schema->fields[i], base, defaults)) {
            given |= UINT64_C(1) << i;
            count++;
        }
    }
    (void)msgpack_pack_map(&writer->packer, count);
    if (version != NULL) {
        write_key(writer, version);
        (void)msgpack_pack_int(&writer->packer, EVQ_JOB_VERSION);
    }
    for (size_t i = 0; i < schema->field_count; i++) {
        if ((given >> i & 1) != 0) {
            write_key(writer, schema->fields[i].name);
            write_field(writer, &schema->fields[i], base, defaults);
        }
    }
}

static enum evq_status encode(const struct evq_schema *schema, const void *record,
                              const void *defaults, const uint8_t *extra, size_t extra_bytes,
                              uint32_t extra_count, size_t bytes_max, struct evq_buffer *out,
                              struct evq_error *err)
{
    struct writer writer;
    size_t start = out->bytes;

    writer_init(&writer, out, err);
    write_struct(&writer, schema, record, defaults, "version", extra_count);
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
        // Nobody could read it back: too many entries in all, or extra bytes that are no pairs.
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

/* ---- reading ---- */

#define WHERE_BYTES_MAX 160 // Name of a field for messages, such as "metrics[3].value"; cut to fit.

struct reader {
    struct evq_arena *arena;
    struct evq_error *err;
    const char *record; // "message", "result".
};

static const char *object_kind(const msgpack_object *object)
{
    static const char *const kinds[] = {
        [MSGPACK_OBJECT_NIL] = "nil",
        [MSGPACK_OBJECT_BOOLEAN] = "bool",
        [MSGPACK_OBJECT_POSITIVE_INTEGER] = "integer",
        [MSGPACK_OBJECT_NEGATIVE_INTEGER] = "integer",
        [MSGPACK_OBJECT_FLOAT64] = "float",
        [MSGPACK_OBJECT_FLOAT32] = "float",
        [MSGPACK_OBJECT_STR] = "text",
        [MSGPACK_OBJECT_ARRAY] = "array",
        [MSGPACK_OBJECT_MAP] = "map",
        [MSGPACK_OBJECT_BIN] = "bytes",
        [MSGPACK_OBJECT_EXT] = "extension",
    };
    size_t type = (size_t)object->type;
    return type < sizeof kinds / sizeof kinds[0] && kinds[type] != NULL ? kinds[type]
                                                                        : "something else";
}

static enum evq_status read_mismatch(const struct reader *reader, const char *where,
                                     const char *expected, const msgpack_object *object)
{
    return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s field '%s': expected %s, got %s",
                         reader->record, where, expected, object_kind(object));
}

static enum evq_status read_nomem(const struct reader *reader)
{
    return evq_error_set(reader->err, EVQ_E_NOMEM, "%s", reader->record);
}

static bool object_is(const msgpack_object *object, const char *text)
{
    return object->type == MSGPACK_OBJECT_STR && object->via.str.size == strlen(text) &&
           memcmp(object->via.str.ptr, text, object->via.str.size) == 0;
}

static bool objects_equal(const msgpack_object *a, const msgpack_object *b)
{
    return a->type == MSGPACK_OBJECT_STR && b->type == MSGPACK_OBJECT_STR &&
           a->via.str.size == b->via.str.size &&
           memcmp(a->via.str.ptr, b->via.str.ptr, a->via.str.size) == 0;
}

static enum evq_status read_text(const struct reader *reader, const char *where,
                                 const msgpack_object *object, const char **ret)
{
    if (object->type != MSGPACK_OBJECT_STR) {
        return read_mismatch(reader, where, "text", object);
    }
    if (!text_valid(object->via.str.ptr, object->via.str.size)) {
        return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s field '%s': not UTF-8, or holds NUL",
                             reader->record, where);
    }
    *ret = evq_arena_strndup(reader->arena, object->via.str.ptr, object->via.str.size);
    return *ret != NULL ? EVQ_OK : read_nomem(reader);
}

static enum evq_status read_integer(const struct reader *reader,
                                    const struct evq_schema_field *field, const char *where,
                                    const msgpack_object *object, void *base)
{
    bool positive = object->type == MSGPACK_OBJECT_POSITIVE_INTEGER;
    if (!positive && object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        return read_mismatch(reader, where, "integer", object);
    }
    int64_t value = positive ? (int64_t)object->via.u64 : object->via.i64;
    if ((positive && object->via.u64 > INT64_MAX) || value < field->min || value > field->max) {
        return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s field '%s': out of range %jd to %jd",
                             reader->record, where, (intmax_t)field->min, (intmax_t)field->max);
    }
    int32_t narrow = (int32_t)value;
    if (field->type == EVQ_SCHEMA_INT64) {
        memcpy((unsigned char *)base + field->offset, &value, sizeof value);
    } else {
        memcpy((unsigned char *)base + field->offset, &narrow, sizeof narrow);
    }
    return EVQ_OK;
}

static bool object_double(const msgpack_object *object, double *ret)
{
    switch (object->type) {
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        *ret = object->via.f64;
        return true;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        *ret = (double)object->via.u64;
        return true;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        *ret = (double)object->via.i64;
        return true;
    default:
        return false;
    }
}

static enum evq_status read_word(const struct reader *reader, const struct evq_schema_field *field,
                                 const char *where, const msgpack_object *object, void *base)
{
    const char *word = NULL;
    unsigned value = 0;
    enum evq_status status = read_text(reader, where, object, &word);
    if (status != EVQ_OK) {
        return status;
    }
    if (!field->parse(word, &value)) {
        char shown[64];
        evq_error_escape(word, strlen(word), shown, sizeof shown);
        return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s field '%s': unknown word '%s'",
                             reader->record, where, shown);
    }
    memcpy((unsigned char *)base + field->offset, &value, sizeof value);
    return EVQ_OK;
}

/* A map, or the empty array that Lua writes for an empty table. */
static bool object_map(const msgpack_object *object, msgpack_object_map *ret)
{
    if (object->type == MSGPACK_OBJECT_ARRAY && object->via.array.size == 0) {
        *ret = (msgpack_object_map){.size = 0, .ptr = NULL};
        return true;
    }
    *ret = object->via.map;
    return object->type == MSGPACK_OBJECT_MAP;
}

/* Every key is text, and none comes twice. */
static enum evq_status read_keys(const struct reader *reader, const char *where,
                                 const msgpack_object_map *map)
{
    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        if (key->type != MSGPACK_OBJECT_STR) {
            return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s map '%s': key is not text",
                                 reader->record, where);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (objects_equal(key, &map->ptr[j].key)) {
                char shown[128];
                evq_error_escape(key->via.str.ptr, key->via.str.size, shown, sizeof shown);
                return evq_error_set(reader->err, EVQ_E_CORRUPT,
                                     "%s map '%s': key '%s' comes twice", reader->record, where,
                                     shown);
            }
        }
    }
    return EVQ_OK;
}

static enum evq_status read_pairs(const struct reader *reader, const char *where,
                                  const msgpack_object *object, const struct evq_pair **ret_pairs,
                                  size_t *ret_count)
{
    msgpack_object_map map;
    if (!object_map(object, &map)) {
        return read_mismatch(reader, where, "map", object);
    }
    enum evq_status status = read_keys(reader, where, &map);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_pair *pairs = evq_arena_array(reader->arena, map.size, sizeof *pairs);
    if (pairs == NULL) {
        return read_nomem(reader);
    }
    for (uint32_t i = 0; i < map.size && status == EVQ_OK; i++) {
        char inner[WHERE_BYTES_MAX];
        status = read_text(reader, where, &map.ptr[i].key, &pairs[i].key);
        if (status == EVQ_OK) {
            (void)snprintf(inner, sizeof inner, "%.60s.%.80s", where, pairs[i].key);
            status = read_text(reader, inner, &map.ptr[i].val, &pairs[i].value);
        }
    }
    *ret_pairs = pairs;
    *ret_count = map.size;
    return status;
}

static enum evq_status read_struct(const struct reader *reader, const struct evq_schema *schema,
                                   const char *where, const msgpack_object_map *map, void *base);

static enum evq_status read_items(const struct reader *reader, const struct evq_schema_field *field,
                                  const char *where, const msgpack_object *object, void **ret_items)
{
    bool texts = field->type == EVQ_SCHEMA_TEXTS;
    size_t item_bytes = texts ? sizeof(const char *) : field->table->bytes;
    const msgpack_object_array *array = &object->via.array;
    unsigned char *items = evq_arena_array(reader->arena, array->size, item_bytes);
    enum evq_status status = EVQ_OK;
    if (items == NULL) {
        return read_nomem(reader);
    }
    for (uint32_t i = 0; i < array->size && status == EVQ_OK; i++) {
        char inner[WHERE_BYTES_MAX];
        msgpack_object_map map;
        unsigned char *item = items + i * item_bytes;
        (void)snprintf(inner, sizeof inner, "%.60s[%u]", where, i);
        if (texts) {
            const char *text = NULL;
            status = read_text(reader, inner, &array->ptr[i], &text);
            memcpy(item, &text, sizeof text);
        } else if (!object_map(&array->ptr[i], &map)) {
            status = read_mismatch(reader, inner, "map", &array->ptr[i]);
        } else {
            memcpy(item, field->table->defaults, item_bytes);
            status = read_struct(reader, field->table, inner, &map, item);
        }
    }
    *ret_items = items;
    return status;
}

static enum evq_status read_several(const struct reader *reader,
                                    const struct evq_schema_field *field, const char *where,
                                    const msgpack_object *object, void *base)
{
    const struct evq_pair *pairs = NULL;
    void *items = NULL;
    const void *first;
    size_t count = 0;
    enum evq_status status;

    if (field->type == EVQ_SCHEMA_PAIRS) {
        status = read_pairs(reader, where, object, &pairs, &count);
        first = pairs;
    } else if (object->type != MSGPACK_OBJECT_ARRAY) {
        return read_mismatch(reader, where, "array", object);
    } else {
        status = read_items(reader, field, where, object, &items);
        count = object->via.array.size;
        first = items;
    }
    if (status == EVQ_OK && count > field->entries_max) {
        status = evq_error_set(reader->err, EVQ_E_CORRUPT, "%s field '%s': %zu entries, allowed %u",
                               reader->record, where, count, field->entries_max);
    }
    if (status == EVQ_OK) {
        memcpy((unsigned char *)base + field->offset, &first, sizeof first);
        memcpy((unsigned char *)base + field->count_offset, &count, sizeof count);
    }
    return status;
}

static enum evq_status read_field(const struct reader *reader, const struct evq_schema_field *field,
                                  const char *where, const msgpack_object *object, void *base)
{
    unsigned char *at = (unsigned char *)base + field->offset;
    const char *text = NULL;
    double real = 0;
    enum evq_status status;
    msgpack_object_map map;

    switch (field->type) {
    case EVQ_SCHEMA_TEXT:
        status = read_text(reader, where, object, &text);
        if (status == EVQ_OK) {
            memcpy(at, &text, sizeof text);
        }
        return status;
    case EVQ_SCHEMA_INT64:
    case EVQ_SCHEMA_INT32:
        return read_integer(reader, field, where, object, base);
    case EVQ_SCHEMA_DOUBLE:
        if (!object_double(object, &real)) {
            return read_mismatch(reader, where, "number", object);
        }
        memcpy(at, &real, sizeof real);
        return EVQ_OK;
    case EVQ_SCHEMA_BOOL:
        if (object->type != MSGPACK_OBJECT_BOOLEAN) {
            return read_mismatch(reader, where, "bool", object);
        }
        memcpy(at, &object->via.boolean, sizeof(bool));
        return EVQ_OK;
    case EVQ_SCHEMA_WORD:
        return read_word(reader, field, where, object, base);
    case EVQ_SCHEMA_STRUCT:
        return object_map(object, &map) ? read_struct(reader, field->table, where, &map, at)
                                        : read_mismatch(reader, where, "map", object);
    case EVQ_SCHEMA_TEXTS:
    case EVQ_SCHEMA_PAIRS:
    case EVQ_SCHEMA_LIST:
        return read_several(reader, field, where, object, base);
    }
    return evq_error_set(reader->err, EVQ_E_BUG, "codec: field type %d", (int)field->type);
}

static const struct evq_schema_field *schema_find(const struct evq_schema *schema,
                                                  const msgpack_object *key)
{
    for (size_t i = 0; i < schema->field_count; i++) {
        if (object_is(key, schema->fields[i].name)) {
            return &schema->fields[i];
        }
    }
    return NULL;
}

/* where "": the record itself. Unknown keys are passed over. */
static enum evq_status read_struct(const struct reader *reader, const struct evq_schema *schema,
                                   const char *where, const msgpack_object_map *map, void *base)
{
    enum evq_status status = read_keys(reader, where, map);
    for (uint32_t i = 0; i < map->size && status == EVQ_OK; i++) {
        const struct evq_schema_field *field = schema_find(schema, &map->ptr[i].key);
        if (field == NULL || map->ptr[i].val.type == MSGPACK_OBJECT_NIL) {
            continue;
        }
        char inner[WHERE_BYTES_MAX];
        (void)snprintf(inner, sizeof inner, "%.60s%s%.30s", where, where[0] != '\0' ? "." : "",
                       field->name);
        status = read_field(reader, field, inner, &map->ptr[i].val, base);
        if (status == EVQ_OK && field->flag != EVQ_SCHEMA_ALWAYS) {
            bool flag = field->flag == EVQ_SCHEMA_WHEN_SET;
            memcpy((unsigned char *)base + field->flag_offset, &flag, sizeof flag);
        }
    }
    return status;
}

/* Fields come in any order, so that the version is looked for before anything else is judged. */
static enum evq_status read_version(const struct reader *reader, const msgpack_object_map *map,
                                    int64_t version_max)
{
    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *value = &map->ptr[i].val;
        if (!object_is(&map->ptr[i].key, "version")) {
            continue;
        }
        if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER || value->via.u64 == 0) {
            return read_mismatch(reader, "version", "a positive integer", value);
        }
        if (value->via.u64 > (uint64_t)version_max) {
            return evq_error_set(reader->err, EVQ_E_VERSION,
                                 "%s has version %ju, this build knows up to %jd", reader->record,
                                 (uintmax_t)value->via.u64, (intmax_t)version_max);
        }
    }
    return EVQ_OK;
}

/* Where the pairs of a scanned map begin. */
static size_t map_begin(uint8_t type)
{
    return type == 0xde ? 3 : type == 0xdf ? 5 : 1;
}

/* Copies the pairs whose keys the schema does not have, byte for byte. */
static enum evq_status read_extra(const struct reader *reader, const struct evq_schema *schema,
                                  const uint8_t *data, size_t bytes, const uint8_t **ret_extra,
                                  size_t *ret_bytes, uint32_t *ret_count)
{
    uint8_t *extra = NULL;
    size_t used = 0;
    uint32_t count = 0;
    enum evq_status status = EVQ_OK;
    size_t at = map_begin(data[0]);
    msgpack_unpacked key;

    msgpack_unpacked_init(&key);
    while (at < bytes && status == EVQ_OK) {
        size_t start = at;
        size_t end;
        bool good =
            msgpack_unpack_next(&key, (const char *)data, bytes, &at) == MSGPACK_UNPACK_SUCCESS;
        bool known =
            good && (object_is(&key.data, "version") || schema_find(schema, &key.data) != NULL);
        end = at;
        good = good &&
               msgpack_unpack_next(&key, (const char *)data, bytes, &end) == MSGPACK_UNPACK_SUCCESS;
        at = end;
        if (!good) {
            status =
                evq_error_set(reader->err, EVQ_E_CORRUPT, "%s cannot be unpacked", reader->record);
        } else if (!known) {
            extra = extra != NULL ? extra : evq_arena_alloc(reader->arena, bytes);
            if (extra == NULL) {
                status = read_nomem(reader);
                break;
            }
            memcpy(extra + used, data + start, end - start);
            used += end - start;
            count++;
        }
    }
    msgpack_unpacked_destroy(&key);
    *ret_extra = extra;
    *ret_bytes = used;
    *ret_count = count;
    return status;
}

/* What decode() leaves of the fields that the schema does not know. */
struct extra {
    const uint8_t *data;
    size_t bytes;
    uint32_t count;
};

static enum evq_status decode_map(const struct reader *reader, const struct evq_schema *schema,
                                  const uint8_t *data, size_t bytes, const msgpack_object *object,
                                  void *record, struct extra *extra)
{
    if (object->type != MSGPACK_OBJECT_MAP) {
        return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s is %s, expected map", reader->record,
                             object_kind(object));
    }
    const msgpack_object_map *map = &object->via.map;
    enum evq_status status = read_version(reader, map, EVQ_JOB_VERSION);
    if (status == EVQ_OK) {
        status = read_struct(reader, schema, "", map, record);
    }
    bool unknown = false;
    for (uint32_t i = 0; i < map->size && status == EVQ_OK; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        unknown = unknown || (!object_is(key, "version") && schema_find(schema, key) == NULL);
    }
    if (status == EVQ_OK && unknown) {
        status =
            read_extra(reader, schema, data, bytes, &extra->data, &extra->bytes, &extra->count);
    }
    return status;
}

/* Scans, then unpacks what the caller reads and destroys. */
static enum evq_status unpack(const uint8_t *data, size_t bytes, size_t bytes_max,
                              const char *record, msgpack_unpacked *unpacked, struct evq_error *err)
{
    size_t at = 0;
    enum evq_status status = evq_codec_scan(data, bytes, bytes_max, err);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "%s", record);
        return status;
    }
    msgpack_unpack_return got = msgpack_unpack_next(unpacked, (const char *)data, bytes, &at);
    if (got == MSGPACK_UNPACK_NOMEM_ERROR) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", record);
    }
    if (got != MSGPACK_UNPACK_SUCCESS) {
        return evq_error_set(err, EVQ_E_CORRUPT, "%s cannot be unpacked", record);
    }
    return EVQ_OK;
}

static enum evq_status decode(const struct evq_schema *schema, const uint8_t *data, size_t bytes,
                              size_t bytes_max, struct evq_arena *arena, void *record,
                              struct extra *extra, struct evq_error *err)
{
    const struct reader reader = {.arena = arena, .err = err, .record = schema->name};
    msgpack_unpacked unpacked;

    msgpack_unpacked_init(&unpacked);
    enum evq_status status = unpack(data, bytes, bytes_max, schema->name, &unpacked, err);
    if (status == EVQ_OK) {
        status = decode_map(&reader, schema, data, bytes, &unpacked.data, record, extra);
    }
    msgpack_unpacked_destroy(&unpacked);
    return status;
}

/* What the check refuses in bytes from outside is corrupt, not a wrong argument of the caller. */
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
    struct extra extra = {0};
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
    struct extra extra = {0};
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

/* ---- notes ---- */

static void write_note_field(struct writer *writer, const struct evq_field *field)
{
    write_key(writer, field->key);
    switch (field->type) {
    case EVQ_FIELD_TEXT:
        write_key(writer, field->text != NULL ? field->text : "");
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
    struct writer writer;
    size_t start = out->bytes;
    enum evq_status status = EVQ_OK;

    writer_init(&writer, out, err);
    (void)msgpack_pack_map(&writer.packer, field_count + 1);
    write_key(&writer, "type");
    write_key(&writer, type);
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
    if (object->type != MSGPACK_OBJECT_STR ||
        memchr(object->via.str.ptr, '\0', object->via.str.size) != NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "note: expected text without NUL, got %s",
                             object_kind(object));
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
                             field->key, object_kind(object));
    }
}

static enum evq_status note_read(struct evq_note *note, const msgpack_object *object,
                                 struct evq_error *err)
{
    const struct reader reader = {.arena = note->arena, .err = err, .record = "note"};
    if (object->type != MSGPACK_OBJECT_MAP) {
        return evq_error_set(err, EVQ_E_CORRUPT, "note is %s, expected map", object_kind(object));
    }
    const msgpack_object_map *map = &object->via.map;
    enum evq_status status = read_keys(&reader, "", map);
    note->fields = evq_arena_array(note->arena, map->size, sizeof *note->fields);
    if (status == EVQ_OK && note->fields == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "note");
    }
    for (uint32_t i = 0; i < map->size && status == EVQ_OK; i++) {
        if (object_is(&map->ptr[i].key, "type")) {
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
    enum evq_status status = unpack(data, bytes, EVQ_CODEC_NOTE_BYTES_MAX, "note", &unpacked, err);
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
