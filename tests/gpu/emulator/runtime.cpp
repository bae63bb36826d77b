/* The runtime's calls (include/cuda_runtime_api.h): memory of the host with a guard behind each
 * block, and one queue for all streams, emptied when something waits. What the streams leave open
 * is known to race.h. */
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

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

struct block {
    size_t bytes;
    int device;
};

enum { DEVICES_MAX = 8 };

std::deque<work> queue;
std::map<unsigned char *, block> blocks;
size_t allocations, enqueued, copies, peer_copies;
std::vector<size_t> held_bytes(DEVICES_MAX);
std::vector<size_t> memory_bytes(DEVICES_MAX, (size_t)4 << 30);
int devices = 1;
int chosen;
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
    for (const auto &at : blocks) {
        check_guard(at.first, at.second.bytes);
    }
}

void enqueue(const race_work &race, std::function<void()> run)
{
    queue.push_back({race, std::move(run)});
    enqueued++;
}

/* Ends the program if so many bytes do not lie in one block of this device. */
void check_block(const void *data, size_t bytes, int device, const char *what)
{
    unsigned char *from = (unsigned char *)const_cast<void *>(data);
    auto at = blocks.upper_bound(from);

    if (at == blocks.begin() || (--at)->second.device != device || bytes > at->second.bytes ||
        from > at->first + (at->second.bytes - bytes)) {
        std::fprintf(stderr, "emulator: %s %zu bytes that are not those of device %d\n", what,
                     bytes, device);
        std::abort();
    }
}

} // namespace

int emulator_device()
{
    return chosen;
}

void emulator_enqueue(cudaStream_t stream, std::function<void()> run)
{
    if (stream != nullptr && stream->device != chosen) {
        std::fprintf(stderr, "emulator: device %d was chosen, and work is given to device %d\n",
                     chosen, stream->device);
        std::abort();
    }
    enqueue(race_give(stream), std::move(run));
}

void emulator_reach(const void *data, size_t bytes, bool writes)
{
    check_block(data, bytes, race_device(), "a library reaches");
    // As by two threads: what it writes must not be what it reads.
    race_touch(data, bytes, writes ? RACE_WRITE : RACE_READ, writes, nullptr);
}

bool emulator_kernel_fits()
{
    const size_t held = held_bytes[chosen];
    const size_t room = memory_bytes[chosen];

    return kernel_bytes == 0 || (held <= room && // It may have shrunk.
                                 room - held >= kernel_bytes);
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
    for (size_t &each : memory_bytes) {
        each = bytes;
    }
}

void emulator_memory_of(int device, size_t bytes)
{
    memory_bytes[device] = bytes;
}

void emulator_devices(int count)
{
    devices = count;
}

size_t emulator_peer_copies(void)
{
    return peer_copies;
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
    *count = devices;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= devices) {
        last_error = cudaErrorInvalidValue;
        return last_error;
    }
    chosen = device;
    return cudaSuccess;
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
    *properties = {};
    (void)std::snprintf(properties->name, sizeof(properties->name), "emulator");
    properties->totalGlobalMem = memory_bytes[device];
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    *unused = memory_bytes[chosen] - held_bytes[chosen];
    *total = memory_bytes[chosen];
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
    if (bytes > memory_bytes[chosen] - held_bytes[chosen]) {
        last_error = cudaErrorMemoryAllocation;
        return last_error;
    }
    const size_t whole = (bytes + GUARD_BYTES + 255) / 256 * 256;
    unsigned char *made = (unsigned char *)std::aligned_alloc(256, whole);
    if (made == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    std::memset(made, 0xff, bytes);
    std::memset(made + bytes, GUARD_VALUE, GUARD_BYTES);
    blocks[made] = {bytes, chosen};
    race_memory_begins(made, bytes, GUARD_BYTES, chosen);
    held_bytes[chosen] += bytes;
    allocations++;
    *data = made;
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
    held_bytes[found->second.device] -= found->second.bytes;
    race_memory_ends(data);
    blocks.erase(found);
    std::free(data);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **data, size_t bytes)
{
    if (bytes > memory_bytes[chosen]) { // The host's is as large as the device's.
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

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t stream)
{
    race_work work = race_give(stream);
    const void *code = __builtin_return_address(0);

    check_block(to, bytes, to_device, "a copy writes");
    check_block(from, bytes, from_device, "a copy reads");
    work.device = RACE_ANY_DEVICE;
    copies++;
    peer_copies++;
    enqueue(work, [=] {
        race_touch(from, bytes, RACE_READ, 0, code);
        race_touch(to, bytes, RACE_WRITE, 0, code);
        std::memcpy(to, from, bytes);
    });
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
    *stream = race_stream_new(chosen);
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
