/*
 * Checks of plans and batches that every backend makes before it trusts them. Any thread.
 */
#ifndef EVQ_KERNELS_PLAN_H
#define EVQ_KERNELS_PLAN_H

#include "kernels/backend.h"

/* Checks that every number is in range, that every shape fits its slots and buffers, and that no
 * size overflows. EVQ_E_BUG otherwise. */
enum evq_status evq_plan_check(const struct evq_plan *plan, struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks that the rows are within the plan, that the arrays that its heads read are given
 * (EVQ_E_BUG), and that labels are in range (EVQ_E_INVALID). */
enum evq_status evq_plan_batch_check(const struct evq_plan *plan, const struct evq_batch *batch,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks that the slot is in the plan (if plan is not NULL), that the blob has a known type, and
 * that it continues after the first rows_put rows or starts again at row 0. Otherwise EVQ_E_BUG. */
enum evq_status evq_plan_blob_check(const struct evq_plan *plan, int32_t slot,
                                    const struct evq_weight_blob *blob, int32_t rows_put,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Floating-point operations of a batch: matrix products, attention as far as it looks, and the
 * logits of each row that is scored, once. */
/* How many results exec() fills for the batch: one for each row, or for each score. */
int32_t evq_plan_results(const struct evq_plan *plan, const struct evq_batch *batch);

uint64_t evq_plan_flops(const struct evq_plan *plan, const struct evq_batch *batch);

#endif
