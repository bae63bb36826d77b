/* Small programs of kernels, copies and the host, each with and without what puts its accesses in
 * an order: what race.h must find, and what it must not. */
#ifndef EVQ_TESTS_GPU_EMULATOR_RACE_SAMPLES_H
#define EVQ_TESTS_GPU_EMULATOR_RACE_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct race_sample {
    const char *name;
    void (*run)(bool ordered);
    bool always; // Nothing does: it races in both cases.
};

extern const struct race_sample race_samples[];
extern const size_t race_samples_count;

/* Reads behind a block of global memory, or of shared: that ends the program. */
void race_sample_beyond(bool is_shared);

#ifdef __cplusplus
}
#endif

#endif
