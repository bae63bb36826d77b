/*
 * The state of one device of an opened CUDA backend, and the files that use it. Several devices are
 * a list in the order of their parts of the plan, and the first one is the opened state
 * (pipeline.c). One thread. Names with d_ are on
 * the device, and names with h_ are pinned host memory. Device memory counts towards memory_max.
 */
#ifndef EVQ_KERNELS_CUDA_STATE_H
#define EVQ_KERNELS_CUDA_STATE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/cuda/cublas.h"
#include "kernels/cuda/cut.h"
#include "kernels/cuda/launchers.h"
#include "kernels/cuda/product.h"

struct evq_cuda_block { // Device memory that only grows.
    void *d_data;
    size_t bytes;
};

struct evq_cuda_weight {
    struct evq_cuda_block block;   // Rows of `stride` values, fp32 or bf16. Padding is 0.
    struct evq_cuda_block rounded; // An fp32 vector once more in bf16, if a product adds it.
    int32_t rows, columns;
    int32_t rows_put;
    int64_t stride;
    bool bf16, has_rounded;
};

// A buffer of activations for rows_max rows, rounded up to a multiple of EVQ_CUDA_ROWS.
struct evq_cuda_buffer {
    struct evq_cuda_block block;
    int64_t stride;
    bool bf16;
    bool used; // This device's part uses it; otherwise it may have no memory.
};

struct evq_cuda_rope_table { // The cosines and sines for ROPE operations that are alike.
    struct evq_cuda_block block, d_frequencies;
    const struct evq_op *op; // The first of these operations.
};

#define EVQ_CUDA_STAGES 4

struct evq_cuda_stage { // A blob as it came, before it is converted.
    struct evq_cuda_block block;
    cudaEvent_t copied, converted; // The latest put() that used the stage recorded them.
};

#define EVQ_CUDA_MARKS 32

struct evq_cuda_state {
    struct evq_cuda_state *next; // The device of the next part of the plan, or NULL.
    struct evq_cuda_part part;   // What this device does of the plan.
    int device;
    cudaStream_t stream; // For everything except copies of weights.
    cudaStream_t copies;
    // They mark steps of a batch on the stream, to tell its progress.
    cudaEvent_t marks[EVQ_CUDA_MARKS];
    size_t marks_set;   // How many the present batch has.
    cudaEvent_t handed; // The last operation of the part; the next device waits for it.
    struct evq_cuda_stage stages[EVQ_CUDA_STAGES]; // Put number n uses stage n modulo their number.
    uint64_t puts;
    // In the first state: the calls of put(), and for the latest ones a bit for each device that
    // got the blob.
    uint64_t calls, receivers[EVQ_CUDA_STAGES];
    struct evq_cublas cublas;
    void *cublas_handle;
    const struct evq_plan *plan; // NULL: nothing is prepared.
    struct evq_cuda_weight *weights;
    size_t weight_count;
    struct evq_cuda_buffer *buffers;
    size_t buffer_count;
    struct evq_cuda_rope_table *turns;
    size_t rope_table_count; // Tables that the plan uses; more may be allocated.
    size_t rope_table_room;
    struct evq_cuda_products products;
    int32_t tile_queries; // Queries of an attention tile; 0: the plan has no attention.
    struct evq_cuda_block labels, targets, results; // labels also holds the targets of scores.
    struct evq_cuda_block tokens, types, positions, score_rows, tiles;
    struct evq_cuda_block product;          // A product before its epilogue.
    struct evq_cuda_block narrowed;         // fp32 rows, rounded to bf16 for a product.
    struct evq_cuda_block workspace;        // The workspace of cuBLASLt.
    struct evq_cuda_block logits, gathered; // For a chunk of scores.
    int32_t *positions_host;                // [2 * rows_max]: positions of rows, then lengths.
    struct evq_attention_tile *tiles_host;  // [rows_max].
    void *h_results;                        // Pinned.
    size_t h_result_bytes;
    size_t memory_max; // Limit in bytes.
    size_t memory;     // Bytes that are held.
    bool lacks_memory; // put() or exec() lacked memory, so the next prepare() frees some.
    struct evq_backend_stats stats; // In the first state.
};

/* Whether this device computes the results. */
static inline bool evq_cuda_has_head(const struct evq_cuda_state *state,
                                     const struct evq_plan *plan)
{
    return state->part.first < state->part.end && state->part.end == plan->op_count;
}

/* memory.c */

