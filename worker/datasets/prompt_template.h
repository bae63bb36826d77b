/*
 * Text made of the fields of a JSON object: "Question: {goal}\nAnswer:". {a.b} is field b of the
 * object a; {a|capitalize} is Python's str.capitalize(); {{ and }} are braces. Any thread.
 */
#ifndef EVQ_WORKER_DATASETS_PROMPT_TEMPLATE_H
#define EVQ_WORKER_DATASETS_PROMPT_TEMPLATE_H

#include <jansson.h>

#include "shared/base/buffer.h"

/* The value at a dotted path; NULL: there is none. */
const json_t *evq_prompt_template_field(const json_t *object, const char *path, size_t path_bytes);

/*
 * Appends the expansion to out. Texts and numbers are fields; EVQ_E_INVALID names a field that is
 * missing or is neither, or a brace without its partner.
 */
enum evq_status evq_prompt_template_expand(const char *pattern, const json_t *object,
                                           struct evq_buffer *out,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether the pattern's braces are right; EVQ_E_INVALID. */
enum evq_status evq_prompt_template_check(const char *pattern,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

#endif
