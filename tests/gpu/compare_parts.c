/*
 * Language models of every family with their layers split over several devices: the bits of one
 * device. One device that is named several times stands for several, each with memory of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/compare.h"

static const int32_t lengths[] = {33, 1, 129, 5, 64};
enum { FEW = 2, LENGTHS = sizeof(lengths) / sizeof(lengths[0]), LONGEST = 129 };

enum { OPEN_MAX = sizeof(((struct sides *)NULL)->devices) / sizeof(int32_t) };

struct work {
    const struct sides *sides;
    void *states[OPEN_MAX]; // On the first device, on the first two, and so on.
    int cases, faults, refused;
};

/* False: the backend refuses the plan. */
static bool run(const struct work *work, void *state, const struct lm *lm,
                const struct evq_batch *batch, struct evq_row_result *results)
{
    const struct evq_backend_ops *ops = work->sides->device.ops;
    struct evq_error err = {0};

    const enum evq_status status = ops->prepare(state, &lm->plan, &err);
    if (status == EVQ_E_UNSUPPORTED) {
        return false;
    }
    lm_must(status, &err);
    for (size_t i = 0; i < lm->plan.slot_count; i++) {
        float *values = lm_weight(lm, i, work->sides->seed);
        const struct evq_weight_blob blob = {
            .values = values, .type = EVQ_WEIGHT_F32, .rows = lm->slots[i].rows};
        lm_must(ops->put(state, (int32_t)i, &blob, &err), &err);
        lm_must(ops->settle(state, &err), &err);
        free(values);
    }
    memset(results, 0xff, (size_t)batch->scores * sizeof(*results)); // What is not filled is NaN.
    lm_must(ops->exec(state, batch, results, &err), &err);
    return true;
}

/* The model on 1 to all devices has the same losses each time. */
static void model_compare(struct work *work, const struct lm *lm, const struct evq_batch *batch)
{
    const char *compute = lm->plan.compute == EVQ_COMPUTE_F32 ? "fp32" : "bf16";
    const size_t count = (size_t)batch->scores;
    struct evq_row_result *one = lm_alloc(count, sizeof(*one));
    struct evq_row_result *several = lm_alloc(count, sizeof(*several));
    bool same = true;

    lm_doing("model %s, in %s, on one device", lm->shape->name, compute);
    const bool ran = run(work, work->states[0], lm, batch, one);
    for (int32_t devices = 2; devices <= work->sides->device_count && ran; devices++) {
        lm_doing("model %s, in %s, on %d devices", lm->shape->name, compute, (int)devices);
        same = run(work, work->states[devices - 1], lm, batch, several) && same;
        for (size_t i = 0; i < count; i++) {
            same =
                same && several[i].loss == one[i].loss && several[i].predicted == one[i].predicted;
        }
    }
    if (!same) {
        (void)printf("FAIL %s in %s: other bits on several devices than on one\n", lm->shape->name,
                     compute);
    }
    work->cases++;
    work->faults += !same;
    work->refused += !ran;
    free(one);
    free(several);
}

int compare_parts(const struct sides *sides)
{
    struct work work = {.sides = sides};
    struct evq_error err = {0};

    for (int32_t i = 0; i < sides->device_count; i++) {
        const struct evq_backend_config config = {.devices = sides->devices, .device_count = i + 1};
        lm_must(sides->device.ops->open(&config, &work.states[i], &err), &err);
    }
    for (size_t i = 0; i < lm_small_count; i++) {
        const struct lm_shape *shape = &lm_small[i];
        if (sides->small && (strncmp(shape->name, "heads-", 6) == 0 || shape->vocabulary > 10000)) {
            continue; // They are layers like the others.
        }
        struct lm_batch *batch = lm_batch_new(shape->vocabulary, lengths,
                                              sides->small ? FEW : LENGTHS, 90, sides->seed + i);
        for (int compute = 0; compute < EVQ_COMPUTE_COUNT; compute++) {
            struct lm *lm = lm_new(shape, (enum evq_compute)compute, batch->batch.rows,
                                   sides->small ? lengths[0] : LONGEST);
            model_compare(&work, lm, &batch->batch);
            lm_free(lm);
        }
        lm_batch_free(batch);
    }
    for (int32_t i = 0; i < sides->device_count; i++) {
        sides->device.ops->close(work.states[i]);
    }
    compare_tell("models with their layers split over devices", work.cases, work.faults,
                 work.refused, 0.0);
    return work.faults;
}
