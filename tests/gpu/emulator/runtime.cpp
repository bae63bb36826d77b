/* The runtime's calls (include/cuda_runtime_api.h): memory of the host with a guard behind each
 * block, and one queue for all streams, emptied when something waits. What the streams leave open
 * is known to race.h. */
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>

#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/emulator.h"
#include "tests/gpu/emulator/race.h"

#define GUARD_BYTES 256
#define GUARD_VALUE 0xa5

namespace
{

struct work {
    race_work race;
    std::function<void()> run;
};

std::deque<work> queue;
std::map<unsigned char *, size_t> blocks;
size_t allocations, enqueued, copies;
size_t held_bytes;
size_t memory_bytes = (size_t)4 << 30;
size_t kernel_bytes;
cudaError_t last_error;

void check_guard(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        if (data[bytes + i] != GUARD_VALUE) {
            std::fprintf(stderr, "emulator: a write %zu bytes behind a block of %zu bytes\n", i,
                         bytes);
            std::abort();
        }
    }
}

void drain()
{
    while (!queue.empty()) {
        const work next = std::move(queue.front());
        queue.pop_front();
        race_runs(&next.race);
        next.run();
    }
    race_runs(nullptr);
    for (const auto &block : blocks) {
        check_guard(block.first, block.second);
    }
}

void enqueue(const race_work &race, std::function<void()> run)
{
    queue.push_back({race, std::move(run)});
    enqueued++;
}

} // namespace

void emulator_enqueue(cudaStream_t stream, std::function<void()> run)
{
    enqueue(race_give(stream), std::move(run));
}

void emulator_reach(const void *data, size_t bytes, bool writes)
{
    unsigned char *from = (unsigned char *)const_cast<void *>(data);
    auto block = blocks.upper_bound(from);

    if (block == blocks.begin() || bytes > (--block)->second ||
        from > block->first + (block->second - bytes)) {
        std::fprintf(stderr, "emulator: a library reaches %zu bytes that are not the device's\n",
                     bytes);
        std::abort();
    }
    // As by two threads: what it writes must not be what it reads.
    race_touch(data, bytes, writes ? RACE_WRITE : RACE_READ, writes, nullptr);
}

bool emulator_kernel_fits()
{
    return kernel_bytes == 0 || (held_bytes <= memory_bytes && // It may have shrunk.
                                 memory_bytes - held_bytes >= kernel_bytes);
}

extern "C" {

size_t emulator_allocations(void)
{
    return allocations;
}

size_t emulator_blocks_held(void)
{
    return blocks.size();
}

size_t emulator_enqueued(void)
{
    return enqueued;
}

size_t emulator_copies(void)
{
    return copies;
}

void emulator_memory(size_t bytes)
{
    memory_bytes = bytes;
}

void emulator_kernel(size_t bytes)
{
    kernel_bytes = bytes;
}

void emulator_fail(cudaError_t code)
{
    last_error = code;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? 9
             : attribute == cudaDevAttrComputeCapabilityMinor ? 0
                                                              : 2;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    (void)device;
    *properties = {};
    (void)std::snprintf(properties->name, sizeof(properties->name), "emulator");
    properties->totalGlobalMem = memory_bytes;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    *unused = memory_bytes - held_bytes;
    *total = memory_bytes;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "out of memory" : "emulated error";
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    if (bytes > memory_bytes - held_bytes) {
        last_error = cudaErrorMemoryAllocation;
        return last_error;
    }
    const size_t whole = (bytes + GUARD_BYTES + 255) / 256 * 256;
    unsigned char *block = (unsigned char *)std::aligned_alloc(256, whole);
    if (block == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    std::memset(block, 0xff, bytes);
    std::memset(block + bytes, GUARD_VALUE, GUARD_BYTES);
    blocks[block] = bytes;
    race_memory_begins(block, bytes, GUARD_BYTES);
    held_bytes += bytes;
    allocations++;
    *data = block;
    return cudaSuccess;
}

cudaError_t cudaFree(void *data)
{
    drain();
    race_host_waits_for_all();
    const auto found = blocks.find((unsigned char *)data);
    if (data == nullptr) {
        return cudaSuccess;
    }
    if (found == blocks.end()) {
        return cudaErrorInvalidValue;
    }
    held_bytes -= found->second;
    race_memory_ends(data);
    blocks.erase(found);
    std::free(data);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **data, size_t bytes)
{
    if (bytes > memory_bytes) { // The host's is as large as the device's.
        last_error = cudaErrorMemoryAllocation;
        return last_error;
    }
    *data = std::malloc(bytes);
    return *data != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaHostAlloc(void **data, size_t bytes, unsigned int flags)
{
    (void)flags;
    return cudaMallocHost(data, bytes);
}

cudaError_t cudaFreeHost(void *data)
{
    drain();
    std::free(data);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const race_work work = race_give(stream);
    const bool in = kind == cudaMemcpyHostToDevice;
    const void *code = __builtin_return_address(0);

    race_lend(work, in ? from : to, bytes, !in);
    copies++;
    enqueue(work, [=] {
        race_touch(in ? to : from, bytes, in ? RACE_WRITE : RACE_READ, 0, code);
        std::memcpy(to, from, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    (void)cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    drain();
    race_host_waits_for(nullptr);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *data, int value, size_t bytes, cudaStream_t stream)
{
    const void *code = __builtin_return_address(0);

    emulator_enqueue(stream, [=] {
        race_touch(data, bytes, RACE_WRITE, 0, code);
        std::memset(data, value, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    (void)flags;
    *stream = race_stream_new();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    delete stream; // What it was given goes on.
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    drain();
    race_host_waits_for(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    (void)flags;
    race_stream_waits(stream, event);
    return cudaSuccess; // One queue: what was given before is done before.
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    (void)flags;
    *event = new CUevent_st();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    race_record(event, stream);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    drain();
    race_host_waits(event->known);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    (void)event;
    return queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

} // extern "C"
