#include "worker/child/prefetch_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "shared/checkpoint/adapter/adapter_merge.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/queue/codec.h"
#include "worker/evaluators/placement.h"

// Bytes between two checks of what the page cache already holds.
#define STEP_BYTES       ((uint64_t)1 << 20)
#define IO_CLASS_IDLE    3 // ioprio_set(2) uses these numbers; libc has no names for them.
#define IO_CLASS_SHIFT   13
#define IO_WHO_PROCESS   1
#define NICE_MOST        19
#define AVAILABLE_SHARES 4 // One of so many parts of the available memory may be filled.

struct span { // A range of bytes in a file that a load reads.
    int32_t file;
    uint64_t begin, end;
};

struct spans {
    struct span *items;
    size_t count, capacity;
};

/* Lowers the priority of this process below all others. If that is not allowed, it is merely less
 * polite. */
static void process_yield(void)
{
    (void)setpriority(PRIO_PROCESS, 0, NICE_MOST);
    (void)syscall(SYS_ioprio_set, IO_WHO_PROCESS, 0, IO_CLASS_IDLE << IO_CLASS_SHIFT);
}

/* Bytes that may be read: worker.read_ahead_bytes, but at most a share of the available memory; 0
 * if the available memory is not known. */
static uint64_t bytes_allowed(const struct evq_config *config)
{
    unsigned long long available_kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");

    while (file != NULL && available_kib == 0 && fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "MemAvailable: %llu kB", &available_kib);
    }
    if (file != NULL) {
        (void)fclose(file); // It was opened for reading, so a failed close loses nothing.
    }
    const uint64_t share = (uint64_t)available_kib / AVAILABLE_SHARES << 10;
    const uint64_t most = (uint64_t)config->worker.read_ahead_bytes;
    return share < most ? share : most;
}

/* ---- what a load reads ---- */

static bool span_add(struct spans *spans, int32_t file, uint64_t begin, uint64_t bytes)
{
    if (spans->count == spans->capacity) {
        const size_t capacity = spans->capacity > 0 ? 2 * spans->capacity : 256;
        struct span *items = realloc(spans->items, capacity * sizeof(*items));
        if (items == NULL) {
            return false;
        }
        spans->items = items;
        spans->capacity = capacity;
    }
    spans->items[spans->count++] = (struct span){file, begin, begin + bytes};
    return true;
}

static bool tensor_add(struct spans *spans, const struct evq_tensor *tensor)
{
    bool good = true;

    if (tensor->merge != NULL) {
        const struct evq_tensor *const parts[] = {&tensor->merge->base, &tensor->merge->a,
                                                  &tensor->merge->b};
        for (size_t i = 0; i < 3 && good; i++) {
            good = span_add(spans, parts[i]->file, parts[i]->offset, parts[i]->bytes);
        }
        return good;
    }
    for (size_t i = 0; i < tensor->piece_count && good; i++) {
        const struct evq_tensor *stored = &tensor->pieces[i].stored;
        good = span_add(spans, stored->file, stored->offset, stored->bytes);
    }
    return good && (tensor->piece_count > 0 ||
                    span_add(spans, tensor->file, tensor->offset, tensor->bytes));
}

static int span_compare(const void *left, const void *right)
{
    const struct span *a = left;
    const struct span *b = right;

    if (a->file != b->file) {
        return a->file < b->file ? -1 : 1;
    }
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* Sorts the ranges by file and position and joins overlaps, because tensors may be views of one
 * storage. */
static void spans_order(struct spans *spans)
{
    size_t used = 0;

    if (spans->count == 0) {
        return;
    }
    qsort(spans->items, spans->count, sizeof(*spans->items), span_compare);
    for (size_t i = 1; i < spans->count; i++) {
        struct span *last = &spans->items[used];
        const struct span *next = &spans->items[i];
        if (next->file == last->file && next->begin <= last->end) {
            last->end = next->end > last->end ? next->end : last->end;
        } else {
            spans->items[++used] = *next;
        }
    }
    spans->count = used + 1;
}

/* Collects the tensors for the native evaluator, and whole files for a program, which may read
 * anything. */
static bool spans_make(const struct evq_checkpoint *checkpoint, bool native, struct spans *spans)
{
    bool good = true;

    for (size_t i = 0; native && i < checkpoint->tensor_count && good; i++) {
        good = tensor_add(spans, &checkpoint->tensors[i]);
    }
    for (size_t i = 0; !native && i < checkpoint->file_count && good; i++) {
        good = span_add(spans, (int32_t)i, 0, checkpoint->files[i].bytes);
    }
    spans_order(spans);
    return good;
}

/* ---- reading ---- */

/* Whether a page is in the page cache. False if the kernel cannot tell; reading it then costs one
 * copy. */
static bool lies_there(int fd, uint64_t offset)
{
    char byte;
    const struct iovec place = {.iov_base = &byte, .iov_len = 1};

    return preadv2(fd, &place, 1, (off_t)offset, RWF_NOWAIT) == 1;
}

/*
 * Reads the range. POSIX_FADV_WILLNEED would read at most one read-ahead window of the device per
 * call, and would go on after this process. pread() keeps pace with the disk and ends with this
 * process.
 */
static enum evq_status span_read(const struct evq_checkpoint *checkpoint, const struct span *span,
                                 void *buffer, struct evq_error *err)
{
    const int fd = checkpoint->files[span->file].fd;

    for (uint64_t at = span->begin; at < span->end;) {
        const uint64_t left = span->end - at;
        const uint64_t step = left < STEP_BYTES ? left : STEP_BYTES;
        if (lies_there(fd, at) && lies_there(fd, at + step / 2) && lies_there(fd, at + step - 1)) {
            at += step;
            continue;
        }
        const ssize_t got = pread(fd, buffer, (size_t)step, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return evq_error_set(err, EVQ_E_IO, "'%s' cannot be read at byte %llu: %s",
                                 checkpoint->files[span->file].name, (unsigned long long)at,
                                 got < 0 ? strerror(errno) : "it ends there");
        }
        at += (uint64_t)got;
    }
    return EVQ_OK;
}

static enum evq_status spans_read(const struct evq_checkpoint *checkpoint,
                                  const struct spans *spans, uint64_t bytes_max,
                                  struct evq_error *err)
{
    uint64_t bytes = 0;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < spans->count; i++) {
        bytes += spans->items[i].end - spans->items[i].begin;
    }
    // Half of a checkpoint would not help: a load bypasses a page cache that lacks the other half.
    if (bytes > bytes_max) {
        return evq_error_set(err, EVQ_E_LIMIT, "%llu bytes, allowed %llu",
                             (unsigned long long)bytes, (unsigned long long)bytes_max);
    }
    void *buffer = malloc(STEP_BYTES);
    if (buffer == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%llu bytes", (unsigned long long)STEP_BYTES);
    }
    for (size_t i = 0; i < spans->count && status == EVQ_OK; i++) {
        status = span_read(checkpoint, &spans->items[i], buffer, err);
    }
    free(buffer);
    return status;
}

