/*
 * Trains a small network on MNIST. evalq's workers evaluate every checkpoint while training goes
 * on. The calls of evalq are evalq_client_open(), evalq_client_submit() and evalq_client_close();
 * the rest is what any training program does. The program needs only evalq's public header.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <evalq.h>

#include "mlp.h"
#include "mnist.h"
#include "random.h"
#include "settings.h"

#define BATCH    32
#define RATE     0.04f
#define MOMENTUM 0.9f
#define SHIFT    2 // Training moves each image by up to so many pixels.

struct trainer {
    struct settings settings;
    struct mnist train;
    struct mnist held_out;
    struct mlp mlp;
    struct evalq_client *client; // NULL if it could not be opened; training needs no client.
    uint64_t seed;
    uint32_t *order;
    long saved;
};

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const char usage[] =
    "Usage: train_mnist --data DIR [--out DIR] [--run NAME] [--suites NAMES]\n"
    "                   [--steps N] [--every N] [--seed N]\n"
    "\n"
    "Trains a 784-512-128-10 perceptron on 8,000 of the 10,000 MNIST test images, saves a\n"
    "safetensors checkpoint every N steps and submits it to evalq.\n"
    "\n"
    "  --data DIR      holds t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, .gz or not\n"
    "  --out DIR       gets the checkpoints and the held-out images (default checkpoints)\n"
    "  --run NAME      the run's name (default: evalq makes one of the directory)\n"
    "  --suites NAMES  suites of evalq.yaml, separated by commas (default heldout)\n"
    "  --steps N       steps of 32 images (default 6000)\n"
    "  --every N       steps between checkpoints (default 400)\n"
    "  --seed N        of initialisation and order (default 1)\n";

/* Converts one image, moved by (right, down) pixels, to numbers from 0 to 1. */
static void image_input(const uint8_t *pixels, int right, int down, float *out)
{
    memset(out, 0, MNIST_PIXELS * sizeof(float));
    for (int row = 0; row < MNIST_SIDE; row++) {
        for (int column = 0; column < MNIST_SIDE; column++) {
            int to_row = row + down;
            int to_column = column + right;
            if (to_row >= 0 && to_row < MNIST_SIDE && to_column >= 0 && to_column < MNIST_SIDE) {
                out[to_row * MNIST_SIDE + to_column] =
                    (float)pixels[row * MNIST_SIDE + column] * (1.0f / 255.0f);
            }
        }
    }
}

static int random_shift(uint64_t *seed)
{
    return (int)(random_uniform(seed) * (2 * SHIFT + 1)) - SHIFT;
}

static void order_shuffle(struct trainer *trainer)
{
    for (uint32_t at = trainer->train.count - 1; at > 0; at--) {
        uint32_t other = (uint32_t)(random_uniform(&trainer->seed) * (at + 1));
        uint32_t kept = trainer->order[at];
        trainer->order[at] = trainer->order[other];
        trainer->order[other] = kept;
    }
}

static float train_step(struct trainer *trainer, uint32_t first, float rate)
{
    static float inputs[BATCH * MNIST_PIXELS];
    uint8_t labels[BATCH];

    for (uint32_t sample = 0; sample < BATCH; sample++) {
        uint32_t image = trainer->order[first + sample];
        image_input(trainer->train.pixels + (size_t)image * MNIST_PIXELS,
                    random_shift(&trainer->seed), random_shift(&trainer->seed),
                    inputs + (size_t)sample * MNIST_PIXELS);
        labels[sample] = trainer->train.labels[image];
    }
    return mlp_train(&trainer->mlp, inputs, labels, BATCH, rate, MOMENTUM);
}

/* Saves a checkpoint and submits it. Training does not wait for its evaluation. */
static bool checkpoint_save(struct trainer *trainer, long step, double epoch, bool last)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/step-%06ld.safetensors", trainer->settings.out, step);
    if (!mlp_save(&trainer->mlp, path, step)) {
        return false;
    }
    trainer->saved++;
    struct evalq_checkpoint saved = {.path = path,
                                     .step = step,
                                     .epoch = epoch,
                                     .suites = trainer->settings.suites,
                                     .keep = last};
    if (trainer->client != NULL && evalq_client_submit(trainer->client, &saved) != EVALQ_OK) {
        fprintf(stderr, "train_mnist: %s\n", evalq_client_error(trainer->client));
    }
    return true;
}

