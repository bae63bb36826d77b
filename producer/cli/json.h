/*
 * Reads the JSON views of the queue and prints JSON. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_JSON_H
#define EVQ_PRODUCER_CLI_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "producer/cli/cli.h"

/* Parses text as a JSON object and frees the text. EVQ_E_CORRUPT: it is no object. The caller calls
 * json_decref() on *ret. */
enum evq_status evq_json_take(char *text, json_t **ret, struct evq_error *err) EVQ_CHECK_RESULT;

/* Members of an object. If a member is missing or has another type, the fallback is returned.
 * Integers may be text, as in Redis hashes. */
const char *evq_json_text(const json_t *object, const char *key, const char *fallback);
int64_t evq_json_integer(const json_t *object, const char *key, int64_t fallback);
bool evq_json_true(const json_t *object, const char *key);

/* Sets a time in unix ms as ISO 8601 text. Does nothing if the time is not above 0. */
void evq_json_set_time(json_t *object, const char *key, int64_t unix_ms);

/* Prints the document on standard output and releases it. NULL: it could not be made for lack of
 * memory, which is the error. */
enum evq_status evq_json_print(json_t *document, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
