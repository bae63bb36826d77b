#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared/queue/codec_msgpack.h"

#define WHERE_BYTES_MAX 160 // Room for the name of a field in a message; longer names are cut.

const char *evq_codec_object_kind(const msgpack_object *object)
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

/* Writes "metrics[3].value". Called only for errors, because a record has dozens of fields. */
static const char *where_text(const struct evq_codec_where *where, char out[WHERE_BYTES_MAX])
{
    out[0] = '\0';
    if (where == NULL) {
        return out;
    }
    const size_t used = strlen(where_text(where->outer, out));
    if (where->name == NULL) {
        (void)snprintf(out + used, WHERE_BYTES_MAX - used, "[%u]", (unsigned)where->index);
    } else {
        (void)snprintf(out + used, WHERE_BYTES_MAX - used, "%s%.80s", used > 0 ? "." : "",
                       where->name);
    }
    return out;
}

/* Refuses a field with a reason. */
static enum evq_status read_refuse(const struct evq_codec_reader *reader,
                                   const struct evq_codec_where *where, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum evq_status read_refuse(const struct evq_codec_reader *reader,
                                   const struct evq_codec_where *where, const char *format, ...)
{
    char shown[WHERE_BYTES_MAX];
    char text[128];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s field '%s': %s", reader->record,
                         where_text(where, shown), text);
}

static enum evq_status read_mismatch(const struct evq_codec_reader *reader,
                                     const struct evq_codec_where *where, const char *expected,
                                     const msgpack_object *object)
{
    return read_refuse(reader, where, "expected %s, got %s", expected,
                       evq_codec_object_kind(object));
}

static enum evq_status read_nomem(const struct evq_codec_reader *reader)
{
    return evq_error_set(reader->err, EVQ_E_NOMEM, "%s", reader->record);
}

bool evq_codec_object_is(const msgpack_object *object, const char *text)
{
    const uint32_t bytes = object->via.str.size;

    if (object->type != MSGPACK_OBJECT_STR || bytes == 0 || object->via.str.ptr[0] != text[0]) {
        return false; // Most keys differ in the first letter. None of ours is empty.
    }
    // strncmp() stops at a NUL in both, so the lengths are compared too.
    return strncmp(text, object->via.str.ptr, bytes) == 0 && strlen(text) == bytes;
}

static bool objects_equal(const msgpack_object *a, const msgpack_object *b)
{
    return a->type == MSGPACK_OBJECT_STR && b->type == MSGPACK_OBJECT_STR &&
           a->via.str.size == b->via.str.size &&
           (a->via.str.size == 0 || memcmp(a->via.str.ptr, b->via.str.ptr, a->via.str.size) == 0);
}

static enum evq_status read_text(const struct evq_codec_reader *reader,
                                 const struct evq_codec_where *where, const msgpack_object *object,
                                 const char **ret)
{
    if (object->type != MSGPACK_OBJECT_STR) {
        return read_mismatch(reader, where, "text", object);
    }
    if (!evq_codec_text_valid(object->via.str.ptr, object->via.str.size)) {
        return read_refuse(reader, where, "not UTF-8, or holds NUL");
    }
    *ret = evq_arena_strndup(reader->arena, object->via.str.ptr, object->via.str.size);
    return *ret != NULL ? EVQ_OK : read_nomem(reader);
}

static enum evq_status read_integer(const struct evq_codec_reader *reader,
                                    const struct evq_schema_field *field,
                                    const struct evq_codec_where *where,
                                    const msgpack_object *object, void *base)
{
    bool positive = object->type == MSGPACK_OBJECT_POSITIVE_INTEGER;
    if (!positive && object->type != MSGPACK_OBJECT_NEGATIVE_INTEGER) {
        return read_mismatch(reader, where, "integer", object);
    }
    int64_t value = positive ? (int64_t)object->via.u64 : object->via.i64;
    if ((positive && object->via.u64 > INT64_MAX) || value < field->min || value > field->max) {
        return read_refuse(reader, where, "out of range %jd to %jd", (intmax_t)field->min,
                           (intmax_t)field->max);
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

static enum evq_status read_word(const struct evq_codec_reader *reader,
                                 const struct evq_schema_field *field,
                                 const struct evq_codec_where *where, const msgpack_object *object,
                                 void *base)
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
        return read_refuse(reader, where, "unknown word '%s'", shown);
    }
    memcpy((unsigned char *)base + field->offset, &value, sizeof value);
    return EVQ_OK;
}

