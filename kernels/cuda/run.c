/*
 * Runs a batch through this device's part of the plan: copies it in, takes over the activations of
 * the part before, runs the operations in order on the stream, and copies the results out.
 */

#include "kernels/cuda/state.h"
#include "kernels/plan.h"

/* Computes the position of each row in its sequence, its length, and the attention tiles. Tiles
 * with the most keys come first, so that the processors of the device finish together. Returns the
 * number of tiles. */
static int32_t read_sequences(struct evq_cuda_state *state, const struct evq_batch *batch)
{
    const int32_t queries = state->tile_queries;
    int32_t tiles = 0;
    int32_t longest = 0;

    for (int32_t s = 0; s < batch->sequences; s++) {
        const int32_t length = batch->starts[s + 1] - batch->starts[s];
        longest = length > longest ? length : longest;
        for (int32_t r = 0; r < length; r++) {
            state->positions_host[batch->starts[s] + r] = r;
            state->positions_host[batch->rows + batch->starts[s] + r] = length;
        }
    }
    if (queries == 0) {
        return 0;
    }
    for (int32_t first = (longest - 1) / queries * queries; first >= 0; first -= queries) {
        for (int32_t s = 0; s < batch->sequences; s++) {
            const int32_t length = batch->starts[s + 1] - batch->starts[s];
            if (length > first) {
                state->tiles_host[tiles++] = (struct evq_attention_tile){
                    .row = batch->starts[s],
                    .first = first,
                    .count = length - first < queries ? length - first : queries,
                    .length = length};
            }
        }
    }
    return tiles;
}

static enum evq_status copy_tokens(struct evq_cuda_state *state, const struct evq_batch *batch,
                                   int32_t tiles, struct evq_error *err)
{
    const size_t rows = (size_t)batch->rows * sizeof(int32_t);
    const size_t scores = (size_t)batch->scores * sizeof(int32_t);

    enum evq_status status = evq_cuda_copy_in(state, state->positions.d_data, state->positions_host,
                                              2 * rows, "copy positions", err);
    if (status == EVQ_OK && tiles > 0) {
        status = evq_cuda_copy_in(state, state->tiles.d_data, state->tiles_host,
                                  (size_t)tiles * sizeof(*state->tiles_host), "copy tiles", err);
    }
    if (status == EVQ_OK && batch->tokens != NULL) {
        status =
            evq_cuda_copy_in(state, state->tokens.d_data, batch->tokens, rows, "copy tokens", err);
    }
    if (status == EVQ_OK && batch->types != NULL) {
        status = evq_cuda_block_grow(state, &state->types, rows, "types", err);
        if (status == EVQ_OK) {
            status =
                evq_cuda_copy_in(state, state->types.d_data, batch->types, rows, "copy types", err);
        }
    }
    if (status == EVQ_OK && batch->scores > 0 && evq_cuda_has_head(state, state->plan)) {
        status = evq_cuda_block_grow(state, &state->score_rows, scores, "scores", err);
        if (status == EVQ_OK) {
            status = evq_cuda_block_grow(state, &state->labels, scores, "scores", err);
        }
        if (status == EVQ_OK) {
            status = evq_cuda_copy_in(state, state->score_rows.d_data, batch->score_rows, scores,
                                      "copy scores", err);
        }
        if (status == EVQ_OK) {
            status = evq_cuda_copy_in(state, state->labels.d_data, batch->score_targets, scores,
                                      "copy scores", err);
        }
    }
    return status;
}

static enum evq_status copy_batch(struct evq_cuda_state *state, const struct evq_batch *batch,
                                  int32_t tiles, struct evq_error *err)
{
    const struct evq_plan *plan = state->plan;
    const size_t rows = (size_t)batch->rows;

    enum evq_status status = EVQ_OK;
    if (plan->length_max > 0) {
        status = copy_tokens(state, batch, tiles, err);
    }
    if (status == EVQ_OK && batch->inputs != NULL && state->buffers[0].used) {
        status = evq_cuda_copy_in(state, state->buffers[0].block.d_data, batch->inputs,
                                  rows * (size_t)plan->buffer_columns[0] * sizeof(float),
                                  "copy inputs", err);
    }
    for (size_t i = state->part.first; i < state->part.end && status == EVQ_OK; i++) {
        const struct evq_op *op = &plan->ops[i];
        if (op->kind == EVQ_OP_CROSS_ENTROPY && plan->length_max == 0) {
            status = evq_cuda_copy_in(state, state->labels.d_data, batch->labels,
                                      rows * sizeof(int32_t), "copy labels", err);
        } else if (op->kind == EVQ_OP_SQUARED_ERROR) {
            status = evq_cuda_copy_in(state, state->targets.d_data, batch->targets,
                                      rows * (size_t)op->n * sizeof(float), "copy targets", err);
        }
    }
    return status;
}

