/*
 * Compares names as people count: "layer.2" comes before "layer.10". Any thread.
 */
#ifndef EVQ_WORKER_MODELS_NATURAL_ORDER_H
#define EVQ_WORKER_MODELS_NATURAL_ORDER_H

#include <stdbool.h>
#include <stddef.h>

/* Below, equal to or above zero, like strcmp(). Names that differ only in leading zeros are equal.
 */
int evq_natural_order_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* Whether a number decides the order of two names. True for "fc2" and "fc10", and for "0.weight"
 * and "2.weight"; false for "in" and "out", and for "fc" and "fc2". */
bool evq_natural_order_counts(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

#endif
