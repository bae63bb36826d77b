#include "shared/checkpoint/layout.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/root_open.h"

/* The file to read in a Hugging Face directory, in the order in which Transformers looks for it. */
static const char *const preferred[] = {"model.safetensors",   "model.safetensors.index.json",
                                        "pytorch_model.bin",   "pytorch_model.bin.index.json",
                                        "adapter_config.json", ".metadata"};
#define PREFERRED_COUNT (sizeof(preferred) / sizeof(preferred[0]))
#define ADAPTER         4 // Index in preferred. The entries before it are whole models.

/* Entries that reveal a layout which evalq does not read. */
static const struct {
    const char *start;
    const char *end;
    const char *sentence;
} refused[] = {
    {"zero_pp_rank_", "_model_states.pt",
     "this is DeepSpeed ZeRO stage 3, whose weights are cut over all ranks: join them first with "
     "zero_to_fp32.py, in a `prepare` command"},
    {"mp_rank_01", "",
     "this is a model-parallel checkpoint (mp_rank_01 and on), whose weights are cut by the "
     "model's own plan: join them first, in a `prepare` command"},
    {"layer_", "-model_states.pt",
     "this is a pipeline-parallel checkpoint of DeepSpeed (a file for each layer): join it first, "
     "in a `prepare` command"},
    {"model_world_size_", ".pt",
     "this holds the weights of each FSDP2 rank apart (model_world_size_N_rank_R.pt): join them "
     "first (lmms_engine.merger, verl.model_merger), in a `prepare` command"},
    {"shard-", ".safetensors",
     "this holds parts of tensors, as torch's DCP writes them into safetensors files "
     "(shard-R-model-N): consolidate them first, in a `prepare` command"},
    {"latest_checkpointed_iteration.txt", "",
     "this is a checkpoint of Megatron-LM: convert it first, in a `prepare` command"},
    {"model_optim_rng.pt", "",
     "this is a checkpoint of Megatron-LM: convert it first, in a `prepare` command"},
    {"tf_model.h5", "", "this is a TensorFlow checkpoint, which is not read"},
    {"flax_model.msgpack", "", "this is a Flax checkpoint, which is not read"},
};
#define REFUSED_COUNT (sizeof(refused) / sizeof(refused[0]))

static const char *const suffixes[] = {".safetensors", ".pt", ".pth", ".bin", ".ckpt"};

/* Files that a Trainer saves next to the weights; data.pt is the data loader's state of verl,
 * beside the folder with the weights. */
static const char *const not_weights[] = {"optimizer.",     "scheduler.", "scaler.",
                                          "training_args.", "rng_state",  "random_states",
                                          "trainer_state",  "sampler",    "data.pt"};

/* Where accelerate puts the distributed checkpoint of a model. */
#define FSDP_FOLDER "pytorch_model_fsdp_0"
/* The folder of averaged weights, as LMMs-Engine names it. */
#define FSDP_EMA_FOLDER "pytorch_ema_model_fsdp_0"
/* The weights of DeepSpeed ZeRO stages 0 to 2, in the folder that `latest` names. */
#define DEEPSPEED_FILE "mp_rank_00_model_states.pt"

