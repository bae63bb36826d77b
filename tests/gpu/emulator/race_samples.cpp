#include "tests/gpu/emulator/race_samples.h"

#include <cstdlib>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

enum { THREADS = 64, BLOCKS = 3, COUNT = 1024 };

namespace
{

struct device { // Zeros, and streams that do not know of each other.
    int *data;
    cudaStream_t streams[3];
    cudaEvent_t event;
};

device device_begin()
{
    device made = {};
    void *data = nullptr;

    (void)cudaMalloc(&data, COUNT * sizeof(int)); // Nothing of the emulator's fails here.
    made.data = (int *)data;
    for (cudaStream_t &stream : made.streams) {
        (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    }
    (void)cudaEventCreateWithFlags(&made.event, cudaEventDisableTiming);
    (void)cudaMemsetAsync(made.data, 0, COUNT * sizeof(int), made.streams[0]);
    (void)cudaStreamSynchronize(made.streams[0]);
    return made;
}

void device_end(const device &at)
{
    (void)cudaFree(at.data); // Waits for all.
    (void)cudaEventDestroy(at.event);
    for (cudaStream_t stream : at.streams) {
        (void)cudaStreamDestroy(stream);
    }
}

void launch(void (*kernel)(int *, bool), bool ordered)
{
    const device at = device_begin();
    EVQ_LAUNCH(kernel, BLOCKS, THREADS, 4096, at.streams[0], at.data, ordered);
    device_end(at);
}

__global__ void write_then_read(int *out, bool ordered)
{
    EVQ_SHARED(shared);
    int *values = (int *)shared;

    values[threadIdx.x] = (int)threadIdx.x;
    if (ordered) {
        __syncthreads();
    }
    out[blockIdx.x * THREADS + threadIdx.x] = values[threadIdx.x ^ 1u];
}

__global__ void read_then_write(int *out, bool ordered)
{
    EVQ_SHARED(shared);
    int *values = (int *)shared;

    values[threadIdx.x] = 1;
    __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] = values[threadIdx.x ^ 32u];
    if (ordered) {
        __syncthreads();
    }
    values[threadIdx.x] = 2;
}

/* One thread reads what is then another's, between readers that race with nothing. */
__global__ void one_of_many_readers(int *out, bool ordered)
{
    EVQ_SHARED(shared);
    int *values = (int *)shared;
    int sum = 0;

    values[threadIdx.x] = 1;
    __syncthreads();
    for (int i = 0; i < THREADS; i++) {
        sum += values[i];
    }
    __syncthreads();
    sum += threadIdx.x == 7 || (threadIdx.x == 9 && !ordered) ? values[7] : 0;
    if (threadIdx.x == 7) {
        values[7] = sum;
    }
    out[blockIdx.x * THREADS + threadIdx.x] = sum;
}

__global__ void shuffle_between(int *out, bool votes)
{
    EVQ_SHARED(shared);
    int *values = (int *)shared;

    values[threadIdx.x] = (int)threadIdx.x;
    if (votes) {
        (void)__any_sync(0xffffffffu, true);
    } else {
        (void)__shfl_xor_sync(0xffffffffu, 1, 1);
    }
    out[blockIdx.x * THREADS + threadIdx.x] = values[threadIdx.x ^ 1u];
}

__global__ void blocks_write(int *out, bool apart)
{
    out[(apart ? blockIdx.x * THREADS : 0u) + threadIdx.x] = 1;
}

__global__ void blocks_read_one_writes(int *out, bool apart)
{
    const int seen = out[threadIdx.x];

    out[(blockIdx.x + (apart ? 1u : 0u)) * THREADS + threadIdx.x] = seen + 1;
}

__global__ void halves_of_a_word(int *out, bool apart)
{
    unsigned short *halves = (unsigned short *)(out + blockIdx.x * THREADS);

    halves[apart ? threadIdx.x : threadIdx.x / 2] = 1;
}

/* A lane that wrote the row knows it; those that get its values do not. */
__global__ void matrix_of_own_rows(int *out, bool ordered)
{
    EVQ_SHARED(shared);
    unsigned char *row = shared + threadIdx.x * 16;
    uint32_t parts[4];

    *(float4 *)row = {1.0f, 2.0f, 3.0f, 4.0f};
    if (ordered) {
        __syncthreads();
    }
    evq_ldmatrix(parts, row);
    out[blockIdx.x * THREADS + threadIdx.x] = (int)parts[0];
}

__global__ void copy_then_read(int *out, bool waits)
{
    EVQ_SHARED(shared);
    unsigned char *row = shared + threadIdx.x * 16;

    evq_copy_begin(row, out + COUNT / 2, true);
    evq_copy_close();
    if (waits) {
        evq_copy_wait<0>();
    }
    out[blockIdx.x * THREADS + threadIdx.x] = *(const int *)row;
    evq_copy_wait<0>();
}

__global__ void copy_then_other_reads(int *out, bool ordered)
{
    EVQ_SHARED(shared);

    evq_copy_begin(shared + threadIdx.x * 16, out + COUNT / 2, true);
    evq_copy_close();
    if (ordered) {
        evq_copy_wait<0>();
        __syncthreads();
    } else {
        __syncthreads();
        evq_copy_wait<0>();
    }
    out[blockIdx.x * THREADS + threadIdx.x] = *(const int *)(shared + (threadIdx.x ^ 1u) * 16);
}

/* Behind a barrier, but the copy may write as late as it is waited for. */
__global__ void copy_on_its_way(int *out, bool ordered)
{
    EVQ_SHARED(shared);

    evq_copy_begin(shared + threadIdx.x * 16, out + COUNT / 2, true);
    evq_copy_close();
    __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] =
        ordered ? 0 : *(const int *)(shared + (threadIdx.x ^ 1u) * 16);
    __syncthreads();
    evq_copy_wait<0>();
}

