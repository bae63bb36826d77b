/*
 * How fast the loader moves a checkpoint: bench_load CHECKPOINT [ROUNDS]. Reading alone (a backend
 * that takes every piece and keeps none), the same with the CPU backend's packing and, where there
 * is a GPU, to it; and beside them plain parallel reads of the same files: through the page cache,
 * and with O_DIRECT (cold).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "worker/loader/backend.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"

#define READERS    8
#define READ_BYTES ((size_t)8 << 20)
#define PAGE       ((size_t)4096)

static enum evq_status null_alloc(void *state, size_t bytes, void **ret_host, struct evq_error *err)
{
    (void)state;
    return posix_memalign(ret_host, PAGE, bytes) == 0 ? EVQ_OK
                                                      : evq_error_set(err, EVQ_E_NOMEM, "memory");
}

static void null_free(void *state, void *host)
{
    (void)state;
    free(host);
}

static enum evq_status null_put(void *state, int32_t slot, const struct evq_weight_blob *blob,
                                struct evq_error *err)
{
    (void)state;
    (void)slot;
    (void)blob;
    (void)err;
    return EVQ_OK;
}

static enum evq_status null_settle(void *state, struct evq_error *err)
{
    (void)state;
    (void)err;
    return EVQ_OK;
}

static enum evq_status null_catch_up(void *state, uint32_t most, uint32_t *ret_reading,
                                     struct evq_error *err)
{
    (void)state;
    (void)most;
    (void)err;
    *ret_reading = 0;
    return EVQ_OK;
}

static const struct evq_backend_ops null_backend = {.name = "null",
                                                    .alloc = null_alloc,
                                                    .free = null_free,
                                                    .put = null_put,
                                                    .settle = null_settle,
                                                    .catch_up = null_catch_up};

struct plain { // Parallel reads of one checkpoint's files, each piece by whoever is free.
    const struct evq_checkpoint *checkpoint;
    bool direct;
    pthread_mutex_t lock;
    size_t file;
    uint64_t offset;
};

static bool next_part(struct plain *plain, size_t *ret_file, uint64_t *ret_offset)
{
    (void)pthread_mutex_lock(&plain->lock);
    while (plain->file < plain->checkpoint->file_count &&
           plain->offset >= plain->checkpoint->files[plain->file].bytes) {
        plain->file++;
        plain->offset = 0;
    }
    const bool more = plain->file < plain->checkpoint->file_count;
    *ret_file = plain->file;
    *ret_offset = plain->offset;
    plain->offset += READ_BYTES;
    (void)pthread_mutex_unlock(&plain->lock);
    return more;
}

static void *plain_main(void *context)
{
    struct plain *plain = context;
    void *memory = NULL;
    size_t file = 0;
    uint64_t offset = 0;

    if (posix_memalign(&memory, PAGE, READ_BYTES) != 0) {
        return NULL;
    }
    while (next_part(plain, &file, &offset)) {
        char path[32];
        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", plain->checkpoint->files[file].fd);
        const int fd = open(path, O_RDONLY | O_CLOEXEC | (plain->direct ? O_DIRECT : 0));
        if (fd < 0 || pread(fd, memory, READ_BYTES, (off_t)offset) < 0) {
            (void)fprintf(stderr, "plain read: %s\n", strerror(errno));
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    free(memory);
    return NULL;
}

static double plain_seconds(const struct evq_checkpoint *checkpoint, bool direct, int readers)
{
    struct plain plain = {.checkpoint = checkpoint, .direct = direct};
    pthread_t threads[READERS];
    const int64_t start = evq_clock_mono_us();

    (void)pthread_mutex_init(&plain.lock, NULL);
    for (int i = 0; i < readers; i++) {
        if (pthread_create(&threads[i], NULL, plain_main, &plain) != 0) {
            abort();
        }
    }
    for (int i = 0; i < readers; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    (void)pthread_mutex_destroy(&plain.lock);
    return (double)(evq_clock_mono_us() - start) / 1e6;
}

static void drop_cache(const struct evq_checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        (void)fdatasync(checkpoint->files[i].fd);
        (void)posix_fadvise(checkpoint->files[i].fd, 0, 0, POSIX_FADV_DONTNEED);
    }
}

static void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "%s\n", err->message);
        exit(1);
    }
}

/* Opens and prepares the backend. Returns its state, and in *ret_loader a loader for it. */
static void *backend_new(const struct evq_backend *backend, const struct evq_model *model,
                         struct evq_loader **ret_loader)
{
    const struct evq_backend_config config = {.device = 0};
    struct evq_error err = {0};
    void *state = NULL;

    must(backend->ops->open(&config, &state, &err), &err);
    must(backend->ops->prepare(state, &model->plan, &err), &err);
    must(evq_loader_new(backend->ops, state, 0, ret_loader, &err), &err);
    return state;
}

static double fill_seconds(struct evq_loader *loader, const struct evq_checkpoint *checkpoint,
                           const struct evq_model *model, struct evq_loaded *loaded)
{
    struct evq_error err = {0};
    const int64_t start = evq_clock_mono_us();

    must(evq_loader_fill(loader, checkpoint, model, loaded, &err), &err);
    return (double)(evq_clock_mono_us() - start) / 1e6;
}

