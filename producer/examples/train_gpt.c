/*
 * Trains a small GPT on the bytes of a text. evalq's workers evaluate every checkpoint while
 * training goes on. The calls of evalq are evalq_client_open(), evalq_client_submit() and
 * evalq_client_close(). The program needs only evalq's public header.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <evalq.h>

#include "gpt.h"
#include "random.h"
#include "settings.h"

#define BATCH    12
#define WARM_UP  20
#define RATE     1e-3f
#define HELD_OUT (256 * GPT_CONTEXT + 1) // So many bytes at the end are not trained on.
#define TEXT_MAX (256L << 20)            // In bytes.

struct trainer {
    struct settings settings;
    struct gpt gpt;
    struct evalq_client *client; // NULL if it could not be opened; training needs no client.
    uint8_t *text;
    size_t bytes; // The size of the text without its held-out end.
    size_t held_out;
    uint64_t seed;
    long saved;
};

static double now_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const char usage[] =
    "Usage: train_gpt --text FILE [--out DIR] [--run NAME] [--suites NAMES]\n"
    "                 [--steps N] [--every N] [--seed N]\n"
    "\n"
    "Trains a GPT of three layers on the bytes of a text, saves a checkpoint as Transformers\n"
    "would (config.json, model.safetensors, tokenizer.json) every N steps and submits it to\n"
    "evalq.\n"
    "\n"
    "  --text FILE     at least 32 KiB; its last 16 KiB are held out\n"
    "  --out DIR       gets the checkpoints and heldout.txt (default checkpoints)\n"
    "  --run NAME      the run's name (default: evalq makes one of the directory)\n"
    "  --suites NAMES  suites of evalq.yaml, separated by commas (default text)\n"
    "  --steps N       steps of 12 sequences of 64 bytes (default 400)\n"
    "  --every N       steps between checkpoints (default 40)\n"
    "  --seed N        of initialisation and order (default 1)\n";

static bool text_read(struct trainer *trainer)
{
    const char *path = trainer->settings.data;
    FILE *file = fopen(path, "rb");
    struct stat info;

    if (file == NULL || fstat(fileno(file), &info) != 0 || info.st_size < 2 * HELD_OUT ||
        info.st_size > TEXT_MAX) {
        fprintf(stderr, "train_gpt: '%s' is not a text of %d to %ld bytes\n", path, 2 * HELD_OUT,
                TEXT_MAX);
        if (file != NULL) {
            fclose(file);
        }
        return false;
    }
    trainer->bytes = (size_t)info.st_size - HELD_OUT;
    trainer->held_out = HELD_OUT;
    trainer->text = malloc((size_t)info.st_size);
    const bool read = trainer->text != NULL &&
                      fread(trainer->text, 1, (size_t)info.st_size, file) == (size_t)info.st_size;
    fclose(file);
    if (!read) {
        fprintf(stderr, "train_gpt: '%s' cannot be read\n", path);
    }
    return read;
}

/* Writes the held-out text to the path that the suite evaluates on. */
static bool held_out_write(const struct trainer *trainer)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/heldout.txt", trainer->settings.out);
    FILE *file = fopen(path, "wb");
    const bool written = file != NULL && fwrite(trainer->text + trainer->bytes, 1,
                                                trainer->held_out, file) == trainer->held_out;
    if ((file != NULL && fclose(file) != 0) || !written) {
        fprintf(stderr, "train_gpt: cannot write '%s': %s\n", path, strerror(errno));
        return false;
    }
    return true;
}

