#include "logger/series.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shared/arena.h"

/* Room for one more item; the new items pointer, or NULL when out of memory (the old one stays). */
static void *grown(void *items, size_t count, size_t *capacity, size_t item_bytes)
{
    size_t bytes;

    if (count < *capacity) {
        return items;
    }
    size_t wanted = *capacity == 0 ? 16 : *capacity * 2;
    if (!evq_size_mul(wanted, item_bytes, &bytes)) {
        return NULL;
    }
    void *moved = realloc(items, bytes);
    if (moved != NULL) {
        *capacity = wanted;
    }
    return moved;
}

/* The series of tag, made when it is missing; NULL when out of memory. */
static struct evq_series *series_of(struct evq_series_set *set, const char *tag)
{
    size_t low = 0;
    size_t high = set->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(set->series[middle].tag, tag);
        if (order == 0) {
            return &set->series[middle];
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    struct evq_series *moved = grown(set->series, set->count, &set->capacity, sizeof(*set->series));
    char *copy = strdup(tag);
    if (moved != NULL) {
        set->series = moved;
    }
    if (moved == NULL || copy == NULL) {
        free(copy);
        return NULL;
    }
    memmove(&set->series[low + 1], &set->series[low], (set->count - low) * sizeof(*set->series));
    set->series[low] = (struct evq_series){.tag = copy};
    set->count++;
    return &set->series[low];
}

/* Index of the first point whose step is not below step. */
static size_t first_from(const struct evq_series *series, int64_t step)
{
    size_t low = 0;
    size_t high = series->count;

    if (high > 0 && series->points[high - 1].step < step) {
        return high; // The common case.
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (series->points[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* *ret_at: where in its series the point is. */
static enum evq_status put(struct evq_series *series, const struct evq_point *point,
                           bool later_wins, enum evq_series_change *ret_change, size_t *ret_at,
                           struct evq_error *err)
{
    size_t at = first_from(series, point->step);
    *ret_at = at;
    if (at < series->count && series->points[at].step == point->step) {
        if (!later_wins && !(point->wall_seconds > series->points[at].wall_seconds)) {
            *ret_change = EVQ_SERIES_SAME;
            return EVQ_OK;
        }
        series->points[at] = *point;
        *ret_change = EVQ_SERIES_EARLIER;
        return EVQ_OK;
    }
    struct evq_point *moved =
        grown(series->points, series->count, &series->capacity, sizeof(*series->points));
    if (moved == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "series '%s'", series->tag);
    }
    series->points = moved;
    memmove(&moved[at + 1], &moved[at], (series->count - at) * sizeof(*moved));
    moved[at] = *point;
    series->count++;
    *ret_change = at + 1 == series->count ? EVQ_SERIES_LAST : EVQ_SERIES_EARLIER;
    return EVQ_OK;
}

enum evq_status evq_series_put(struct evq_series_set *set, const char *tag,
                               const struct evq_point *point, enum evq_series_change *ret_change,
                               struct evq_error *err)
{
    size_t at;
    struct evq_series *series = series_of(set, tag);

    if (series == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "series '%s'", tag);
    }
    const enum evq_status status = put(series, point, false, ret_change, &at, err);
    if (status == EVQ_OK && *ret_change != EVQ_SERIES_SAME && at < series->unwritten) {
        series->unwritten = at;
    }
    return status;
}

enum evq_status evq_series_load(struct evq_series_set *set, const char *tag,
                                const struct evq_point *point, enum evq_series_change *ret_change,
                                struct evq_error *err)
{
    size_t at;
    struct evq_series *series = series_of(set, tag);

    if (series == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "series '%s'", tag);
    }
    const enum evq_status status = put(series, point, true, ret_change, &at, err);
    if (status == EVQ_OK) {
        series->unwritten = at + 1;
    }
    return status;
}

void evq_series_free(struct evq_series_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        free(set->series[i].tag);
        free(set->series[i].points);
    }
    free(set->series);
    *set = (struct evq_series_set){0};
}
