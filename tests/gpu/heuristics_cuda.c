#include "tests/gpu/heuristics_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cublas.h"

enum { KERNELS = 1 << 16, KEPT = 8, NOT_SUPPORTED = 801, TABLE = 64 };
enum { REGISTERS = 168 }; // Of every kernel: a guess.

struct device {
    const char *name;
    int major, minor, processors, threads, shared, shared_block, l2;
};

static const struct device devices[] = {
    {"H200", 9, 0, 132, 2048, 233472, 232448, 62914560},
    {"H100", 9, 0, 132, 2048, 233472, 232448, 52428800},
    {"A100", 8, 0, 108, 2048, 167936, 166912, 41943040},
    {"L40S", 8, 9, 142, 1536, 102400, 101376, 100663296},
    {"A10", 8, 6, 72, 1536, 102400, 101376, 6291456},
};

static const struct device *device = &devices[0];
static struct {
    const void *function;
    const char *name;
} kernels[KERNELS];
static size_t kernel_count, launch_count, allocated, unanswered;
static const char *launches[KEPT];

bool standin_device(const char *name)
{
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        if (strcmp(name, devices[i].name) == 0) {
            device = &devices[i];
            return true;
        }
    }
    return false;
}

void standin_forget(void)
{
    launch_count = 0;
}

size_t standin_launches(void)
{
    return launch_count;
}

const char *standin_launched(size_t number)
{
    return launches[number];
}

size_t standin_allocated(void)
{
    return allocated;
}

size_t standin_unanswered(void)
{
    return unanswered;
}

/* What else the libraries name is one of these (heuristics.sh): calls that have nothing to do
 * without a device, and calls that nobody expects. */
int standin_succeeds(void);
int standin_refuses(void);

int standin_succeeds(void)
{
    return 0;
}

int standin_refuses(void)
{
    unanswered++;
    return NOT_SUPPORTED;
}

static void keep(const char *name)
{
    if (launch_count < KEPT) {
        launches[launch_count] = name;
        launch_count++;
    }
}

static const char *name_of(const void *function)
{
    for (size_t i = 0; i < kernel_count; i++) {
        if (kernels[i].function == function) {
            return kernels[i].name;
        }
    }
    return "unknown";
}

/* ---- the device ---- */

cudaError_t cudaGetDevice(int *number)
{
    *number = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number)
{
    const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } known[] = {
        {cudaDevAttrComputeCapabilityMajor, device->major},
        {cudaDevAttrComputeCapabilityMinor, device->minor},
        {cudaDevAttrMultiProcessorCount, device->processors},
        {cudaDevAttrMaxThreadsPerMultiProcessor, device->threads},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, device->shared},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, device->shared_block},
        {cudaDevAttrL2CacheSize, device->l2},
        {cudaDevAttrMaxSharedMemoryPerBlock, 49152},
        {cudaDevAttrReservedSharedMemoryPerBlock, 1024},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxRegistersPerMultiprocessor, 65536},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535},
        {cudaDevAttrMemoryPoolsSupported, 1},
    };

    (void)number;
    *value = 0;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].attribute == attribute) {
            *value = known[i].value;
        }
    }
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    allocated += bytes;
    return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    *unused = *total = (size_t)1 << 34;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *capture,
                                        unsigned long long *id, cudaGraph_t *graph,
                                        const cudaGraphNode_t **nodes, size_t *count)
{
    (void)stream;
    (void)id;
    (void)graph;
    (void)nodes;
    (void)count;
    *capture = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

/* ---- kernels ---- */

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFunction(void **binary, const char *function, char *device_function,
                            const char *name, int thread_limit, void *thread, void *block,
                            void *block_size, void *grid_size, int *warp_size);

void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle;

    (void)binary;
    return &handle;
}

void __cudaRegisterFunction(void **binary, const char *function, char *device_function,
                            const char *name, int thread_limit, void *thread, void *block,
                            void *block_size, void *grid_size, int *warp_size)
{
    (void)binary;
    (void)device_function;
    (void)thread_limit;
    (void)thread;
    (void)block;
    (void)block_size;
    (void)grid_size;
    (void)warp_size;
    if (kernel_count < KERNELS) {
        kernels[kernel_count].function = function;
        kernels[kernel_count].name = name;
        kernel_count++;
    }
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream)
{
    (void)grid;
    (void)block;
    (void)arguments;
    (void)shared;
    (void)stream;
    keep(name_of(function));
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                void **arguments)
{
    (void)config;
    (void)arguments;
    keep(name_of(function));
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    *attributes = (struct cudaFuncAttributes){
        .maxThreadsPerBlock = 1024,
        .numRegs = REGISTERS,
        .ptxVersion = device->major * 10 + device->minor,
        .binaryVersion = device->major * 10 + device->minor,
        .maxDynamicSharedSizeBytes = device->shared_block,
    };
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function;
    return attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > device->shared_block
               ? cudaErrorInvalidValue
               : cudaSuccess;
}

