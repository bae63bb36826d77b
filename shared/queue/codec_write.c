#include <string.h>

#include "shared/base/utf8.h"
#include "shared/queue/codec_msgpack.h"

static int writer_append(void *context, const char *data, size_t bytes)
{
    struct evq_buffer *out = context;
    evq_buffer_append(out, data, bytes);
    return out->failed ? -1 : 0;
}

void evq_codec_writer_init(struct evq_codec_writer *writer, struct evq_buffer *out,
                           struct evq_error *err)
{
    writer->err = err;
    writer->status = EVQ_OK;
    msgpack_packer_init(&writer->packer, out, writer_append);
}

/* Results of msgpack_pack_* are ignored, because out->failed holds all they can report. */
static void write_text(struct evq_codec_writer *writer, const char *text, size_t bytes)
{
    (void)msgpack_pack_str(&writer->packer, bytes);
    (void)msgpack_pack_str_body(&writer->packer, text, bytes);
}

void evq_codec_write_key(struct evq_codec_writer *writer, const char *text)
{
    write_text(writer, text, strlen(text));
}

bool evq_codec_text_valid(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t length = text[at] != '\0' ? evq_utf8_sequence(text + at, bytes - at) : 0;
        if (length == 0) {
            return false;
        }
        at += length;
    }
    return true;
}

static void write_checked(struct evq_codec_writer *writer, const char *field, const char *text)
{
    size_t bytes = strlen(text);
    if (writer->status == EVQ_OK && !evq_codec_text_valid(text, bytes)) {
        writer->status = evq_error_set(writer->err, EVQ_E_INVALID, "%s is not UTF-8", field);
    }
    write_text(writer, text, bytes);
}

static void write_pairs(struct evq_codec_writer *writer, const struct evq_schema_field *field,
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

static void write_list(struct evq_codec_writer *writer, const struct evq_schema_field *field,
                       const void *base)
{
    const unsigned char *items;
    size_t count = evq_schema_count(base, field->count_offset);
    memcpy(&items, evq_schema_at(base, field->offset), sizeof items);
    (void)msgpack_pack_array(&writer->packer, count);
    for (size_t i = 0; i < count; i++) {
        evq_codec_write_struct(writer, field->table, items + i * field->table->bytes,
                               field->table->defaults, NULL, 0);
    }
}

static void write_texts(struct evq_codec_writer *writer, const struct evq_schema_field *field,
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

static void write_integer(struct evq_codec_writer *writer, const struct evq_schema_field *field,
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

static void write_field(struct evq_codec_writer *writer, const struct evq_schema_field *field,
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
        evq_codec_write_key(writer, field->word(evq_schema_word(base, field->offset)));
        break;
    case EVQ_SCHEMA_TEXTS:
        write_texts(writer, field, base);
        break;
    case EVQ_SCHEMA_PAIRS:
        write_pairs(writer, field, base);
        break;
    case EVQ_SCHEMA_STRUCT:
        evq_codec_write_struct(writer, field->table, evq_schema_at(base, field->offset),
                               evq_schema_at(defaults, field->offset), NULL, 0);
        break;
    case EVQ_SCHEMA_LIST:
        write_list(writer, field, base);
        break;
    }
}

void evq_codec_write_struct(struct evq_codec_writer *writer, const struct evq_schema *schema,
                            const void *base, const void *defaults, const char *version,
                            uint32_t extra_count)
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
        evq_codec_write_key(writer, version);
        (void)msgpack_pack_int(&writer->packer, EVQ_CODEC_VERSION);
    }
    for (size_t i = 0; i < schema->field_count; i++) {
        if ((given >> i & 1) != 0) {
            evq_codec_write_key(writer, schema->fields[i].name);
            write_field(writer, &schema->fields[i], base, defaults);
        }
    }
}
