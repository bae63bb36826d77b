/*
 * `compare` on the emulator of tests/gpu/emulator/: what a GPU will be held to, held today by the
 * module's own sources on the host.
 *   compare_emulated samples | operations | models | parts
 *   compare_emulated launches    what a batch costs the host
 */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"
#include "tests/gpu/emulator/control.h"

/* Of a batch of GPT-2 124M in bf16 whose scores fit one chunk: the embedding, seven a layer (two
 * norms, four products, attention), the last norm; then three for each chunk of scores. */
enum { LAYERS = 12, CHUNK_LAUNCHES = 3, LAUNCHES = 2 + 7 * LAYERS + CHUNK_LAUNCHES, COPIES = 6 };

const struct evq_backend_ops *evq_backend_module_v1(void);

/* The layers of GPT-2 124M, narrow: which operations there are does not hang on how wide they are,
 * as long as heads are of 64 values. */
static int compare_launches(const struct sides *sides)
{
    struct lm_shape shape = lm_large[0];
    const int32_t lengths[] = {17, 5};
    struct evq_error err = {0};

    shape.width = shape.size;
    shape.hidden = 4 * shape.width;
    shape.heads = shape.kv_heads = 1;
    shape.vocabulary = 97;
    shape.positions = 32;
    struct lm *lm = lm_new(&shape, EVQ_COMPUTE_BF16, 64, 32);
    struct lm_batch *batch = lm_batch_new(shape.vocabulary, lengths, 2, 100, sides->seed);
    struct evq_row_result *results = lm_alloc((size_t)batch->batch.scores, sizeof(*results));
    const struct side *device = &sides->device;
    lm_must(device->ops->prepare(device->state, &lm->plan, &err), &err);
    for (size_t i = 0; i < lm->plan.slot_count; i++) {
        float *values = lm_weight(lm, i, sides->seed);
        const struct evq_weight_blob blob = {
            .values = values, .type = EVQ_WEIGHT_F32, .rows = lm->plan.slots[i].rows};
        lm_must(device->ops->put(device->state, (int32_t)i, &blob, &err), &err);
        lm_must(device->ops->settle(device->state, &err), &err);
        free(values);
    }
    const size_t enqueued = emulator_enqueued();
    const size_t copies = emulator_copies();
    lm_must(device->ops->exec(device->state, &batch->batch, results, &err), &err);
    const size_t copied = emulator_copies() - copies;
    const size_t launched = emulator_enqueued() - enqueued - copied;
    (void)printf("%s, one chunk of scores: %zu kernels and products, %zu copies a batch\n",
                 lm_large[0].name, launched, copied);
    free(results);
    lm_batch_free(batch);
    lm_free(lm);
    return launched == LAUNCHES && copied == COPIES && shape.layers == LAYERS ? 0 : 1;
}

static int run(const char *part, const struct sides *sides)
{
    if (strcmp(part, "samples") == 0) {
        return compare_samples(sides);
    }
    if (strcmp(part, "launches") == 0) {
        return compare_launches(sides);
    }
    if (strcmp(part, "parts") == 0) {
        return compare_parts(sides);
    }
    return strcmp(part, "operations") == 0 ? compare_ops(sides) : compare_models(sides);
}

int main(int argc, char **argv)
{
    const struct evq_backend_config config = {.device = 0};
    struct sides sides = {.cpu = {.ops = &evq_backend_cpu},
                          .device = {.ops = evq_backend_module_v1()},
                          .seed = 20261121,
                          .small = true,
                          .repeats = 1,
                          .devices = {0, 1, 2},
                          .device_count = 3};
    struct evq_error err = {0};

    (void)setvbuf(stdout, NULL, _IOLBF, 0); // What was found stays if the emulator ends it.
    emulator_devices(sides.device_count);
    lm_must(sides.cpu.ops->open(&config, &sides.cpu.state, &err), &err);
    lm_must(sides.device.ops->open(&config, &sides.device.state, &err), &err);
    const int faults = run(argc > 1 ? argv[1] : "models", &sides);
    sides.cpu.ops->close(sides.cpu.state);
    sides.device.ops->close(sides.device.state);
    return faults == 0 ? 0 : 1;
}
