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
#include "kernels/cuda/product.h"
#include "kernels/cuda/tokens.h"

struct evq_cuda_block { // Device memory that only grows.
    void *d_data;
    size_t bytes;
};

struct evq_cuda_weight {
    struct evq_cuda_block block; // Rows of `stride` values, fp32 or bf16; what is not a value is 0.
    struct evq_cuda_block rounded; // A vector of fp32 once more in bf16, where a product adds it.
    int32_t rows, columns;
    int32_t rows_put;
    int64_t stride;
    bool bf16, has_rounded;
};

struct evq_cuda_buffer { // Of activations, for rows_max rows or the next multiple of EVQ_CUDA_ROWS.
    struct evq_cuda_block block;
    int64_t stride;
    bool bf16;
};

struct evq_cuda_rope_table { // Cosines and sines of a plan's ROPE operations that are alike.
    struct evq_cuda_block block, d_frequencies;
    const struct evq_op *op; // The first of them.
};

#define EVQ_CUDA_STAGES 4

struct evq_cuda_stage { // A blob as it came, before it is converted.
    struct evq_cuda_block block;
    cudaEvent_t copied, converted; // Recorded by the latest put() that went through it.
};

#define EVQ_CUDA_MARKS 32

struct evq_cuda_state {
    int device;
    cudaStream_t stream; // Of everything but the copies of weights.
    cudaStream_t copies;
    cudaEvent_t marks[EVQ_CUDA_MARKS];             // A batch's steps on the stream: how far it is.
    struct evq_cuda_stage stages[EVQ_CUDA_STAGES]; // Put number n goes through n modulo these.
    uint64_t puts;
    struct evq_cublas cublas;
    void *cublas_handle;
    const struct evq_plan *plan; // NULL: not prepared.
    bool weights_alone;          // The plan is reserved, not prepared.
    struct evq_cuda_weight *weights;
    size_t weight_count;
    struct evq_cuda_buffer *buffers;
    size_t buffer_count;
    struct evq_cuda_rope_table *turns;
    size_t rope_table_count; // Of the plan; rope_table_room are held.
    size_t rope_table_room;
    struct evq_cuda_products products;
    int32_t tile_queries;                           // Of an attention tile; 0: this plan has none.
    struct evq_cuda_block labels, targets, results; // labels: also the scores' targets.
    struct evq_cuda_block tokens, positions, score_rows, tiles;
    struct evq_cuda_block product;          // Of a matrix, before its epilogue.
    struct evq_cuda_block narrowed;         // fp32 rows, rounded to bf16 for a product.
    struct evq_cuda_block workspace;        // cuBLASLt's.
    struct evq_cuda_block logits, gathered; // Of a chunk of scores.
    int32_t *positions_host;                // [rows_max].
    struct evq_attention_tile *tiles_host;  // [rows_max].
    void *h_results;                        // Pinned.
    size_t h_result_bytes;
    size_t memory_max; // Bytes.
    size_t memory;     // Bytes held.
    bool lacks_memory; // put() or exec() found too little: the next prepare() makes room.
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

/* weights.c */

/* Memory for each slot of the plan; those of the same shape and form keep theirs, with its values.
 */
enum evq_status evq_cuda_weights_prepare(struct evq_cuda_state *state, const struct evq_plan *plan,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees what has no values that evq_cuda_weights_prepare() would keep. */
enum evq_status evq_cuda_weights_trim(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* What evq_cuda_weights_prepare() would take from the device. */
enum evq_status evq_cuda_weights_missing(const struct evq_cuda_state *state,
                                         const struct evq_plan *plan, size_t *ret_bytes,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* A blob that lies on the device as it came, into its place; enqueued. */
enum evq_status evq_cuda_weight_convert(struct evq_cuda_state *state,
                                        struct evq_cuda_weight *weight, const void *d_blob,
                                        const struct evq_weight_blob *blob,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* rope_tables.c */

enum evq_status evq_cuda_rope_table_prepare(struct evq_cuda_state *state,
                                            const struct evq_plan *plan,
                                            struct evq_error *err) EVQ_CHECK_RESULT;

/* Of a ROPE operation of the prepared plan. */
const float *evq_cuda_rope_table_of(const struct evq_cuda_state *state, const struct evq_op *op);

/* step.c */

/* Whether it is computed by tiles; of the prepared buffers. */
bool evq_cuda_tiled(const struct evq_cuda_state *state, const struct evq_op *op);

/* Enqueues the operation at `number` and those after it that are done along with it; ret_next is
 * the first that is not. */
enum evq_status evq_cuda_step(struct evq_cuda_state *state, const struct evq_batch *batch,
                              int32_t tiles, size_t number, size_t *ret_next,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* run.c */

enum evq_status evq_cuda_marks_open(struct evq_cuda_state *state,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cuda_marks_close(struct evq_cuda_state *state); // Half-opened ones too.

/* put.c */

/* The stream and the events of put(). */
enum evq_status evq_cuda_copies_open(struct evq_cuda_state *state,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cuda_copies_close(struct evq_cuda_state *state); // Half-opened ones too; waits for copies.

/* prepare.c */

/* Device memory of all but the weights and the stages of put(). */
void evq_cuda_scratch_free(struct evq_cuda_state *state);

/* prepare.c, put.c, run.c, spare.c: the entries of struct evq_backend_ops, whose contracts hold. */

enum evq_status evq_cuda_prepare(void *opened, const struct evq_plan *plan,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_reserve(void *opened, const struct evq_plan *plan,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_exchange(void *opened, void *other,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                             struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_settle(void *opened, struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_catch_up(void *opened, uint32_t most, uint32_t *ret_reading,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_exec(void *opened, const struct evq_batch *batch,
                              struct evq_row_result *results,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Rows of products in bf16 are computed in multiples of this, as tiles are; buffers have room for
 * it. */
#define EVQ_CUDA_ROWS 128

/* value, or the next multiple of step above it. */
static inline int64_t evq_cuda_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* Scores whose n logits SCORE computes at once, 1..4096: they fit in 256 MiB, in bf16 512 MiB, or
 * it is one. A multiple of EVQ_CUDA_ROWS in bf16. The same whatever memory there is: the way that
 * logits are computed follows from it. */
static inline int32_t evq_cuda_score_chunk(enum evq_compute compute, int32_t n)
{
    const bool bf16 = compute == EVQ_COMPUTE_BF16;
    const int64_t row = (bf16 ? evq_cuda_up(n, 8) : n) * (int64_t)sizeof(float);
    const int64_t least = bf16 ? EVQ_CUDA_ROWS : 1;
    const int64_t fit = ((int64_t)(bf16 ? 512 : 256) << 20) / row / least * least;

    return (int32_t)(fit < least ? least : fit > 4096 ? 4096 : fit);
}

#endif
