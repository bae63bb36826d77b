/*
 * Templates for text from the fields of a JSON object: "Question: {goal}\nAnswer:". {a.b} is field
 * b of the object a, {a.0} is the first entry of the list a, {a|capitalize} applies Python's
 * str.capitalize() to ASCII letters, and {{ and
 * }} are braces. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_PROMPT_TEMPLATE_H
#define EVQ_WORKER_DATASETS_PROMPT_TEMPLATE_H

#include <jansson.h>

#include "shared/base/buffer.h"

/* The value at a dotted path; NULL: there is none. */
const json_t *evq_prompt_template_field(const json_t *object, const char *path, size_t path_bytes);

/* Makes the error EVQ_E_INVALID for a path that evq_prompt_template_field() does not find. */
enum evq_status evq_prompt_template_missing(const json_t *object, const char *path,
                                            size_t path_bytes, struct evq_error *err);

/*
 * Appends the expansion to out. Fields must be texts or numbers. EVQ_E_INVALID names a field that
 * is missing or has another type, or an unpaired brace.
 */
enum evq_status evq_prompt_template_expand(const char *pattern, const json_t *object,
                                           struct evq_buffer *out,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks the braces of the pattern. EVQ_E_INVALID. */
enum evq_status evq_prompt_template_check(const char *pattern,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

#endif
