/*
 * Reads fields of a JSON body by the rules of pydantic, which the LMMS-Eval server uses: which
 * values count as an integer, and the messages for all others. One thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_LMMS_LMMS_FIELDS_H
#define EVQ_PRODUCER_GATEWAY_LMMS_LMMS_FIELDS_H

#include <jansson.h>
#include <stdbool.h>

#include "shared/base/error.h"

struct evq_lmms_fields {
    const json_t *body; // Borrowed: an object.
    json_t *detail;     // Owned: the errors, in the order of the fields.
    json_t *out;        // Owned: the fields, with defaults filled in.
    bool failed;        // Out of memory.
};

/* body must outlive fields. */
void evq_lmms_fields_begin(struct evq_lmms_fields *fields, const json_t *body);
void evq_lmms_fields_end(struct evq_lmms_fields *fields); // Frees; leaves it empty.

/* Kinds of values, joined by |. */
enum evq_lmms_kind {
    EVQ_LMMS_INT = 1,
    EVQ_LMMS_FLOAT = 2,
    EVQ_LMMS_TEXT = 4,
    EVQ_LMMS_BOOL = 8,
    EVQ_LMMS_OBJECT = 16,
    EVQ_LMMS_TEXTS = 32, // A list of texts.
    EVQ_LMMS_NULL = 64,  // May be null or missing.
    EVQ_LMMS_PLAIN = 128 // An object that may also be given as text.
};
/*
 * Reads one field into out. fallback: the value of a missing field, as JSON text. NULL: the field
 * is required unless its kinds allow null. Errors go to detail.
 */
void evq_lmms_field(struct evq_lmms_fields *fields, const char *name, unsigned kinds,
                    const char *fallback);
/* Reads a text that must be one of two words. */
void evq_lmms_field_word(struct evq_lmms_fields *fields, const char *name, const char *first,
                         const char *second);

/* Returns {"detail": [...]} with one error of the whole body. input: the wrong value, borrowed;
 * NULL: null. */
json_t *evq_lmms_fault(const char *type, const char *message, const json_t *input);

#endif
