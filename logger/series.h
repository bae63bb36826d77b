/*
 * The scalars of one run as TensorBoard shows them: per tag, points in ascending steps. One thread.
 */
#ifndef EVQ_LOGGER_SERIES_H
#define EVQ_LOGGER_SERIES_H

#include <stddef.h>
#include <stdint.h>

#include "shared/buffer.h"

struct evq_point {
    int64_t step;
    double wall_seconds; // When the result was published: the same for every redelivery.
    float value;
};

struct evq_series {
    char *tag;
    struct evq_point *points; // Ascending steps, one a step.
    size_t count;
    size_t capacity;
    size_t unwritten; // From this index on its points are still to be written; count: none.
};

struct evq_series_set {
    struct evq_series *series; // Ascending tags.
    size_t count;
    size_t capacity;
};

enum evq_series_change {
    EVQ_SERIES_SAME,   // The point was there, or a newer one of its step is.
    EVQ_SERIES_LAST,   // Appended after all others of its tag.
    EVQ_SERIES_EARLIER // Put before, or in the place of, others: those must be written again after
                       // it.
};

/* Adds point to tag's series; it and what comes after it are unwritten then. EVQ_E_NOMEM. */
enum evq_status evq_series_put(struct evq_series_set *set, const char *tag,
                               const struct evq_point *point, enum evq_series_change *ret_change,
                               struct evq_error *err) EVQ_CHECK_RESULT;
/* As put, but for points read back from files in file order: the later one of a step wins whatever
 * its time, and what comes after the last one read is what a reader dropped for it: unwritten. */
enum evq_status evq_series_load(struct evq_series_set *set, const char *tag,
                                const struct evq_point *point, enum evq_series_change *ret_change,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_series_free(struct evq_series_set *set); // Leaves it empty.

#endif
