/*
 * Device memory that grows and is counted, pinned host memory, and copies from one to the other.
 */
#include "kernels/cuda/state.h"
#include "kernels/cuda/status.h"

enum evq_status evq_cuda_alloc(void *opened, size_t bytes, void **ret_host, struct evq_error *err)
{
    const struct evq_cuda_state *state = opened;
    void *host = NULL;

    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK) {
        status =
            evq_cuda_status(cudaMallocHost(&host, bytes > 0 ? bytes : 1), "pin host memory", err);
    }
    if (status == EVQ_OK) {
        *ret_host = host;
    }
    return status;
}

void evq_cuda_free(void *opened, void *host)
{
    (void)opened;
    (void)cudaFreeHost(host); // A failure cannot be handled, and loses nothing.
}

void evq_cuda_block_free(struct evq_cuda_state *state, struct evq_cuda_block *block)
{
    if (block->d_data != NULL) {
        (void)cudaFree(block->d_data);
        state->memory -= block->bytes;
    }
    *block = (struct evq_cuda_block){0};
}

enum evq_status evq_cuda_block_grow(struct evq_cuda_state *state, struct evq_cuda_block *block,
                                    size_t bytes, const char *what, struct evq_error *err)
{
    if (bytes <= block->bytes) {
        return EVQ_OK;
    }
    evq_cuda_block_free(state, block);
    const enum evq_status status =
        bytes > state->memory_max - state->memory
            ? evq_error_set(err, EVQ_E_NOMEM,
                            "%zu bytes of '%s' do not fit in the GPU memory allowed", bytes, what)
            : evq_cuda_status(cudaMalloc(&block->d_data, bytes), what, err);
    if (status != EVQ_OK) {
        block->d_data = NULL;
        return status;
    }
    block->bytes = bytes;
    state->memory += bytes;
    return EVQ_OK;
}

enum evq_status evq_cuda_results_grow(struct evq_cuda_state *state, size_t bytes,
                                      struct evq_error *err)
{
    enum evq_status status = evq_cuda_block_grow(state, &state->results, bytes, "results", err);

    if (status == EVQ_OK && state->h_result_bytes < state->results.bytes) {
        // It is NULL or pinned here, so this fails only if the GPU has failed.
        (void)cudaFreeHost(state->h_results);
        state->h_results = NULL;
        state->h_result_bytes = 0;
        status = evq_cuda_alloc(state, state->results.bytes, &state->h_results, err);
        state->h_result_bytes = status == EVQ_OK ? state->results.bytes : 0;
    }
    return status;
}

enum evq_status evq_cuda_copy_in(struct evq_cuda_state *state, void *d_to, const void *from,
                                 size_t bytes, const char *what, struct evq_error *err)
{
    return evq_cuda_status(
        cudaMemcpyAsync(d_to, from, bytes, cudaMemcpyHostToDevice, state->stream), what, err);
}
