/*
 * The embedding of an image: a class token and the product over its patches, to which positions are
 * added. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_PATCH_EMBEDDING_H
#define EVQ_WORKER_MODELS_PATCH_EMBEDDING_H

#include "worker/models/decoder_plan.h"

/* Adds the embedding, which reads the patches in the buffer `in`. In each sequence of a batch, the
 * first row is the class: it has the token 0, and zeros in `in`. Each patch has the token 1. */
void evq_patch_embedding_add(struct evq_decoder_plan *plan, int32_t in, int32_t out);

#endif
