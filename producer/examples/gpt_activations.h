/*
 * The buffers of one batch. gpt_init.c allocates them, and gpt.c fills them. A row is one byte of
 * one sequence.
 */
#ifndef EXAMPLE_GPT_ACTIVATIONS_H
#define EXAMPLE_GPT_ACTIVATIONS_H

#include "gpt.h"

struct gpt_layer { // What the backward pass needs of the forward pass; each has one entry a row.
    float *input, *norm_1, *qkv, *attention, *attended, *residual, *norm_2, *up, *tangent, *active;
    float *scale_1, *scale_2; // 1 / standard deviation of each row, for the two norms.
};

struct gpt_activations {
    struct gpt_layer layers[GPT_LAYERS];
    float *output, *norm, *scale, *logits;
    float *d_row, *d_other, *d_wide, *d_qkv, *d_logits, *transposed;
};

#endif
