#include "worker/datasets/dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "shared/base/file.h"
#include "worker/tasks/task_options.h"

static const struct evq_dataset_format *const formats[] = {&evq_dataset_idx, &evq_dataset_npy};
#define FORMAT_COUNT     (sizeof(formats) / sizeof(formats[0]))
#define HASHES_BYTES_MAX ((size_t)64 << 20) // 8 million samples.

static const char *const option_keys[] = {"format", "inputs", "labels", "targets", "scale", "shift",
                                          "limit",  "mean",   "mean.#", "std",     "std.#", NULL};

static const char *const channel_lists[] = {"mean", "std"};

struct paths { // Paths in the arena of the caller.
    const struct evq_dataset_format *format;
    const char *inputs, *answers; // The files.
};

static const char *option(const struct evq_task_config *task, const char *key, const char *fallback)
{
    return evq_pair_get(task->data, task->data_count, key, fallback);
}

static const char *resolve(struct evq_arena *arena, const char *directory, const char *path)
{
    return path[0] == '/' || directory[0] == '\0'
               ? evq_arena_strdup(arena, path)
               : evq_arena_printf(arena, "%s/%s", directory, path);
}

static enum evq_status find_paths(struct evq_arena *arena, const struct evq_task_config *task,
                                  enum evq_answer_kind kind, const char *directory,
                                  struct paths *paths, struct evq_error *err)
{
    const bool labels = kind == EVQ_ANSWER_LABELS;
    const char *format = option(task, "format", "");
    const char *inputs = option(task, "inputs", "");
    const char *names[FORMAT_COUNT];

    const enum evq_status status =
        evq_task_options_check(task->data, task->data_count, option_keys, "data", err);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        names[i] = formats[i]->name;
        if (strcmp(formats[i]->name, format) == 0) {
            paths->format = formats[i];
        }
    }
    if (paths->format == NULL) {
        return evq_task_options_unknown("data: format", format, names, FORMAT_COUNT, err);
    }
    const char *answers = option(task, labels ? "labels" : "targets", "");
    if (inputs[0] == '\0' || answers[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: %s is missing, which format %s and this task need",
                             inputs[0] == '\0' ? "inputs"
                             : labels          ? "labels"
                                               : "targets",
                             format);
    }
    paths->inputs = resolve(arena, directory, inputs);
    paths->answers = resolve(arena, directory, answers);
    if (paths->inputs == NULL || paths->answers == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "data");
    }
    return EVQ_OK;
}

/* Makes one text of everything that decides what is read. */
static const char *make_key(struct evq_arena *arena, const struct evq_task_config *task,
                            enum evq_answer_kind kind, const struct paths *paths)
{
    const char *key =
        evq_arena_printf(arena, "%s\n%d\n%s\n%s\n%s\n%s\n%s", paths->format->name, (int)kind,
                         paths->inputs, paths->answers, option(task, "scale", ""),
                         option(task, "shift", ""), option(task, "limit", ""));
    const char *name = NULL;
    size_t bytes = 0;

    for (size_t list = 0; list < 2; list++) {
        for (size_t i = 0;
             key != NULL && evq_task_options_item(task->data, task->data_count, channel_lists[list],
                                                  i, &name, &bytes);
             i++) {
            key =
                evq_arena_printf(arena, "%s\n%s %.*s", key, channel_lists[list], (int)bytes, name);
        }
    }
    return key;
}

static bool is_integer(enum evq_dtype dtype)
{
    return dtype == EVQ_DTYPE_U8 || dtype == EVQ_DTYPE_I8 || dtype == EVQ_DTYPE_U16 ||
           dtype == EVQ_DTYPE_I16 || dtype == EVQ_DTYPE_U32 || dtype == EVQ_DTYPE_I32 ||
           dtype == EVQ_DTYPE_I64;
}

static bool row_columns(const struct evq_array *array, int32_t *ret_columns)
{
    int64_t columns = 1;

    // The number of bytes was checked, so this cannot overflow.
    for (int32_t i = 1; i < array->rank; i++) {
        columns *= array->shape[i];
    }
    *ret_columns = (int32_t)columns;
    return columns <= INT32_MAX;
}

static enum evq_status check_shapes(struct evq_dataset *dataset, struct evq_error *err)
{
    const int64_t samples = dataset->inputs.shape[0];

