#include "worker/tasks/task_options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/nearest.h"

/* Whether the key is known. A known "layers.#" matches the items of a list: "layers.0", "layers.1".
 */
static bool is_key(const char *key, const char *known)
{
    const size_t bytes = strlen(known);

    if (bytes < 2 || strcmp(known + bytes - 2, ".#") != 0) {
        return strcmp(key, known) == 0;
    }
    return strncmp(key, known, bytes - 1) == 0 && key[bytes - 1] != '\0' &&
           strspn(key + bytes - 1, "0123456789") == strlen(key + bytes - 1);
}

bool evq_task_options_item(const struct evq_pair *pairs, size_t count, const char *key,
                           size_t index, const char **ret_text, size_t *ret_bytes)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "%s.%zu", key, index);
    const char *text = evq_pair_get(pairs, count, name, NULL);
    if (text != NULL) {
        *ret_text = text;
        *ret_bytes = strlen(text);
        return true;
    }
    text = evq_pair_get(pairs, count, key, "");
    for (size_t at = 0;; at++) {
        text += strspn(text, ", ");
        const size_t bytes = strcspn(text, ", ");
        if (bytes == 0) {
            return false;
        }
        if (at == index) {
            *ret_text = text;
            *ret_bytes = bytes;
            return true;
        }
        text += bytes;
    }
}

enum evq_status evq_task_options_check(const struct evq_pair *pairs, size_t count,
                                       const char *const *known, const char *where,
                                       struct evq_error *err)
{
    size_t known_count = 0;

    while (known[known_count] != NULL) {
        known_count++;
    }
    for (size_t i = 0; i < count; i++) {
        bool found = false;
        for (size_t j = 0; j < known_count && !found; j++) {
            found = is_key(pairs[i].key, known[j]);
        }
        if (!found) {
            const char *near = evq_nearest_word(pairs[i].key, known, known_count);
            return evq_error_set(err, EVQ_E_INVALID, "%s: option '%s' is not known%s%s%s", where,
                                 pairs[i].key, near != NULL ? "; did you mean '" : "",
                                 near != NULL ? near : "", near != NULL ? "'?" : "");
        }
    }
    return EVQ_OK;
}

enum evq_status evq_task_options_number(const struct evq_pair *pairs, size_t count, const char *key,
                                        const char *where, double fallback, double *ret_value,
                                        struct evq_error *err)
{
    const char *text = evq_pair_get(pairs, count, key, NULL);
    char *end = NULL;

    if (text == NULL) {
        *ret_value = fallback;
        return EVQ_OK;
    }
    double value = strtod(text, &end);
    bool good = end != text;
    if (good && *end == '/') {
        const char *divisor = end + 1;
        value /= strtod(divisor, &end);
        good = end != divisor;
    }
    if (!good || *end != '\0' || !isfinite(value)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s: %s is '%s', expected a number such as 0.5 or 1/255", where, key,
                             text);
    }
    *ret_value = value;
    return EVQ_OK;
}

enum evq_status evq_task_options_integer(const struct evq_pair *pairs, size_t count,
                                         const char *key, const char *where, int64_t least,
                                         int64_t most, int64_t fallback, int64_t *ret_value,
                                         struct evq_error *err)
{
    const char *text = evq_pair_get(pairs, count, key, NULL);
    char *end = NULL;

    if (text == NULL) {
        *ret_value = fallback;
        return EVQ_OK;
    }
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < least || value > most) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s: %s is '%s', expected a whole number from %" PRId64 " to %" PRId64,
                             where, key, text, least, most);
    }
    *ret_value = value;
    return EVQ_OK;
}

enum evq_status evq_task_options_unknown(const char *what, const char *word,
                                         const char *const *known, size_t known_count,
                                         struct evq_error *err)
{
    char list[256] = "";
    size_t used = 0;

    for (size_t i = 0; i < known_count && used < sizeof(list); i++) {
        used +=
            (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "", known[i]);
    }
    return evq_error_set(err, EVQ_E_INVALID, "%s '%s' is not known; known: %s", what, word, list);
}
