/*
 * Lines of a file in memory, and JSON objects with one per line. Any thread; each reader belongs to
 * one caller.
 */
#ifndef EVQ_WORKER_DATASETS_JSONL_H
#define EVQ_WORKER_DATASETS_JSONL_H

#include <stdbool.h>

#include <jansson.h>

#include "shared/base/buffer.h"

// A parsed line may need 64 times as much memory.
#define EVQ_JSONL_LINE_BYTES_MAX ((size_t)8 << 20)

struct evq_jsonl {
    const char *name; // Name of the file, for messages.
    const char *at, *end;
    int64_t number; // Number of the line that was read last, from 1.
};

/* Reads the next line without its newline and carriage return; false at the end. */
bool evq_jsonl_line(struct evq_jsonl *lines, const char **ret_line, size_t *ret_bytes);

/*
 * Reads the object of the next line that is not blank. *ret_object NULL: the end; otherwise the
 * caller decrefs it. Integers that do not fit into 64 bits become null. EVQ_E_CORRUPT names line
 * and column. EVQ_E_INVALID: the line is not an object. EVQ_E_LIMIT.
 */
enum evq_status evq_jsonl_next(struct evq_jsonl *lines, json_t **ret_object,
                               struct evq_error *err) EVQ_CHECK_RESULT;

#endif