struct best {
    const char *what;
    double seconds;
    double used; // Of processors, in the same round: what a busy machine leaves comparable.
};

static double used_seconds(void)
{
    struct rusage usage;

    (void)getrusage(RUSAGE_SELF, &usage); // Fails for a bad pointer only.
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* used: of processors before the run that took so many seconds. */
static void better(struct best *best, double used, double seconds)
{
    const double now = used_seconds();

    if (best->seconds == 0 || seconds < best->seconds) {
        best->seconds = seconds;
    }
    if (best->used == 0 || now - used < best->used) {
        best->used = now - used;
    }
}

enum { READ_WARM, PLAIN_WARM, PACKED_WARM, GPU_WARM, READ_COLD, PLAIN_COLD, ROW_COUNT };

static void measure(const struct evq_checkpoint *checkpoint, const struct evq_model *model,
                    const struct evq_backend *gpu, int rounds)
{
    struct best best[ROW_COUNT] = {
        {"reading alone, warm", 0, 0},       {"plain reads of the files, warm, 2 threads", 0, 0},
        {"reading and packing, warm", 0, 0}, {"reading to the GPU, warm", 0, 0},
        {"reading alone, cold", 0, 0},       {"plain O_DIRECT reads, cold, 8 threads", 0, 0}};
    struct evq_loader *alone = NULL;
    struct evq_loader *packing = NULL;
    struct evq_loader *to_gpu = NULL;
    void *state = backend_new(&(struct evq_backend){.ops = &evq_backend_cpu}, model, &packing);
    void *gpu_state = gpu->module != NULL ? backend_new(gpu, model, &to_gpu) : NULL;
    struct evq_loaded loaded = {0};
    struct evq_error err = {0};
    uint64_t file_bytes = 0;

    must(evq_loader_new(&null_backend, NULL, 0, &alone, &err), &err);
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        file_bytes += checkpoint->files[i].bytes;
    }
    for (int i = 0; i < rounds; i++) {
        double used = 0;
        drop_cache(checkpoint);
        used = used_seconds();
        better(&best[PLAIN_COLD], used, plain_seconds(checkpoint, true, READERS));
        used = used_seconds();
        better(&best[READ_COLD], used, fill_seconds(alone, checkpoint, model, &loaded));
        const bool direct = loaded.past_cache;
        (void)plain_seconds(checkpoint, false, 2); // Into the page cache.
        used = used_seconds();
        better(&best[PLAIN_WARM], used, plain_seconds(checkpoint, false, 2));
        used = used_seconds();
        better(&best[READ_WARM], used, fill_seconds(alone, checkpoint, model, &loaded));
        used = used_seconds();
        better(&best[PACKED_WARM], used, fill_seconds(packing, checkpoint, model, &loaded));
        if (to_gpu != NULL) {
            used = used_seconds();
            better(&best[GPU_WARM], used, fill_seconds(to_gpu, checkpoint, model, &loaded));
        }
        if (i == 0) {
            (void)printf("%s: %.1f MB in %zu files, %s; cold %s\n", checkpoint->path,
                         (double)file_bytes / 1e6, checkpoint->file_count, checkpoint->format,
                         direct ? "past the page cache" : "was not cold, or has no O_DIRECT");
        }
    }
    for (int i = 0; i < ROW_COUNT; i++) {
        if (best[i].seconds == 0) {
            continue; // There is no GPU.
        }
        (void)printf("  %-44s %8.1f ms  %6.2f GB/s  %8.1f ms of processors\n", best[i].what,
                     best[i].seconds * 1e3, (double)file_bytes / best[i].seconds / 1e9,
                     best[i].used * 1e3);
    }
    evq_loader_free(alone);
    evq_loader_free(packing);
    evq_loader_free(to_gpu);
    evq_backend_cpu.close(state);
    if (gpu_state != NULL) {
        gpu->ops->close(gpu_state);
    }
}

int main(int argc, char **argv)
{
    const struct evq_task_config task = {.name = "load"};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_model *model = NULL;
    struct evq_error err = {.message = "usage: bench_load CHECKPOINT [ROUNDS]"};
    struct evq_backend gpu;
    char note[512];
    enum evq_status status = EVQ_E_INVALID;
    char *slash = argc > 1 ? strrchr(argv[1], '/') : NULL;

    if (slash != NULL) {
        *slash = '\0';
        const int root = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = evq_checkpoint_open(root, slash + 1, NULL, &checkpoint, &err);
        (void)close(root);
    }
    if (status == EVQ_OK) {
        const struct evq_model_request request = {.checkpoint = checkpoint,
                                                  .task = &task,
                                                  .head = {.kind = EVQ_OP_SCORE},
                                                  .rows_max = 128};
        status = evq_model_build(&request, &model, &err);
    }
    if (status == EVQ_OK) {
        evq_backend_find(0, &gpu, note, sizeof(note));
        measure(checkpoint, model, &gpu, argc > 2 ? atoi(argv[2]) : 5);
        evq_backend_unload(&gpu);
    } else {
        (void)fprintf(stderr, "%s\n", err.message);
    }
    evq_model_free(model);
    evq_checkpoint_close(checkpoint);
    return status == EVQ_OK ? 0 : 1;
}
