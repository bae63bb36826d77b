#include "worker/loader/small_tensors.h"

#include <pthread.h>
#include <stdlib.h>

#include "shared/checkpoint/checkpoint_builder.h"

#define TENSOR_BYTES_MAX ((uint64_t)64 << 10)
// A gap of so many bytes is read along, because that is cheaper than a second read.
#define GAP_BYTES_MAX ((uint64_t)4 << 10)
#define RUN_BYTES_MAX ((uint64_t)1 << 20)
#define ALL_BYTES_MAX ((uint64_t)64 << 20) // Tensors beyond this total are read one by one.

struct run { // Tensors [first, first + count), which are adjacent.
    size_t first, count;
    uint64_t begin, end; // Position in their file.
    pthread_mutex_t lock;
    uint8_t *bytes;
    bool read;
};

struct evq_small_tensors {
    const struct evq_checkpoint *checkpoint;
    struct evq_digest *digest;
    const struct evq_tensor **tensors; // Sorted by position.
    size_t tensor_count;
    size_t *run_of; // For each tensor, its run.
    struct run *runs;
    size_t run_count;
    // The memory of all runs. The first thread allocates it, because malloc() would give each
    // reader an arena of its own.
    uint8_t *block;
};

static int by_place(const void *left, const void *right)
{
    const struct evq_tensor *a = *(const struct evq_tensor *const *)left;
    const struct evq_tensor *b = *(const struct evq_tensor *const *)right;

    if (a->file != b->file) {
        return a->file < b->file ? -1 : 1;
    }
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    // Tied tensors have the same position; both pointers are into the checkpoint's array.
    return a < b ? -1 : a > b;
}

static size_t add(struct evq_small_tensors *small, size_t count, const struct evq_tensor *tensor)
{
    if (!tensor->contiguous || tensor->bytes == 0 || tensor->bytes > TENSOR_BYTES_MAX) {
        return count;
    }
    if (small->tensors != NULL) {
        small->tensors[count] = tensor;
    }
    return count + 1;
}

static size_t add_all(struct evq_small_tensors *small, const struct evq_load_list *list)
{
    size_t count = 0;

    for (size_t i = 0; i < list->count; i++) {
        const struct evq_load_piece *piece = &list->pieces[i];
        for (size_t k = 0; piece->kind == EVQ_LOAD_VECTOR && k < piece->count; k++) {
            count = add(small, count, piece->source[k].tensor);
        }
    }
    return count;
}

/* Removes duplicates and forms the runs. */
static void runs_make(struct evq_small_tensors *small, size_t found)
{
    for (size_t i = 0; i < found; i++) {
        const struct evq_tensor *tensor = small->tensors[i];
        const uint64_t end = tensor->offset + tensor->bytes;
        struct run *run = small->run_count > 0 ? &small->runs[small->run_count - 1] : NULL;
        const size_t count = small->tensor_count;
        if (count > 0 && small->tensors[count - 1] == tensor) {
            continue;
        }
        if (run == NULL || small->tensors[count - 1]->file != tensor->file ||
            tensor->offset > run->end + GAP_BYTES_MAX || end > run->begin + RUN_BYTES_MAX) {
            run = &small->runs[small->run_count++];
            *run = (struct run){.first = count, .begin = tensor->offset};
            (void)pthread_mutex_init(&run->lock, NULL); // This does not fail on Linux.
        }
        run->end = end > run->end ? end : run->end;
        run->count++;
        small->run_of[count] = small->run_count - 1;
        small->tensors[small->tensor_count++] = tensor;
    }
}

/* Without memory for the block, every tensor is read by itself. */
static void block_take(struct evq_small_tensors *small)
{
    uint64_t bytes = 0;
    size_t count = 0;

    while (count < small->run_count &&
           bytes + (small->runs[count].end - small->runs[count].begin) <= ALL_BYTES_MAX) {
        bytes += small->runs[count].end - small->runs[count].begin;
        count++;
    }
    small->block = bytes > 0 ? malloc((size_t)bytes) : NULL;
    count = small->block != NULL ? count : 0;
    for (size_t i = count; i < small->run_count; i++) {
        (void)pthread_mutex_destroy(&small->runs[i].lock);
    }
    small->run_count = count;
    small->tensor_count =
        count > 0 ? small->runs[count - 1].first + small->runs[count - 1].count : 0;
    bytes = 0;
    for (size_t i = 0; i < count; i++) {
        small->runs[i].bytes = small->block + bytes;
        bytes += small->runs[i].end - small->runs[i].begin;
    }
}

enum evq_status evq_small_tensors_new(const struct evq_checkpoint *checkpoint,
                                      const struct evq_load_list *list, struct evq_digest *digest,
                                      struct evq_small_tensors **ret_small, struct evq_error *err)
{
    struct evq_small_tensors *small = calloc(1, sizeof(*small));

    if (small == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a list of small tensors");
    }
    small->checkpoint = checkpoint;
    small->digest = digest;
    const size_t found = add_all(small, list);
    small->tensors = calloc(found + 1, sizeof(*small->tensors));
    small->run_of = calloc(found + 1, sizeof(*small->run_of));
    small->runs = calloc(found + 1, sizeof(*small->runs));
    if (small->tensors == NULL || small->run_of == NULL || small->runs == NULL) {
        evq_small_tensors_free(small);
        return evq_error_set(err, EVQ_E_NOMEM, "a list of %zu small tensors", found);
    }
    (void)add_all(small, list);
    qsort(small->tensors, found, sizeof(*small->tensors), by_place);
    runs_make(small, found);
    block_take(small);
    *ret_small = small;
    return EVQ_OK;
}

void evq_small_tensors_free(struct evq_small_tensors *small)
{
    if (small == NULL) {
        return;
    }
    for (size_t i = 0; i < small->run_count; i++) {
        (void)pthread_mutex_destroy(&small->runs[i].lock);
    }
    free(small->block);
    free(small->tensors);
    free(small->run_of);
    free(small->runs);
    free(small);
}

/* Call it with the run's lock held. */
static enum evq_status run_read(struct evq_small_tensors *small, struct run *run,
                                struct evq_error *err)
{
    const enum evq_status status =
        evq_checkpoint_read_bytes(small->checkpoint, small->tensors[run->first]->file, run->begin,
                                  run->bytes, (size_t)(run->end - run->begin), err);

    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = run->first; i < run->first + run->count; i++) {
        const struct evq_tensor *tensor = small->tensors[i];
        evq_digest_add(small->digest, tensor, 0, run->bytes + (tensor->offset - run->begin),
                       tensor->bytes);
    }
    run->read = true;
    return EVQ_OK;
}

enum evq_status evq_small_tensors_find(struct evq_small_tensors *small,
                                       const struct evq_tensor *tensor, const uint8_t **ret_bytes,
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    *ret_bytes = NULL;
    const struct evq_tensor **found =
        bsearch(&tensor, small->tensors, small->tensor_count, sizeof(*small->tensors), by_place);
    if (found == NULL) {
        return EVQ_OK;
    }
    struct run *run = &small->runs[small->run_of[found - small->tensors]];
    (void)pthread_mutex_lock(&run->lock); // This fails only for a broken mutex.
    if (!run->read) {
        status = run_read(small, run, err);
    }
    if (status == EVQ_OK) {
        *ret_bytes = run->bytes + (tensor->offset - run->begin);
    }
    (void)pthread_mutex_unlock(&run->lock);
    return status;
}
