/* What tests ask of the emulator beside what CUDA offers. */
#ifndef EVQ_TESTS_GPU_EMULATOR_CONTROL_H
#define EVQ_TESTS_GPU_EMULATOR_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EMULATOR_FORWARD, EMULATOR_BACKWARD, EMULATOR_RANDOM };

/* In which order the threads of a block run on where nothing else decides it: a result that
 * depends on it lacks a barrier. */
void emulator_order(int order, uint64_t seed);

/* Calls of cudaMalloc() so far that gave memory; blocks of it held now. */
size_t emulator_allocations(void);
size_t emulator_blocks_held(void);

/* What was given to streams so far: all of it, and how much of that was copies. A product of
 * cuBLASLt counts once, whatever the real one launches for it. */
size_t emulator_enqueued(void);
size_t emulator_copies(void);

/* The memory in bytes of each device, or of one; beyond it cudaMalloc() fails. */
void emulator_memory(size_t bytes);
void emulator_memory_of(int device, size_t bytes);

/* How many devices there are, at most 8; one at first. */
void emulator_devices(int count);

/* What was copied from one device to another so far: how often. */
size_t emulator_peer_copies(void);

/* What each product of cuBLAS and cuBLASLt finds free on the device, or it says that it failed, as
 * the real ones do where a kernel is loaded when it is first launched; 0 by default. */
void emulator_kernel(size_t bytes);

/* A race (race.h) ends the program, or is only counted. */
void emulator_count_races(bool wanted);
size_t emulator_races(void);

/* What cudaGetLastError() tells next. */
void emulator_fail(cudaError_t code);

#ifdef __cplusplus
}
#endif

#endif