/* Accepts a map, or the empty array that Lua writes for an empty table. */
static bool object_map(const msgpack_object *object, msgpack_object_map *ret)
{
    if (object->type == MSGPACK_OBJECT_ARRAY && object->via.array.size == 0) {
        *ret = (msgpack_object_map){.size = 0, .ptr = NULL};
        return true;
    }
    *ret = object->via.map;
    return object->type == MSGPACK_OBJECT_MAP;
}

enum evq_status evq_codec_read_keys(const struct evq_codec_reader *reader,
                                    const struct evq_codec_where *where,
                                    const msgpack_object_map *map)
{
    char place[WHERE_BYTES_MAX];

    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        if (key->type != MSGPACK_OBJECT_STR) {
            return evq_error_set(reader->err, EVQ_E_CORRUPT, "%s map '%s': key is not text",
                                 reader->record, where_text(where, place));
        }
        for (uint32_t j = 0; j < i; j++) {
            if (objects_equal(key, &map->ptr[j].key)) {
                char shown[128];
                evq_error_escape(key->via.str.ptr, key->via.str.size, shown, sizeof shown);
                return evq_error_set(reader->err, EVQ_E_CORRUPT,
                                     "%s map '%s': key '%s' comes twice", reader->record,
                                     where_text(where, place), shown);
            }
        }
    }
    return EVQ_OK;
}

static enum evq_status read_pairs(const struct evq_codec_reader *reader,
                                  const struct evq_codec_where *where, const msgpack_object *object,
                                  const struct evq_pair **ret_pairs, size_t *ret_count)
{
    msgpack_object_map map;
    if (!object_map(object, &map)) {
        return read_mismatch(reader, where, "map", object);
    }
    enum evq_status status = evq_codec_read_keys(reader, where, &map);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_pair *pairs = evq_arena_array(reader->arena, map.size, sizeof *pairs);
    if (pairs == NULL) {
        return read_nomem(reader);
    }
    for (uint32_t i = 0; i < map.size && status == EVQ_OK; i++) {
        status = read_text(reader, where, &map.ptr[i].key, &pairs[i].key);
        if (status == EVQ_OK) {
            const struct evq_codec_where inner = {.outer = where, .name = pairs[i].key};
            status = read_text(reader, &inner, &map.ptr[i].val, &pairs[i].value);
        }
    }
    *ret_pairs = pairs;
    *ret_count = map.size;
    return status;
}

static enum evq_status read_items(const struct evq_codec_reader *reader,
                                  const struct evq_schema_field *field,
                                  const struct evq_codec_where *where, const msgpack_object *object,
                                  void **ret_items)
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
        const struct evq_codec_where inner = {.outer = where, .index = i};
        msgpack_object_map map;
        unsigned char *item = items + i * item_bytes;
        if (texts) {
            const char *text = NULL;
            status = read_text(reader, &inner, &array->ptr[i], &text);
            memcpy(item, &text, sizeof text);
        } else if (!object_map(&array->ptr[i], &map)) {
            status = read_mismatch(reader, &inner, "map", &array->ptr[i]);
        } else {
            memcpy(item, field->table->defaults, item_bytes);
            status = evq_codec_read_struct(reader, field->table, &inner, &map, item, NULL);
        }
    }
    *ret_items = items;
    return status;
}