/* ---- the job ---- */

static enum evq_status job_read(struct evq_job **ret_job, struct evq_error *err)
{
    uint8_t record[EVQ_JOB_BYTES_MAX];
    size_t bytes = 0;
    ssize_t got = 1;

    while (bytes < sizeof(record) && got > 0) {
        got = read(STDIN_FILENO, record + bytes, sizeof(record) - bytes);
        bytes += got > 0 ? (size_t)got : 0;
    }
    return evq_codec_job_decode(record, bytes, ret_job, err);
}

/* Opens the checkpoint as the evaluator will. The base of an adapter is found only beneath the same
 * root. */
static enum evq_status checkpoint_open(const struct evq_job *job, const struct evq_suite *suite,
                                       bool native, int root_fd,
                                       struct evq_checkpoint **ret_checkpoint,
                                       struct evq_error *err)
{
    struct evq_checkpoint_options options = {
        .key = "", .base = "", .variant = job->variant, .files_only = !native};

    if (native && suite->task_count > 0) {
        const struct evq_task_config *task = &suite->tasks[0];
        options.key = evq_pair_get(task->model, task->model_count, "key", "");
        options.base = evq_pair_get(task->model, task->model_count, "base", "");
        options.adapter = evq_pair_get(task->model, task->model_count, "adapter", "");
    }
    return evq_checkpoint_open(root_fd, evq_placement_pick(root_fd, job), &options, ret_checkpoint,
                               err);
}

static enum evq_status job_prefetch(const struct evq_config *config, const struct evq_job *job,
                                    struct evq_error *err)
{
    const struct evq_root *root = evq_config_root_find(config, job->root);
    const struct evq_suite *suite = evq_config_suite(config, job->suite);
    struct evq_checkpoint *checkpoint = NULL;
    struct spans spans = {.count = 0};

    if (root == NULL || suite == NULL) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "root '%s' or suite '%s' is not known here",
                             job->root, job->suite);
    }
    const bool native = strcmp(suite->evaluator, "native") == 0 && suite->prepare[0] == '\0';
    const int root_fd = open(root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", root->path, strerror(errno));
    }
    enum evq_status status = checkpoint_open(job, suite, native, root_fd, &checkpoint, err);
    (void)close(root_fd); // It is a directory, so a failed close loses nothing.
    if (status == EVQ_OK && !spans_make(checkpoint, native, &spans)) {
        status = evq_error_set(err, EVQ_E_NOMEM, "the list of what is to be read");
    }
    if (status == EVQ_OK) {
        status = spans_read(checkpoint, &spans, bytes_allowed(config), err);
    }
    free(spans.items);
    evq_checkpoint_close(checkpoint);
    return status;
}

enum evq_exit evq_prefetch_reader_main(const struct evq_options *options)
{
    struct evq_config *config = NULL;
    struct evq_job *job = NULL;
    struct evq_error err = {EVQ_OK, ""};

    process_yield();
    enum evq_status status = evq_config_load(&options->source, &config, &err);
    if (status == EVQ_OK) {
        status = job_read(&job, &err);
    }
    if (status == EVQ_OK) {
        status = job_prefetch(config, job, &err);
    }
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "evalq-worker prefetch: %s\n", err.message);
    }
    evq_job_free(job);
    evq_config_free(config);
    return evq_status_exit(status);
}
