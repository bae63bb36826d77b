/*
 * A CUDA runtime, and what cuBLASLt asks of a driver besides, for a device that is not there: it
 * answers by the data sheet, gives memory of the host, and of a launch it keeps the kernel's name.
 */
#ifndef EVQ_TESTS_GPU_HEURISTICS_CUDA_H
#define EVQ_TESTS_GPU_HEURISTICS_CUDA_H

#include <stdbool.h>
#include <stddef.h>

/* The device to be: "H200", "H100", "A100", "L40S" or "A10". False: another one. */
bool standin_device(const char *name);

/* The kernels launched since the last call of standin_forget(), at most 8 are kept. */
void standin_forget(void);
size_t standin_launches(void);
const char *standin_launched(size_t number);

size_t standin_allocated(void);  // Bytes of the device, so far.
size_t standin_unanswered(void); // Calls that it has no answer for.

#endif
