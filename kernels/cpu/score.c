#include "kernels/cpu/score.h"

#include <math.h>

// Panels in a tile of the vocabulary. The logits of a tile fit into the second-level cache.
#define TILE_PANELS 16

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 16;
}

/* Floats of one row's logits in a tile. */
static size_t tile_stride(const struct evq_kernels *kernels)
{
    return ((size_t)kernels->panel * TILE_PANELS + EVQ_KERNELS_PAD + 15) / 16 * 16;
}

/* The tile's logits, the state of each row, the scratch of the product, and the rounded rows. */
size_t evq_score_scratch_floats(const struct evq_kernels *kernels, int32_t rows, int32_t k)
{
    return tile_stride(kernels) * (size_t)rows + lines((size_t)rows * sizeof(struct evq_logsum)) +
           kernels->gemm_scratch_floats(rows) + evq_kernels_rounded_stride(k) * (size_t)rows;
}

static void take_targets(const struct evq_score *score, const float *logits, int32_t column,
                         int32_t count)
{
    for (int32_t r = 0; r < score->rows; r++) {
        for (int32_t s = score->first[r]; s < score->first[r + 1]; s++) {
            const int32_t at = score->targets[s] - column;
            if (at >= 0 && at < count) {
                score->results[s].loss =
                    (double)logits[(size_t)r * tile_stride(score->kernels) + (size_t)at];
            }
        }
    }
}

static void finish(const struct evq_score *score, const struct evq_logsum *sums)
{
    for (int32_t r = 0; r < score->rows; r++) {
        const double logsum = log(sums[r].sum) + (double)sums[r].top;
        for (int32_t s = score->first[r]; s < score->first[r + 1]; s++) {
            const double logit = score->results[s].loss;
            score->results[s] = (struct evq_row_result){.loss = logsum - logit, .predicted = -1};
            if (!isnan(logsum)) {
                score->results[s].predicted = sums[r].arg;
                score->results[s].correct = sums[r].arg == score->targets[s];
            }
        }
    }
}

/* The rows as the product reads them: rounded if the weight is. */
static struct evq_gemm product(const struct evq_score *score, float *scratch)
{
    const struct evq_kernels *kernels = score->kernels;
    float *rounded = scratch + kernels->gemm_scratch_floats(score->rows);
    struct evq_gemm gemm = {.rows = score->rows,
                            .k = score->k,
                            .pairs = score->weight->form == EVQ_WEIGHT_PANELS_BF16,
                            .in = score->in,
                            .in_stride = score->in_stride,
                            .out = score->scratch,
                            .out_stride = tile_stride(kernels),
                            .scratch = scratch};

    if (gemm.pairs) {
        gemm.in = rounded;
        gemm.in_stride = evq_kernels_rounded_stride(score->k);
        kernels->round(score->in, score->in_stride, score->rows, score->k, rounded, gemm.in_stride);
    }
    return gemm;
}

void evq_score_run(const struct evq_score *score)
{
    const size_t stride = tile_stride(score->kernels);
    const int32_t tile = score->kernels->panel * TILE_PANELS;
    const int32_t vocabulary = score->weight->rows;
    float *logits = score->scratch;
    struct evq_logsum *sums = (void *)(logits + stride * (size_t)score->rows);
    float *scratch = (float *)(void *)sums + lines((size_t)score->rows * sizeof(struct evq_logsum));
    struct evq_gemm gemm = product(score, scratch);
    const size_t deep = (size_t)(gemm.pairs ? (score->k + 1) / 2 : score->k);

    for (int32_t r = 0; r < score->rows; r++) {
        sums[r] = (struct evq_logsum){.top = -INFINITY};
    }
    for (int32_t column = 0; column < vocabulary; column += tile) {
        gemm.n = vocabulary - column < tile ? vocabulary - column : tile;
        gemm.panels = (const float *)score->weight->block.data + (size_t)column * deep;
        gemm.bias = score->bias != NULL ? score->bias + column : NULL;
        score->kernels->gemm(&gemm);
        if (score->scale != 0.0f || score->cap > 0.0f) {
            score->kernels->cap(logits, stride, score->rows, gemm.n,
                                score->scale != 0.0f ? score->scale : 1.0f, score->cap);
        }
        score->kernels->logsum(logits, stride, score->rows, column, gemm.n, sums);
        take_targets(score, logits, column, gemm.n);
    }
    finish(score, sums);
}
