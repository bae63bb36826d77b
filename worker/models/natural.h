/*
 * Names in the order people count in: "layer.2" before "layer.10". Any thread.
 */
#ifndef EVQ_WORKER_NATURAL_H
#define EVQ_WORKER_NATURAL_H

#include <stdbool.h>
#include <stddef.h>

/* Below, equal to or above zero, as strcmp(). Names that differ in leading zeros alone are equal.
 */
int evq_natural_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* Whether numbers tell the order of two names, or one is the beginning of the other; else it is the
 * alphabet alone. */
bool evq_natural_counts(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/* Whether both hold the same numbers in the same order: "fc.2" and "bn2" do. */
bool evq_natural_same_numbers(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

#endif
