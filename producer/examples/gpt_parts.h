/*
 * A batch's memory, cut by gpt_make.c, filled by gpt.c.
 */
#ifndef EXAMPLE_GPT_PARTS_H
#define EXAMPLE_GPT_PARTS_H

#include "gpt.h"

struct gpt_layer { // What the way back needs of the way there. N rows of a batch.
    float *input, *norm_1, *qkv, *chances, *mixed, *middle, *norm_2, *up, *bent, *active;
    float *scale_1, *scale_2; // 1 / deviation of each row.
};

struct gpt_activations {
    struct gpt_layer layers[GPT_LAYERS];
    float *output, *norm, *scale, *logits;
    float *d_row, *d_other, *d_wide, *d_qkv, *d_logits, *transposed;
};

#endif
