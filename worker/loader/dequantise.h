/*
 * Computes fp32 weights from quantised ones: each value times the scale of its block, as
 * Transformers does with dequantize=True. It works on whole rows of the stored tensor. Any thread.
 */
#ifndef EVQ_WORKER_LOADER_DEQUANTISE_H
#define EVQ_WORKER_LOADER_DEQUANTISE_H

#include "worker/models/model.h"

/* The number of values in `bytes` stored bytes of the source's tensor. */
size_t evq_dequantise_values(const struct evq_source *source, uint64_t bytes);

/* Bytes of scratch that evq_dequantise() needs for `bytes` stored bytes; 0: there are no scales. */
size_t evq_dequantise_room(const struct evq_source *source, uint64_t bytes);

/*
 * stored: the bytes [at, at + bytes) of the source's tensor, which are whole rows. out gets their
 * values. scratch: evq_dequantise_room() bytes, aligned to a float. The scales are read from the
 * checkpoint. EVQ_E_CHANGED, EVQ_E_IO.
 */
enum evq_status evq_dequantise(const struct evq_checkpoint *checkpoint,
                               const struct evq_source *source, uint64_t at, uint64_t bytes,
                               const uint8_t *stored, void *scratch, float *out,
                               struct evq_error *err) EVQ_CHECK_RESULT;

#endif
