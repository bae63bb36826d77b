/*
 * Reads the options of a task, which are pairs of text, and refuses what it does not know. `where`
 * is used in messages: "model", "data", "task 'digits'". Any thread.
 */
#ifndef EVQ_WORKER_TASKS_TASK_OPTIONS_H
#define EVQ_WORKER_TASKS_TASK_OPTIONS_H

#include "shared/config/config.h"

/* EVQ_E_INVALID names the first key that is not in known (NULL-terminated), and the most similar
 * known one. A known key "layers.#" matches the items of a list: "layers.0", "layers.1". */
enum evq_status evq_task_options_check(const struct evq_pair *pairs, size_t count,
                                       const char *const *known, const char *where,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Item `index` of an option that is a list ("layers.0", "layers.1", ...) or a text with commas; not
 * NUL-terminated. False: the list is shorter, or the option is missing. */
bool evq_task_options_item(const struct evq_pair *pairs, size_t count, const char *key,
                           size_t index, const char **ret_text, size_t *ret_bytes);

/* A finite number or a fraction: "0.5", "1/255". Missing: fallback. */
enum evq_status evq_task_options_number(const struct evq_pair *pairs, size_t count, const char *key,
                                        const char *where, double fallback, double *ret_value,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* An integer from least to most. Missing: fallback. */
enum evq_status evq_task_options_integer(const struct evq_pair *pairs, size_t count,
                                         const char *key, const char *where, int64_t least,
                                         int64_t most, int64_t fallback, int64_t *ret_value,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes the error EVQ_E_INVALID: "WHAT 'word' is not known; known: a, b". */
enum evq_status evq_task_options_unknown(const char *what, const char *word,
                                         const char *const *known, size_t known_count,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#endif
