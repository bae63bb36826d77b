/*
 * Lines of a file in memory, and JSON objects one a line. Any thread; a reader belongs to its
 * caller.
 */
#ifndef EVQ_WORKER_JSONL_H
#define EVQ_WORKER_JSONL_H

#include <stdbool.h>

#include <jansson.h>

#include "shared/base/buffer.h"

#define EVQ_JSONL_LINE_BYTES_MAX ((size_t)8 << 20) // Parsed, such a line may take 64 times as much.

struct evq_line_pipe {
    const char *name; // Of the file, for messages.
    const char *at, *end;
    int64_t number; // Of the line read last, from 1.
};

/* The next line without its newline (and carriage return); false at the end. */
bool evq_line_pipe_next(struct evq_line_pipe *lines, const char **ret_line, size_t *ret_bytes);

/*
 * The object of the next line that is not blank; *ret_object NULL at the end, else the caller's.
 * Integers that no 64 bits hold are null in it.
 * EVQ_E_CORRUPT names line and column; EVQ_E_INVALID: no object; EVQ_E_LIMIT.
 */
enum evq_status evq_jsonl_next(struct evq_line_pipe *lines, json_t **ret_object,
                               struct evq_error *err) EVQ_CHECK_RESULT;

#endif
