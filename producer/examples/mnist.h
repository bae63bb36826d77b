/*
 * The 10,000 test images of MNIST. 8,000 are trained on, and every fifth image is held out.
 */
#ifndef EXAMPLE_MNIST_H
#define EXAMPLE_MNIST_H

#include <stdbool.h>
#include <stdint.h>

#define MNIST_SIDE   28
#define MNIST_PIXELS (MNIST_SIDE * MNIST_SIDE)

struct mnist {
    uint8_t *pixels; // [count][MNIST_PIXELS].
    uint8_t *labels;
    uint32_t count;
};

/*
 * Reads t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte in directory, with or without .gz.
 * Returns false after printing an error. mnist_free() frees both sets in both cases.
 */
bool mnist_read(const char *directory, struct mnist *train, struct mnist *held_out);
/*
 * Writes heldout-images-idx3-ubyte and heldout-labels-idx1-ubyte, which the suite evaluates on.
 * Returns false after printing an error.
 */
bool mnist_write(const char *directory, const struct mnist *held_out);
void mnist_free(struct mnist *mnist);

#endif
