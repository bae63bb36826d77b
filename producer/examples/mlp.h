/*
 * A multi-layer perceptron with ReLU and softmax cross-entropy, trained by SGD with momentum.
 */
#ifndef EXAMPLE_MLP_H
#define EXAMPLE_MLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MLP_LAYERS    3
#define MLP_BATCH_MAX 64

struct mlp_layer {
    int in;
    int out;
    float *weight; // [in][out], so that the inner loops run along memory.
    float *bias;
    float *weight_step; // Momentum.
    float *bias_step;
    float *weight_gradient;
    float *bias_gradient;
};

struct mlp {
    struct mlp_layer layers[MLP_LAYERS];
    float *values[MLP_LAYERS];    // Outputs of each layer for one batch.
    float *gradients[MLP_LAYERS]; // Of the loss by them.
};

/* sizes: MLP_LAYERS + 1 numbers. He initialisation from *seed. */
bool mlp_make(struct mlp *mlp, const int *sizes, uint64_t *seed);
void mlp_free(struct mlp *mlp);

/* One step on a batch; returns the mean loss before it. */
float mlp_train(struct mlp *mlp, const float *inputs, const uint8_t *labels, int batch, float rate,
                float momentum);
/* How many of the batch are classified rightly. */
int mlp_correct(struct mlp *mlp, const float *inputs, const uint8_t *labels, int batch);

/* Writes safetensors, with PyTorch's names and shapes, to a temporary name, then renames it: nobody
 * ever sees half a checkpoint. */
bool mlp_save(const struct mlp *mlp, const char *path, long step);

/* Uniform in [0, 1). */
double random_unit(uint64_t *seed);

#endif
