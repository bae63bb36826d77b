/*
 * Reads config.json as a flat list of names and values: {"a": {"b": [1, "x"]}} gives a.b.0 and
 * a.b.1. Accepts NaN and Infinity, as Python writes them. Levels below the fourth are skipped.
 */
#ifndef EVQ_WORKER_MODELS_CONFIG_JSON_H
#define EVQ_WORKER_MODELS_CONFIG_JSON_H

#include "shared/base/arena.h"

enum evq_model_value_kind {
    EVQ_MODEL_VALUE_WORD, // A value from the options; its reader decides what it is.
    EVQ_MODEL_VALUE_NUMBER,
    EVQ_MODEL_VALUE_TEXT,
    EVQ_MODEL_VALUE_FLAG, // "true" or "false".
    EVQ_MODEL_VALUE_NULL,
    EVQ_MODEL_VALUE_GROUP // "{...}" or "[...]"; its members follow under their own names.
};

struct evq_model_value {
    const char *name;
    enum evq_model_value_kind kind;
    const char *text;
};

/* text, which has `bytes` bytes, is changed. Names and values are copied into arena. A name that
 * comes twice is in the list twice, and its last value counts. EVQ_E_CORRUPT names the byte.
 * EVQ_E_LIMIT: there are more than 100,000 values. */
enum evq_status evq_model_config_json(struct evq_arena *arena, char *text, size_t bytes,
                                      struct evq_model_value **ret_values, size_t *ret_count,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

#endif