/* Allocates pinned host memory, at least one byte. The caller frees it. */
enum evq_status evq_cuda_alloc(void *opened, size_t bytes, void **ret_host,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* host is NULL or comes from evq_cuda_alloc(). */
void evq_cuda_free(void *opened, void *host);

/* Frees the block. Nothing is reported, because the device may have failed. */
void evq_cuda_block_free(struct evq_cuda_state *state, struct evq_cuda_block *block);

/* Makes the block at least so large; if it grows, its content is lost. EVQ_E_NOMEM beyond
 * memory_max, with `what` in the message. */
enum evq_status evq_cuda_block_grow(struct evq_cuda_state *state, struct evq_cuda_block *block,
                                    size_t bytes, const char *what,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes room for so many bytes of results on the device and in pinned host memory. */
enum evq_status evq_cuda_results_grow(struct evq_cuda_state *state, size_t bytes,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Enqueues a copy; `from` must not change until the stream is synchronised. */
enum evq_status evq_cuda_copy_in(struct evq_cuda_state *state, void *d_to, const void *from,
                                 size_t bytes, const char *what,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* weights.c */

/* Allocates each slot of the plan. Slots of the same shape and layout keep their memory and values.
 */
enum evq_status evq_cuda_weights_prepare(struct evq_cuda_state *state, const struct evq_plan *plan,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees slots without values that evq_cuda_weights_prepare() would keep. */
enum evq_status evq_cuda_weights_trim(struct evq_cuda_state *state, const struct evq_plan *plan,
                                      struct evq_error *err) EVQ_CHECK_RESULT;

/* Enqueues the conversion of a blob, which is on the device as it came, into its place. */
enum evq_status evq_cuda_weight_convert(struct evq_cuda_state *state,
                                        struct evq_cuda_weight *weight, const void *d_blob,
                                        const struct evq_weight_blob *blob,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* rope_tables.c */

enum evq_status evq_cuda_rope_table_prepare(struct evq_cuda_state *state,
                                            const struct evq_plan *plan,
                                            struct evq_error *err) EVQ_CHECK_RESULT;

/* The table for a ROPE operation of the prepared plan. */
const float *evq_cuda_rope_table_of(const struct evq_cuda_state *state, const struct evq_op *op);

/* step.c */

/* Most queries in a tile of the ATTENTION operation, with the buffers as prepared. */
int32_t evq_cuda_tile_queries(const struct evq_cuda_state *state, const struct evq_op *op);

/* Enqueues the operation `number` and those after it that are combined with it. *ret_next is the
 * first one that is not. */
enum evq_status evq_cuda_step(struct evq_cuda_state *state, const struct evq_batch *batch,
                              int32_t tiles, size_t number, size_t *ret_next,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* run.c */

enum evq_status evq_cuda_marks_open(struct evq_cuda_state *state,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_cuda_marks_close(struct evq_cuda_state *state); // Also accepts a half-opened state.

/* Enqueues this device's part of a batch. from: the device of the part before, which was enqueued,
 * or NULL. result_bytes: the size of the results, which the last part copies to h_results. */
enum evq_status evq_cuda_enqueue(struct evq_cuda_state *state, const struct evq_cuda_state *from,
                                 const struct evq_batch *batch, size_t result_bytes,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Tells the batch's listener of each mark that the device reaches. */
enum evq_status evq_cuda_wait_marks(const struct evq_cuda_state *state,
                                    const struct evq_batch *batch,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* put.c */

/* Opens the stream and the events of put(). */
enum evq_status evq_cuda_copies_open(struct evq_cuda_state *state,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
// Waits for copies. Also accepts a half-opened state.
void evq_cuda_copies_close(struct evq_cuda_state *state);

/* prepare.c */

/* EVQ_E_UNSUPPORTED: this backend lacks an operation of the plan. */
enum evq_status evq_cuda_check_supported(const struct evq_plan *plan,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Prepares this device for state->part of a plan that was checked. */
enum evq_status evq_cuda_device_prepare(struct evq_cuda_state *state, const struct evq_plan *plan,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees what larger batches and other models left, and everything else but weights of the plan that
 * have values. */
enum evq_status evq_cuda_make_room(struct evq_cuda_state *state, const struct evq_plan *plan,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/* Frees all device memory except the weights and the stages of put(). */
void evq_cuda_scratch_free(struct evq_cuda_state *state);

/* pipeline.c, put.c: functions of struct evq_backend_ops, whose contracts apply. */

enum evq_status evq_cuda_prepare(void *opened, const struct evq_plan *plan,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                             struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_settle(void *opened, struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_catch_up(void *opened, uint32_t most, uint32_t *ret_reading,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

enum evq_status evq_cuda_exec(void *opened, const struct evq_batch *batch,
                              struct evq_row_result *results,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Puts "GPU 2 of 3: " before the message, if an operation of one of several devices failed. Returns
 * status. */
enum evq_status evq_cuda_of_device(const struct evq_cuda_state *first,
                                   const struct evq_cuda_state *state, enum evq_status status,
                                   struct evq_error *err);

/* Rows of bf16 products are rounded up to a multiple of this, as tiles are. Buffers have room for
 * it. */
#define EVQ_CUDA_ROWS 128

/* value, rounded up to a multiple of step. */
static inline int64_t evq_cuda_up(int64_t value, int64_t step)
{
    return (value + step - 1) / step * step;
}

/* How many scores with n logits each SCORE computes at once, 1 to 4096: they fit into 256 MiB (512
 * MiB in bf16), or it is one. In bf16 it is a multiple of EVQ_CUDA_ROWS. It does not depend on the
 * free memory, because it decides how logits are computed. */
static inline int32_t evq_cuda_score_chunk(enum evq_compute compute, int32_t n)
{
    const bool bf16 = compute == EVQ_COMPUTE_BF16;
    const int64_t row = (bf16 ? evq_cuda_up(n, 8) : n) * (int64_t)sizeof(float);
    const int64_t least = bf16 ? EVQ_CUDA_ROWS : 1;
    const int64_t fit = ((int64_t)(bf16 ? 512 : 256) << 20) / row / least * least;

    return (int32_t)(fit < least ? least : fit > 4096 ? 4096 : fit);
}

#endif
