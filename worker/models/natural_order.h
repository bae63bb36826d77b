/*
 * Names in the order people count in: "layer.2" before "layer.10". Any thread.
 */
#ifndef EVQ_WORKER_MODELS_NATURAL_ORDER_H
#define EVQ_WORKER_MODELS_NATURAL_ORDER_H

#include <stdbool.h>
#include <stddef.h>

/* Below, equal to or above zero, as strcmp(). Names that differ in leading zeros alone are equal.
 */
int evq_natural_order_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* Whether a number tells the order of two names: "fc2" and "fc10", "0.weight" and "2.weight"; not
 * "in" and "out", nor "fc" and "fc2". */
bool evq_natural_order_counts(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

#endif
