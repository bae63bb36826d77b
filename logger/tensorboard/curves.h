/*
 * The curves of an event file in the writer's memory: the last step of each, and late points that
 * are not in the file yet. One thread.
 */
#ifndef EVQ_LOGGER_TENSORBOARD_CURVES_H
#define EVQ_LOGGER_TENSORBOARD_CURVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_point {
    int64_t step;
    double wall_seconds; // When the result was published: equal for every redelivery.
    float value;
};

struct evq_curve {
    char *tag;
    bool has_points;
    int64_t last_step;      // The highest step of all points but the late ones.
    struct evq_point *late; // Points at or below last_step.
    size_t late_count;
    size_t late_capacity;
    size_t late_next; // The first late point that a merge has not passed.
};

struct evq_curves {          // Zero: empty.
    struct evq_curve *items; // Ascending tags.
    size_t count;
    size_t capacity;
    size_t late_count; // Late points of all curves.
};

/* The curve of the tag, or NULL. Valid until a curve is added. */
struct evq_curve *evq_curves_find(const struct evq_curves *curves, const char *tag);
/* The same, but adds the curve if it is missing. NULL: no memory. */
struct evq_curve *evq_curves_get(struct evq_curves *curves, const char *tag);
/* Adds a late point. EVQ_E_NOMEM. */
enum evq_status evq_curves_put_late(struct evq_curves *curves, struct evq_curve *curve,
                                    const struct evq_point *point,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Sorts the late points of each curve by step, and those of one step newest first. */
void evq_curves_sort_late(struct evq_curves *curves);
void evq_curves_drop_late(struct evq_curves *curves); // Frees the late points.
void evq_curves_free(struct evq_curves *curves);      // Leaves it empty.

#endif
