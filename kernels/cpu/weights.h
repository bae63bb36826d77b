/*
 * The weights of a plan in the layout that its operations read fastest. A matrix is stored in
 * panels, [ceil(rows / panel)][columns][panel], so that a product reads it sequentially; in bf16 as
 * [..][ceil(columns / 2)][panel][2]. One thread fills it, then any number read it.
 */
#ifndef EVQ_KERNELS_CPU_WEIGHTS_H
#define EVQ_KERNELS_CPU_WEIGHTS_H

#include <stdbool.h>

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"

enum evq_weight_form {
    EVQ_WEIGHT_ROWS,        // fp32 as it comes, with room behind the last value.
    EVQ_WEIGHT_PANELS,      // fp32 for a matrix product, which may also be read as a table of rows.
    EVQ_WEIGHT_PANELS_BF16, // The same, rounded to bf16.
};

struct evq_weight {
    struct evq_block block;
    enum evq_weight_form form;
    int32_t rows, columns;
    int32_t rows_put; // Rows filled so far.
};

struct evq_weights {
    struct evq_weight *items; // One for each slot of the plan.
    size_t count;
    int32_t panel; // It must be set before the first prepare.
};

/* Allocates each slot of the plan. Slots of the same shape and layout keep their memory and values.
 * EVQ_E_NOMEM. */
enum evq_status evq_weights_prepare(struct evq_weights *weights, const struct evq_plan *plan,
                                    struct evq_memory *memory,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_weights_release(struct evq_weights *weights, struct evq_memory *memory);

/* Stores one blob that has passed evq_plan_blob_check(). */
void evq_weights_put(struct evq_weight *weight, int32_t panel, const struct evq_weight_blob *blob,
                     struct evq_pool *pool);

/* Writes all columns of one row in fp32. */
void evq_weights_row(const struct evq_weight *weight, int32_t panel, int32_t row, float *out);

#endif
