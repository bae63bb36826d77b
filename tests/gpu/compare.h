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
};

int compare_samples(const struct sides *sides); // Classifiers and regressions, row by row.
int compare_ops(const struct sides *sides);     // Each operation on tokens, to plain loops.
int compare_models(const struct sides *sides);  // Language models, to the CPU backend.

/* One line for people and one for the JSON file. worst: the largest difference found. */
void compare_tell(const char *group, int cases, int faults, int refused, double worst);

#endif
