/*
 * What a device offers the evaluator: a table of functions that take a plan of operations and
 * batches and return results. One thread at a time calls the functions on one state; two threads
 * can use two states of one device at the same time. The CPU backend is linked in and is the
 * reference. libevalq_cuda.so exports one symbol, evq_backend_module_v1, a function that returns
 * its table. It is found with dlsym() by copying the pointer's bytes. kernels/ does not know Redis,
 * checkpoints or tasks.
 */
#ifndef EVQ_KERNELS_BACKEND_H
#define EVQ_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_BACKEND_ABI 9

#define EVQ_EXPERTS_MAX         4096 // Most experts of a layer.
#define EVQ_BACKEND_DEVICES_MAX 64   // Most devices of one state.

enum evq_activation {
    EVQ_ACT_NONE,
    EVQ_ACT_RELU,
    EVQ_ACT_TANH,
    EVQ_ACT_GELU_ERF,
    EVQ_ACT_GELU_TANH,
    EVQ_ACT_SILU,
    EVQ_ACT_SIGMOID,
    EVQ_ACT_GELU_QUICK, // x * sigmoid(1.702 x).
    EVQ_ACT_RELU2,      // The square of RELU.
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
    // out[rows, n] = scale * weight[token, n] + bias[position + column, n] + types[type, n]; bias
    // is the table of learned positions, or -1. It reads no buffer (in is 0).
    EVQ_OP_EMBEDDING,
    // Each head of a range by itself: (in - mean) / sqrt(variance + epsilon) * weight[n] + bias[n]
    // with the biased variance; out may be in. For the whole row: column 0 and one head. Without
    // a bias, the weight may have heads * n values, n for each head.
    EVQ_OP_LAYER_NORM,
    // The same with in / sqrt(mean(in^2) + epsilon) * weight[n].
    EVQ_OP_RMS_NORM,
    // In place (out is in) on a range of heads, whose first values are `step` columns apart: the
    // first k values of each head are rotated (0: all n). With d = k / 2, the pairs (i, i + d), or
    // (2 i, 2 i + 1) if they are neighbours, turn by position * frequencies[i] for i < d; cosines
    // and sines are multiplied by scale. A sequence of more than `near` tokens turns by
    // far_frequencies, if there are any.
    EVQ_OP_ROPE,
    // Causal, or in both directions, within each sequence. in has heads of q, then kv_heads of k,
    // then kv_heads of v, each n wide; with step = 3 n it has q, k and v of the first head, then of
    // the second, and so on. out is [rows, heads * n]. Query head h reads key head h / (heads /
    // kv_heads) and computes the softmax of x = scale * q.k, or of cap * tanh(x / cap). With window
    // > 0, position i sees j in (i - window, i], or in (i - window, i + window) in both directions.
    // weight[heads], if there is one, is one more logit of each head, without a value.
    EVQ_OP_ATTENTION,
    EVQ_OP_MEAN, // out[rows, n] = the mean of in[rows, n] over the rows of the same sequence.
    EVQ_OP_GATE, // out[rows, n] = act(in[rows, c]) * in[rows, n + c]; out is not in.
    EVQ_OP_ADD,  // out[rows, n] = scale * in[rows, n] + residual[rows, n]; out may be either.
    // The weights of experts, from logits in[rows, n]: of the top_k largest (of equal ones the
    // first), the softmax among these, or among all n if `whole`; the others get 0. out may be in.
    EVQ_OP_ROUTE,
    // out[rows, n] = residual[rows, n] + sum over experts e of routes[rows, e] * y, where y[n] =
    // down_e[n, inner] * g, and g[inner] = act(a[c]) * a[inner + c] of a = weight_e[2 inner, k] *
    // in[rows, k]. weight_e and down_e are the slots weight + e and down + e; the rows e of the
    // slots bias and down_bias, if there are any, are added to a and y. If they are neighbours, the
    // gates a[2 c] and the ups a[2 c + 1] give g = (up + 1) * gate / (1 + exp(-scale * gate)),
    // after gates are bounded by cap, and ups by -cap and cap. out may be residual.
    EVQ_OP_EXPERTS,
    // Scoring head: in[rows, k], weight[n, k], bias[n] or -1; it computes the batch's scores and
    // never stores more than a tile of the logits. Without a bias, logits x become scale * x
    // (scale 0: x) and then cap * tanh(x / cap).
    EVQ_OP_SCORE,
    // Loss head: logits in[rows, n], int32 labels of the batch. For tokens, score_rows are the rows
    // that have a label, each once, and score_targets the labels.
    EVQ_OP_CROSS_ENTROPY,
    EVQ_OP_SQUARED_ERROR, // Loss head: in[rows, n], float targets of the batch.
    EVQ_OP_COUNT
};

