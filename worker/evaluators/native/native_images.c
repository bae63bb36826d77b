#include "worker/evaluators/native/native_images.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool shape_is(const struct evq_array *array, int64_t first, int64_t second, int64_t third)
{
    return array->rank == 4 && array->shape[1] == first && array->shape[2] == second &&
           array->shape[3] == third;
}

static bool channels_first(const struct evq_array *array, const struct evq_patches *patches)
{
    return shape_is(array, patches->channels, patches->height, patches->width) ||
           (patches->channels == 1 && array->rank == 3 && array->shape[1] == patches->height &&
            array->shape[2] == patches->width);
}

enum evq_status evq_native_images_check(const struct evq_dataset *dataset,
                                        const struct evq_patches *patches, struct evq_error *err)
{
    const struct evq_array *array = &dataset->inputs;

    if (dataset->channels > 0 && dataset->channels != patches->channels) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: mean and std have %d values, but the model's images have %d "
                             "channels",
                             (int)dataset->channels, (int)patches->channels);
    }
    if (array->rank == 4 && patches->channels > 1 && patches->channels == patches->height &&
        patches->height == patches->width) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "the model's images have as many channels as rows and columns, so "
                             "that '%s' does not show which come first",
                             dataset->inputs_name);
    }
    return channels_first(array, patches) ||
                   shape_is(array, patches->height, patches->width, patches->channels)
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_INVALID,
                               "the samples of '%s' are no images of the model, expected [%d, %d, "
                               "%d] (channels, height, width) or [%d, %d, %d]",
                               dataset->inputs_name, (int)patches->channels, (int)patches->height,
                               (int)patches->width, (int)patches->height, (int)patches->width,
                               (int)patches->channels);
}

enum evq_status evq_native_images_open(struct evq_native_images *images,
                                       const struct evq_dataset *dataset,
                                       const struct evq_patches *patches, int32_t samples,
                                       struct evq_error *err)
{
    const int32_t length = 1 + evq_patches_count(patches);
    const size_t rows = (size_t)samples * (size_t)length;

    *images = (struct evq_native_images){
        .patches = *patches,
        .channels_last = !channels_first(&dataset->inputs, patches),
        .dataset = dataset,
        .length = length,
        // The first row, that of the class, stays zero.
        .inputs = calloc(rows * (size_t)evq_patches_values(patches), sizeof(*images->inputs)),
        .tokens = calloc(rows, sizeof(*images->tokens)),
        .starts = calloc((size_t)samples + 1, sizeof(*images->starts)),
        .score_rows = calloc((size_t)samples, sizeof(*images->score_rows)),
    };
    if (images->inputs == NULL || images->tokens == NULL || images->starts == NULL ||
        images->score_rows == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a batch of %d images", (int)samples);
    }
    for (size_t r = 0; r < rows; r++) {
        images->tokens[r] = r % (size_t)length != 0;
    }
    for (int32_t s = 0; s < samples; s++) {
        images->score_rows[s] = s * length;
        images->starts[s + 1] = (s + 1) * length;
    }
    return EVQ_OK;
}

void evq_native_images_free(struct evq_native_images *images)
{
    free(images->inputs);
    free(images->tokens);
    free(images->starts);
    free(images->score_rows);
    *images = (struct evq_native_images){0};
}

/* Copies one patch, channel by channel, as the weight of the convolution has it. */
static void copy_patch(const struct evq_native_images *images, const float *image, int32_t top,
                       int32_t left, float *out)
{
    const struct evq_patches *patches = &images->patches;
    const struct evq_dataset *dataset = images->dataset;

    for (int32_t c = 0; c < patches->channels; c++) {
        const float mean = dataset->channels > 0 ? dataset->mean[c] : 0.0f;
        const float std = dataset->channels > 0 ? dataset->std[c] : 1.0f;
        for (int32_t y = top; y < top + patches->patch_height; y++) {
            for (int32_t x = left; x < left + patches->patch_width; x++) {
                const size_t pixel = (size_t)y * (size_t)patches->width + (size_t)x;
                const size_t at =
                    images->channels_last
                        ? pixel * (size_t)patches->channels + (size_t)c
                        : (size_t)c * (size_t)patches->height * (size_t)patches->width + pixel;
                *out++ = (image[at] - mean) / std;
            }
        }
    }
}

void evq_native_images_batch(const struct evq_native_images *images, const float *samples,
                             int32_t count, const int32_t *labels, struct evq_batch *batch)
{
    const struct evq_patches *patches = &images->patches;
    const size_t values = (size_t)evq_patches_values(patches);
    const int32_t across = patches->width / patches->patch_width;

    for (int32_t s = 0; s < count; s++) {
        const float *image = samples + (size_t)s * (size_t)images->dataset->columns;
        float *rows = images->inputs + (size_t)images->starts[s] * values;
        for (int32_t p = 0; p < images->length - 1; p++) {
            copy_patch(images, image, p / across * patches->patch_height,
                       p % across * patches->patch_width, rows + (size_t)(p + 1) * values);
        }
    }
    batch->rows = count * images->length;
    batch->inputs = images->inputs;
    batch->tokens = images->tokens;
    batch->starts = images->starts;
    batch->sequences = count;
    batch->score_rows = images->score_rows;
    batch->score_targets = labels;
    batch->scores = count;
}
