/* Private to the codec: msgpack-c, which only the codec includes, and the functions that write and
 * read records by table. */
#ifndef EVQ_SHARED_QUEUE_CODEC_MSGPACK_H
#define EVQ_SHARED_QUEUE_CODEC_MSGPACK_H

#include <msgpack.h>

#include "shared/queue/codec.h"
#include "shared/queue/codec_schema.h"

struct evq_codec_writer {
    msgpack_packer packer;
    struct evq_error *err;
    enum evq_status status; // The first error. Later writes do not change the outcome.
};

void evq_codec_writer_init(struct evq_codec_writer *writer, struct evq_buffer *out,
                           struct evq_error *err);
void evq_codec_write_key(struct evq_codec_writer *writer, const char *text);
/* Writes a struct as a map. version: NULL, or the name of the version field, which comes first. The
 * caller appends the extra pairs. */
void evq_codec_write_struct(struct evq_codec_writer *writer, const struct evq_schema *schema,
                            const void *base, const void *defaults, const char *version,
                            uint32_t extra_count);
bool evq_codec_text_valid(const char *text, size_t bytes); // UTF-8 without NUL.

struct evq_codec_reader {
    struct evq_arena *arena;
    struct evq_error *err;
    const char *record; // "message", "result".
};

/* A field's position in its record, for messages: metrics, its entry 3, value. */
struct evq_codec_where {
    const struct evq_codec_where *outer; // NULL: the record itself.
    const char *name;                    // NULL: an entry of a list.
    uint32_t index;                      // this one.
};

/* Fields of a record that its schema does not know. */
struct evq_codec_extra {
    const uint8_t *data;
    size_t bytes;
    uint32_t count;
};

/* Scans and unpacks. The caller destroys *unpacked. */
enum evq_status evq_codec_unpack(const uint8_t *data, size_t bytes, size_t bytes_max,
                                 const char *record, msgpack_unpacked *unpacked,
                                 struct evq_error *err);
const char *evq_codec_object_kind(const msgpack_object *object);
bool evq_codec_object_is(const msgpack_object *object, const char *text);
/* Checks that every key is text and occurs once. */
enum evq_status evq_codec_read_keys(const struct evq_codec_reader *reader,
                                    const struct evq_codec_where *where,
                                    const msgpack_object_map *map);
/* Reads a map into the struct at base. where NULL: the record itself. Unknown keys are skipped;
 * *ret_unknown (may be NULL): whether there was one other than "version". */
enum evq_status evq_codec_read_struct(const struct evq_codec_reader *reader,
                                      const struct evq_schema *schema,
                                      const struct evq_codec_where *where,
                                      const msgpack_object_map *map, void *base, bool *ret_unknown);
enum evq_status evq_codec_read_version(const struct evq_codec_reader *reader,
                                       const msgpack_object_map *map, int64_t version_max);
/* Copies the pairs whose keys the schema does not have, byte for byte, into the reader's arena. */
enum evq_status evq_codec_read_extra(const struct evq_codec_reader *reader,
                                     const struct evq_schema *schema, const uint8_t *data,
                                     size_t bytes, struct evq_codec_extra *ret_extra);

#endif
