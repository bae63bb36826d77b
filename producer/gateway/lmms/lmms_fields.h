/*
 * Fields of a JSON body read by the rules of pydantic, which the LMMS-Eval server checks its
 * requests with: what is taken for a whole number, and in which words the rest is refused. One
 * thread.
 */
#ifndef EVQ_GATEWAY_LMMS_FIELDS_H
#define EVQ_GATEWAY_LMMS_FIELDS_H

#include <jansson.h>
#include <stdbool.h>

#include "shared/base/error.h"

struct evq_lmms_fields {
    const json_t *body; // Borrowed: an object.
    json_t *detail;     // Owned: what is wrong, one entry each, in the order of the fields.
    json_t *out;        // Owned: the fields as they were understood, defaults filled in.
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
    EVQ_LMMS_NULL = 64,  // May be null, and is when it is absent.
    EVQ_LMMS_PLAIN = 128 // An object whose field is taken also where it is a text.
};
/*
 * Reads one field into out. fallback: of an absent one, as JSON text; NULL: it is required, or null
 * by its kinds. Faults go to detail.
 */
void evq_lmms_field(struct evq_lmms_fields *fields, const char *name, unsigned kinds,
                    const char *fallback);
/* A text that is one of two words. */
void evq_lmms_field_word(struct evq_lmms_fields *fields, const char *name, const char *first,
                         const char *second);

/* {"detail": [...]} of one fault that has no field: json is the value that stands there, borrowed,
 * NULL for null. */
json_t *evq_lmms_fault(const char *type, const char *message, const json_t *input);

#endif