    if (dataset->answers.shape[0] != samples) {
        return evq_error_set(
            err, EVQ_E_INVALID, "'%s' holds %" PRId64 " samples, but '%s' holds %" PRId64,
            dataset->inputs_name, samples, dataset->answers_name, dataset->answers.shape[0]);
    }
    if (!row_columns(&dataset->inputs, &dataset->columns) ||
        !row_columns(&dataset->answers, &dataset->answer_columns)) {
        return evq_error_set(err, EVQ_E_LIMIT, "a sample of '%s' or '%s' has more than %d values",
                             dataset->inputs_name, dataset->answers_name, INT32_MAX);
    }
    if (dataset->kind == EVQ_ANSWER_TARGETS) {
        return EVQ_OK;
    }
    if (!is_integer(dataset->answers.dtype)) {
        return evq_error_set(err, EVQ_E_INVALID, "'%s' holds %s, expected whole numbers as labels",
                             dataset->answers_name, evq_dtype_name(dataset->answers.dtype));
    }
    if (dataset->answer_columns != 1) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%s' holds %d values a sample, expected one label",
                             dataset->answers_name, (int)dataset->answer_columns);
    }
    for (int64_t i = 1; i < dataset->count; i++) {
        const int64_t label = evq_array_integer(&dataset->answers, i);
        dataset->label_min_at = label < evq_array_integer(&dataset->answers, dataset->label_min_at)
                                    ? i
                                    : dataset->label_min_at;
        dataset->label_max_at = label > evq_array_integer(&dataset->answers, dataset->label_max_at)
                                    ? i
                                    : dataset->label_max_at;
    }
    return EVQ_OK;
}

static void hash_array(XXH3_state_t *state, const struct evq_array *array, int64_t count)
{
    const int64_t head[2] = {(int64_t)array->dtype, array->rank};

    (void)XXH3_128bits_update(state, head, sizeof(head)); // This fails only for a NULL state.
    (void)XXH3_128bits_update(state, &count, sizeof(count));
    (void)XXH3_128bits_update(state, array->shape + 1,
                              (size_t)(array->rank - 1) * sizeof(array->shape[0]));
    (void)XXH3_128bits_update(state, array->data,
                              array->bytes / (size_t)array->shape[0] * (size_t)count);
}

static enum evq_status make_digest(struct evq_dataset *dataset, struct evq_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    const float numbers[2] = {dataset->scale, dataset->shift};
    const size_t channels = (size_t)dataset->channels;

    if (state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "digest of '%s'", dataset->inputs_name);
    }
    (void)XXH3_128bits_reset(state); // This fails only for a NULL state.
    (void)XXH3_128bits_update(state, numbers, sizeof(numbers));
    (void)XXH3_128bits_update(state, dataset->mean, channels * sizeof(*dataset->mean));
    (void)XXH3_128bits_update(state, dataset->std, channels * sizeof(*dataset->std));
    hash_array(state, &dataset->inputs, dataset->count);
    hash_array(state, &dataset->answers, dataset->count);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    (void)XXH3_freeState(state);
    for (size_t i = 0; i < sizeof(canonical.digest); i++) {
        static const char digits[] = "0123456789abcdef";
        dataset->digest[2 * i] = digits[canonical.digest[i] >> 4];
        dataset->digest[2 * i + 1] = digits[canonical.digest[i] & 15];
    }
    dataset->digest[32] = '\0';
    return EVQ_OK;
}

static void note_file(const char *path, struct stat *info)
{
    if (stat(path, info) != 0) {
        memset(info, 0, sizeof(*info)); // Reading the file later reports why.
    }
}

static enum evq_status read_arrays(struct evq_dataset *dataset, const struct paths *paths,
                                   struct evq_error *err)
{
    struct evq_array_source source = {paths->inputs, EVQ_ARRAY_BYTES_MAX};
    struct stat after;

