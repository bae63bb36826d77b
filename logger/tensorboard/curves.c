#include "logger/tensorboard/curves.h"

#include <stdlib.h>
#include <string.h>

/* Index of the tag's curve, or of the place where it belongs. */
static size_t index_of(const struct evq_curves *curves, const char *tag, bool *ret_found)
{
    size_t low = 0;
    size_t high = curves->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(curves->items[middle].tag, tag);
        if (order == 0) {
            *ret_found = true;
            return middle;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *ret_found = false;
    return low;
}

struct evq_curve *evq_curves_find(const struct evq_curves *curves, const char *tag)
{
    bool found;
    const size_t at = index_of(curves, tag, &found);

    return found ? &curves->items[at] : NULL;
}

struct evq_curve *evq_curves_get(struct evq_curves *curves, const char *tag)
{
    bool found;
    const size_t at = index_of(curves, tag, &found);

    if (found) {
        return &curves->items[at];
    }
    if (curves->count == curves->capacity) {
        const size_t capacity = curves->capacity == 0 ? 16 : 2 * curves->capacity;
        struct evq_curve *grown = realloc(curves->items, capacity * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        curves->items = grown;
        curves->capacity = capacity;
    }
    char *copy = strdup(tag);
    if (copy == NULL) {
        return NULL;
    }
    struct evq_curve *place = &curves->items[at];
    memmove(place + 1, place, (curves->count - at) * sizeof(*place));
    *place = (struct evq_curve){.tag = copy};
    curves->count++;
    return place;
}

enum evq_status evq_curves_put_late(struct evq_curves *curves, struct evq_curve *curve,
                                    const struct evq_point *point, struct evq_error *err)
{
    if (curve->late_count == curve->late_capacity) {
        const size_t capacity = curve->late_capacity == 0 ? 16 : 2 * curve->late_capacity;
        struct evq_point *grown = realloc(curve->late, capacity * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "a late point of '%s'", curve->tag);
        }
        curve->late = grown;
        curve->late_capacity = capacity;
    }
    curve->late[curve->late_count] = *point;
    curve->late_count++;
    curves->late_count++;
    return EVQ_OK;
}

static int by_step_newest_first(const void *a, const void *b)
{
    const struct evq_point *left = a;
    const struct evq_point *right = b;

    if (left->step != right->step) {
        return left->step < right->step ? -1 : 1;
    }
    return (left->wall_seconds < right->wall_seconds) - (left->wall_seconds > right->wall_seconds);
}

void evq_curves_sort_late(struct evq_curves *curves)
{
    for (size_t i = 0; i < curves->count; i++) {
        struct evq_curve *curve = &curves->items[i];
        if (curve->late_count > 0) {
            qsort(curve->late, curve->late_count, sizeof(*curve->late), by_step_newest_first);
        }
        curve->late_next = 0;
    }
}

void evq_curves_drop_late(struct evq_curves *curves)
{
    for (size_t i = 0; i < curves->count && curves->late_count > 0; i++) {
        struct evq_curve *curve = &curves->items[i];
        free(curve->late);
        curve->late = NULL;
        curve->late_count = 0;
        curve->late_capacity = 0;
    }
    curves->late_count = 0;
}

void evq_curves_free(struct evq_curves *curves)
{
    evq_curves_drop_late(curves);
    for (size_t i = 0; i < curves->count; i++) {
        free(curves->items[i].tag);
    }
    free(curves->items);
    *curves = (struct evq_curves){.count = 0};
}
