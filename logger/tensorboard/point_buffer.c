#include "logger/tensorboard/point_buffer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/arena.h"
#include "shared/base/file.h"

#define PART_POINTS EVQ_SERIES_PART_POINTS
#define PART_BYTES  (PART_POINTS * sizeof(struct evq_point))
#define NAME        "points of earlier steps"

/* Room for one more item; the new items pointer, or NULL when out of memory (the old one stays). */
static void *grown(void *items, size_t count, size_t *room, size_t item_bytes)
{
    size_t bytes;

    if (count < *room) {
        return items;
    }
    size_t wanted = *room == 0 ? 16 : *room * 2;
    if (!evq_size_mul(wanted, item_bytes, &bytes)) {
        return NULL;
    }
    void *moved = realloc(items, bytes);
    if (moved != NULL) {
        *room = wanted;
    }
    return moved;
}

/* ---- the scratch file ---- */

static enum evq_status latest_store(struct evq_point_buffer_set *set, struct evq_error *err)
{
    if (!set->latest.changed) {
        return EVQ_OK;
    }
    set->latest.changed = false;
    return evq_file_write_at(set->fd, set->latest.points, PART_BYTES,
                             (uint64_t)set->latest.place * PART_BYTES, NAME, err);
}

static enum evq_status latest_load(struct evq_point_buffer_set *set, uint32_t place,
                                   struct evq_error *err)
{
    if (set->latest.loaded && set->latest.place == place) {
        return EVQ_OK;
    }
    enum evq_status status = latest_store(set, err);
    set->latest.loaded = false;
    if (status == EVQ_OK) {
        status = evq_file_read_at(set->fd, set->latest.points, PART_BYTES,
                                  (uint64_t)place * PART_BYTES, NAME, err);
    }
    set->latest.loaded = status == EVQ_OK;
    set->latest.place = place;
    return status;
}

/* A new part of count points before series->parts[at]. */
static enum evq_status part_insert(struct evq_point_buffer_set *set,
                                   struct evq_point_buffer *series, size_t at,
                                   const struct evq_point *points, size_t count,
                                   struct evq_error *err)
{
    struct evq_point whole[PART_POINTS] = {0};
    enum evq_status status = EVQ_OK;

