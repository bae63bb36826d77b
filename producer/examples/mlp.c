#include "mlp.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "random.h"

bool mlp_init(struct mlp *mlp, const int *sizes, uint64_t *random_state)
{
    bool allocated = true;

    memset(mlp, 0, sizeof(*mlp));
    for (int index = 0; index < MLP_LAYERS && allocated; index++) {
        struct mlp_layer *layer = &mlp->layers[index];
        layer->in = sizes[index];
        layer->out = sizes[index + 1];
        size_t weights = (size_t)layer->in * (size_t)layer->out;
        size_t outputs = (size_t)layer->out;
        float **const parts[] = {&layer->weight, &layer->weight_step, &layer->weight_gradient};
        float **const rows[] = {&layer->bias, &layer->bias_step, &layer->bias_gradient};
        for (int part = 0; part < 3; part++) {
            *parts[part] = calloc(weights, sizeof(float));
            *rows[part] = calloc(outputs, sizeof(float));
            allocated = allocated && *parts[part] != NULL && *rows[part] != NULL;
        }
        mlp->values[index] = calloc(outputs * MLP_BATCH_MAX, sizeof(float));
        mlp->gradients[index] = calloc(outputs * MLP_BATCH_MAX, sizeof(float));
        allocated = allocated && mlp->values[index] != NULL && mlp->gradients[index] != NULL;
        float scale = sqrtf(2.0f / (float)layer->in);
        for (size_t weight = 0; allocated && weight < weights; weight++) {
            layer->weight[weight] = scale * random_normal(random_state);
        }
    }
    return allocated;
}

void mlp_free(struct mlp *mlp)
{
    for (int index = 0; index < MLP_LAYERS; index++) {
        struct mlp_layer *layer = &mlp->layers[index];
        free(layer->weight);
        free(layer->weight_step);
        free(layer->weight_gradient);
        free(layer->bias);
        free(layer->bias_step);
        free(layer->bias_gradient);
        free(mlp->values[index]);
        free(mlp->gradients[index]);
    }
}

/* outputs = inputs * weight + bias, followed by ReLU if relu is set. */
static void layer_forward(const struct mlp_layer *layer, const float *restrict inputs,
                          float *restrict outputs, int batch, bool relu)
{
    const int in = layer->in;
    const int out = layer->out;

    for (int sample = 0; sample < batch; sample++) {
        const float *x = inputs + (size_t)sample * (size_t)in;
        float *restrict y = outputs + (size_t)sample * (size_t)out;
        memcpy(y, layer->bias, (size_t)out * sizeof(float));
        for (int from = 0; from < in; from++) {
            const float *restrict w = layer->weight + (size_t)from * (size_t)out;
            const float value = x[from];
            if (value == 0.0f) {
                continue; // Most pixels and about half of all ReLU outputs are 0.
            }
            for (int to = 0; to < out; to++) {
                y[to] += value * w[to];
            }
        }
        for (int to = 0; relu && to < out; to++) {
            y[to] = y[to] > 0.0f ? y[to] : 0.0f;
        }
    }
}

static const float *mlp_forward(struct mlp *mlp, const float *inputs, int batch)
{
    for (int index = 0; index < MLP_LAYERS; index++) {
        layer_forward(&mlp->layers[index], index == 0 ? inputs : mlp->values[index - 1],
                      mlp->values[index], batch, index < MLP_LAYERS - 1);
    }
    return mlp->values[MLP_LAYERS - 1];
}

/*
 * Softmax cross-entropy. Returns the summed loss; gradient gets the gradient of the mean loss with
 * respect to the logits.
 */
static float loss_gradient(const float *logits, const uint8_t *labels, int classes, int batch,
                           float *gradient)
{
    float loss = 0.0f;

    for (int sample = 0; sample < batch; sample++) {
        const float *row = logits + (size_t)sample * (size_t)classes;
        float *out = gradient + (size_t)sample * (size_t)classes;
        float max_logit = row[0];
        float sum = 0.0f;
        for (int class = 1; class < classes; class ++) {
            max_logit = row[class] > max_logit ? row[class] : max_logit;
        }
        for (int class = 0; class < classes; class ++) {
            out[class] = expf(row[class] - max_logit);
            sum += out[class];
        }
        loss += logf(sum) + max_logit - row[labels[sample]];
        for (int class = 0; class < classes; class ++) {
            float target = class == labels[sample] ? 1.0f : 0.0f;
            out[class] = (out[class] / sum - target) / (float)batch;
        }
    }
    return loss;
}

/* Computes the gradients of weight and bias and, unless input_gradient is NULL, of the inputs. */
static void layer_backward(const struct mlp_layer *layer, const float *inputs,
                           const float *gradient, float *input_gradient, int batch)
{
    const int in = layer->in;
    const int out = layer->out;

    memset(layer->weight_gradient, 0, (size_t)in * (size_t)out * sizeof(float));
    memset(layer->bias_gradient, 0, (size_t)out * sizeof(float));
    for (int sample = 0; sample < batch; sample++) {
        const float *x = inputs + (size_t)sample * (size_t)in;
        const float *restrict g = gradient + (size_t)sample * (size_t)out;
        for (int to = 0; to < out; to++) {
            layer->bias_gradient[to] += g[to];
        }
        for (int from = 0; from < in; from++) {
            const float value = x[from];
            if (value == 0.0f) {
                continue; // An input of 0 adds nothing, and ReLU has no gradient there.
            }
            const float *w = layer->weight + (size_t)from * (size_t)out;
            float *restrict dw = layer->weight_gradient + (size_t)from * (size_t)out;
            float back = 0.0f;
            for (int to = 0; to < out; to++) {
                dw[to] += value * g[to];
            }
            for (int to = 0; input_gradient != NULL && to < out; to++) {
                back += w[to] * g[to];
            }
            if (input_gradient != NULL) {
                input_gradient[(size_t)sample * (size_t)in + (size_t)from] = back;
            }
        }
    }
}

