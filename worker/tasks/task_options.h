/*
 * Options of a task as the configuration gives them: text pairs, read strictly. `where` is for
 * messages: "model", "data", "task 'digits'".
 */
#ifndef EVQ_WORKER_TASKS_TASK_OPTIONS_H
#define EVQ_WORKER_TASKS_TASK_OPTIONS_H

#include "shared/config/config.h"

/* EVQ_E_INVALID names the first key that is not among known (NULL-terminated), and the nearest that
 * is. A known key "layers.#" accepts the items of a list: "layers.0", "layers.1". */
enum evq_status evq_task_options_check(const struct evq_pair *pairs, size_t count,
                                       const char *const *known, const char *where,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Item `index` of an option that is a list ("layers.0", "layers.1", ...) or a text with commas; not
 * NUL-terminated. False: the list ends before it, or the option is not there. */
bool evq_task_options_item(const struct evq_pair *pairs, size_t count, const char *key,
                           size_t index, const char **ret_text, size_t *ret_bytes);

/* A finite number, also as a fraction: "0.5", "1/255". Missing: fallback. */
enum evq_status evq_task_options_number(const struct evq_pair *pairs, size_t count, const char *key,
                                        const char *where, double fallback, double *ret_value,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* A whole number from least to most. Missing: fallback. */
enum evq_status evq_task_options_integer(const struct evq_pair *pairs, size_t count,
                                         const char *key, const char *where, int64_t least,
                                         int64_t most, int64_t fallback, int64_t *ret_value,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_INVALID: "WHAT 'word' is not known; known: a, b". */
enum evq_status evq_task_options_unknown(const char *what, const char *word,
                                         const char *const *known, size_t known_count,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#endif
