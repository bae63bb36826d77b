#include "shared/checkpoint/digest.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/hex.h"
#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/dtype.h"

// A strided tensor is gathered whole up to this size, else one block at a time. A tensor in pieces
// is always gathered whole.
#define GATHER_BYTES_MAX ((size_t)1 << 30)
#define BLOCKS_MAX       ((size_t)1 << 23)

struct blocks { // The blocks of one tensor.
    XXH128_canonical_t *hashes;
    uint8_t *done; // One byte per block, so that threads can set them side by side.
    size_t count;
    uint64_t value_bytes, block_bytes;
};

struct evq_digest {
    const struct evq_checkpoint *checkpoint;
    struct blocks *tensors;
    XXH128_canonical_t *hashes; // The blocks of all tensors.
    uint8_t *done;
    // Sorted by place in the files, so that tied tensors are neighbours.
    const struct evq_tensor **order;
    XXH3_state_t *state;
    uint8_t *chunk;
    size_t chunk_bytes;
};

/* Size of the tensor's values in C order. False: too large to express. */
static bool value_bytes(const struct evq_tensor *tensor, uint64_t *ret_bytes)
{
    size_t elements = 0;
    size_t bytes = 0;

    if (tensor->contiguous) {
        *ret_bytes = tensor->bytes;
        return true;
    }
    if (!evq_tensor_elements(tensor, &elements) ||
        !evq_size_mul(elements, evq_dtype_stored_bytes(tensor), &bytes)) {
        return false;
    }
    *ret_bytes = bytes;
    return true;
}

/* bytes: the size of all values of the tensor. */
static uint64_t block_bytes(const struct evq_tensor *tensor, uint64_t bytes)
{
    const int64_t items = tensor->rank > 0 ? tensor->shape[0] : 1;
    const uint64_t item = items > 0 ? bytes / (uint64_t)items : 0;

    if (item == 0 || item >= EVQ_DIGEST_BLOCK_BYTES) {
        return item > 0 ? item : EVQ_DIGEST_BLOCK_BYTES;
    }
    return EVQ_DIGEST_BLOCK_BYTES / item * item;
}

uint64_t evq_digest_block_bytes(const struct evq_tensor *tensor)
{
    return block_bytes(tensor, tensor->bytes);
}

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
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static size_t index_of(const struct evq_digest *digest, const struct evq_tensor *tensor)
{
    return (size_t)(tensor - digest->checkpoint->tensors);
}

/* Decides how a tensor is cut into blocks, and adds their number to *count. */
static enum evq_status cut(const struct evq_tensor *tensor, struct blocks *blocks, size_t *count,
                           struct evq_error *err)
{
    uint64_t bytes = 0;

    if (!value_bytes(tensor, &bytes) || bytes / EVQ_DIGEST_BLOCK_BYTES > BLOCKS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "tensor '%s' is too large for a digest",
                             tensor->name);
    }
    blocks->value_bytes = bytes;
    blocks->block_bytes = block_bytes(tensor, bytes);
    if (!tensor->contiguous && blocks->block_bytes > GATHER_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT,
                             "tensor '%s': an item of its first dimension has %llu bytes, more "
                             "than can be gathered",
                             tensor->name, (unsigned long long)blocks->block_bytes);
    }
    blocks->count = (size_t)(bytes / blocks->block_bytes + (bytes % blocks->block_bytes != 0));
    *count += blocks->count;
    return *count <= BLOCKS_MAX
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_LIMIT, "more than %zu blocks of weights", BLOCKS_MAX);
}

static enum evq_status digest_open(struct evq_digest *digest, struct evq_error *err)
{
    const size_t count = digest->checkpoint->tensor_count;
    size_t blocks = 0;
    enum evq_status status = EVQ_OK;

