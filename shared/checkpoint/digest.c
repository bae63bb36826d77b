#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/checkpoint/directory.h"
#include "shared/checkpoint/hex.h"

#define CHUNK_BYTES ((size_t)4 << 20)
// A strided tensor is gathered whole up to this size, else by its first dimension; one in pieces
// whole.
#define GATHER_BYTES_MAX ((size_t)1 << 30)

struct hasher {
    const struct evq_checkpoint *checkpoint;
    XXH3_state_t *state;
    uint8_t *chunk;
};

static enum evq_status hash_extent(struct hasher *hasher, const struct evq_tensor *tensor,
                                   struct evq_error *err)
{
    for (uint64_t at = 0; at < tensor->bytes; at += CHUNK_BYTES) {
        uint64_t left = tensor->bytes - at;
        size_t count = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        enum evq_status status = evq_directory_read(hasher->checkpoint, tensor->file,
                                                    tensor->offset + at, hasher->chunk, count, err);
        if (status != EVQ_OK) {
            return status;
        }
        (void)XXH3_128bits_update(hasher->state, hasher->chunk, count); // Fails for NULL only.
    }
    return EVQ_OK;
}

static enum evq_status hash_gathered(struct hasher *hasher, const struct evq_tensor *tensor,
                                     size_t bytes, struct evq_error *err)
{
    uint8_t *raw = malloc(bytes == 0 ? 1 : bytes);

    if (raw == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes);
    }
    enum evq_status status = evq_checkpoint_read_raw(hasher->checkpoint, tensor, raw, bytes, err);
    if (status == EVQ_OK) {
        (void)XXH3_128bits_update(hasher->state, raw, bytes); // Fails for a NULL state only.
    }
    free(raw);
    return status;
}

/* What item i of the first dimension is, as a tensor of its own. */
static struct evq_tensor slice(const struct evq_tensor *tensor, int64_t i, size_t size)
{
    struct evq_tensor part = *tensor;
    uint64_t last = 0;

    part.rank--;
    part.offset += (uint64_t)i * (uint64_t)tensor->strides[0] * size;
    for (int32_t k = 0; k < part.rank; k++) {
        part.shape[k] = tensor->shape[k + 1];
        part.strides[k] = tensor->strides[k + 1];
        last += (uint64_t)(part.shape[k] - 1) * (uint64_t)part.strides[k];
    }
    part.bytes = (last + 1) * size;
    return part;
}

static enum evq_status hash_values(struct hasher *hasher, const struct evq_tensor *tensor,
                                   struct evq_error *err)
{
    size_t size = evq_dtype_bytes(tensor->dtype);
    size_t elements = 0;
    size_t bytes = 0;

    if (tensor->contiguous) {
        return hash_extent(hasher, tensor, err);
    }
    if (!evq_tensor_elements(tensor, &elements) || !evq_size_mul(elements, size, &bytes)) {
        return evq_error_set(err, EVQ_E_LIMIT, "tensor '%s' is too large", tensor->name);
    }
    if (bytes <= GATHER_BYTES_MAX || tensor->rank == 0 || tensor->piece_count > 0 ||
        tensor->merge != NULL) {
        return hash_gathered(hasher, tensor, bytes, err);
    }
    for (int64_t i = 0; i < tensor->shape[0]; i++) {
        struct evq_tensor part = slice(tensor, i, size);
        enum evq_status status =
            hash_values(hasher, &part, err); // At most EVQ_TENSOR_RANK_MAX deep.
        if (status != EVQ_OK) {
            return status;
        }
    }
    return EVQ_OK;
}

static enum evq_status hash_tensor(struct hasher *hasher, const struct evq_tensor *tensor,
                                   struct evq_error *err)
{
    uint8_t shape[8 * (EVQ_TENSOR_RANK_MAX + 1)];
    size_t at = 0;

    for (int32_t i = -1; i < tensor->rank; i++) {
        uint64_t value = i < 0 ? (uint64_t)tensor->rank : (uint64_t)tensor->shape[i];
        for (unsigned k = 0; k < 8; k++) {
            shape[at++] = (uint8_t)(value >> (8 * k));
        }
    }
    (void)XXH3_128bits_update(hasher->state, tensor->name, strlen(tensor->name) + 1);
    (void)XXH3_128bits_update(hasher->state, tensor->dtype_name, strlen(tensor->dtype_name) + 1);
    (void)XXH3_128bits_update(hasher->state, shape, at);
    return hash_values(hasher, tensor, err);
}

enum evq_status evq_checkpoint_digest(const struct evq_checkpoint *checkpoint, char out[33],
                                      struct evq_error *err)
{
    struct hasher hasher = {
        .checkpoint = checkpoint, .state = XXH3_createState(), .chunk = malloc(CHUNK_BYTES)};
    enum evq_status status = EVQ_OK;

    if (hasher.state == NULL || hasher.chunk == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a digest");
        goto out;
    }
    (void)XXH3_128bits_reset(hasher.state); // Fails for a NULL state only.
    for (size_t i = 0; i < checkpoint->tensor_count && status == EVQ_OK; i++) {
        status = hash_tensor(&hasher, &checkpoint->tensors[i], err);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    if (status == EVQ_OK) {
        XXH128_hash_t hash = XXH3_128bits_digest(hasher.state);
        evq_hex_128(hash.high64, hash.low64, out);
    }
out:
    (void)XXH3_freeState(hasher.state);
    free(hasher.chunk);
    return status;
}