/* Behind a barrier, but the copy may read as late as it is waited for. */
__global__ void copied_is_changed(int *out, bool ordered)
{
    EVQ_SHARED(shared);
    int *mine = out + blockIdx.x * THREADS * 4;

    evq_copy_begin(shared + threadIdx.x * 16, mine + threadIdx.x * 4, true);
    evq_copy_close();
    if (ordered) {
        evq_copy_wait<0>();
    }
    __syncthreads();
    mine[(threadIdx.x ^ 1u) * 4] = 1;
    evq_copy_wait<0>();
}

__global__ void fill(int *out, bool)
{
    out[threadIdx.x] = (int)threadIdx.x;
}

__global__ void add_up(const int *in, int *out)
{
    out[threadIdx.x] = in[THREADS - 1 - threadIdx.x];
}

void one_stream_or_two(bool ordered)
{
    const device at = device_begin();
    EVQ_LAUNCH(fill, 1, THREADS, 0, at.streams[0], at.data, true);
    EVQ_LAUNCH(add_up, 1, THREADS, 0, at.streams[ordered ? 0 : 1], (const int *)at.data,
               at.data + THREADS);
    device_end(at);
}

void event_between(bool ordered)
{
    const device at = device_begin();
    if (!ordered) {
        (void)cudaEventRecord(at.event, at.streams[0]); // Too early.
    }
    EVQ_LAUNCH(fill, 1, THREADS, 0, at.streams[0], at.data, true);
    if (ordered) {
        (void)cudaEventRecord(at.event, at.streams[0]);
    }
    (void)cudaStreamWaitEvent(at.streams[1], at.event, 0);
    EVQ_LAUNCH(add_up, 1, THREADS, 0, at.streams[1], (const int *)at.data, at.data + THREADS);
    device_end(at);
}

void host_between(bool ordered)
{
    const device at = device_begin();
    EVQ_LAUNCH(fill, 1, THREADS, 0, at.streams[0], at.data, true);
    (void)cudaStreamSynchronize(at.streams[ordered ? 0 : 1]);
    EVQ_LAUNCH(add_up, 1, THREADS, 0, at.streams[1], (const int *)at.data, at.data + THREADS);
    device_end(at);
}

/* Read on two streams; who writes has waited for one of them, or for both. */
void writer_behind_two_readers(bool ordered)
{
    const device at = device_begin();
    EVQ_LAUNCH(add_up, 1, THREADS, 0, at.streams[0], (const int *)at.data, at.data + THREADS);
    (void)cudaEventRecord(at.event, at.streams[0]);
    if (ordered) {
        (void)cudaStreamWaitEvent(at.streams[2], at.event, 0);
    }
    EVQ_LAUNCH(add_up, 1, THREADS, 0, at.streams[1], (const int *)at.data, at.data + 2 * THREADS);
    (void)cudaEventRecord(at.event, at.streams[1]);
    (void)cudaStreamWaitEvent(at.streams[2], at.event, 0);
    EVQ_LAUNCH(fill, 1, THREADS, 0, at.streams[2], at.data, true);
    device_end(at);
}