    digest->tensors = calloc(count + 1, sizeof(*digest->tensors));
    digest->order = calloc(count + 1, sizeof(*digest->order));
    digest->state = XXH3_createState();
    if (digest->tensors == NULL || digest->order == NULL || digest->state == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a digest of %zu tensors", count);
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        digest->order[i] = &digest->checkpoint->tensors[i];
        status = cut(digest->order[i], &digest->tensors[i], &blocks, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    digest->hashes = calloc(blocks + 1, sizeof(*digest->hashes));
    digest->done = calloc(blocks + 1, 1);
    if (digest->hashes == NULL || digest->done == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a digest of %zu blocks", blocks);
    }
    blocks = 0;
    for (size_t i = 0; i < count; i++) {
        digest->tensors[i].hashes = digest->hashes + blocks;
        digest->tensors[i].done = digest->done + blocks;
        blocks += digest->tensors[i].count;
    }
    qsort(digest->order, count, sizeof(*digest->order), by_place);
    return EVQ_OK;
}

enum evq_status evq_digest_new(const struct evq_checkpoint *checkpoint,
                               struct evq_digest **ret_digest, struct evq_error *err)
{
    struct evq_digest *digest = calloc(1, sizeof(*digest));

    if (digest == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a digest");
    }
    digest->checkpoint = checkpoint;
    const enum evq_status status = digest_open(digest, err);
    if (status != EVQ_OK) {
        evq_digest_free(digest);
        return status;
    }
    *ret_digest = digest;
    return EVQ_OK;
}

void evq_digest_free(struct evq_digest *digest)
{
    if (digest == NULL) {
        return;
    }
    free(digest->tensors);
    free(digest->order);
    free(digest->hashes);
    free(digest->done);
    free(digest->chunk);
    (void)XXH3_freeState(digest->state); // Accepts NULL.
    free(digest);
}

void evq_digest_add(struct evq_digest *digest, const struct evq_tensor *tensor, uint64_t at,
                    const void *bytes, uint64_t count)
{
    struct blocks *blocks = &digest->tensors[index_of(digest, tensor)];
    const uint64_t block = blocks->block_bytes;
    const uint8_t *data = bytes;

    for (uint64_t done = 0; done < count; done += block) {
        const uint64_t left = count - done;
        const size_t number = (size_t)((at + done) / block);
        XXH128_canonicalFromHash(&blocks->hashes[number],
                                 XXH3_128bits(data + done, (size_t)(left < block ? left : block)));
        blocks->done[number] = 1;
    }
}

static enum evq_status grow_chunk(struct evq_digest *digest, size_t bytes, struct evq_error *err)
{
    if (bytes <= digest->chunk_bytes) {
        return EVQ_OK;
    }
    free(digest->chunk);
    digest->chunk = malloc(bytes);
    digest->chunk_bytes = digest->chunk != NULL ? bytes : 0;
    return digest->chunk != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
}

/* Reads one block from the file in chunks, because one item of the first dimension may be larger
 * than memory. */
static enum evq_status add_from_file(struct evq_digest *digest, const struct evq_tensor *tensor,
                                     size_t number, struct evq_error *err)
{
    struct blocks *blocks = &digest->tensors[index_of(digest, tensor)];
    const uint64_t start = number * blocks->block_bytes;
    const uint64_t rest = tensor->bytes - start;
    const uint64_t bytes = rest < blocks->block_bytes ? rest : blocks->block_bytes;

    enum evq_status status = grow_chunk(digest, (size_t)EVQ_DIGEST_BLOCK_BYTES, err);
    (void)XXH3_128bits_reset(digest->state); // Fails for a NULL state only.
    for (uint64_t at = 0; at < bytes && status == EVQ_OK; at += EVQ_DIGEST_BLOCK_BYTES) {
        const uint64_t left = bytes - at;
        const size_t count =
            (size_t)(left < EVQ_DIGEST_BLOCK_BYTES ? left : EVQ_DIGEST_BLOCK_BYTES);
        status = evq_checkpoint_read_bytes(digest->checkpoint, tensor->file,
                                           tensor->offset + start + at, digest->chunk, count, err);
        if (status == EVQ_OK) {
            // Fails for a NULL state only.
            (void)XXH3_128bits_update(digest->state, digest->chunk, count);
        }
    }
    if (status == EVQ_OK) {
        XXH128_canonicalFromHash(&blocks->hashes[number], XXH3_128bits_digest(digest->state));
        blocks->done[number] = 1;
    }
    return status;
}

/* Reads the blocks of a contiguous tensor that nobody added. */
static enum evq_status add_missing(struct evq_digest *digest, const struct evq_tensor *tensor,
                                   struct evq_error *err)
{
    const struct blocks *blocks = &digest->tensors[index_of(digest, tensor)];
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < blocks->count && status == EVQ_OK; i++) {
        if (blocks->done[i] == 0) {
            status = add_from_file(digest, tensor, i, err);
        }
    }
    return status;
}

/* Returns `count` items of the first dimension from `first` on as a tensor. */
static struct evq_tensor items_of(const struct evq_tensor *tensor, int64_t first, int64_t count,
                                  size_t size)
{
    struct evq_tensor part = *tensor;
    uint64_t last = 0;

    part.offset += (uint64_t)first * (uint64_t)tensor->strides[0] * size;
    part.shape[0] = count;
    for (int32_t k = 0; k < part.rank; k++) {
        last += (uint64_t)(part.shape[k] - 1) * (uint64_t)part.strides[k];
    }
    part.bytes = (last + 1) * size;
    return part;
}

/* Reads a strided tensor: all at once if it is small or cannot be split, else block by block. */
static enum evq_status add_strided(struct evq_digest *digest, const struct evq_tensor *tensor,
                                   struct evq_error *err)
{
    const struct blocks *blocks = &digest->tensors[index_of(digest, tensor)];
    const size_t size = evq_dtype_stored_bytes(tensor);
    const bool whole = blocks->value_bytes <= GATHER_BYTES_MAX || tensor->rank == 0 ||
                       tensor->piece_count > 0 || tensor->merge != NULL;
    const uint64_t step = whole ? blocks->value_bytes : blocks->block_bytes;
    enum evq_status status = EVQ_OK;