struct scan {
    bool found[PREFERRED_COUNT];
    const char *sentence; // Why the first refused entry is refused.
    char weights[2][256]; // The first two files that may hold weights.
    size_t weights_count;
    bool fsdp;      // FSDP_FOLDER is there.
    bool fsdp_ema;  // FSDP_EMA_FOLDER is there.
    bool adapter;   // Weights of an adapter are there.
    bool pieces;    // Parts of a distributed checkpoint are there.
    bool latest;    // DeepSpeed's file `latest` is there.
    bool step;      // A folder global_stepN is there.
    bool deepspeed; // DEEPSPEED_FILE is there.
    bool shard;     // A weights file is a shard, such as model-00001-of-00002.
};

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static bool is_weights(const char *name)
{
    if (name[0] == '.') {
        return false; // Temporary or hidden.
    }
    for (size_t i = 0; i < sizeof(not_weights) / sizeof(not_weights[0]); i++) {
        if (starts_with(name, not_weights[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (strlen(name) > strlen(suffixes[i]) && evq_file_ends_with(name, suffixes[i])) {
            return true;
        }
    }
    return false;
}

const char *evq_layout_refuses(const char *name)
{
    for (size_t i = 0; i < REFUSED_COUNT; i++) {
        if (starts_with(name, refused[i].start) && evq_file_ends_with(name, refused[i].end)) {
            return refused[i].sentence;
        }
    }
    return NULL;
}

static void scan_entry(struct scan *scan, const char *name, bool directory)
{
    for (size_t i = 0; i < PREFERRED_COUNT; i++) {
        scan->found[i] = scan->found[i] || strcmp(name, preferred[i]) == 0;
    }
    scan->fsdp = scan->fsdp || strcmp(name, FSDP_FOLDER) == 0;
    scan->fsdp_ema = scan->fsdp_ema || strcmp(name, FSDP_EMA_FOLDER) == 0;
    scan->pieces = scan->pieces || evq_file_ends_with(name, ".distcp");
    scan->adapter = scan->adapter || starts_with(name, "adapter_model.");
    scan->latest = scan->latest || strcmp(name, "latest") == 0;
    scan->step = scan->step || starts_with(name, "global_step");
    scan->deepspeed = scan->deepspeed || strcmp(name, DEEPSPEED_FILE) == 0;
    if (scan->sentence == NULL) {
        scan->sentence = evq_layout_refuses(name);
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
        evq_file_close(&fd);
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

/* Finds the only weights file of a directory without a known layout. */
static enum evq_status find_only(const struct scan *scan, const char **ret_name,
                                 struct evq_error *err)
{
    if (scan->pieces) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the directory holds pieces of a distributed checkpoint, but not yet "
                             "'.metadata'");
    }
    if (scan->weights_count == 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "the directory holds no weights file that evalq reads (safetensors or "
                             "torch)");
    }
    if (scan->shard) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the directory holds shards, but not yet their index file");
    }
    if (scan->weights_count > 1) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "the directory holds %zu weights files ('%.160s', '%.160s', ...): "
                             "name the one to evaluate",
                             scan->weights_count, scan->weights[0], scan->weights[1]);
    }
    *ret_name = scan->weights[0];
    return EVQ_OK;
}

/* Reads the name of the folder from DeepSpeed's file `latest`. */
static enum evq_status read_latest(int directory_fd, char *out, size_t out_bytes,
                                   struct evq_error *err)
{
    int fd = -1;
    enum evq_status status = evq_root_open(directory_fd, "latest", false, &fd, err);

    if (status != EVQ_OK) {
        return status;
    }
    const ssize_t got = read(fd, out, out_bytes - 1);
    (void)close(fd); // Opened for reading: a failed close loses nothing.
    const size_t bytes = got < 0 ? 0 : (size_t)got;
    out[bytes] = '\0';
    out[strcspn(out, "\r\n")] = '\0';
    if (out[0] == '\0') {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "'latest' is empty: still being written");
    }
    if (strlen(out) > 200 || out[0] == '.' || strchr(out, '/') != NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'latest' names '%.160s', which is not a plain folder", out);
    }
    return EVQ_OK;
}

/* Finds the weights in the step that `latest` names. */
static enum evq_status find_deepspeed(int directory_fd, char *ret_name, size_t name_bytes,
                                      struct evq_error *err)
{
    char folder[256];
    struct scan scan = {.weights_count = 0};
    int fd = -1;
    enum evq_status status = read_latest(directory_fd, folder, sizeof(folder), err);

