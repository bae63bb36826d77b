/*
 * Turns the samples of a batch into sequences of patches, for models that read images. One thread.
 */
#ifndef EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_IMAGES_H
#define EVQ_WORKER_EVALUATORS_NATIVE_NATIVE_IMAGES_H

#include "worker/datasets/dataset.h"
#include "worker/models/model.h"

struct evq_native_images {
    struct evq_patches patches;
    bool channels_last; // A sample is [height, width, channels], not [channels, height, width].
    const struct evq_dataset *dataset;
    int32_t length; // Rows of a sequence: the class and the patches.
    float *inputs;  // [samples * length, values of a patch].
    int32_t *tokens, *starts, *score_rows;
};

/* Checks that the samples are images of the model. EVQ_E_INVALID says which shape was expected. */
enum evq_status evq_native_images_check(const struct evq_dataset *dataset,
                                        const struct evq_patches *patches,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes room for `samples` samples; the data must have passed the check. EVQ_E_NOMEM. Free it with
 * evq_native_images_free() in any case. */
enum evq_status evq_native_images_open(struct evq_native_images *images,
                                       const struct evq_dataset *dataset,
                                       const struct evq_patches *patches, int32_t samples,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
void evq_native_images_free(struct evq_native_images *images);

/* Fills in the batch from count samples, whose inputs are in `samples`. Their labels become its
 * targets. */
void evq_native_images_batch(const struct evq_native_images *images, const float *samples,
                             int32_t count, const int32_t *labels, struct evq_batch *batch);

#endif
