/*
 * The digest of a checkpoint's weights, computed block by block. Code that reads tensors anyway
 * hands over their bytes, so that only the rest is read. evq_checkpoint_digest() computes the same
 * digest.
 *
 * The digest is the XXH3-128 over every tensor in name order: name and dtype with their NUL; rank
 * and shape as little-endian u64; then the XXH3-128 (canonical form) of each block of its values in
 * C order. A block holds as many whole items of the first dimension as fit in
 * EVQ_DIGEST_BLOCK_BYTES, at least one.
 */
#ifndef EVQ_SHARED_CHECKPOINT_DIGEST_H
#define EVQ_SHARED_CHECKPOINT_DIGEST_H

#include "shared/checkpoint/checkpoint.h"

#define EVQ_DIGEST_BLOCK_BYTES ((uint64_t)1 << 20)

struct evq_digest;

/* checkpoint must outlive the digest. EVQ_E_NOMEM, EVQ_E_LIMIT (more than 8 million blocks). Free
 * it with evq_digest_free(). */
enum evq_status evq_digest_new(const struct evq_checkpoint *checkpoint,
                               struct evq_digest **ret_digest,
                               struct evq_error *err) EVQ_CHECK_RESULT;
void evq_digest_free(struct evq_digest *digest); // Accepts NULL.

/* Size of a block of a contiguous tensor. The last block may be shorter. */
uint64_t evq_digest_block_bytes(const struct evq_tensor *tensor);

/* Adds bytes [at, at + count) of a contiguous tensor; they must be whole blocks. Any thread, but no
 * two threads may add the same block. */
void evq_digest_add(struct evq_digest *digest, const struct evq_tensor *tensor, uint64_t at,
                    const void *bytes, uint64_t count);

/* Reads what was not added, without checking whether files changed. Call from one thread after all
 * bytes were added. Errors as evq_checkpoint_read_raw(). */
enum evq_status evq_digest_finish(struct evq_digest *digest, char out[33],
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* After finish: whether both hold the same values in the same dtype and shape. */
bool evq_digest_same(const struct evq_digest *digest, const struct evq_tensor *a,
                     const struct evq_tensor *b);

#endif
