/*
 * What a device offers the evaluator child: a table of functions, a plan of operations, batches in,
 * results out. Calls on one state come from one thread at a time; two states of one device may be
 * used by two threads side by side. kernels/ knows nothing of Redis,
 * checkpoints or tasks. The CPU backend is linked in and is the reference; libevalq_cuda.so exports
 * one symbol, evq_backend_module_v1, a function that returns its table, found with dlsym() by
 * copying the pointer's bytes.
 */
#ifndef EVQ_KERNELS_BACKEND_H
#define EVQ_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_BACKEND_ABI 5

enum evq_activation {
    EVQ_ACT_NONE,
    EVQ_ACT_RELU,
    EVQ_ACT_TANH,
    EVQ_ACT_GELU_ERF,
    EVQ_ACT_GELU_TANH,
    EVQ_ACT_SILU,
    EVQ_ACT_SIGMOID,
    EVQ_ACT_GELU_QUICK, // x * sigmoid(1.702 x).
    EVQ_ACT_COUNT
};

/*
 * n and k are widths in values. A range of heads is the columns [column, column + heads * n) of a
 * buffer. Rows are the samples of a batch, or its tokens. The last operation of a plan, and no
 * other, is a head: it fills the results.
 */
enum evq_op_kind {
    EVQ_OP_GEMM, // out[rows, n] = act(in[rows, k] * weight[n, k]^T + bias[n]) + residual[rows, n];
                 // out may be residual, not in.
    EVQ_OP_SCALE_SHIFT, // out[rows, n] = act(in * weight[n] + bias[n]), per column (BatchNorm1d in
                        // eval form); out may be in.
    EVQ_OP_EMBEDDING,   // out[rows, n] = scale * weight[token, n] + bias[position, n]; bias: the
                        // table of learned positions, or -1. Reads no buffer (in is 0).
    EVQ_OP_LAYER_NORM,  // out[rows, n] = (in - mean) / sqrt(variance + epsilon) * weight[n] +
                        // bias[n], biased variance; out may be in.
    EVQ_OP_RMS_NORM,    // Each of a range of heads by itself: in / sqrt(mean(in^2) + epsilon) *
                        // weight[n]; out may be in. The whole row: column 0, one head.
    EVQ_OP_ROPE, // In place (out is in) on a range of heads: with d = n / 2, the pairs (i, i + d)
                 // turn by position * frequencies[i], i < d; cos and sin times scale.
    EVQ_OP_ATTENTION, // Causal, within each sequence. in: heads of q, then kv_heads of k, then
                      // kv_heads of v, each n wide; out[rows, heads * n]. Query head h reads
                      // key head h / (heads / kv_heads); softmax(scale * q.k); with window > 0
                      // position i sees j in (i - window, i].
    EVQ_OP_GATE,      // out[rows, n] = act(in[rows, c]) * in[rows, n + c]; out is not in.
    EVQ_OP_SCORE,     // Scoring head: in[rows, k], weight[n, k], bias[n] or -1; the batch's scores.
                      // Never stores more than a tile of the logits.
    EVQ_OP_CROSS_ENTROPY, // Loss head: logits in[rows, n], int32 labels of the batch.
    EVQ_OP_SQUARED_ERROR, // Loss head: in[rows, n], float targets of the batch.
    EVQ_OP_COUNT
};

/* A weight as a plan wants it: rank 1 or 2, of the backend's own layout and type. */
struct evq_weight_slot {
    const char *name; // For messages.
    int32_t rows;     // n; 1 for a vector.
    int32_t columns;  // k; the length of a vector.
};

enum evq_weight_type { EVQ_WEIGHT_F32, EVQ_WEIGHT_F16, EVQ_WEIGHT_BF16, EVQ_WEIGHT_TYPE_COUNT };

/* Values for rows [first_row, first_row + rows) of a slot, all its columns. */
struct evq_weight_blob {
    const void *values; // Aligned to its type.
    enum evq_weight_type type;
    int32_t first_row, rows;
    bool transposed; // [columns, rows] in memory, as Conv1D stores it; else [rows, columns].
};

struct evq_op {
    enum evq_op_kind kind;
    int32_t in,
        out; // Activation buffers by number; the batch's inputs are 0; heads write no buffer (-1).
    int32_t residual;     // GEMM: a buffer to add; 0: none.
    int32_t weight, bias; // Weight slots by number; -1: none.
    int32_t n, k;         // Columns out and in.
    int32_t column, heads, kv_heads, window;
    enum evq_activation activation;
    float scale, shift; // SCALE_SHIFT without weights: out = in * scale + shift. Else see above.
    float epsilon;
    const float *frequencies; // ROPE: n / 2 of them, the model's.
    int32_t top_k; // CROSS_ENTROPY: also counts labels among the top_k largest logits; 0: not.
};

enum evq_compute {
    EVQ_COMPUTE_F32,  // No shortcut that rounds more (TF32 is off).
    EVQ_COMPUTE_BF16, // Matrix products of bf16 values, summed in fp32; the rest in fp32.
    EVQ_COMPUTE_COUNT
};

struct evq_plan { // Immutable once prepared; owned by the model.
    const struct evq_op *ops;
    size_t op_count;
    const struct evq_weight_slot *slots;
    size_t slot_count;
    int32_t buffer_count; // Numbered 0 to buffer_count - 1.
    // Width of each: an operation writes and reads the first n (or k) columns of it, or its range
    // of heads.
    const int32_t *buffer_columns;
    int32_t rows_max;   // Largest batch.
    int32_t length_max; // Longest sequence of a batch; 0: the rows are samples, not tokens.
    enum evq_compute compute;
};