/* A weight as a plan needs it: rank 1 or 2, in the layout and type of the backend. */
struct evq_weight_slot {
    const char *name; // For messages.
    int32_t rows;     // n; 1 for a vector.
    int32_t columns;  // k; the length of a vector.
};

enum evq_weight_type { EVQ_WEIGHT_F32, EVQ_WEIGHT_F16, EVQ_WEIGHT_BF16, EVQ_WEIGHT_TYPE_COUNT };

/* Values for all columns of the rows [first_row, first_row + rows) of a slot. */
struct evq_weight_blob {
    const void *values; // Aligned to its type.
    enum evq_weight_type type;
    int32_t first_row, rows;
    bool transposed; // Memory is [columns, rows], as Conv1D stores it; otherwise [rows, columns].
};

struct evq_op {
    enum evq_op_kind kind;
    // Buffers of activations by number. Buffer 0 holds the batch's inputs. Heads write no
    // buffer (-1).
    int32_t in, out;
    int32_t residual;     // For GEMM, ADD and EXPERTS: a buffer to add; 0: none.
    int32_t weight, bias; // Weight slots by number; -1: none.
    int32_t types;        // For EMBEDDING: the slot of the table of token types; 0: none.
    int32_t n, k;         // Number of output and input columns.
    int32_t column, heads, kv_heads, window;
    int32_t step; // For ROPE and ATTENTION: columns from one head to the next; 0: n.
    bool both;    // For ATTENTION: in both directions.
    enum evq_activation activation;
    float scale, epsilon;
    float cap; // For ATTENTION and SCORE: logits stay within it; 0: they have no cap.
    // For ROPE: as many values as pairs; they belong to the model. far_frequencies may be NULL.
    const float *frequencies, *far_frequencies;
    int32_t near;
    bool neighbours;
    int32_t routes, experts, inner, down, down_bias; // For EXPERTS.
    bool whole;
    // For CROSS_ENTROPY: also counts labels among the top_k largest logits; 0: does not. For ROUTE
    // and EXPERTS: the experts of a row.
    int32_t top_k;
};

enum evq_compute {
    EVQ_COMPUTE_F32,  // Nothing is rounded more than fp32 requires (TF32 is off).
    EVQ_COMPUTE_BF16, // Matrix products of bf16 values are summed in fp32; everything else is fp32.
    EVQ_COMPUTE_COUNT
};

struct evq_plan { // It does not change once it is prepared; it belongs to the model.
    const struct evq_op *ops;
    size_t op_count;
    const struct evq_weight_slot *slots;
    size_t slot_count;
    // Buffers are numbered from 0. The next field is the width of each: an operation reads and
    // writes its first n (or k) columns, or its range of heads.
    int32_t buffer_count;
    const int32_t *buffer_columns;
    int32_t rows_max;   // The largest batch.
    int32_t length_max; // The longest sequence of a batch; 0: the rows are samples, not tokens.
    enum evq_compute compute;
};

/*
 * Host memory of the caller, which can be reused when exec() returns. For samples: inputs, and
 * labels or targets. For tokens: sequences packed one after another without padding, and a list of
 * what is scored.
 */
struct evq_batch {
    int32_t rows;
    const float *inputs;   // [rows, columns of buffer 0].
    const int32_t *labels; // [rows] or NULL; exec() checks the range (EVQ_E_INVALID).
    const float *targets;  // [rows, n] or NULL.

    const int32_t *tokens; // [rows] or NULL; must be in the vocabulary (EVQ_E_INVALID).
    const int32_t *types;  // [rows] the type of each token; NULL: all are 0.
    // [sequences + 1]: the first row of each sequence; starts[sequences] equals rows.
    const int32_t *starts;
    int32_t sequences; // A row's position is its index in its sequence.

