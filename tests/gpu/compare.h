/*
 * Parts of `compare`: each holds the device to the CPU backend or to plain loops in double, prints
 * a line for each group of cases, and returns how many of them failed.
 */
#ifndef EVQ_TESTS_GPU_COMPARE_H
#define EVQ_TESTS_GPU_COMPARE_H

#include <stdio.h>

#include "tests/gpu/lm_plan.h"

struct side { // One backend with its state.
    const struct evq_backend_ops *ops;
    void *state;
};

struct sides {
    struct side cpu, device;
    uint64_t seed;
    bool small;       // The smaller cases alone: for tools that slow kernels down a hundredfold.
    int32_t repeats;  // Of the models' batches: bf16's mean is only as good as its losses are many.
    const char *dump; // A directory where models and their results are written; NULL: none.
    const char *part; // Of the groups below, this one alone; NULL: all.
    int32_t devices[8]; // For "parts"; the same one may be named again.
    int32_t device_count;
};

int compare_samples(const struct sides *sides); // "samples": classifiers, regressions, by row.
int compare_ops(const struct sides *sides);     // "products" to "gates": each operation on tokens,
                                                // to plain loops.
int compare_models(const struct sides *sides);  // "models": of language, to the CPU backend.
int compare_parts(const struct sides *sides);   // "parts": models split over devices, to one.

/* ---- compare_where.c ---- */

/* One line for people and one for the JSON file. worst: the largest difference found. */
void compare_tell(const char *group, int cases, int faults, int refused, double worst);

/* How far a row's n values are from their targets: the root of their mean square, which few wrong
 * ones among many raise more than a mean. results: of SQUARED_ERROR. */
double compare_row(const struct evq_row_result *result, int32_t n);

/* The larger of two differences; a NaN is larger than any. */
double compare_worse(double a, double b);

/* Whether a fault sticks to the process, so that nothing can be computed there any more; says so.
 */
bool compare_lost(const struct side *side);

/* How many losses are wrong, and the first of them. */
void compare_losses(const struct evq_row_result *cpu, const struct evq_row_result *device,
                    int32_t count, double tolerance);

/* Which rows are wrong and, of the first of them, which columns, by running the plan again with its
 * squared errors of one column more each time. results: what side gave. */
void compare_where(const struct side *side, const struct evq_plan *plan,
                   const struct evq_batch *batch, const struct evq_row_result *results,
                   double tolerance);

#endif
