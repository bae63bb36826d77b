/*
 * The scalars of one run as TensorBoard shows them: per tag, points in ascending steps. The newest
 * steps of each tag are in memory, 3 KiB at most; the others are in a scratch file, in parts of
 * which memory holds 16 bytes each. One thread.
 */
#ifndef EVQ_LOGGER_SERIES_H
#define EVQ_LOGGER_SERIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_SERIES_PART_POINTS 128

struct evq_point {
    int64_t step;
    double wall_seconds; // When the result was published: the same for every redelivery.
    float value;
};

struct evq_point_buffer_part { // Of the scratch file; half full at least.
    int64_t first_step;
    uint32_t place; // In units of EVQ_SERIES_PART_POINTS points.
    uint32_t count;
};

struct evq_point_buffer {
    char *tag;
    size_t count;                        // Of all points; one a step.
    struct evq_point_buffer_part *parts; // Ascending steps, all before those of the tail.
    size_t part_count;
    size_t part_room;
    struct evq_point *tail; // Never empty.
    size_t tail_count;
    size_t tail_room;
    int64_t written; // Points above this step are still to be written.
};

struct evq_point_buffer_set {        // Zero but for directory: empty.
    const char *directory;           // Of the scratch file. Borrowed.
    struct evq_point_buffer *series; // Ascending tags.
    size_t count;
    size_t room;
    int fd;          // The scratch file, when
    uint32_t places; // it has any.
    struct {         // The part of it that was wanted last.
        struct evq_point points[EVQ_SERIES_PART_POINTS];
        uint32_t place;
        bool loaded;
        bool changed;
    } latest;
};

enum evq_point_buffer_change {
    EVQ_SERIES_SAME,   // The point was there, or a newer one of its step is.
    EVQ_SERIES_LAST,   // Appended after all others of its tag.
    EVQ_SERIES_EARLIER // Put before, or in the place of, others: those must be written again after
                       // it.
};

/* Adds point to tag's series; it and what comes after it are to be written then. EVQ_E_NOMEM;
 * EVQ_E_IO, EVQ_E_LIMIT: the set is of no more use. */
enum evq_status evq_point_buffer_put(struct evq_point_buffer_set *set, const char *tag,
                                     const struct evq_point *point,
                                     enum evq_point_buffer_change *ret_change,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
/* As put, but for points read back from files in file order: the later one of a step wins whatever
 * its time, and what comes after the last one read is what a reader dropped for it: to be written.
 */
enum evq_status evq_point_buffer_load(struct evq_point_buffer_set *set, const char *tag,
                                      const struct evq_point *point,
                                      enum evq_point_buffer_change *ret_change,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

int64_t evq_point_buffer_last(const struct evq_point_buffer *series); // Its highest step.
/* The points of a series come in slices, numbered from 0; that of the first point above step. */
size_t evq_point_buffer_slice_above(const struct evq_point_buffer *series, int64_t step);
/* Slice number `slice`, valid until the next call on the set; *ret_count 0: there is none.
 * EVQ_E_IO, EVQ_E_CORRUPT: the set is of no more use. */
enum evq_status evq_point_buffer_slice(struct evq_point_buffer_set *set,
                                       const struct evq_point_buffer *series, size_t slice,
                                       const struct evq_point **ret_points, size_t *ret_count,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
void evq_point_buffer_free(
    struct evq_point_buffer_set *set); // Leaves it empty, its directory stays.

#endif
