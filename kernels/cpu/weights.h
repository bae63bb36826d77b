/*
 * The weights of a plan in the form that its operations read best. A matrix lies in panels:
 * [ceil(rows / panel)][columns][panel], so that a product reads it straight through; in bf16
 * [..][ceil(columns / 2)][panel][2]. Filled by one thread, then read by any number.
 */
#ifndef EVQ_KERNELS_CPU_WEIGHTS_H
#define EVQ_KERNELS_CPU_WEIGHTS_H

#include <stdbool.h>

#include "kernels/backend.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/pool.h"

enum evq_weight_form {
    EVQ_WEIGHT_ROWS,        // fp32 as it stands, with room after the last value.
    EVQ_WEIGHT_PANELS,      // fp32; read by a matrix product, and perhaps as a table of rows too.
    EVQ_WEIGHT_PANELS_BF16, // The same, rounded to bf16.
};

struct evq_weight {
    struct evq_block block;
    enum evq_weight_form form;
    int32_t rows, columns;
    int32_t rows_put; // Filled so far.
};

struct evq_weights {
    struct evq_weight *items; // One per slot of the plan.
    size_t count;
    int32_t panel; // Set before the first prepare.
};

/* Memory for each slot of the plan; those of the same shape and form keep theirs, with its values.
 * EVQ_E_NOMEM. */
enum evq_status evq_weights_prepare(struct evq_weights *weights, const struct evq_plan *plan,
                                    struct evq_memory *memory,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_weights_release(struct evq_weights *weights, struct evq_memory *memory);

/* One blob that evq_plan_part_check() found good. */
void evq_weights_put(struct evq_weight *weight, int32_t panel, const struct evq_weight_blob *blob,
                     struct evq_pool *pool);

/* Writes one row, all columns, in fp32. */
void evq_weights_row(const struct evq_weight *weight, int32_t panel, int32_t row, float *out);

#endif
