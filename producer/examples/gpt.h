/*
 * A small GPT over bytes, with the architecture of GPT-2: learned positions, a layer norm before
 * each block, gelu_new, and an output head that is tied to the embedding. It is trained with
 * cross-entropy and AdamW. Not thread-safe.
 */
#ifndef EXAMPLE_GPT_H
#define EXAMPLE_GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPT_VOCABULARY 256 // One token for each byte.
#define GPT_CONTEXT    64
#define GPT_WIDTH      128
#define GPT_HEADS      4
#define GPT_LAYERS     3
#define GPT_TENSORS    (2 + GPT_LAYERS * 12 + 2)

struct gpt_tensor { // The names are those of GPT-2 in Transformers; matrices are [in][out].
    char name[48];
    int rows; // 0 for a vector.
    int columns;
    size_t offset; // The index of its first value.
};

struct gpt {
    struct gpt_tensor tensors[GPT_TENSORS];
    size_t count;                                  // How many parameters.
    float *values, *gradients, *moments, *squares; // Each has count numbers.
    float *memory;                                 // The buffers of gpt_activations.
    struct gpt_activations *activations;
    int batch;  // How many sequences of GPT_CONTEXT bytes.
    long steps; // How many steps were taken.
};

/*
 * Allocates and initialises the model. Returns false if there is no memory; gpt_free() frees
 * everything in both cases.
 */
bool gpt_init(struct gpt *gpt, int batch, uint64_t *random_state);
void gpt_free(struct gpt *gpt);

/*
 * Takes one step. bytes has batch sequences of GPT_CONTEXT + 1 bytes; each byte predicts the next
 * one. Returns the mean loss before the step, in nats per byte.
 */
float gpt_train(struct gpt *gpt, const uint8_t *bytes, float rate);

/* Returns the mean loss over a text in blocks of GPT_CONTEXT bytes, which nanoGPT calls val_loss.
 */
double gpt_loss(struct gpt *gpt, const uint8_t *text, size_t bytes);

/*
 * Writes a directory that Transformers can read: config.json, model.safetensors and tokenizer.json.
 * Writes to a temporary name first and then renames it, so that readers see only whole checkpoints.
 * Returns false after printing an error.
 */
bool gpt_save(const struct gpt *gpt, const char *path);

#endif
