/*
 * Pseudo-random numbers (xorshift64*). The caller keeps the state, which must not be 0.
 */
#ifndef EXAMPLE_RANDOM_H
#define EXAMPLE_RANDOM_H

#include <stdint.h>

/* Returns a number that is uniform in [0, 1), and advances the state. */
double random_uniform(uint64_t *state);

/* Returns a number of the normal distribution with mean 0 and variance 1. */
float random_normal(uint64_t *state);

#endif