static enum evq_status read_several(const struct evq_codec_reader *reader,
                                    const struct evq_schema_field *field,
                                    const struct evq_codec_where *where,
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
        status = read_refuse(reader, where, "%zu entries, allowed %u", count, field->entries_max);
    }
    if (status == EVQ_OK) {
        memcpy((unsigned char *)base + field->offset, &first, sizeof first);
        memcpy((unsigned char *)base + field->count_offset, &count, sizeof count);
    }
    return status;
}

static enum evq_status read_field(const struct evq_codec_reader *reader,
                                  const struct evq_schema_field *field,
                                  const struct evq_codec_where *where, const msgpack_object *object,
                                  void *base)
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
        return object_map(object, &map)
                   ? evq_codec_read_struct(reader, field->table, where, &map, at, NULL)
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
        if (evq_codec_object_is(key, schema->fields[i].name)) {
            return &schema->fields[i];
        }
    }
    return NULL;
}

enum evq_status evq_codec_read_struct(const struct evq_codec_reader *reader,
                                      const struct evq_schema *schema,
                                      const struct evq_codec_where *where,
                                      const msgpack_object_map *map, void *base, bool *ret_unknown)
{
    bool unknown = false;

    enum evq_status status = evq_codec_read_keys(reader, where, map);
    for (uint32_t i = 0; i < map->size && status == EVQ_OK; i++) {
        const msgpack_object *key = &map->ptr[i].key;
        const struct evq_schema_field *field = schema_find(schema, key);
        unknown = unknown || (field == NULL && !evq_codec_object_is(key, "version"));
        if (field == NULL || map->ptr[i].val.type == MSGPACK_OBJECT_NIL) {
            continue;
        }
        const struct evq_codec_where inner = {.outer = where, .name = field->name};
        status = read_field(reader, field, &inner, &map->ptr[i].val, base);
        if (status == EVQ_OK && field->flag != EVQ_SCHEMA_ALWAYS) {
            bool flag = field->flag == EVQ_SCHEMA_WHEN_SET;
            memcpy((unsigned char *)base + field->flag_offset, &flag, sizeof flag);
        }
    }
    if (ret_unknown != NULL) {
        *ret_unknown = unknown;
    }
    return status;
}

/* Reads the version before anything else is checked, because fields come in any order. */
enum evq_status evq_codec_read_version(const struct evq_codec_reader *reader,
                                       const msgpack_object_map *map, int64_t version_max)
{
    const struct evq_codec_where where = {.name = "version"};

    for (uint32_t i = 0; i < map->size; i++) {
        const msgpack_object *value = &map->ptr[i].val;
        if (!evq_codec_object_is(&map->ptr[i].key, "version")) {
            continue;
        }
        if (value->type != MSGPACK_OBJECT_POSITIVE_INTEGER || value->via.u64 == 0) {
            return read_mismatch(reader, &where, "a positive integer", value);
        }
        if (value->via.u64 > (uint64_t)version_max) {
            return evq_error_set(reader->err, EVQ_E_VERSION,
                                 "%s has version %ju, this build knows up to %jd", reader->record,
                                 (uintmax_t)value->via.u64, (intmax_t)version_max);
        }
    }
    return EVQ_OK;
}

/* Returns where the pairs of a scanned map begin. */
static size_t map_begin(uint8_t type)
{
    return type == 0xde ? 3 : type == 0xdf ? 5 : 1;
}

enum evq_status evq_codec_read_extra(const struct evq_codec_reader *reader,
                                     const struct evq_schema *schema, const uint8_t *data,
                                     size_t bytes, struct evq_codec_extra *ret_extra)
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
        bool known = good && (evq_codec_object_is(&key.data, "version") ||
                              schema_find(schema, &key.data) != NULL);
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
    *ret_extra = (struct evq_codec_extra){.data = extra, .bytes = used, .count = count};
    return status;
}

enum evq_status evq_codec_unpack(const uint8_t *data, size_t bytes, size_t bytes_max,
                                 const char *record, msgpack_unpacked *unpacked,
                                 struct evq_error *err)
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
