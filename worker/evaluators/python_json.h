/*
 * Reads JSON of other programs with jansson. Python's json module also prints NaN, Infinity and
 * -Infinity, which are not JSON; they are read as the texts "NaN", "Infinity" and "-Infinity".
 * Integers are read as reals. Any thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_PYTHON_JSON_H
#define EVQ_WORKER_EVALUATORS_PYTHON_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "shared/base/error.h"

/* Reads one object. The caller decrefs *ret_json. where is used in messages. EVQ_E_CORRUPT,
 * EVQ_E_NOMEM. */
enum evq_status evq_python_json_object(const char *text, size_t bytes, const char *where,
                                       json_t **ret_json, struct evq_error *err) EVQ_CHECK_RESULT;

/* The same from a regular file below dir_fd (not a symbolic link) of at most bytes_max bytes.
 * EVQ_E_NOT_FOUND. */
enum evq_status evq_python_json_file(int dir_fd, const char *name, size_t bytes_max,
                                     json_t **ret_json, struct evq_error *err) EVQ_CHECK_RESULT;

/* The value of a number, or of one of the three texts. False: json is neither. */
bool evq_python_json_number(const json_t *json, double *ret_value);

#endif