/*
 * Host memory, the caller's, may be reused on return. Samples: inputs, and labels or targets.
 * Tokens: sequences packed one after another without padding; what is scored is a list.
 */
struct evq_batch {
    int32_t rows;
    const float *inputs;   // [rows, columns of buffer 0].
    const int32_t *labels; // [rows] or NULL; checked to be in range by exec (EVQ_E_INVALID).
    const float *targets;  // [rows, n] or NULL.

    const int32_t *tokens; // [rows] or NULL; in range of the vocabulary (EVQ_E_INVALID).
    const int32_t *starts; // [sequences + 1]: the first row of each; starts[sequences] is rows.
    int32_t sequences;
    // Position of a row: its place in its sequence.
    const int32_t *score_rows;    // [scores], ascending, a row may repeat: these rows' outputs say
                                  // how likely ...
    const int32_t *score_targets; // ... these tokens are next; in range of SCORE's n.
    int32_t scores;

    // Called by exec(), in its own thread, as parts of the batch are done: where it stays away,
    // nothing moves. NULL: nobody listens.
    void (*tell)(void *listener);
    void *listener;
};

struct evq_row_result {
    // Cross-entropy in nats (SCORE: minus the target's log-probability), or the sum of squared
    // errors of the row.
    double loss;
    double abs_loss;   // SQUARED_ERROR: sum of absolute errors; else 0.
    int32_t predicted; // CROSS_ENTROPY, SCORE: first argmax, -1 if any logit is NaN (the loss is
                       // NaN too); else -1.
    bool correct;
    bool in_top_k;
};

struct evq_backend_config {
    int32_t device;          // CUDA ordinal; ignored by the CPU.
    int32_t threads;         // CPU threads; 0: all cores.
    size_t memory_bytes_max; // 0: what the device has.
};

struct evq_backend_caps {
    char device[128]; // "AMD EPYC ... (avx512, 2 threads)", "NVIDIA H200".
    size_t memory_bytes;
    bool bf16;
};

struct evq_backend_stats {
    uint64_t exec_calls;
    uint64_t rows;
    uint64_t flops;
    size_t memory_bytes; // Held now.
};

struct evq_backend_ops {
    // EVQ_BACKEND_ABI; another value: the module is refused with one log line.
    uint32_t abi_version;
    const char *name; // "cpu", "cuda".
    /* How many devices there are; 0 with err saying why not (no driver, no device). Never crashes.
     */
    int32_t (*probe)(struct evq_error *err);
    enum evq_status (*open)(const struct evq_backend_config *config, void **ret_state,
                            struct evq_error *err);
    void (*caps)(void *state, struct evq_backend_caps *ret_caps);
    /* Memory that put() may fill and the host may write: the loader reads checkpoints straight into
     * it. */
    enum evq_status (*alloc)(void *state, size_t bytes, void **ret_host, struct evq_error *err);
    void (*free)(void *state, void *host);
    /* Sizes buffers and weights for plan; the same shapes again keep all memory, and slots of the
     * same shape their values. The plan must outlive its use. EVQ_E_NOMEM: a plan with fewer
     * rows_max may fit. EVQ_E_UNSUPPORTED: this backend lacks an operation. */
    enum evq_status (*prepare)(void *state, const struct evq_plan *plan, struct evq_error *err);
    /* Memory for the plan's weights alone: put() fills them, exec() wants prepare() first. The same
     * shapes again keep memory and values as with prepare(). EVQ_E_NOMEM also where the device
     * would have too little left for others. With exchange() NULL: a backend that holds one set of
     * weights. */
    enum evq_status (*reserve)(void *state, const struct evq_plan *plan, struct evq_error *err);
    /* Waits for what both states, of the same device, were given to do; then each has the other's
     * weights. Neither has a plan any more: prepare() and reserve() keep the values of slots of the
     * same shape. Nothing else may use either meanwhile. */
    enum evq_status (*exchange)(void *state, void *other, struct evq_error *err);
    /* Values of one slot of the prepared, or reserved, plan. Several blobs fill a slot in row
     * order; first_row 0 begins anew. blob->values stays untouched until settle(), or catch_up().
     */
    enum evq_status (*put)(void *state, int32_t slot, const struct evq_weight_blob *blob,
                           struct evq_error *err);
    /* Returns when no put() reads host memory any more. */
    enum evq_status (*settle)(void *state, struct evq_error *err);
    /* Returns when none but the `most` latest put() read host memory; *ret_reading: how many of
     * these still may. */
    enum evq_status (*catch_up)(void *state, uint32_t most, uint32_t *ret_reading,
                                struct evq_error *err);
    /* results: one entry per row, or per score; the caller's array. Returns when it is filled. */
    enum evq_status (*exec)(void *state, const struct evq_batch *batch,
                            struct evq_row_result *results, struct evq_error *err);
    void (*stats)(void *state, struct evq_backend_stats *ret_stats);
    void (*close)(void *state); // Accepts NULL and half-opened states; waits for work in flight.
};

extern const struct evq_backend_ops evq_backend_cpu;

typedef const struct evq_backend_ops *(*evq_backend_module_fn)(void);
#define EVQ_BACKEND_MODULE_SYMBOL "evq_backend_module_v1"

#endif