    if (status == EVQ_OK) {
        status = evq_root_open(directory_fd, folder, true, &fd, err);
    }
    if (status == EVQ_OK) {
        status = scan_directory(fd, &scan, err);
        (void)close(fd); // Opened for reading: a failed close loses nothing.
    }
    if (status == EVQ_E_GONE) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the folder that 'latest' names is not there (yet)");
    }
    if (status == EVQ_OK && scan.sentence != NULL) {
        status = evq_error_set(err, EVQ_E_UNSUPPORTED, "%s", scan.sentence);
    }
    if (status == EVQ_OK && !scan.deepspeed) {
        status = evq_error_set(err, EVQ_E_INCOMPLETE, "'%.160s' holds no " DEEPSPEED_FILE " yet",
                               folder);
    }
    if (status == EVQ_OK) {
        (void)snprintf(ret_name, name_bytes, "%s/" DEEPSPEED_FILE, folder); // Both are short.
    }
    return status;
}

/* Finds the distributed checkpoint in the folder of a variant. A folder with one file per rank is
 * refused. */
static enum evq_status find_fsdp(int directory_fd, const struct scan *scan, bool ema,
                                 const char **ret_name, struct evq_error *err)
{
    struct scan inner = {.weights_count = 0};
    int fd = -1;

    if (ema && !scan->fsdp_ema) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "the directory holds no EMA weights (" FSDP_EMA_FOLDER
                             "), but " FSDP_FOLDER);
    }
    enum evq_status status =
        evq_root_open(directory_fd, ema ? FSDP_EMA_FOLDER : FSDP_FOLDER, true, &fd, err);
    if (status == EVQ_OK) {
        status = scan_directory(fd, &inner, err);
        (void)close(fd); // Opened for reading: a failed close loses nothing.
    }
    if (status == EVQ_OK && inner.sentence != NULL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "%s", inner.sentence);
    }
    *ret_name = ema ? FSDP_EMA_FOLDER "/.metadata" : FSDP_FOLDER "/.metadata";
    return status;
}

enum evq_status evq_layout_find(int directory_fd, const char *variant,
                                struct evq_layout *ret_layout, struct evq_error *err)
{
    const bool ema = variant != NULL && strcmp(variant, "ema") == 0;
    struct scan scan = {.weights_count = 0};
    const size_t name_bytes = sizeof(ret_layout->name);
    const char *name = NULL;
    enum evq_status status = scan_directory(directory_fd, &scan, err);

    if (status != EVQ_OK) {
        return status;
    }
    *ret_layout = (struct evq_layout){.with_adapter = false};
    for (size_t i = 0; i < PREFERRED_COUNT && name == NULL && !(ema && scan.fsdp_ema); i++) {
        name = scan.found[i] ? preferred[i] : NULL;
        if (name != NULL && i < ADAPTER) {
            ret_layout->with_adapter = scan.found[ADAPTER];
            ret_layout->stray_adapter = scan.adapter && !scan.found[ADAPTER];
        }
    }
    if (name == NULL && (scan.fsdp || scan.fsdp_ema)) {
        status = find_fsdp(directory_fd, &scan, ema, &name, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    if (name == NULL && scan.sentence != NULL) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "%s", scan.sentence);
    }
    if (name == NULL && scan.adapter) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the directory holds an adapter, but not yet adapter_config.json");
    }
    if (name == NULL && scan.latest && scan.step) {
        return find_deepspeed(directory_fd, ret_layout->name, name_bytes, err);
    }
    if (name == NULL && scan.step) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the directory holds steps of DeepSpeed, but not yet 'latest'");
    }
    if (name == NULL && scan.deepspeed) {
        name = DEEPSPEED_FILE;
    }
    if (name == NULL) {
        status = find_only(&scan, &name, err);
    }
    if (status == EVQ_OK && strlen(name) >= name_bytes) {
        status = evq_error_set(err, EVQ_E_INVALID, "a file name of %zu bytes", strlen(name));
    }
    if (status == EVQ_OK) {
        (void)snprintf(ret_layout->name, name_bytes, "%s", name);
    }
    return status;
}
