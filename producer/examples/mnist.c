#include "mnist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define IMAGES_MAGIC 0x00000803u
#define LABELS_MAGIC 0x00000801u
#define COUNT_MAX    100000u
#define HELD_OUT     5 // Every fifth image is held out.

static uint32_t big_endian(const uint8_t bytes[4])
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Returns the items of an idx file, item_bytes each. NULL after printing an error. */
static uint8_t *idx_read(const char *directory, const char *name, uint32_t magic,
                         uint32_t item_bytes, uint32_t *ret_count)
{
    char path[4096];
    uint8_t head[16];
    unsigned head_bytes = magic == IMAGES_MAGIC ? 16 : 8;

    snprintf(path, sizeof(path), "%s/%s.gz", directory, name);
    if (access(path, R_OK) != 0) {
        snprintf(path, sizeof(path), "%s/%s", directory, name);
    }
    gzFile file = gzopen(path, "rb"); // gzopen() also reads uncompressed files.
    if (file == NULL) {
        fprintf(stderr, "train_mnist: cannot open '%s' or '%s.gz'\n", path, path);
        return NULL;
    }
    uint8_t *items = NULL;
    uint32_t count = 0;
    bool fits = gzread(file, head, head_bytes) == (int)head_bytes && big_endian(head) == magic &&
                (head_bytes == 8 ||
                 (big_endian(head + 8) == MNIST_SIDE && big_endian(head + 12) == MNIST_SIDE));
    if (fits) {
        count = big_endian(head + 4);
        fits = count > 0 && count <= COUNT_MAX;
    }
    if (fits) {
        items = malloc((size_t)count * item_bytes);
        fits =
            items != NULL && gzread(file, items, count * item_bytes) == (int)(count * item_bytes);
    }
    gzclose(file);
    if (!fits) {
        fprintf(stderr, "train_mnist: '%s' is not an idx file of MNIST\n", path);
        free(items);
        return NULL;
    }
    *ret_count = count;
    return items;
}

static bool mnist_allocate(struct mnist *mnist, uint32_t count)
{
    mnist->count = 0;
    mnist->pixels = malloc((size_t)count * MNIST_PIXELS);
    mnist->labels = malloc(count);
    return mnist->pixels != NULL && mnist->labels != NULL;
}

static void mnist_add(struct mnist *mnist, const uint8_t *pixels, uint8_t label)
{
    memcpy(mnist->pixels + (size_t)mnist->count * MNIST_PIXELS, pixels, MNIST_PIXELS);
    mnist->labels[mnist->count++] = label;
}

bool mnist_read(const char *directory, struct mnist *train, struct mnist *held_out)
{
    uint32_t images = 0;
    uint32_t labels = 0;
    uint8_t *label = idx_read(directory, "t10k-labels-idx1-ubyte", LABELS_MAGIC, 1, &labels);
    uint8_t *pixels = label == NULL ? NULL
                                    : idx_read(directory, "t10k-images-idx3-ubyte", IMAGES_MAGIC,
                                               MNIST_PIXELS, &images);
    bool fits = pixels != NULL && images == labels && mnist_allocate(train, images) &&
                mnist_allocate(held_out, images);

    for (uint32_t at = 0; fits && at < images; at++) {
        fits = label[at] < 10;
        mnist_add(at % HELD_OUT == HELD_OUT - 1 ? held_out : train,
                  pixels + (size_t)at * MNIST_PIXELS, label[at]);
    }
    if (pixels != NULL && !fits) {
        fprintf(stderr, "train_mnist: images and labels in '%s' do not match\n", directory);
    }
    free(pixels);
    free(label);
    return fits;
}

static bool idx_write(const char *directory, const char *name, uint32_t magic, const uint8_t *items,
                      uint32_t count, uint32_t item_bytes)
{
    char path[4096];
    const uint32_t words[4] = {magic, count, MNIST_SIDE, MNIST_SIDE};
    uint8_t head[16];

    for (int at = 0; at < 16; at++) {
        head[at] = (uint8_t)(words[at / 4] >> (24 - 8 * (at % 4)));
    }
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    bool written = file != NULL && fwrite(head, magic == IMAGES_MAGIC ? 16 : 8, 1, file) == 1 &&
                   fwrite(items, item_bytes, count, file) == count;
    if ((file != NULL && fclose(file) != 0) || !written) {
        fprintf(stderr, "train_mnist: cannot write '%s'\n", path);
        return false;
    }
    return true;
}

bool mnist_write(const char *directory, const struct mnist *held_out)
{
    return idx_write(directory, "heldout-images-idx3-ubyte", IMAGES_MAGIC, held_out->pixels,
                     held_out->count, MNIST_PIXELS) &&
           idx_write(directory, "heldout-labels-idx1-ubyte", LABELS_MAGIC, held_out->labels,
                     held_out->count, 1);
}

void mnist_free(struct mnist *mnist)
{
    free(mnist->pixels);
    free(mnist->labels);
}