static bool trainer_open(struct trainer *trainer)
{
    const struct settings *settings = &trainer->settings;
    struct evalq_options options = {.run = settings->run};

    if (!text_read(trainer)) {
        return false;
    }
    if (mkdir(settings->out, 0777) != 0 && errno != EEXIST) {
        fprintf(stderr, "train_gpt: cannot create '%s': %s\n", settings->out, strerror(errno));
        return false;
    }
    if (!held_out_write(trainer)) {
        return false;
    }
    trainer->seed = settings_seed(settings);
    if (!gpt_init(&trainer->gpt, BATCH, &trainer->seed)) {
        fprintf(stderr, "train_gpt: out of memory\n");
        return false;
    }
    if (evalq_client_open(&options, &trainer->client) != EVALQ_OK) {
        fprintf(stderr, "train_gpt: nothing will be evaluated: %s\n", evalq_client_error(NULL));
    }
    printf("training %zu parameters on %zu bytes; the last %zu are held out (seed %ld)\n",
           trainer->gpt.count, trainer->bytes, trainer->held_out, settings->seed);
    fflush(stdout);
    return true;
}

static float train_step(struct trainer *trainer, float rate)
{
    uint8_t bytes[BATCH * (GPT_CONTEXT + 1)];

    for (int at = 0; at < BATCH; at++) {
        const size_t room = trainer->bytes - GPT_CONTEXT - 1;
        const size_t from = (size_t)(random_uniform(&trainer->seed) * (double)room);
        memcpy(bytes + (size_t)at * (GPT_CONTEXT + 1), trainer->text + from, GPT_CONTEXT + 1);
    }
    return gpt_train(&trainer->gpt, bytes, rate);
}

/* Saves a checkpoint and submits it. Training does not wait for its evaluation. */
static bool checkpoint_save(struct trainer *trainer, long step, bool last)
{
    char path[3900];

    snprintf(path, sizeof(path), "%.3800s/checkpoint-%ld", trainer->settings.out, step);
    if (!gpt_save(&trainer->gpt, path)) {
        return false;
    }
    trainer->saved++;
    struct evalq_checkpoint saved = {
        .path = path, .step = step, .suites = trainer->settings.suites, .keep = last};
    if (trainer->client != NULL && evalq_client_submit(trainer->client, &saved) != EVALQ_OK) {
        fprintf(stderr, "train_gpt: %s\n", evalq_client_error(trainer->client));
    }
    return true;
}

static bool train(struct trainer *trainer)
{
    const struct settings *settings = &trainer->settings;
    float loss = 0.0f;
    long since = 0;

    for (long step = 1; step <= settings->steps; step++) {
        // The learning rate rises, then falls along half a cosine.
        const double done = (double)(step - 1) / (double)settings->steps;
        const float warm = step < WARM_UP ? (float)step / WARM_UP : 1.0f;
        loss +=
            train_step(trainer, RATE * warm * (float)(0.55 + 0.45 * cos(3.141592653589793 * done)));
        since++;
        if (step % settings->every == 0 || step == settings->steps) {
            printf("step %4ld  training loss %.4f  saved and submitted\n", step,
                   (double)(loss / (float)since));
            fflush(stdout);
            loss = 0.0f;
            since = 0;
            if (!checkpoint_save(trainer, step, step == settings->steps)) {
                return false;
            }
        }
    }
    return true;
}

static void report(struct trainer *trainer, double seconds)
{
    // A short wait is enough, because the next client of this run sends what is left on disk.
    (void)evalq_client_flush(trainer->client, 2000);
    const double loss = gpt_loss(&trainer->gpt, trainer->text + trainer->bytes, trainer->held_out);
    printf("%ld steps in %.1f s; %ld checkpoints; held-out loss here %.6f, perplexity %.4f\n",
           trainer->settings.steps, seconds, trainer->saved, loss, exp(loss));
}

int main(int argc, char **argv)
{
    struct trainer trainer = {.settings = {.program = "train_gpt",
                                           .usage = usage,
                                           .input = "text",
                                           .out = "checkpoints",
                                           .suites = "text",
                                           .steps = 400,
                                           .every = 40,
                                           .seed = 1}};
    int code = settings_parse(argc, argv, &trainer.settings);

    if (code >= 0) {
        return code;
    }
    code = 1;
    if (trainer_open(&trainer)) {
        const double start = now_seconds();
        if (train(&trainer)) {
            report(&trainer, now_seconds() - start);
            code = 0;
        }
    }
    evalq_client_close(trainer.client);
    gpt_free(&trainer.gpt);
    free(trainer.text);
    return code;
}
