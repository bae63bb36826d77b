/*
 * The CUDA backend for one or several devices. Each uses one stream, and another one for copies of
 * weights. Products are done by cuBLAS (fp32) and cuBLASLt (bf16), everything else by the kernels
 * of launchers.h and tokens.h. pipeline.c divides a plan among the devices. prepare.c sizes the
 * memory. run.c copies a batch in, runs the plan step by step and copies the results out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cublas.h"
#include "kernels/cuda/state.h"
#include "kernels/cuda/status.h"

#define CAPABILITY_MIN 80 // sm_80, the oldest architecture that the module is compiled for.

static int32_t cuda_probe(struct evq_error *err)
{
    struct evq_cublas cublas;
    int version = 0;
    int count = 0;

    if (cudaDriverGetVersion(&version) == cudaSuccess && version == 0) {
        (void)evq_error_set(err, EVQ_E_DEVICE, "no NVIDIA driver is installed");
        return 0;
    }
    if (evq_cuda_status(cudaGetDeviceCount(&count), "look for GPUs", err) != EVQ_OK) {
        return 0;
    }
    if (count < 1) {
        (void)evq_error_set(err, EVQ_E_DEVICE, "look for GPUs: there is none");
        return 0;
    }
    return evq_cublas_load(&cublas, err) == EVQ_OK ? (int32_t)count : 0;
}

static void device_close(struct evq_cuda_state *state)
{
    // None of these errors can be reported, and all of them occur if the device has failed. If
    // there is no such device, the next launch must not be blamed for it.
    (void)!evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", NULL);
    if (state->stream != NULL) {
        (void)cudaStreamSynchronize(state->stream);
    }
    evq_cuda_copies_close(state);
    evq_cuda_marks_close(state);
    if (state->cublas_handle != NULL) {
        (void)state->cublas.destroy(state->cublas_handle);
    }
    evq_cuda_products_close(&state->products, &state->cublas);
    for (size_t i = 0; i < state->weight_count; i++) {
        evq_cuda_block_free(state, &state->weights[i].block);
        evq_cuda_block_free(state, &state->weights[i].rounded);
    }
    evq_cuda_scratch_free(state);
    (void)cudaFreeHost(state->h_results);
    if (state->stream != NULL) {
        (void)cudaStreamDestroy(state->stream);
    }
    free(state->positions_host);
    free(state->tiles_host);
    free(state->turns);
    free(state->weights);
    free(state->buffers);
    free(state);
}

static void cuda_close(void *opened)
{
    struct evq_cuda_state *state = opened;

    while (state != NULL) {
        struct evq_cuda_state *next = state->next;
        device_close(state);
        state = next;
    }
}

static enum evq_status open_device(struct evq_cuda_state *state, struct evq_error *err)
{
    int major = 0;
    int minor = 0;

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status = evq_cuda_status(
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, state->device),
            "ask the GPU", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, state->device),
            "ask the GPU", err);
    }
    if (status == EVQ_OK && 10 * major + minor < CAPABILITY_MIN) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "GPU %d has compute capability %d.%d, expected at least 8.0",
                             state->device, major, minor);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking),
                                 "make a stream", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_copies_open(state, err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_marks_open(state, err);
    }
    if (status == EVQ_OK) {
        status = evq_cublas_load(&state->cublas, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_cublas_status(state->cublas.create(&state->cublas_handle), "start cuBLAS", err);
    }
    if (status == EVQ_OK) {
        status = evq_cublas_status(state->cublas.set_stream(state->cublas_handle, state->stream),
                                   "start cuBLAS", err);
    }
    if (status == EVQ_OK) {
        status = evq_cublas_status(
            state->cublas.set_math_mode(state->cublas_handle, EVQ_CUBLAS_PEDANTIC_MATH),
            "start cuBLAS", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_products_open(&state->products, &state->cublas, err);
    }
    return status;
}

/* Opens the devices one after another, each of them the next of the one before. */
static enum evq_status open_devices(const struct evq_backend_config *config,
                                    struct evq_cuda_state **ret_first, struct evq_error *err)
{
    const bool several = config->device_count > 0;
    struct evq_cuda_state **place = ret_first;
    enum evq_status status = EVQ_OK;

