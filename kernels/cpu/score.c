#include "kernels/cpu/score.h"

#include <math.h>

#define TILE_PANELS                                                                                \
    16 // Panels of a tile of the vocabulary: its logits stay in the second-level cache.

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 16;
}

/* The tile's logits, the state of each row, then the product's own scratch. */
static size_t tile_stride(const struct evq_kernels *kernels)
{
    return ((size_t)kernels->panel * TILE_PANELS + EVQ_KERNELS_PAD + 15) / 16 * 16;
}

size_t evq_score_scratch_floats(const struct evq_kernels *kernels, int32_t rows, int32_t k)
{
    return tile_stride(kernels) * (size_t)rows + lines((size_t)rows * sizeof(struct evq_logsum)) +
           kernels->gemm_scratch_floats(rows, k);
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

void evq_score_run(const struct evq_score *score)
{
    const struct evq_kernels *kernels = score->kernels;
    const size_t stride = tile_stride(kernels);
    const int32_t tile = kernels->panel * TILE_PANELS;
    const int32_t vocabulary = score->weight->rows;
    float *logits = score->scratch;
    struct evq_logsum *sums = (void *)(logits + stride * (size_t)score->rows);
    const bool bf16 = score->weight->form == EVQ_WEIGHT_PANELS_BF16;
    const char *panels = score->weight->block.data;
    // Floats, or pairs of bf16 values: four bytes either way.
    const size_t line = (size_t)(bf16 ? (score->k + 1) / 2 : score->k) * sizeof(float);

    for (int32_t r = 0; r < score->rows; r++) {
        sums[r] = (struct evq_logsum){.top = -INFINITY};
    }
    for (int32_t column = 0; column < vocabulary; column += tile) {
        const int32_t count = vocabulary - column < tile ? vocabulary - column : tile;
        const struct evq_gemm gemm = {
            .rows = score->rows,
            .n = count,
            .k = score->k,
            .in = score->in,
            .in_stride = score->in_stride,
            .panels = panels + (size_t)column * line,
            .bias = score->bias != NULL ? score->bias + column : NULL,
            .out = logits,
            .out_stride = stride,
            .scratch =
                (float *)(void *)sums + lines((size_t)score->rows * sizeof(struct evq_logsum)),
        };
        (bf16 ? kernels->gemm_bf16 : kernels->gemm)(&gemm);
        kernels->logsum(logits, stride, score->rows, column, count, sums);
        take_targets(score, logits, column, count);
    }
    finish(score, sums);
}
