/*
 * The inner loops of the matrix product for one instruction set. Included by gemm.c once for each,
 * with TILE_NAME, TILE_TARGET (a function attribute, may be empty), TILE_LANES (floats in a
 * register), TILE_ROWS and TILE_VECTORS (the tile that fills the registers) defined; defines the
 * functions and undefines the macros again. Hence no include guard.
 *
 * Each value is the sum over k in order, in one accumulator: its bits do not depend on its place in
 * the tile.
 */
#define TILE_JOIN2(a, b) a##b
#define TILE_JOIN(a, b)  TILE_JOIN2(a, b)
#define TILE_VECTOR      TILE_JOIN(vector_, TILE_NAME)
#define TILE_RUN         TILE_JOIN(tile_, TILE_NAME)
#define TILE_BLOCK       TILE_JOIN(block_, TILE_NAME)
#define TILE_WIDTH       (TILE_LANES * TILE_VECTORS)

typedef float TILE_VECTOR
    __attribute__((vector_size(TILE_LANES * sizeof(float)))); // C has no other way to say it.

TILE_TARGET static inline void TILE_RUN(const float *in, size_t in_stride, const float *panel,
                                        int32_t depth, float *out, size_t out_stride, bool fresh)
{
    TILE_VECTOR sums[TILE_ROWS][TILE_VECTORS];

#pragma GCC unroll 16
    for (int32_t r = 0; r < TILE_ROWS; r++) {
#pragma GCC unroll 16
        for (int32_t v = 0; v < TILE_VECTORS; v++) {
            if (fresh) {
                sums[r][v] = (TILE_VECTOR){0};
            } else {
                memcpy(&sums[r][v], out + (size_t)r * out_stride + v * TILE_LANES,
                       sizeof(TILE_VECTOR));
            }
        }
    }
    for (int32_t p = 0; p < depth; p++) {
        TILE_VECTOR column[TILE_VECTORS];
#pragma GCC unroll 16
        for (int32_t v = 0; v < TILE_VECTORS; v++) {
            memcpy(&column[v], panel + v * TILE_LANES, sizeof(TILE_VECTOR));
        }
        panel += TILE_WIDTH;
#pragma GCC unroll 16
        for (int32_t r = 0; r < TILE_ROWS; r++) {
#pragma GCC unroll 16
            for (int32_t v = 0; v < TILE_VECTORS; v++) {
                sums[r][v] += in[(size_t)r * in_stride + (size_t)p] * column[v];
            }
        }
    }
#pragma GCC unroll 16
    for (int32_t r = 0; r < TILE_ROWS; r++) {
#pragma GCC unroll 16
        for (int32_t v = 0; v < TILE_VECTORS; v++) {
            memcpy(out + (size_t)r * out_stride + v * TILE_LANES, &sums[r][v], sizeof(TILE_VECTOR));
        }
    }
}

/* One panel block against all rows; the last panel may stand for fewer columns than it is wide. */
TILE_TARGET static void TILE_BLOCK(const struct block *block)
{
    for (int32_t row = 0; row < block->rows; row += TILE_ROWS) {
        const float *in = block->in + (size_t)row * block->in_stride;
        float *out = block->out + (size_t)row * block->out_stride;
        if (block->columns == TILE_WIDTH) {
            TILE_RUN(in, block->in_stride, block->panel, block->depth, out, block->out_stride,
                     block->fresh);
            continue;
        }
        float edge[TILE_ROWS * TILE_WIDTH] = {0};
        const size_t bytes = (size_t)block->columns * sizeof(float);
        for (int32_t r = 0; r < TILE_ROWS && !block->fresh; r++) {
            memcpy(edge + r * TILE_WIDTH, out + (size_t)r * block->out_stride, bytes);
        }
        TILE_RUN(in, block->in_stride, block->panel, block->depth, edge, TILE_WIDTH, block->fresh);
        for (int32_t r = 0; r < TILE_ROWS; r++) {
            memcpy(out + (size_t)r * block->out_stride, edge + r * TILE_WIDTH, bytes);
        }
    }
}

#undef TILE_JOIN2
#undef TILE_JOIN
#undef TILE_VECTOR
#undef TILE_RUN
#undef TILE_BLOCK
#undef TILE_WIDTH
#undef TILE_NAME
#undef TILE_TARGET
#undef TILE_LANES
#undef TILE_ROWS
#undef TILE_VECTORS
