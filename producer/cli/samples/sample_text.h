/*
 * Prints texts of models, which are not trusted: no control character reaches the terminal. One
 * thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_TEXT_H
#define EVQ_PRODUCER_CLI_SAMPLES_SAMPLE_TEXT_H

#include <jansson.h>

#include "producer/cli/terminal.h"
#include "shared/base/error.h"

/* Prints "  LABEL  TEXT" with control characters as \xNN. A long text is cut, and how long it is
 * follows; with --plain it is not. NULL prints nothing. */
void evq_sample_text_print(const struct evq_terminal *terminal, const char *label,
                           const char *text);

/* Prints one object of a list that is printed piece by piece, all but ASCII escaped, and releases
 * it. */
enum evq_status evq_sample_text_json(json_t *object, bool first,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
