/*
 * Prints texts of models, which are not trusted: no control character reaches the terminal. One
 * thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_TEXT_H
#define EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_TEXT_H

#include <jansson.h>

#include "producer/cli/terminal.h"
#include "shared/base/error.h"

/* Prints "  LABEL  TEXT" with control characters as \xNN. A long text is cut and followed by its
 * length, except with --plain. NULL prints nothing. */
void evq_sample_text_print(const struct evq_terminal *terminal, const char *label,
                           const char *text);

/* Prints one item of a JSON list with a comma before it, unless it is the first. All characters
 * except ASCII are escaped. Releases the object. */
enum evq_status evq_sample_text_print_item(json_t *object, bool first,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

#endif
