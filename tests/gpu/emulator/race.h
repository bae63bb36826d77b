/*
 * Finds two accesses to one place in memory, one of them a write, that nothing puts in an order. On
 * a device these do: the order of a thread's own statements; __syncthreads() for the threads of a
 * block; the order of a stream's work, events between streams; the host's waiting. Nothing else
 * does: no shuffle, vote, product or ldmatrix of a warp, and nothing between two blocks of one
 * launch. That one happened to run before the other here does not count, so a race is found in
 * whatever order the emulator runs threads and streams.
 *
 * Sources that are built with -fsanitize=thread tell of each access by the calls which they make to
 * ThreadSanitizer, and which race_calls.cpp answers in its place. Of host memory only what copies
 * read and write is watched.
 */
#ifndef EVQ_TESTS_GPU_EMULATOR_RACE_H
#define EVQ_TESTS_GPU_EMULATOR_RACE_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda_runtime_api.h"

/* How much of each stream's work is done before something. */
typedef std::vector<uint32_t> race_clock;

struct CUstream_st {
    uint32_t number;
    race_clock known;
    int device;
};

struct CUevent_st {
    race_clock known;
};

enum { RACE_ANY_DEVICE = -1 };

struct race_work { // Given to a stream: a kernel, a copy, a product.
    uint32_t number;
    race_clock known;
    int device; // It reaches the memory of this one alone, or of RACE_ANY_DEVICE.
};

/* In which order things are done. */
cudaStream_t race_stream_new(int device); // NULL stands for another one, which is always there.
race_work race_give(cudaStream_t stream);
void race_record(cudaEvent_t event, cudaStream_t stream);
void race_stream_waits(cudaStream_t stream, cudaEvent_t event);
void race_host_waits(const race_clock &known);
void race_host_waits_for(cudaStream_t stream);
void race_host_waits_for_all(void);

int race_device(void); // Of the work that runs.

/* What runs now: a work (NULL: the host), a block of it, a thread of that (-1: none). */
void race_runs(const race_work *work);
void race_block_begins(unsigned int block);
void race_barrier(void);
uint32_t race_barriers(void); // Of this block so far.
extern int race_thread;

/* Which memory there is, and on which device. Shared memory is new to each block; an access that
 * goes on behind `bytes`, but begins before bytes + more, ends the program. */
void race_memory_begins(const void *data, size_t bytes, size_t more, int device);
void race_memory_ends(const void *data);
void race_shared(const void *data, size_t bytes, size_t more);

/* Host memory that a work reads or writes: from now on until the host has waited for it. */
void race_lend(const race_work &work, const void *data, size_t bytes, bool writes);

enum race_kind { RACE_READ, RACE_WRITE, RACE_COPY_BEGINS, RACE_COPY_ENDS };
enum { RACE_LANES = 0x7fff }; // In place of a thread: any lanes of its warp.

/* An access of the work that runs, or of the host. A write by cp.async comes at any time between
 * beginning and end. barriers: how many came before it, where that was earlier. code: whose it is,
 * for the report. */
void race_touch(const void *data, size_t bytes, race_kind kind, unsigned int thread,
                const void *code, uint32_t barriers = race_barriers());
void race_touch_host(const void *data, size_t bytes, bool writes, const void *code);

#endif
