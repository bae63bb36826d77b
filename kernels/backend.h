/*
 * What a device offers the evaluator child: a table of functions, a plan of operations, batches in,
 * results out. Calls on one state come from one thread. kernels/ knows nothing of Redis,
 * checkpoints or tasks. The CPU backend is linked in and is the reference; libevalq_cuda.so exports
 * one symbol, evq_backend_module_v1, a function that returns its table, found with dlsym() by
 * copying the pointer's bytes.
 */
#ifndef EVQ_KERNELS_BACKEND_H
#define EVQ_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/error.h"

#define EVQ_BACKEND_ABI 1

enum evq_activation {
    EVQ_ACT_NONE,
    EVQ_ACT_RELU,
    EVQ_ACT_TANH,
    EVQ_ACT_GELU_ERF,
    EVQ_ACT_GELU_TANH,
    EVQ_ACT_SILU,
    EVQ_ACT_SIGMOID,
    EVQ_ACT_COUNT
};

enum evq_op_kind {
    EVQ_OP_GEMM, // out[rows, n] = act(in[rows, k] * weight[n, k]^T + bias[n]); out is not in.
    EVQ_OP_SCALE_SHIFT, // out[rows, n] = act(in * weight[n] + bias[n]), per column (BatchNorm1d in
                        // eval form); out may be in.
    EVQ_OP_CROSS_ENTROPY, // Loss head: logits in[rows, n], int32 labels of the batch.
    EVQ_OP_SQUARED_ERROR, // Loss head: in[rows, n], float targets of the batch.
    EVQ_OP_COUNT // Embedding, norms, rope, attention, gated activation, scoring head join here.
};

/* A weight as a plan wants it: fp32, C-contiguous, rank 1 or 2. */
struct evq_weight_slot {
    const char *name; // For messages.
    int32_t rows;     // n; 1 for a vector.
    int32_t columns;  // k; the length of a vector.
};

struct evq_op {
    enum evq_op_kind kind;
    int32_t in,
        out; // Activation buffers by number; the batch's inputs are 0; heads write no buffer (-1).
    int32_t weight, bias; // Weight slots by number; -1: none.
    int32_t n, k;         // Columns out and in.
    enum evq_activation activation;
    float scale, shift; // SCALE_SHIFT without weights: out = in * scale + shift.
    int32_t top_k;      // CROSS_ENTROPY: also counts labels among the top_k largest logits; 0: not.
};

struct evq_plan { // Immutable once prepared; owned by the model.
    const struct evq_op *ops;
    size_t op_count;
    const struct evq_weight_slot *slots;
    size_t slot_count;
    int32_t buffer_count; // Numbered 0 to buffer_count - 1.
    // Width of each, at most; an operation's rows lie n (or k) values apart.
    const int32_t *buffer_columns;
    int32_t rows_max; // Largest batch.
};

struct evq_batch { // Host memory, the caller's, may be reused on return.
    int32_t rows;
    const float *inputs;   // [rows, columns of buffer 0].
    const int32_t *labels; // [rows] or NULL; checked to be in range by exec (EVQ_E_INVALID).
    const float *targets;  // [rows, n] or NULL.
};

struct evq_row_result {
    double loss;       // Cross-entropy in nats, or the sum of squared errors of the row.
    double abs_loss;   // SQUARED_ERROR: sum of absolute errors; else 0.
    int32_t predicted; // CROSS_ENTROPY: first argmax, -1 if any logit is NaN (the loss is NaN too);
                       // else -1.
    bool correct;
    bool in_top_k;
};

struct evq_backend_config {
    int32_t device;          // CUDA ordinal; ignored by the CPU.
    int32_t threads;         // CPU threads; 0: all cores.
    size_t memory_bytes_max; // 0: what the device has.
};

struct evq_backend_caps {
    char device[128]; // "AMD EPYC ... (avx512, openblas)", "NVIDIA H200".
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
     * same shape their values. The plan must outlive its use. */
    enum evq_status (*prepare)(void *state, const struct evq_plan *plan, struct evq_error *err);
    /* fp32 values of one slot of the prepared plan, rows * columns of them; blob may be reused on
     * return. */
    enum evq_status (*put)(void *state, int32_t slot, const float *blob, struct evq_error *err);
    /* results: one entry per row, the caller's array. Returns when it is filled. */
    enum evq_status (*exec)(void *state, const struct evq_batch *batch,
                            struct evq_row_result *results, struct evq_error *err);
    void (*stats)(void *state, struct evq_backend_stats *ret_stats);
    void (*close)(void *state); // Accepts NULL and half-opened states; waits for work in flight.
};

extern const struct evq_backend_ops evq_backend_cpu;

typedef const struct evq_backend_ops *(*evq_backend_module_fn)(void);
#define EVQ_BACKEND_MODULE_SYMBOL "evq_backend_module_v1"

#endif
