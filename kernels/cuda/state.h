/*
 * What an opened CUDA backend holds, and the files that work on it. One thread. Names with d_ are
 * of the device, with h_ of pinned host memory; device memory counts towards memory_max.
 */
#ifndef EVQ_KERNELS_CUDA_STATE_H
#define EVQ_KERNELS_CUDA_STATE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cuda/cublas.h"

struct evq_cuda_block { // Device memory that only grows.
    void *d_data;
    size_t bytes;
};

struct evq_cuda_weight {
    struct evq_cuda_block block;
    int32_t rows, columns;
    int32_t rows_put;
};

struct evq_cuda_state {
    int device;
    cudaStream_t stream;
    struct evq_cublas cublas;
    void *cublas_handle;
    const struct evq_plan *plan; // NULL: not prepared.
    struct evq_cuda_weight *weights;
    size_t weight_count;
    struct evq_cuda_block *buffers;
    size_t buffer_count;
    struct evq_cuda_block labels, targets, results; // labels: also the scores' targets.
    struct evq_cuda_block tokens, positions, score_rows, frequencies;
    struct evq_cuda_block product;          // Of a matrix, before its epilogue.
    struct evq_cuda_block staging;          // A blob as it came, before it is converted.
    struct evq_cuda_block logits, gathered; // Of a chunk of scores.
    int32_t *positions_host;                // [rows_max].
    void *h_results;                        // Pinned.
    size_t h_result_bytes;
    size_t memory_max; // Bytes.
    size_t memory;     // Bytes held.
    struct evq_backend_stats stats;
};

/* memory.c */

/* Pinned host memory, the caller's to free; at least one byte. */
enum evq_status evq_cuda_alloc(void *opened, size_t bytes, void **ret_host,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* host is NULL or from evq_cuda_alloc(). */
void evq_cuda_free(void *opened, void *host);

/* Frees what it holds; the device's memory may be gone with the device, so nothing is reported. */
void evq_cuda_block_free(struct evq_cuda_state *state, struct evq_cuda_block *block);

/* At least bytes, what it held is lost if it grows. EVQ_E_NOMEM beyond memory_max, naming what. */
enum evq_status evq_cuda_block_grow(struct evq_cuda_state *state, struct evq_cuda_block *block,
                                    size_t bytes, const char *what,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Room for bytes of results on the device and, pinned, on the host. */
enum evq_status evq_cuda_results_grow(struct evq_cuda_state *state, size_t bytes,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Enqueued on the stream: from must stay until it is synchronised. */
enum evq_status evq_cuda_copy_in(struct evq_cuda_state *state, void *d_to, const void *from,
                                 size_t bytes, const char *what,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* prepare.c, put.c, run.c: the entries of struct evq_backend_ops, whose contracts hold. */

enum evq_status evq_cuda_prepare(void *opened, const struct evq_plan *plan,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                             struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_settle(void *opened, struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_exec(void *opened, const struct evq_batch *batch,
                              struct evq_row_result *results,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Scores that SCORE computes at once, 1..4096: their logits fit in 256 MiB, or it is one. */
int32_t evq_cuda_score_chunk(const struct evq_op *op);

#endif