    note_file(paths->inputs, &dataset->inputs_file);
    note_file(paths->answers, &dataset->answers_file);
    enum evq_status status = paths->format->read(&source, &dataset->inputs, err);
    if (status == EVQ_OK) {
        source.path = paths->answers;
        status = paths->format->read(&source, &dataset->answers, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    note_file(paths->inputs, &after);
    const bool inputs_same = evq_file_unchanged(&after, &dataset->inputs_file);
    note_file(paths->answers, &after);
    if (!inputs_same || !evq_file_unchanged(&after, &dataset->answers_file)) {
        return evq_error_set(err, EVQ_E_IO, "data set '%s' changed while it was read",
                             inputs_same ? paths->answers : paths->inputs);
    }
    return EVQ_OK;
}

struct numbers {
    double scale, shift;
    int64_t limit;
    int32_t channels;
    double mean[EVQ_DATASET_CHANNELS_MAX], std[EVQ_DATASET_CHANNELS_MAX];
};

/* Reads a list of one number for each channel. */
static enum evq_status read_channels(const struct evq_task_config *task, const char *key,
                                     double values[EVQ_DATASET_CHANNELS_MAX], int32_t *ret_count,
                                     struct evq_error *err)
{
    const char *text = NULL;
    char number[64];
    size_t bytes = 0;
    size_t count = 0;

    for (; evq_task_options_item(task->data, task->data_count, key, count, &text, &bytes);
         count++) {
        if (count == EVQ_DATASET_CHANNELS_MAX) {
            return evq_error_set(err, EVQ_E_LIMIT, "data: %s has more than %d values", key,
                                 EVQ_DATASET_CHANNELS_MAX);
        }
        (void)snprintf(number, sizeof(number), "%.*s", (int)bytes, text);
        const struct evq_pair one = {key, number};
        const enum evq_status status =
            evq_task_options_number(&one, 1, key, "data", 0.0, &values[count], err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    *ret_count = (int32_t)count;
    return EVQ_OK;
}

static enum evq_status read_mean_std(const struct evq_task_config *task, struct numbers *numbers,
                                     struct evq_error *err)
{
    int32_t stds = 0;

    enum evq_status status = read_channels(task, "mean", numbers->mean, &numbers->channels, err);
    if (status == EVQ_OK) {
        status = read_channels(task, "std", numbers->std, &stds, err);
    }
    if (status == EVQ_OK && stds != numbers->channels) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: mean has %d values and std has %d, expected one of both for "
                             "each channel",
                             (int)numbers->channels, (int)stds);
    }
    for (int32_t i = 0; i < stds && status == EVQ_OK; i++) {
        if (!(numbers->std[i] > 0.0)) {
            status = evq_error_set(err, EVQ_E_INVALID, "data: std is %g, expected above 0",
                                   numbers->std[i]);
        }
    }
    return status;
}

static enum evq_status read_numbers(const struct evq_task_config *task, struct numbers *numbers,
                                    struct evq_error *err)
{
    enum evq_status status = evq_task_options_number(task->data, task->data_count, "scale", "data",
                                                     1.0, &numbers->scale, err);
    if (status == EVQ_OK) {
        status = evq_task_options_number(task->data, task->data_count, "shift", "data", 0.0,
                                         &numbers->shift, err);
    }
    if (status == EVQ_OK) {
        status = evq_task_options_integer(task->data, task->data_count, "limit", "data", 1,
                                          INT64_MAX, INT64_MAX, &numbers->limit, err);
    }
    return status == EVQ_OK ? read_mean_std(task, numbers, err) : status;
}

enum evq_status evq_dataset_check(const struct evq_task_config *task, enum evq_answer_kind kind,
                                  struct evq_error *err)
{
    struct paths paths = {0};
    struct numbers numbers;
    struct evq_arena *arena = evq_arena_new(0);

    if (arena == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "data");
    }
    enum evq_status status = find_paths(arena, task, kind, "", &paths, err);
    if (status == EVQ_OK) {
        status = read_numbers(task, &numbers, err);
    }
    evq_arena_free(arena);
    return status;
}

static enum evq_status fill(struct evq_dataset *dataset, const struct evq_task_config *task,
                            const char *directory, struct evq_error *err)
{
    struct paths paths = {0};
    struct numbers numbers = {.scale = 1.0};

    enum evq_status status =
        find_paths(dataset->arena, task, dataset->kind, directory, &paths, err);
    if (status == EVQ_OK) {
        status = read_numbers(task, &numbers, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    dataset->scale = (float)numbers.scale;
    dataset->shift = (float)numbers.shift;
    dataset->channels = numbers.channels;
    for (int32_t i = 0; i < numbers.channels; i++) {
        dataset->mean[i] = (float)numbers.mean[i];
        dataset->std[i] = (float)numbers.std[i];
    }
    dataset->key = make_key(dataset->arena, task, dataset->kind, &paths);
    dataset->inputs_name = paths.inputs;
    dataset->answers_name = paths.answers;
    if (dataset->key == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "data");
    }
    status = read_arrays(dataset, &paths, err);
    if (status == EVQ_OK) {
        dataset->count =
            dataset->inputs.shape[0] < numbers.limit ? dataset->inputs.shape[0] : numbers.limit;
        status = check_shapes(dataset, err);
    }
    return status == EVQ_OK ? make_digest(dataset, err) : status;
}

enum evq_status evq_dataset_open(const struct evq_task_config *task, enum evq_answer_kind kind,
                                 const char *directory, struct evq_dataset **ret_dataset,
                                 struct evq_error *err)
{
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_dataset *dataset = arena != NULL ? evq_arena_alloc(arena, sizeof(*dataset)) : NULL;

    if (dataset == NULL) {
        evq_arena_free(arena);
        return evq_error_set(err, EVQ_E_NOMEM, "data set");
    }
    dataset->arena = arena;
    dataset->kind = kind;
    const enum evq_status status = fill(dataset, task, directory, err);
    if (status != EVQ_OK) {
        evq_dataset_free(dataset);
        return status;
    }
    *ret_dataset = dataset;
    return EVQ_OK;
}

void evq_dataset_free(struct evq_dataset *dataset)
{
    if (dataset != NULL) {
        free(dataset->inputs.data);
        free(dataset->answers.data);
        free(dataset->sample_hashes);
        evq_arena_free(dataset->arena);
    }
}

bool evq_dataset_current(const struct evq_dataset *dataset, const struct evq_task_config *task,
                         enum evq_answer_kind kind, const char *directory)
{
    struct evq_arena *arena = evq_arena_new(0);
    struct paths paths = {0};
    struct stat inputs;
    struct stat answers;
    bool current = false;

    if (arena != NULL && find_paths(arena, task, kind, directory, &paths, NULL) == EVQ_OK) {
        const char *key = make_key(arena, task, kind, &paths);
        note_file(paths.inputs, &inputs);
        note_file(paths.answers, &answers);
        current = key != NULL && strcmp(key, dataset->key) == 0 &&
                  evq_file_unchanged(&inputs, &dataset->inputs_file) &&
                  evq_file_unchanged(&answers, &dataset->answers_file);
    }
    evq_arena_free(arena);
    return current;
}

/* Returns the bytes that the hashes of all samples need; 0: too many, so no hashes are kept. */
static size_t hashes_bytes(const struct evq_dataset *dataset)
{
    const size_t bytes = (size_t)dataset->count * sizeof *dataset->sample_hashes;

    return bytes <= HASHES_BYTES_MAX ? bytes : 0;
}

size_t evq_dataset_bytes(const struct evq_dataset *dataset)
{
    return dataset->inputs.bytes + dataset->answers.bytes + hashes_bytes(dataset);
}

uint64_t evq_dataset_hash(struct evq_dataset *dataset, int64_t sample, const float *inputs)
{
    const size_t bytes = (size_t)dataset->columns * sizeof *inputs;

    if (dataset->sample_hashes == NULL && hashes_bytes(dataset) > 0) {
        dataset->sample_hashes = calloc(1, hashes_bytes(dataset)); // NULL: nothing is kept.
    }
    if (dataset->sample_hashes == NULL) {
        return XXH3_64bits(inputs, bytes);
    }
    if (dataset->sample_hashes[sample] == 0) {
        dataset->sample_hashes[sample] = XXH3_64bits(inputs, bytes);
    }
    return dataset->sample_hashes[sample];
}

enum evq_status evq_dataset_check_labels(const struct evq_dataset *dataset, int32_t classes,
                                         struct evq_error *err)
{
    const int64_t least = evq_array_integer(&dataset->answers, dataset->label_min_at);
    const int64_t most = evq_array_integer(&dataset->answers, dataset->label_max_at);

    if (least >= 0 && most < classes) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "sample %" PRId64 " of '%s' has label %" PRId64 ", expected 0 to %d",
                         least < 0 ? dataset->label_min_at : dataset->label_max_at,
                         dataset->answers_name, least < 0 ? least : most, (int)(classes - 1));
}
