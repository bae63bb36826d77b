#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/format.h"

/* The file of a Hugging Face checkpoint directory, in the order in which Transformers looks for it.
 */
static const char *const preferred[] = {"model.safetensors", "model.safetensors.index.json",
                                        "pytorch_model.bin", "pytorch_model.bin.index.json",
                                        ".metadata"};
#define PREFERRED_COUNT (sizeof(preferred) / sizeof(preferred[0]))

/* Entries that tell a layout that is not read. */
static const struct {
    const char *prefix;
    bool whole; // prefix is the whole name.
    const char *sentence;
} refused[] = {
    {"adapter_model.", false, "this is a PEFT adapter, which is not merged onto its base here"},
    {"adapter_config.json", true, "this is a PEFT adapter, which is not merged onto its base here"},
    {"global_step", false, "this is a DeepSpeed ZeRO checkpoint, which is not read"},
    {"zero_pp_rank_", false, "this is a DeepSpeed ZeRO checkpoint, which is not read"},
    {"mp_rank_", false, "this is a DeepSpeed checkpoint, which is not read"},
    {"bf16_zero_pp_rank_", false, "this is a DeepSpeed ZeRO checkpoint, which is not read"},
    {"tf_model.h5", true, "this is a TensorFlow checkpoint, which is not read"},
    {"flax_model.msgpack", true, "this is a Flax checkpoint, which is not read"},
};
#define REFUSED_COUNT (sizeof(refused) / sizeof(refused[0]))

static const char *const suffixes[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"};

/* What a Trainer saves beside the weights. */
static const char *const not_weights[] = {"optimizer.",     "scheduler.", "scaler.",
                                          "training_args.", "rng_state",  "random_states",
                                          "trainer_state",  "sampler"};

/* Where accelerate puts the distributed checkpoint of a model. */
#define FSDP_FOLDER "pytorch_model_fsdp_0"

struct scan {
    bool found[PREFERRED_COUNT];
    const char *sentence; // Of the first entry that is refused.
    char weights[2][256]; // The first two files that may hold weights.
    size_t weights_count;
    bool fsdp;  // FSDP_FOLDER is there.
    bool shard; // One of them is model-00001-of-00002 or the like.
};

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static bool is_weights(const char *name)
{
    if (name[0] == '.') {
        return false; // Temporary, or not meant to be seen.
    }
    for (size_t i = 0; i < sizeof(not_weights) / sizeof(not_weights[0]); i++) {
        if (starts_with(name, not_weights[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t bytes = strlen(name);
        size_t end = strlen(suffixes[i]);
        if (bytes > end && strcmp(name + bytes - end, suffixes[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void scan_entry(struct scan *scan, const char *name, bool directory)
{
    for (size_t i = 0; i < PREFERRED_COUNT; i++) {
        scan->found[i] = scan->found[i] || strcmp(name, preferred[i]) == 0;
    }
    scan->fsdp = scan->fsdp || strcmp(name, FSDP_FOLDER) == 0;
    for (size_t i = 0; i < REFUSED_COUNT && scan->sentence == NULL; i++) {
        if (refused[i].whole ? strcmp(name, refused[i].prefix) == 0
                             : starts_with(name, refused[i].prefix)) {
            scan->sentence = refused[i].sentence;
        }
    }
    if (directory || !is_weights(name)) {
        return;
    }
    if (scan->weights_count < 2) {
        (void)snprintf(scan->weights[scan->weights_count], sizeof(scan->weights[0]), "%s", name);
    }
    scan->weights_count++;
    scan->shard = scan->shard || strstr(name, "-of-") != NULL;
}

static enum evq_status scan_directory(int directory_fd, struct scan *scan, struct evq_error *err)
{
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);

    if (stream == NULL) {
        enum evq_status status =
            evq_error_set(err, EVQ_E_IO, "list the directory: %s", strerror(errno));
        if (fd >= 0) {
            (void)close(fd); // Never read from.
        }
        return status;
    }
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        if (entry == NULL) {
            break;
        }
        if (strlen(entry->d_name) < sizeof(scan->weights[0])) {
            scan_entry(scan, entry->d_name, entry->d_type == DT_DIR);
        }
    }
    int failed = errno;
    (void)closedir(stream); // Opened for reading: a failed close loses nothing.
    return failed == 0 ? EVQ_OK
                       : evq_error_set(err, EVQ_E_IO, "list the directory: %s", strerror(failed));
}

enum evq_status evq_layout_find(int directory_fd, char *ret_name, size_t name_bytes,
                                struct evq_error *err)
{
    struct scan scan = {.weights_count = 0};
    const char *name = NULL;
    enum evq_status status = scan_directory(directory_fd, &scan, err);

    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < PREFERRED_COUNT && name == NULL; i++) {
        name = scan.found[i] ? preferred[i] : NULL;
    }
    if (name == NULL && scan.fsdp) {
        name = FSDP_FOLDER "/.metadata";
    }
    if (name == NULL && scan.sentence != NULL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "%s", scan.sentence);
    }
    if (name == NULL && scan.weights_count == 0) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "the directory holds no weights file yet");
    }
    if (name == NULL && scan.shard) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the directory holds shards, but not yet their index file");
    }
    if (name == NULL && scan.weights_count > 1) {
        char shown[2][EVQ_SHOWN_BYTES];
        evq_error_escape(scan.weights[0], strlen(scan.weights[0]), shown[0], sizeof(shown[0]));
        evq_error_escape(scan.weights[1], strlen(scan.weights[1]), shown[1], sizeof(shown[1]));
        return evq_error_set(
            err, EVQ_E_INVALID,
            "the directory holds %zu weights files ('%s', '%s', ...): name the one to evaluate",
            scan.weights_count, shown[0], shown[1]);
    }
    if (name == NULL) {
        name = scan.weights[0];
    }
    if (strlen(name) >= name_bytes) {
        return evq_error_set(err, EVQ_E_INVALID, "a file name of %zu bytes", strlen(name));
    }
    (void)snprintf(ret_name, name_bytes, "%s", name);
    return EVQ_OK;
}
