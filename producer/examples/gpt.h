/*
 * A small GPT over bytes: GPT-2's shape (learned positions, layer norms before each block,
 * gelu_new, the head tied to the embedding), cross-entropy, AdamW. One thread.
 */
#ifndef EXAMPLE_GPT_H
#define EXAMPLE_GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT_VOCABULARY 256 // Bytes.
#define GPT_CONTEXT    64
#define GPT_WIDTH      128
#define GPT_HEADS      4
#define GPT_LAYERS     3
#define GPT_TENSORS    (2 + GPT_LAYERS * 12 + 2)

struct gpt_tensor { // Named as GPT-2 in Transformers names it; matrices are [in][out].
    char name[48];
    int rows; // 0: a vector.
    int columns;
    size_t offset; // Of its first value.
};

struct gpt {
    struct gpt_tensor tensors[GPT_TENSORS];
    size_t count;                                  // Parameters.
    float *values, *gradients, *moments, *squares; // count of each.
    float *memory;                                 // Of a batch's activations.
    struct gpt_activations *activations;
    int batch;  // Sequences of GPT_CONTEXT bytes.
    long steps; // Taken.
};

bool gpt_make(struct gpt *gpt, int batch, uint64_t *seed);
void gpt_free(struct gpt *gpt);

/* One step: bytes holds batch sequences of GPT_CONTEXT + 1, each predicting its next. The mean loss
 * before it, in nats a byte. */
float gpt_train(struct gpt *gpt, const uint8_t *bytes, float rate);

/* The mean loss over a text, GPT_CONTEXT bytes at a time: what nanoGPT calls val_loss. */
double gpt_loss(struct gpt *gpt, const uint8_t *text, size_t bytes);

/* Makes the folder path with config.json, model.safetensors and tokenizer.json, as Transformers
 * reads them, under a temporary name, then renames it: nobody ever sees half a checkpoint. */
bool gpt_save(const struct gpt *gpt, const char *path);

#endif