static void apply_gradient(float *values, float *steps, const float *gradient, size_t count,
                           float rate, float momentum)
{
    for (size_t index = 0; index < count; index++) {
        steps[index] = momentum * steps[index] - rate * gradient[index];
        values[index] += steps[index];
    }
}

float mlp_train(struct mlp *mlp, const float *inputs, const uint8_t *labels, int batch, float rate,
                float momentum)
{
    const int last = MLP_LAYERS - 1;
    const float *logits = mlp_forward(mlp, inputs, batch);
    float loss = loss_gradient(logits, labels, mlp->layers[last].out, batch, mlp->gradients[last]);

    for (int index = last; index >= 0; index--) {
        if (index > 0) {
            memset(mlp->gradients[index - 1], 0,
                   (size_t)batch * (size_t)mlp->layers[index].in * sizeof(float));
        }
        layer_backward(&mlp->layers[index], index == 0 ? inputs : mlp->values[index - 1],
                       mlp->gradients[index], index == 0 ? NULL : mlp->gradients[index - 1], batch);
    }
    for (int index = 0; index < MLP_LAYERS; index++) {
        struct mlp_layer *layer = &mlp->layers[index];
        apply_gradient(layer->weight, layer->weight_step, layer->weight_gradient,
                       (size_t)layer->in * (size_t)layer->out, rate, momentum);
        apply_gradient(layer->bias, layer->bias_step, layer->bias_gradient, (size_t)layer->out,
                       rate, momentum);
    }
    return loss / (float)batch;
}

int mlp_correct(struct mlp *mlp, const float *inputs, const uint8_t *labels, int batch)
{
    const int classes = mlp->layers[MLP_LAYERS - 1].out;
    const float *logits = mlp_forward(mlp, inputs, batch);
    int correct = 0;

    for (int sample = 0; sample < batch; sample++) {
        const float *row = logits + (size_t)sample * (size_t)classes;
        int best = 0;
        for (int class = 1; class < classes; class ++) {
            best = row[class] > row[best] ? class : best;
        }
        correct += best == labels[sample];
    }
    return correct;
}

/*
 * A safetensors file begins with the length of its header (8 bytes, little-endian) and the header
 * (JSON, padded to a multiple of 8). The tensors follow.
 */
static bool write_header(const struct mlp *mlp, FILE *file, long step)
{
    char header[4096];
    size_t offset = 0;
    int used = snprintf(header, sizeof(header),
                        "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"%ld\"}", step);

    for (int index = 0; index < MLP_LAYERS; index++) {
        const struct mlp_layer *layer = &mlp->layers[index];
        size_t weights = (size_t)layer->in * (size_t)layer->out * sizeof(float);
        size_t biases = (size_t)layer->out * sizeof(float);
        used += snprintf(header + used, sizeof(header) - (size_t)used,
                         ",\"layers.%d.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                         "\"data_offsets\":[%zu,%zu]}"
                         ",\"layers.%d.bias\":{\"dtype\":\"F32\",\"shape\":[%d],"
                         "\"data_offsets\":[%zu,%zu]}",
                         index, layer->out, layer->in, offset, offset + weights, index, layer->out,
                         offset + weights, offset + weights + biases);
        offset += weights + biases;
    }
    header[used++] = '}';
    while (used % 8 != 0) {
        header[used++] = ' ';
    }
    uint8_t length[8] = {0};
    for (int index = 0; index < 8; index++) {
        length[index] = (uint8_t)((uint64_t)used >> (8 * index));
    }
    return fwrite(length, sizeof(length), 1, file) == 1 &&
           fwrite(header, (size_t)used, 1, file) == 1;
}

static bool write_tensors(const struct mlp *mlp, FILE *file)
{
    bool written = true;

    for (int index = 0; index < MLP_LAYERS && written; index++) {
        const struct mlp_layer *layer = &mlp->layers[index];
        float row[1024];
        for (int to = 0; to < layer->out && written; to++) { // PyTorch stores [out][in].
            for (int from = 0; from < layer->in; from++) {
                row[from] = layer->weight[(size_t)from * (size_t)layer->out + (size_t)to];
            }
            written = fwrite(row, sizeof(float), (size_t)layer->in, file) == (size_t)layer->in;
        }
        written = written && fwrite(layer->bias, sizeof(float), (size_t)layer->out, file) ==
                                 (size_t)layer->out;
    }
    return written;
}

bool mlp_save(const struct mlp *mlp, const char *path, long step)
{
    char temporary[4096];

    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    FILE *file = fopen(temporary, "wb");
    bool written = file != NULL && write_header(mlp, file, step) && write_tensors(mlp, file) &&
                   fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (file != NULL && fclose(file) != 0) {
        written = false;
    }
    if (!written || rename(temporary, path) != 0) {
        fprintf(stderr, "train_mnist: cannot write '%s': %s\n", path, strerror(errno));
        (void)unlink(temporary);
        return false;
    }
    return true;
}