    struct evq_point_buffer_part *parts =
        grown(series->parts, series->part_count, &series->part_room, sizeof(*parts));
    if (parts == NULL || set->places == UINT32_MAX) {
        return evq_error_set(err, EVQ_E_NOMEM, "series '%s'", series->tag);
    }
    series->parts = parts;
    if (set->places == 0) {
        status = evq_file_unnamed(set->directory, &set->fd, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    const uint32_t place = set->places++;
    memcpy(whole, points, count * sizeof(*points));
    status = evq_file_write_at(set->fd, whole, PART_BYTES, (uint64_t)place * PART_BYTES, NAME, err);
    if (status == EVQ_OK) {
        memmove(&parts[at + 1], &parts[at], (series->part_count - at) * sizeof(*parts));
        parts[at] = (struct evq_point_buffer_part){points[0].step, place, (uint32_t)count};
        series->part_count++;
    }
    return status;
}

/* ---- putting ---- */

/* The series of tag, made when it is missing; NULL when out of memory. */
static struct evq_point_buffer *series_of(struct evq_point_buffer_set *set, const char *tag)
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
    struct evq_point_buffer *moved =
        grown(set->series, set->count, &set->room, sizeof(*set->series));
    char *copy = strdup(tag);
    if (moved != NULL) {
        set->series = moved;
    }
    if (moved == NULL || copy == NULL) {
        free(copy);
        return NULL;
    }
    memmove(&set->series[low + 1], &set->series[low], (set->count - low) * sizeof(*set->series));
    set->series[low] = (struct evq_point_buffer){.tag = copy, .written = INT64_MIN};
    set->count++;
    return &set->series[low];
}

/* Index of the first point whose step is not below step. */
static size_t first_from(const struct evq_point *points, size_t count, int64_t step)
{
    size_t low = 0;
    size_t high = count;

    if (high > 0 && points[high - 1].step < step) {
        return high; // The common case.
    }
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (points[middle].step < step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Puts point among those of its part, which have room; true: in the place of none. */
static bool point_place(struct evq_point *points, size_t count, const struct evq_point *point,
                        bool later_wins, enum evq_point_buffer_change *ret_change)
{
    const size_t at = first_from(points, count, point->step);
    const bool found = at < count && points[at].step == point->step;

    if (found && !later_wins && !(point->wall_seconds > points[at].wall_seconds)) {
        *ret_change = EVQ_SERIES_SAME;
        return false;
    }
    *ret_change = found || at < count ? EVQ_SERIES_EARLIER : EVQ_SERIES_LAST;
    if (!found) {
        memmove(&points[at + 1], &points[at], (count - at) * sizeof(*points));
    }
    points[at] = *point;
    return !found;
}

/* Makes room for step in the full tail: what goes to the file is all of it, or its first half. */
static enum evq_status tail_spill(struct evq_point_buffer_set *set, struct evq_point_buffer *series,
                                  int64_t step, struct evq_error *err)
{
    const bool appended = evq_point_buffer_last(series) < step;
    const size_t count = appended ? series->tail_count : series->tail_count / 2;
    const enum evq_status status =
        part_insert(set, series, series->part_count, series->tail, count, err);

    if (status == EVQ_OK) {
        series->tail_count -= count;
        memmove(series->tail, series->tail + count, series->tail_count * sizeof(*series->tail));
    }
    return status;
}

static enum evq_status tail_put(struct evq_point_buffer *series, const struct evq_point *point,
                                bool later_wins, enum evq_point_buffer_change *ret_change,
                                struct evq_error *err)
{
    struct evq_point *tail =
        grown(series->tail, series->tail_count, &series->tail_room, sizeof(*tail));

    if (tail == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "series '%s'", series->tag);
    }
    series->tail = tail;
    if (point_place(tail, series->tail_count, point, later_wins, ret_change)) {
        series->tail_count++;
        series->count++;
    }
    return EVQ_OK;
}

/* The part that step belongs to: the last that does not begin above it, else the first. */
static size_t part_of(const struct evq_point_buffer *series, int64_t step)
{
    size_t low = 0;
    size_t high = series->part_count;

    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (series->parts[middle].first_step <= step) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Puts a point that lies before the tail. */
static enum evq_status part_put(struct evq_point_buffer_set *set, struct evq_point_buffer *series,
                                const struct evq_point *point, bool later_wins,
                                enum evq_point_buffer_change *ret_change, struct evq_error *err)
{
    size_t at = part_of(series, point->step);
    enum evq_status status = latest_load(set, series->parts[at].place, err);

    if (status == EVQ_OK && series->parts[at].count == PART_POINTS) {
        const size_t half = PART_POINTS / 2;
        status = part_insert(set, series, at + 1, set->latest.points + half, half, err);
        if (status == EVQ_OK) {
            series->parts[at].count = (uint32_t)half;
            at = part_of(series, point->step);
            status = latest_load(set, series->parts[at].place, err);
        }
    }
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_point_buffer_part *part = &series->parts[at];
    if (point_place(set->latest.points, part->count, point, later_wins, ret_change)) {
        part->count++;
        series->count++;
    }
    part->first_step = set->latest.points[0].step;
    set->latest.changed = set->latest.changed || *ret_change != EVQ_SERIES_SAME;
    *ret_change = *ret_change == EVQ_SERIES_SAME ? EVQ_SERIES_SAME : EVQ_SERIES_EARLIER;
    return EVQ_OK;
}

static enum evq_status put(struct evq_point_buffer_set *set, const char *tag,
                           const struct evq_point *point, bool later_wins,
                           enum evq_point_buffer_change *ret_change,
                           struct evq_point_buffer **ret_series, struct evq_error *err)
{
    struct evq_point_buffer *series = series_of(set, tag);
    enum evq_status status = EVQ_OK;

    if (series == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "series '%s'", tag);
    }
    *ret_series = series;
    if (series->part_count > 0 && point->step < series->tail[0].step) {
        return part_put(set, series, point, later_wins, ret_change, err);
    }
    if (series->tail_count == PART_POINTS) {
        status = tail_spill(set, series, point->step, err);
        if (status == EVQ_OK && series->tail_count > 0 && point->step < series->tail[0].step) {
            return part_put(set, series, point, later_wins, ret_change, err);
        }
    }
    return status == EVQ_OK ? tail_put(series, point, later_wins, ret_change, err) : status;
}

enum evq_status evq_point_buffer_put(struct evq_point_buffer_set *set, const char *tag,
                                     const struct evq_point *point,
                                     enum evq_point_buffer_change *ret_change,
                                     struct evq_error *err)
{
    struct evq_point_buffer *series = NULL;
    const enum evq_status status = put(set, tag, point, false, ret_change, &series, err);

    if (status == EVQ_OK && *ret_change != EVQ_SERIES_SAME && point->step <= series->written) {
        series->written = point->step > INT64_MIN ? point->step - 1 : INT64_MIN;
    }
    return status;
}

enum evq_status evq_point_buffer_load(struct evq_point_buffer_set *set, const char *tag,
                                      const struct evq_point *point,
                                      enum evq_point_buffer_change *ret_change,
                                      struct evq_error *err)
{
    struct evq_point_buffer *series = NULL;
    const enum evq_status status = put(set, tag, point, true, ret_change, &series, err);

    if (status == EVQ_OK) {
        series->written = point->step;
    }
    return status;
}

/* ---- reading ---- */

int64_t evq_point_buffer_last(const struct evq_point_buffer *series)
{
    return series->tail_count > 0 ? series->tail[series->tail_count - 1].step : INT64_MIN;
}

size_t evq_point_buffer_slice_above(const struct evq_point_buffer *series, int64_t step)
{
    const bool in_tail = series->part_count == 0 || series->tail[0].step <= step;

    return in_tail ? series->part_count : part_of(series, step);
}

enum evq_status evq_point_buffer_slice(struct evq_point_buffer_set *set,
                                       const struct evq_point_buffer *series, size_t slice,
                                       const struct evq_point **ret_points, size_t *ret_count,
                                       struct evq_error *err)
{
    if (slice >= series->part_count) {
        *ret_points = series->tail;
        *ret_count = slice == series->part_count ? series->tail_count : 0;
        return EVQ_OK;
    }
    const enum evq_status status = latest_load(set, series->parts[slice].place, err);
    if (status == EVQ_OK) {
        *ret_points = set->latest.points;
        *ret_count = series->parts[slice].count;
    }
    return status;
}

void evq_point_buffer_free(struct evq_point_buffer_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        free(set->series[i].tag);
        free(set->series[i].parts);
        free(set->series[i].tail);
    }
    free(set->series);
    if (set->places > 0) {
        (void)close(set->fd); // Nothing in it is of use to anybody else.
    }
    *set = (struct evq_point_buffer_set){.directory = set->directory};
}
