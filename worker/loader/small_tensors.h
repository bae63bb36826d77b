/*
 * Reads small tensors that are adjacent in a file, such as norms and biases, in one read when the
 * first of them is needed. Their bytes count for the digest. Any thread.
 */
#ifndef EVQ_WORKER_LOADER_SMALL_TENSORS_H
#define EVQ_WORKER_LOADER_SMALL_TENSORS_H

#include "shared/checkpoint/digest.h"
#include "worker/loader/load_list.h"

struct evq_small_tensors;

/* Collects the vectors of the list. checkpoint and digest must outlive it. EVQ_E_NOMEM. Free it
 * with evq_small_tensors_free(). */
enum evq_status evq_small_tensors_new(const struct evq_checkpoint *checkpoint,
                                      const struct evq_load_list *list, struct evq_digest *digest,
                                      struct evq_small_tensors **ret_small,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_small_tensors_free(struct evq_small_tensors *small); // Accepts NULL.

/* The stored bytes of the tensor, at any alignment; valid as long as `small`. *ret_bytes NULL: it
 * is not one of the small tensors. EVQ_E_CHANGED, EVQ_E_IO. */
enum evq_status evq_small_tensors_find(struct evq_small_tensors *small,
                                       const struct evq_tensor *tensor, const uint8_t **ret_bytes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