    for (int32_t i = 0; i < (several ? config->device_count : 1) && status == EVQ_OK; i++) {
        *place = calloc(1, sizeof(**place));
        if (*place == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "CUDA backend");
        }
        (*place)->device = several ? config->devices[i] : config->device;
        (*place)->memory_max = config->memory_bytes_max > 0 ? config->memory_bytes_max : SIZE_MAX;
        status = open_device(*place, err);
        if (status != EVQ_OK && config->device_count > 1) {
            (void)evq_error_prefix(err, "GPU %d of %d", (int)i + 1, (int)config->device_count);
        }
        place = &(*place)->next;
    }
    return status;
}

static enum evq_status cuda_open(const struct evq_backend_config *config, void **ret_state,
                                 struct evq_error *err)
{
    struct evq_cuda_state *first = NULL;

    if (config->device_count < 0 || config->device_count > EVQ_BACKEND_DEVICES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%d GPUs for one job, expected at most %d",
                             (int)config->device_count, EVQ_BACKEND_DEVICES_MAX);
    }
    const enum evq_status status = open_devices(config, &first, err);
    if (status != EVQ_OK) {
        cuda_close(first);
        return status;
    }
    *ret_state = first;
    return EVQ_OK;
}

static void cuda_caps(void *opened, struct evq_backend_caps *ret_caps)
{
    const struct evq_cuda_state *first = opened;
    char name[sizeof(ret_caps->device)] = "";
    bool alike = true;
    int count = 0;

    *ret_caps = (struct evq_backend_caps){.bf16 = true}; // All devices from CAPABILITY_MIN on.
    for (const struct evq_cuda_state *state = first; state != NULL; state = state->next, count++) {
        struct cudaDeviceProp properties = {0};
        if (evq_cuda_status(cudaGetDeviceProperties(&properties, state->device), "ask the GPU",
                            NULL) != EVQ_OK) {
            (void)snprintf(properties.name, sizeof(properties.name), "CUDA device %d",
                           state->device);
        }
        if (count == 0) {
            (void)snprintf(name, sizeof(name), "%.110s", properties.name);
        }
        alike = alike && strncmp(name, properties.name, 110) == 0;
        ret_caps->memory_bytes += properties.totalGlobalMem;
    }
    if (count == 1) {
        (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "%s", name);
    } else {
        (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "%d x %s%s", count, name,
                       alike ? "" : " and other");
    }
}

static void cuda_stats(void *opened, struct evq_backend_stats *ret_stats)
{
    const struct evq_cuda_state *first = opened;

    *ret_stats = first->stats;
    for (const struct evq_cuda_state *state = first; state != NULL; state = state->next) {
        ret_stats->memory_bytes += state->memory;
    }
}

static const struct evq_backend_ops backend_cuda = {
    .abi_version = EVQ_BACKEND_ABI,
    .name = "cuda",
    .probe = cuda_probe,
    .open = cuda_open,
    .caps = cuda_caps,
    .alloc = evq_cuda_alloc,
    .free = evq_cuda_free,
    .prepare = evq_cuda_prepare,
    .put = evq_cuda_put,
    .settle = evq_cuda_settle,
    .catch_up = evq_cuda_catch_up,
    .exec = evq_cuda_exec,
    .stats = cuda_stats,
    .close = cuda_close,
};

/* The only symbol that the module exports. Its name contains the version of the interface. */
const struct evq_backend_ops *evq_backend_module_v1(void);

__attribute__((visibility("default"))) const struct evq_backend_ops *evq_backend_module_v1(void)
{
    return &backend_cuda;
}
