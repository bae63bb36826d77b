/*
 * The 10,000 MNIST test images, of which 8,000 are trained on and 2,000 (every fifth) are held out.
 */
#ifndef EXAMPLE_MNIST_H
#define EXAMPLE_MNIST_H

#include <stdbool.h>
#include <stdint.h>

#define MNIST_SIDE   28
#define MNIST_PIXELS (MNIST_SIDE * MNIST_SIDE)

struct mnist {
    uint8_t *pixels; // count * MNIST_PIXELS.
    uint8_t *labels;
    uint32_t count;
};

/* Reads t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (.gz or not) of directory. Says what is
 * wrong on standard error. */
bool mnist_read(const char *directory, struct mnist *train, struct mnist *held_out);
/* Writes heldout-images-idx3-ubyte and heldout-labels-idx1-ubyte: what the suite evaluates on. */
bool mnist_write(const char *directory, const struct mnist *held_out);
void mnist_free(struct mnist *mnist);

#endif
