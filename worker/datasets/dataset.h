/*
 * The data of a task over samples: inputs and answers (labels or targets) as arrays from files.
 * They are kept in their own type and converted row by row for a batch. Each format is one file,
 * registered in dataset.c. Read-only once open, except for evq_dataset_hash(), which one thread may
 * call.
 */
#ifndef EVQ_WORKER_DATASETS_DATASET_H
#define EVQ_WORKER_DATASETS_DATASET_H

#include <sys/stat.h>

#include "shared/config/config.h"
#include "worker/datasets/array.h"

enum evq_answer_kind { EVQ_ANSWER_LABELS, EVQ_ANSWER_TARGETS };

struct evq_dataset_format {
    const char *name;
    enum evq_status (*read)(const struct evq_array_source *source, struct evq_array *ret_array,
                            struct evq_error *err);
};

extern const struct evq_dataset_format evq_dataset_idx;
extern const struct evq_dataset_format evq_dataset_npy;

#define EVQ_DATASET_CHANNELS_MAX 16

struct evq_dataset {
    // Owns this struct, the names and the key. evq_dataset_free() frees the arrays.
    struct evq_arena *arena;
    const char *key;                        // Identifies what was opened.
    const char *inputs_name, *answers_name; // The paths, for messages.
    struct stat inputs_file, answers_file;
    struct evq_array inputs;
    struct evq_array answers;
    enum evq_answer_kind kind;
    int64_t count;          // Samples after `limit` was applied.
    int32_t columns;        // Inputs of one sample.
    int32_t answer_columns; // 1 for labels.
    float scale, shift;     // input = stored * scale + shift.
    // For images: (input - mean) / std of the channel is computed. channels 0: it is not.
    int32_t channels;
    float mean[EVQ_DATASET_CHANNELS_MAX], std[EVQ_DATASET_CHANNELS_MAX];
    int64_t label_min_at, label_max_at; // The samples with the smallest and the largest label.
    char digest[33];                    // XXH3-128 of the used samples and of what changes them.
    uint64_t *sample_hashes;            // See evq_dataset_hash(); 0: not computed yet.
};

/*
 * Opens what the task's `data` options name: format, inputs, labels or targets (paths), scale,
 * shift, mean, std, limit. Relative paths start at directory. EVQ_E_INVALID, EVQ_E_CORRUPT,
 * EVQ_E_UNSUPPORTED, EVQ_E_LIMIT, EVQ_E_NOT_FOUND, EVQ_E_IO: the message names the file and the
 * fault.
 */
enum evq_status evq_dataset_open(const struct evq_task_config *task, enum evq_answer_kind kind,
                                 const char *directory, struct evq_dataset **ret_dataset,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_dataset_free(struct evq_dataset *dataset); // Accepts NULL.

/* Checks the task's `data` options without opening a file. EVQ_E_INVALID. */
enum evq_status evq_dataset_check(const struct evq_task_config *task, enum evq_answer_kind kind,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether opening the same again would give the same data: the options are equal, and the files
 * were not touched. */
bool evq_dataset_current(const struct evq_dataset *dataset, const struct evq_task_config *task,
                         enum evq_answer_kind kind, const char *directory);
size_t evq_dataset_bytes(const struct evq_dataset *dataset);

/* EVQ_E_INVALID names the first label outside 0 to classes - 1, its sample and its file. */
enum evq_status evq_dataset_check_labels(const struct evq_dataset *dataset, int32_t classes,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Converts the samples first, first + stride and so on, all below count. The check above makes
 * labels fit int32. */
void evq_dataset_inputs(const struct evq_dataset *dataset, int64_t first, int64_t stride,
                        int32_t rows, float *out);
void evq_dataset_labels(const struct evq_dataset *dataset, int64_t first, int64_t stride,
                        int32_t rows, int32_t *out);
void evq_dataset_targets(const struct evq_dataset *dataset, int64_t first, int64_t stride,
                         int32_t rows, float *out);

/* XXH3-64 of the inputs of a sample, which are in `inputs` as evq_dataset_inputs() made them. It is
 * computed once for each sample and kept with the data, so that the next job does not wait for it.
 */
uint64_t evq_dataset_hash(struct evq_dataset *dataset, int64_t sample, const float *inputs);

#endif