    // [scores], ascending; a row may repeat. The rows whose outputs are scored.
    const int32_t *score_rows;
    const int32_t *score_targets; // The token that should come next, or the label; below n.
    int32_t scores;

    // exec() calls it on its own thread when parts of the batch are done. If the calls stop, the
    // device hangs. NULL: nobody listens.
    void (*tell)(void *listener);
    void *listener;
};

struct evq_row_result {
    // Cross-entropy in nats (for SCORE, minus the target's log-probability), or the sum of squared
    // errors of the row.
    double loss;
    double abs_loss; // For SQUARED_ERROR: the sum of absolute errors; otherwise 0.
    // For CROSS_ENTROPY and SCORE: the first argmax, or -1 if a logit is NaN (the loss is then NaN
    // too); otherwise -1.
    int32_t predicted;
    bool correct;
    bool in_top_k;
};

struct evq_backend_config {
    int32_t device;          // CUDA ordinal; ignored by the CPU.
    int32_t threads;         // CPU threads; 0: all cores.
    size_t memory_bytes_max; // On each device; 0: all its memory.
    // Devices to use instead of `device`: the plan is cut into parts, and each device has the
    // weights of one part. They must be of one kind to give the numbers of one device. 0: none.
    const int32_t *devices;
    int32_t device_count;
};

struct evq_backend_caps {
    char device[128];    // "AMD EPYC ... (avx512, 2 threads)", "NVIDIA H200", "2 x NVIDIA H200".
    size_t memory_bytes; // Of all devices.
    bool bf16;
};

struct evq_backend_stats {
    uint64_t exec_calls;
    uint64_t rows;
    uint64_t flops;
    size_t memory_bytes; // Memory that is held now, on all devices.
};

struct evq_backend_ops {
    // EVQ_BACKEND_ABI. A module with another value is refused with one log line.
    uint32_t abi_version;
    const char *name; // "cpu", "cuda".
    /* The number of devices; 0 if there is none, and err says why (no driver, no device). It never
     * crashes. */
    int32_t (*probe)(struct evq_error *err);
    enum evq_status (*open)(const struct evq_backend_config *config, void **ret_state,
                            struct evq_error *err);
    void (*caps)(void *state, struct evq_backend_caps *ret_caps);
    /* Memory that put() can read and the host can write. The loader reads checkpoints directly into
     * it. */
    enum evq_status (*alloc)(void *state, size_t bytes, void **ret_host, struct evq_error *err);
    void (*free)(void *state, void *host);
    /* Sizes buffers and weights for the plan. If the shapes are the same as before, all memory is
     * kept, and slots of the same shape keep their values. The plan must outlive its use.
     * EVQ_E_NOMEM: a plan with a smaller rows_max may fit. EVQ_E_UNSUPPORTED: this backend lacks an
     * operation. */
    enum evq_status (*prepare)(void *state, const struct evq_plan *plan, struct evq_error *err);
    /* Copies values into one slot of the prepared plan. Several blobs fill a slot in
     * row order; first_row 0 starts again. blob->values must not change until settle() or
     * catch_up() allows it. */
    enum evq_status (*put)(void *state, int32_t slot, const struct evq_weight_blob *blob,
                           struct evq_error *err);
    /* Returns when no put() reads host memory any more. */
    enum evq_status (*settle)(void *state, struct evq_error *err);
    /* Returns when only the latest `most` calls of put() may still read host memory. *ret_reading:
     * how many of them do. */
    enum evq_status (*catch_up)(void *state, uint32_t most, uint32_t *ret_reading,
                                struct evq_error *err);
    /* results is the caller's array with one entry for each row, or for each score. Returns when it
     * is filled. */
    enum evq_status (*exec)(void *state, const struct evq_batch *batch,
                            struct evq_row_result *results, struct evq_error *err);
    void (*stats)(void *state, struct evq_backend_stats *ret_stats);
    void (*close)(void *state); // Accepts NULL and half-opened states; waits for running work.
};

extern const struct evq_backend_ops evq_backend_cpu;

typedef const struct evq_backend_ops *(*evq_backend_module_fn)(void);
#define EVQ_BACKEND_MODULE_SYMBOL "evq_backend_module_v1"

#endif