/* How many blocks fit, by shared memory, threads and registers. */
static int fitting(int threads, size_t shared)
{
    const int by_shared = device->shared / (int)(shared + 1024);
    const int by_threads = device->threads / threads;
    const int by_registers = 65536 / (REGISTERS * threads);
    const int most = by_shared < by_threads ? by_shared : by_threads;

    return most < by_registers ? most : by_registers > 0 ? by_registers : 1;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                   const void *function,
                                                                   int threads, size_t shared,
                                                                   unsigned int flags)
{
    (void)function;
    (void)flags;
    *blocks = fitting(threads, shared);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared,
                                                                  0);
}

/* A cluster lies within 16 processors, or 18: that an H200's are two of 18 and six of 16 is a
 * guess. */
cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *function,
                                           const cudaLaunchConfig_t *config)
{
    int size = 1;
    int left = device->processors;

    (void)function;
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) {
            size = (int)(config->attrs[i].val.clusterDim.x * config->attrs[i].val.clusterDim.y *
                         config->attrs[i].val.clusterDim.z);
        }
    }
    *clusters = 0;
    for (int group = 0; left > 0; group++) {
        const int wanted = group < 2 ? 18 : 16;
        const int processors = wanted < left ? wanted : left;
        *clusters += processors / size;
        left -= processors;
    }
    return cudaSuccess;
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, const void *function,
                                                      int blocks, int threads)
{
    (void)function;
    (void)threads;
    *bytes = (size_t)(device->shared / blocks - 1024);
    return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **address, const void *symbol)
{
    memcpy(address, &symbol, sizeof(symbol));
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t code)
{
    return code == cudaSuccess ? "cudaSuccess" : "an error";
}

const char *cudaGetErrorString(cudaError_t code)
{
    return cudaGetErrorName(code);
}

/* Functions of the runtime that have no names: nothing is to be done in any. */
cudaError_t cudaGetExportTable(const void **table, const cudaUUID_t *id)
{
    static void *functions[TABLE];
    int (*const function)(void) = standin_succeeds;
    const size_t bytes = sizeof(functions); // Comes first.

    (void)id;
    for (size_t i = 1; i < TABLE; i++) {
        memcpy(&functions[i], &function, sizeof(function));
    }
    memcpy(&functions[0], &bytes, sizeof(bytes));
    *table = functions;
    return cudaSuccess;
}

/* ---- the driver's; some more are the runtime's by another name (heuristics.sh) ---- */

int cuDeviceGet(int *number, int ordinal);
int cuDeviceGetName(char *name, int bytes, int number);
int cuCtxGetCurrent(const void **context);
int cuLibraryLoadData(const void **library, const void *code, void *jit, void *jit_values,
                      unsigned int jits, void *options, void *values, unsigned int count);
int cuLibraryGetKernel(const void **kernel, const void *library, const char *name);
int cuKernelGetFunction(const void **function, const void *kernel);
int cuFuncGetAttribute(int *value, int attribute, const void *function);
int cuLaunchKernel(const char *function);
int cuLaunchKernelEx(const void *config, const char *function);

int cuDeviceGet(int *number, int ordinal)
{
    *number = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int bytes, int number)
{
    (void)number;
    (void)snprintf(name, (size_t)bytes, "NVIDIA %s", device->name);
    return 0;
}

int cuCtxGetCurrent(const void **context)
{
    *context = device;
    return 0;
}

int cuLibraryLoadData(const void **library, const void *code, void *jit, void *jit_values,
                      unsigned int jits, void *options, void *values, unsigned int count)
{
    (void)jit;
    (void)jit_values;
    (void)jits;
    (void)options;
    (void)values;
    (void)count;
    *library = code;
    return 0;
}

/* A kernel is its name, which the library holds. */
int cuLibraryGetKernel(const void **kernel, const void *library, const char *name)
{
    (void)library;
    *kernel = name;
    return 0;
}

int cuKernelGetFunction(const void **function, const void *kernel)
{
    *function = kernel;
    return 0;
}

int cuFuncGetAttribute(int *value, int attribute, const void *function)
{
    enum { THREADS = 0, REGISTERS_USED = 4, PTX, BINARY, SHARED = 8 };

    (void)function;
    *value = attribute == THREADS                      ? 1024
             : attribute == REGISTERS_USED             ? REGISTERS
             : attribute == PTX || attribute == BINARY ? device->major * 10 + device->minor
             : attribute == SHARED                     ? device->shared_block
                                                       : 0;
    return 0;
}

int cuLaunchKernel(const char *function)
{
    keep(function);
    return 0;
}

int cuLaunchKernelEx(const void *config, const char *function)
{
    (void)config;
    keep(function);
    return 0;
}

/* The runtime's way to a function of the driver. */
cudaError_t cudaGetDriverEntryPoint(const char *name, void **ret_function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result)
{
    int (*const get)(int *, int) = cuDeviceGet;
    int (*const get_name)(char *, int, int) = cuDeviceGetName;
    int (*const other)(void) = standin_refuses;

    (void)flags;
    memcpy(ret_function,
           strcmp(name, "cuDeviceGet") == 0       ? (const void *)&get
           : strcmp(name, "cuDeviceGetName") == 0 ? (const void *)&get_name
                                                  : (const void *)&other,
           sizeof(*ret_function));
    if (result != NULL) {
        *result = cudaDriverEntryPointSuccess;
    }
    return cudaSuccess;
}
