/*
 * A multi-layer perceptron with ReLU and softmax cross-entropy, trained by SGD with momentum.
 * Not thread-safe.
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
    float *weight_step; // The last update, for momentum.
    float *bias_step;
    float *weight_gradient;
    float *bias_gradient;
};

struct mlp {
    struct mlp_layer layers[MLP_LAYERS];
    float *values[MLP_LAYERS];    // Outputs of each layer for one batch.
    float *gradients[MLP_LAYERS]; // Of the loss, with respect to values.
};

/*
 * Allocates the layers, with He initialisation from the random state. sizes has MLP_LAYERS + 1
 * numbers: the inputs and the outputs of each layer. Returns false if there is no memory;
 * mlp_free() frees everything in both cases.
 */
bool mlp_init(struct mlp *mlp, const int *sizes, uint64_t *random_state);
void mlp_free(struct mlp *mlp);

/*
 * Takes one step on a batch of at most MLP_BATCH_MAX samples. inputs is [batch][inputs]. Returns
 * the mean loss before the step.
 */
float mlp_train(struct mlp *mlp, const float *inputs, const uint8_t *labels, int batch, float rate,
                float momentum);
/* Returns how many samples of the batch are classified correctly. */
int mlp_correct(struct mlp *mlp, const float *inputs, const uint8_t *labels, int batch);

/*
 * Writes a safetensors file with PyTorch's names and shapes. Writes to a temporary name first and
 * then renames the file, so that readers see only whole checkpoints. Returns false after printing
 * an error.
 */
bool mlp_save(const struct mlp *mlp, const char *path, long step);

#endif