enum evq_status evq_cuda_marks_open(struct evq_cuda_state *state, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (int i = 0; i < EVQ_CUDA_MARKS && status == EVQ_OK; i++) {
        status = evq_cuda_status(cudaEventCreateWithFlags(&state->marks[i], cudaEventDisableTiming),
                                 "make an event", err);
    }
    if (status == EVQ_OK) {
        status = evq_cuda_status(cudaEventCreateWithFlags(&state->handed, cudaEventDisableTiming),
                                 "make an event", err);
    }
    return status;
}

void evq_cuda_marks_close(struct evq_cuda_state *state)
{
    if (state->handed != NULL) {
        (void)cudaEventDestroy(state->handed); // It fails only if the device has failed.
    }
    for (int i = 0; i < EVQ_CUDA_MARKS; i++) {
        if (state->marks[i] != NULL) {
            (void)cudaEventDestroy(state->marks[i]); // It fails only if the device has failed.
        }
    }
}

/* Enqueues the operations of the part. If there is a listener, marks are placed evenly between
 * them, because all are launched long before they are done. */
static enum evq_status run_steps(struct evq_cuda_state *state, const struct evq_batch *batch,
                                 int32_t tiles, struct evq_error *err)
{
    const struct evq_cuda_part *part = &state->part;
    const size_t count = part->end - part->first;
    enum evq_status status = EVQ_OK;

    for (size_t i = part->first; i < part->end && status == EVQ_OK;) {
        status = evq_cuda_step(state, batch, tiles, i, &i, err);
        if (status == EVQ_OK && i > part->end) {
            status = evq_error_set(err, EVQ_E_BUG, "operations before and after %zu are combined",
                                   part->end);
        }
        if (status == EVQ_OK && batch->tell != NULL &&
            (i - part->first) * EVQ_CUDA_MARKS / count > state->marks_set) {
            status =
                evq_cuda_status(cudaEventRecord(state->marks[state->marks_set++], state->stream),
                                "mark a step", err);
        }
    }
    return status;
}

enum evq_status evq_cuda_wait_marks(const struct evq_cuda_state *state,
                                    const struct evq_batch *batch, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < state->marks_set && status == EVQ_OK; i++) {
        status = evq_cuda_status(cudaEventSynchronize(state->marks[i]), "run the plan", err);
        if (status == EVQ_OK) {
            batch->tell(batch->listener);
        }
    }
    return status;
}

/* Takes over the rows of the part before, when they are done. The driver copies from device to
 * device, or through the host if it cannot. */
static enum evq_status take_rows(struct evq_cuda_state *state, const struct evq_cuda_state *from,
                                 int32_t rows, struct evq_error *err)
{
    const struct evq_cuda_buffer *source = &from->buffers[state->part.taken];
    const struct evq_cuda_buffer *buffer = &state->buffers[state->part.taken];
    const size_t bytes = (size_t)rows * (size_t)buffer->stride * (buffer->bf16 ? 2 : sizeof(float));

    const enum evq_status status = evq_cuda_status(
        cudaStreamWaitEvent(state->stream, from->handed, 0), "wait for the GPU before", err);
    return status == EVQ_OK
               ? evq_cuda_status(cudaMemcpyPeerAsync(buffer->block.d_data, state->device,
                                                     source->block.d_data, from->device, bytes,
                                                     state->stream),
                                 "copy activations from the GPU before", err)
               : status;
}

/* Enqueues what follows the operations: the results, or the signal for the next part. */
static enum evq_status hand_on(struct evq_cuda_state *state, size_t bytes, struct evq_error *err)
{
    if (evq_cuda_has_head(state, state->plan)) {
        return evq_cuda_status(cudaMemcpyAsync(state->h_results, state->results.d_data, bytes,
                                               cudaMemcpyDeviceToHost, state->stream),
                               "copy results", err);
    }
    return evq_cuda_status(cudaEventRecord(state->handed, state->stream), "mark the last step",
                           err);
}

enum evq_status evq_cuda_enqueue(struct evq_cuda_state *state, const struct evq_cuda_state *from,
                                 const struct evq_batch *batch, size_t result_bytes,
                                 struct evq_error *err)
{
    const int32_t tiles = state->plan->length_max > 0 ? read_sequences(state, batch) : 0;

    state->marks_set = 0;
    enum evq_status status = evq_cuda_status(cudaSetDevice(state->device), "choose the GPU", err);
    if (status == EVQ_OK && evq_cuda_has_head(state, state->plan)) {
        status = evq_cuda_results_grow(state, result_bytes, err);
    }
    if (status == EVQ_OK) {
        status = copy_batch(state, batch, tiles, err);
    }
    if (status == EVQ_OK && from != NULL) {
        status = take_rows(state, from, batch->rows, err);
    }
    if (status == EVQ_OK) {
        status = run_steps(state, batch, tiles, err);
    }
    return status == EVQ_OK ? hand_on(state, result_bytes, err) : status;
}