static bool train(struct trainer *trainer, long *ret_steps)
{
    const struct settings *settings = &trainer->settings;
    const uint32_t batches = trainer->train.count / BATCH;
    const long steps = settings->steps;
    float loss = 0.0f;
    long since = 0;

    for (long step = 1; step <= steps; step++) {
        uint32_t batch = (uint32_t)((step - 1) % batches);
        if (batch == 0) {
            order_shuffle(trainer);
        }
        // The learning rate falls along half a cosine.
        double done = (double)(step - 1) / (double)steps;
        float rate = RATE * (float)(0.5 + 0.5 * cos(3.141592653589793 * done));
        loss += train_step(trainer, batch * BATCH, rate);
        since++;
        if (step % settings->every == 0 || step == steps) {
            printf("step %5ld  training loss %.4f  saved and submitted\n", step,
                   (double)(loss / (float)since));
            fflush(stdout);
            loss = 0.0f;
            since = 0;
            if (!checkpoint_save(trainer, step, (double)step / batches, step == steps)) {
                return false;
            }
        }
    }
    *ret_steps = steps;
    return true;
}

static double held_out_accuracy(struct trainer *trainer)
{
    static float inputs[BATCH * MNIST_PIXELS];
    const struct mnist *held_out = &trainer->held_out;
    int correct = 0;

    for (uint32_t first = 0; first < held_out->count; first += BATCH) {
        int batch = held_out->count - first < BATCH ? (int)(held_out->count - first) : BATCH;
        for (int sample = 0; sample < batch; sample++) {
            image_input(held_out->pixels + (size_t)(first + (uint32_t)sample) * MNIST_PIXELS, 0, 0,
                        inputs + (size_t)sample * MNIST_PIXELS);
        }
        correct += mlp_correct(&trainer->mlp, inputs, held_out->labels + first, batch);
    }
    return (double)correct / (double)held_out->count;
}

static bool trainer_open(struct trainer *trainer)
{
    static const int sizes[MLP_LAYERS + 1] = {MNIST_PIXELS, 512, 128, 10};
    const struct settings *settings = &trainer->settings;
    struct evalq_options options = {.run = settings->run};

    if (!mnist_read(settings->data, &trainer->train, &trainer->held_out)) {
        return false;
    }
    if (mkdir(settings->out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "train_mnist: cannot create '%s': %s\n", settings->out, strerror(errno));
        return false;
    }
    if (!mnist_write(settings->out, &trainer->held_out)) {
        return false;
    }
    trainer->seed = settings_seed(settings);
    trainer->order = malloc(trainer->train.count * sizeof(trainer->order[0]));
    if (trainer->order == NULL || trainer->train.count < BATCH ||
        !mlp_init(&trainer->mlp, sizes, &trainer->seed)) {
        fprintf(stderr, "train_mnist: out of memory\n");
        return false;
    }
    for (uint32_t at = 0; at < trainer->train.count; at++) {
        trainer->order[at] = at;
    }
    if (evalq_client_open(&options, &trainer->client) != EVALQ_OK) {
        fprintf(stderr, "train_mnist: nothing will be evaluated: %s\n", evalq_client_error(NULL));
    }
    printf("training on %u images of the MNIST test set; %u others are held out (seed %ld)\n",
           trainer->train.count, trainer->held_out.count, settings->seed);
    fflush(stdout);
    return true;
}

static void report(struct trainer *trainer, long steps, double seconds)
{
    struct evalq_stats stats;

    // A short wait is enough, because the next client of this run sends what is left on disk.
    (void)evalq_client_flush(trainer->client, 2000);
    evalq_client_stats(trainer->client, &stats);
    printf("%ld steps in %.1f s; %ld checkpoints; held-out accuracy here %.4f\n", steps, seconds,
           trainer->saved, held_out_accuracy(trainer));
    printf(
        "%llu submits took %.1f us each, at most %.1f us, %.4f %% of the training; %llu dropped\n",
        (unsigned long long)stats.submitted,
        stats.submitted == 0 ? 0.0 : 1e-3 * (double)stats.submit_ns_total / (double)stats.submitted,
        1e-3 * (double)stats.submit_ns_max, 1e-7 * (double)stats.submit_ns_total / seconds,
        (unsigned long long)stats.dropped);
}

int main(int argc, char **argv)
{
    struct trainer trainer = {.settings = {.program = "train_mnist",
                                           .usage = usage,
                                           .input = "data",
                                           .out = "checkpoints",
                                           .suites = "heldout",
                                           .steps = 6000,
                                           .every = 400,
                                           .seed = 1}};
    long steps = 0;
    int code = settings_parse(argc, argv, &trainer.settings);

    if (code >= 0) {
        return code;
    }
    code = 1;
    if (trainer_open(&trainer)) {
        double start = now_seconds();
        if (train(&trainer, &steps)) {
            report(&trainer, steps, now_seconds() - start);
            code = 0;
        }
    }
    evalq_client_close(trainer.client);
    mlp_free(&trainer.mlp);
    mnist_free(&trainer.train);
    mnist_free(&trainer.held_out);
    free(trainer.order);
    return code;
}