    for (uint64_t at = 0; at < blocks->value_bytes && status == EVQ_OK; at += step) {
        const uint64_t left = blocks->value_bytes - at;
        const size_t count = (size_t)(left < step ? left : step);
        struct evq_tensor part = *tensor;
        if (!whole) {
            const uint64_t item = blocks->value_bytes / (uint64_t)tensor->shape[0];
            part = items_of(tensor, (int64_t)(at / item), (int64_t)(count / item), size);
        }
        status = grow_chunk(digest, count, err);
        if (status == EVQ_OK) {
            status = evq_checkpoint_read_raw(digest->checkpoint, &part, digest->chunk, count, err);
        }
        if (status == EVQ_OK) {
            evq_digest_add(digest, tensor, at, digest->chunk, count);
        }
    }
    return status;
}

static bool same_form(const struct evq_tensor *a, const struct evq_tensor *b)
{
    return a->dtype == b->dtype && strcmp(a->dtype_name, b->dtype_name) == 0 &&
           a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof(a->shape[0])) == 0;
}

/* Tied tensors are the same bytes under several names. They are hashed only once. */
static void copy_tied(struct evq_digest *digest, const struct evq_tensor *from,
                      const struct evq_tensor *to)
{
    const struct blocks *source = &digest->tensors[index_of(digest, from)];
    struct blocks *target = &digest->tensors[index_of(digest, to)];

    if (by_place(&from, &to) != 0 || !same_form(from, to)) {
        return;
    }
    for (size_t i = 0; i < target->count; i++) {
        if (target->done[i] == 0 && source->done[i] != 0) {
            target->hashes[i] = source->hashes[i];
            target->done[i] = 1;
        }
    }
}

/* Completes the digest in file order. First, added blocks are copied to tied tensors, in both
 * directions. */
static enum evq_status complete(struct evq_digest *digest, struct evq_error *err)
{
    const size_t count = digest->checkpoint->tensor_count;
    enum evq_status status = EVQ_OK;

    for (size_t i = 1; i < count; i++) {
        const struct evq_tensor *below = digest->order[count - i - 1];
        const struct evq_tensor *above = digest->order[count - i];
        if (below->contiguous && above->contiguous) {
            copy_tied(digest, above, below);
        }
    }
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        const struct evq_tensor *tensor = digest->order[i];
        if (!tensor->contiguous) {
            status = add_strided(digest, tensor, err);
            continue;
        }
        if (i > 0 && digest->order[i - 1]->contiguous) {
            copy_tied(digest, digest->order[i - 1], tensor);
        }
        status = add_missing(digest, tensor, err);
    }
    return status;
}

static void update_tensor(struct evq_digest *digest, const struct evq_tensor *tensor)
{
    const struct blocks *blocks = &digest->tensors[index_of(digest, tensor)];
    uint8_t shape[8 * (EVQ_TENSOR_RANK_MAX + 1)];
    size_t at = 0;

    for (int32_t i = -1; i < tensor->rank; i++) {
        uint64_t value = i < 0 ? (uint64_t)tensor->rank : (uint64_t)tensor->shape[i];
        for (unsigned k = 0; k < 8; k++) {
            shape[at++] = (uint8_t)(value >> (8 * k));
        }
    }
    (void)XXH3_128bits_update(digest->state, tensor->name, strlen(tensor->name) + 1);
    (void)XXH3_128bits_update(digest->state, tensor->dtype_name, strlen(tensor->dtype_name) + 1);
    (void)XXH3_128bits_update(digest->state, shape, at);
    (void)XXH3_128bits_update(digest->state, blocks->hashes,
                              blocks->count * sizeof(blocks->hashes[0])); // Fail for NULL only.
}

enum evq_status evq_digest_finish(struct evq_digest *digest, char out[33], struct evq_error *err)
{
    const enum evq_status status = complete(digest, err);

    if (status != EVQ_OK) {
        return status;
    }
    (void)XXH3_128bits_reset(digest->state); // Fails for a NULL state only.
    for (size_t i = 0; i < digest->checkpoint->tensor_count; i++) {
        update_tensor(digest, &digest->checkpoint->tensors[i]);
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(digest->state);
    evq_hex_128(hash.high64, hash.low64, out);
    return EVQ_OK;
}

bool evq_digest_same(const struct evq_digest *digest, const struct evq_tensor *a,
                     const struct evq_tensor *b)
{
    const struct blocks *x = &digest->tensors[index_of(digest, a)];
    const struct blocks *y = &digest->tensors[index_of(digest, b)];

    return same_form(a, b) && x->count == y->count &&
           memcmp(x->hashes, y->hashes, x->count * sizeof(x->hashes[0])) == 0;
}

enum evq_status evq_checkpoint_digest(const struct evq_checkpoint *checkpoint, char out[33],
                                      struct evq_error *err)
{
    struct evq_digest *digest = NULL;

    enum evq_status status = evq_digest_new(checkpoint, &digest, err);
    if (status == EVQ_OK) {
        status = evq_digest_finish(digest, out, err);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    evq_digest_free(digest);
    return status;
}