void copy_beside_a_kernel(bool ordered)
{
    const device at = device_begin();
    static int values[THREADS];
    EVQ_LAUNCH(add_up, 1, THREADS, 0, at.streams[0], (const int *)at.data, at.data + THREADS);
    (void)cudaMemcpyAsync(at.data, values, sizeof(values), cudaMemcpyHostToDevice,
                          at.streams[ordered ? 0 : 1]);
    device_end(at);
}

void host_changes_what_is_copied(bool ordered)
{
    const device at = device_begin();
    static int values[THREADS];
    values[3] = 1;
    (void)cudaMemcpyAsync(at.data, values, sizeof(values), cudaMemcpyHostToDevice, at.streams[0]);
    (void)cudaEventRecord(at.event, at.streams[0]);
    (void)cudaMemcpyAsync(at.data, values + 32, 64, cudaMemcpyHostToDevice, at.streams[0]);
    (void)cudaEventSynchronize(at.event);
    values[ordered ? 3 : 35] = 2; // The second copy was not waited for.
    values[50] = 2;
    device_end(at);
}

void host_reads_what_is_copied(bool ordered)
{
    const device at = device_begin();
    int *const values = (int *)std::malloc(THREADS * sizeof(int));
    (void)cudaMemcpyAsync(values, at.data, THREADS * sizeof(int), cudaMemcpyDeviceToHost,
                          at.streams[0]);
    if (ordered) {
        (void)cudaStreamSynchronize(at.streams[0]);
    }
    volatile size_t bytes = THREADS * sizeof(int);
    static int others[THREADS];
    std::memcpy(others, values, bytes);
    device_end(at);
    std::free(values);
}

void host_frees_what_is_copied(bool ordered)
{
    const device at = device_begin();
    int *const values = (int *)std::calloc(THREADS, sizeof(int));
    (void)cudaMemcpyAsync(at.data, values + 32, 64, cudaMemcpyHostToDevice, at.streams[0]);
    (void)cudaStreamSynchronize(at.streams[ordered ? 0 : 1]); // The emulator has copied by now.
    std::free(values);
    device_end(at);
}

/* A library that is given the same memory to read and to write. */
void product_in_place(bool ordered)
{
    const device at = device_begin();
    const int *in = at.data;
    int *out = at.data + (ordered ? 64 : 63);
    emulator_enqueue(at.streams[0], [=] {
        emulator_reach(in, 64 * sizeof(int), false);
        emulator_reach(out, 64 * sizeof(int), true);
    });
    device_end(at);
}

__global__ void read_beyond(int *out, bool is_shared)
{
    EVQ_SHARED(shared);

    out[threadIdx.x] = is_shared ? ((const int *)shared)[1024] : out[COUNT];
}

#define KERNEL(name) [](bool ordered) { launch(name, ordered); }

} // namespace

extern const race_sample race_samples[] = {
    {"write, then read", KERNEL(write_then_read), false},
    {"read, then write", KERNEL(read_then_write), false},
    {"one of many readers", KERNEL(one_of_many_readers), false},
    {"a shuffle or a vote between", KERNEL(shuffle_between), true},
    {"blocks write", KERNEL(blocks_write), false},
    {"blocks read, one writes", KERNEL(blocks_read_one_writes), false},
    {"halves of a word", KERNEL(halves_of_a_word), false},
    {"a matrix of own rows", KERNEL(matrix_of_own_rows), false},
    {"a copy, then read", KERNEL(copy_then_read), false},
    {"a copy, then another reads", KERNEL(copy_then_other_reads), false},
    {"a copy on its way", KERNEL(copy_on_its_way), false},
    {"what is copied is changed", KERNEL(copied_is_changed), false},
    {"one stream or two", one_stream_or_two, false},
    {"an event between", event_between, false},
    {"the host between", host_between, false},
    {"a writer behind two readers", writer_behind_two_readers, false},
    {"a copy beside a kernel", copy_beside_a_kernel, false},
    {"the host changes what is copied", host_changes_what_is_copied, false},
    {"the host reads what is copied", host_reads_what_is_copied, false},
    {"the host frees what is copied", host_frees_what_is_copied, false},
    {"a product in place", product_in_place, false},
};
extern const size_t race_samples_count = sizeof(race_samples) / sizeof(race_samples[0]);

void race_sample_beyond(bool is_shared)
{
    launch(read_beyond, is_shared);
}
