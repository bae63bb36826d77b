#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpt.h"
#include "gpt_parts.h"
#include "mlp.h"

static float random_normal(uint64_t *seed)
{
    const double radius = sqrt(-2.0 * log(1.0 - random_unit(seed)));

    return (float)(radius * cos(6.283185307179586 * random_unit(seed)));
}

static void add_tensor(struct gpt *gpt, int *at, const char *name, int rows, int columns)
{
    struct gpt_tensor *tensor = &gpt->tensors[(*at)++];

    snprintf(tensor->name, sizeof(tensor->name), "transformer.%s", name);
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->offset = gpt->count;
    gpt->count += (size_t)(rows > 0 ? rows : 1) * (size_t)columns;
}

/* In the order gpt.c counts on: the tables, of each layer its parts with their biases, the norm. */
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

/* As GPT-2: matrices normal with 0.02, those that add to the residual less; norms one, biases 0. */
static void initialise(struct gpt *gpt, uint64_t *seed)
{
    for (int at = 0; at < GPT_TENSORS; at++) {
        const struct gpt_tensor *tensor = &gpt->tensors[at];
        const bool adds = strstr(tensor->name, "c_proj") != NULL;
        const bool ones = tensor->rows == 0 && strstr(tensor->name, ".weight") != NULL;
        const float scale = adds ? 0.02f / sqrtf(2.0f * GPT_LAYERS) : 0.02f;
        const size_t count =
            (size_t)(tensor->rows > 0 ? tensor->rows : 1) * (size_t)tensor->columns;
        for (size_t i = 0; i < count; i++) {
            gpt->values[tensor->offset + i] = tensor->rows > 0 ? scale * random_normal(seed)
                                              : ones           ? 1.0f
                                                               : 0.0f;
        }
    }
}

/* Cuts the batch's memory into pieces; with none it only counts. Returns the floats needed. */
static size_t cut_memory(struct gpt_activations *a, float *memory, size_t rows)
{
    size_t used = 0;
    const size_t width = rows * GPT_WIDTH;

    for (int at = 0; at < GPT_LAYERS; at++) {
        struct gpt_layer *l = &a->layers[at];
        float **const rows_wide[] = {&l->input, &l->norm_1, &l->mixed, &l->middle, &l->norm_2};
        for (size_t i = 0; i < sizeof(rows_wide) / sizeof(rows_wide[0]); i++, used += width) {
            *rows_wide[i] = memory + used;
        }
        l->qkv = memory + used;
        l->up = l->qkv + 3 * width;
        l->bent = l->up + 4 * width;
        l->active = l->bent + 4 * width;
        l->chances = l->active + 4 * width;
        l->scale_1 = l->chances + rows * GPT_HEADS * GPT_CONTEXT;
        l->scale_2 = l->scale_1 + rows;
        used += 15 * width + rows * GPT_HEADS * GPT_CONTEXT + 2 * rows;
    }
    a->output = memory + used;
    a->norm = a->output + width;
    a->d_row = a->norm + width;
    a->d_other = a->d_row + 4 * width; // DOWN's input is four times as wide.
    a->d_wide = a->d_other + 4 * width;
    a->d_qkv = a->d_wide + 4 * width;
    a->scale = a->d_qkv + 3 * width;
    a->logits = a->scale + rows;
    a->d_logits = a->logits + rows * GPT_VOCABULARY;
    a->transposed = a->d_logits + rows * GPT_VOCABULARY;
    return used + 17 * width + rows + 2 * rows * GPT_VOCABULARY +
           (size_t)GPT_WIDTH * (4 * GPT_WIDTH + GPT_VOCABULARY);
}

bool gpt_make(struct gpt *gpt, int batch, uint64_t *seed)
{
    memset(gpt, 0, sizeof(*gpt));
    name_tensors(gpt);
    gpt->batch = batch;
    gpt->activations = calloc(1, sizeof(*gpt->activations));
    if (gpt->activations == NULL) {
        return false;
    }
    static float nowhere[1]; // Pieces are only measured.
    const size_t floats = cut_memory(gpt->activations, nowhere, (size_t)batch * GPT_CONTEXT);
    gpt->memory = calloc(floats, sizeof(float));
    gpt->values = calloc(gpt->count, sizeof(float));
    gpt->gradients = calloc(gpt->count, sizeof(float));
    gpt->moments = calloc(gpt->count, sizeof(float));
    gpt->squares = calloc(gpt->count, sizeof(float));
    if (gpt->memory == NULL || gpt->values == NULL || gpt->gradients == NULL ||
        gpt->moments == NULL || gpt->squares == NULL) {
        return false;
    }
    (void)cut_memory(gpt->activations, gpt->memory, (size_t)batch * GPT_CONTEXT);
    initialise(gpt, seed);
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
