/* The tables of the records: the name of each field in msgpack and its place in the struct. Used
 * for reading and writing. Private to the codec. */
#ifndef EVQ_SHARED_QUEUE_CODEC_SCHEMA_H
#define EVQ_SHARED_QUEUE_CODEC_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

enum evq_schema_type {
    EVQ_SCHEMA_TEXT,   // const char *
    EVQ_SCHEMA_INT64,  // int64_t within min to max
    EVQ_SCHEMA_INT32,  // int32_t within min to max
    EVQ_SCHEMA_DOUBLE, // double
    EVQ_SCHEMA_BOOL,   // bool
    EVQ_SCHEMA_WORD,   // an enum, by words
    EVQ_SCHEMA_TEXTS,  // const char *const *, count
    EVQ_SCHEMA_PAIRS,  // const struct evq_pair *, count; a map of texts
    EVQ_SCHEMA_STRUCT, // a struct in place, a map by table
    EVQ_SCHEMA_LIST    // pointer to structs, count; an array of maps by table
};

/* A field may depend on a bool of its struct: it is written only if the bool has this value, and
 * reading it sets the bool. */
enum evq_schema_flag { EVQ_SCHEMA_ALWAYS, EVQ_SCHEMA_WHEN_SET, EVQ_SCHEMA_WHEN_CLEAR };

struct evq_schema_field {
    const char *name;
    enum evq_schema_type type;
    size_t offset;
    size_t count_offset; // TEXTS, PAIRS, LIST.
    int64_t min;
    int64_t max;
    uint32_t entries_max;
    enum evq_schema_flag flag;
    size_t flag_offset;
    const struct evq_schema *table;                 // STRUCT, LIST.
    const char *(*word)(unsigned value);            // WORD.
    bool (*parse)(const char *word, unsigned *ret); // WORD.
};

struct evq_schema {
    const char *name; // For messages.
    const struct evq_schema_field *fields;
    size_t field_count; // At most 64.
    size_t bytes;
    // A struct of `bytes`; NULL for a STRUCT, whose defaults are in the outer struct.
    const void *defaults;
};

extern const struct evq_schema evq_schema_job;
extern const struct evq_schema evq_schema_result;

/* Members of the struct at base. */
const void *evq_schema_at(const void *base, size_t offset);
const char *evq_schema_text(const void *base, size_t offset);
size_t evq_schema_count(const void *base, size_t offset);
bool evq_schema_flag_value(const void *base, size_t offset);
double evq_schema_double(const void *base, size_t offset);
int64_t evq_schema_integer(const struct evq_schema_field *field, const void *base);
unsigned evq_schema_word(const void *base, size_t offset);

/* Whether the field must be written: it differs from its default, or its flag says so. */
bool evq_schema_given(const struct evq_schema_field *field, const void *base, const void *defaults);

#endif
