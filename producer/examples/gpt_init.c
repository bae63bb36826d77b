#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt.h"
#include "gpt_activations.h"
#include "random.h"

static void add_tensor(struct gpt *gpt, int *at, const char *name, int rows, int columns)
{
    struct gpt_tensor *tensor = &gpt->tensors[(*at)++];

    snprintf(tensor->name, sizeof(tensor->name), "transformer.%s", name);
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->offset = gpt->count;
    gpt->count += (size_t)(rows > 0 ? rows : 1) * (size_t)columns;
}

/*
 * The order is the one that gpt.c expects: the two embeddings; for each layer, its parts, each with
 * weight and bias; the last norm.
 */
static void name_tensors(struct gpt *gpt)
{
    static const struct {
        const char *name;
        int rows, columns;
    } parts[] = {{"ln_1", 0, GPT_WIDTH},
                 {"attn.c_attn", GPT_WIDTH, 3 * GPT_WIDTH},
                 {"attn.c_proj", GPT_WIDTH, GPT_WIDTH},
                 {"ln_2", 0, GPT_WIDTH},
                 {"mlp.c_fc", GPT_WIDTH, 4 * GPT_WIDTH},
                 {"mlp.c_proj", 4 * GPT_WIDTH, GPT_WIDTH}};
    char name[32];
    int at = 0;

    add_tensor(gpt, &at, "wte.weight", GPT_VOCABULARY, GPT_WIDTH);
    add_tensor(gpt, &at, "wpe.weight", GPT_CONTEXT, GPT_WIDTH);
    for (int layer = 0; layer < GPT_LAYERS; layer++) {
        for (size_t part = 0; part < sizeof(parts) / sizeof(parts[0]); part++) {
            snprintf(name, sizeof(name), "h.%d.%s.weight", layer, parts[part].name);
            add_tensor(gpt, &at, name, parts[part].rows, parts[part].columns);
            snprintf(name, sizeof(name), "h.%d.%s.bias", layer, parts[part].name);
            add_tensor(gpt, &at, name, 0, parts[part].columns);
        }
    }
    add_tensor(gpt, &at, "ln_f.weight", 0, GPT_WIDTH);
    add_tensor(gpt, &at, "ln_f.bias", 0, GPT_WIDTH);
}

/*
 * Initialises as GPT-2 does. Matrices are normal with deviation 0.02, or less if their output is
 * added to the residual; weights of norms are 1 and biases 0.
 */
static void initialise(struct gpt *gpt, uint64_t *random_state)
{
    for (int at = 0; at < GPT_TENSORS; at++) {
        const struct gpt_tensor *tensor = &gpt->tensors[at];
        const bool is_projection = strstr(tensor->name, "c_proj") != NULL;
        const bool is_norm = tensor->rows == 0 && strstr(tensor->name, ".weight") != NULL;
        const float scale = is_projection ? 0.02f / sqrtf(2.0f * GPT_LAYERS) : 0.02f;
        const size_t count =
            (size_t)(tensor->rows > 0 ? tensor->rows : 1) * (size_t)tensor->columns;
        for (size_t i = 0; i < count; i++) {
            gpt->values[tensor->offset + i] = tensor->rows > 0 ? scale * random_normal(random_state)
                                              : is_norm        ? 1.0f
                                                               : 0.0f;
        }
    }
}

/*
 * Points all buffers of a batch with so many rows into memory. Returns how many floats that needs;
 * the caller may first call it with any memory to learn the number.
 */
static size_t assign_buffers(struct gpt_activations *a, float *memory, size_t rows)
{
    size_t used = 0;
    const size_t width = rows * GPT_WIDTH;

    for (int at = 0; at < GPT_LAYERS; at++) {
        struct gpt_layer *l = &a->layers[at];
        float **const rows_wide[] = {&l->input, &l->norm_1, &l->attended, &l->residual, &l->norm_2};
        for (size_t i = 0; i < sizeof(rows_wide) / sizeof(rows_wide[0]); i++, used += width) {
            *rows_wide[i] = memory + used;
        }
        l->qkv = memory + used;
        l->up = l->qkv + 3 * width;
        l->tangent = l->up + 4 * width;
        l->active = l->tangent + 4 * width;
        l->attention = l->active + 4 * width;
        l->scale_1 = l->attention + rows * GPT_HEADS * GPT_CONTEXT;
        l->scale_2 = l->scale_1 + rows;
        used += 15 * width + rows * GPT_HEADS * GPT_CONTEXT + 2 * rows;
    }
    a->output = memory + used;
    a->norm = a->output + width;
    a->d_row = a->norm + width;
    a->d_other = a->d_row + 4 * width; // The input of DOWN is four times as wide.
    a->d_wide = a->d_other + 4 * width;
    a->d_qkv = a->d_wide + 4 * width;
    a->scale = a->d_qkv + 3 * width;
    a->logits = a->scale + rows;
    a->d_logits = a->logits + rows * GPT_VOCABULARY;
    a->transposed = a->d_logits + rows * GPT_VOCABULARY;
    return used + 17 * width + rows + 2 * rows * GPT_VOCABULARY +
           (size_t)GPT_WIDTH * (4 * GPT_WIDTH + GPT_VOCABULARY);
}

bool gpt_init(struct gpt *gpt, int batch, uint64_t *random_state)
{
    memset(gpt, 0, sizeof(*gpt));
    name_tensors(gpt);
    gpt->batch = batch;
    gpt->activations = calloc(1, sizeof(*gpt->activations));
    if (gpt->activations == NULL) {
        return false;
    }
    static float unused[1]; // The first call only computes the size.
    const size_t floats = assign_buffers(gpt->activations, unused, (size_t)batch * GPT_CONTEXT);
    gpt->memory = calloc(floats, sizeof(float));
    gpt->values = calloc(gpt->count, sizeof(float));
    gpt->gradients = calloc(gpt->count, sizeof(float));
    gpt->moments = calloc(gpt->count, sizeof(float));
    gpt->squares = calloc(gpt->count, sizeof(float));
    if (gpt->memory == NULL || gpt->values == NULL || gpt->gradients == NULL ||
        gpt->moments == NULL || gpt->squares == NULL) {
        return false;
    }
    (void)assign_buffers(gpt->activations, gpt->memory, (size_t)batch * GPT_CONTEXT);
    initialise(gpt, random_state);
    return true;
}

void gpt_free(struct gpt *gpt)
{
    free(gpt->activations);
    free(gpt->memory);
    free(gpt->values);
    free(gpt->gradients);
    free(gpt->moments);
    free(gpt->squares);
}
