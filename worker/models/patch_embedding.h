/*
 * The embedding of an image: a class token and the product over its patches, to which positions are
 * added. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_PATCH_EMBEDDING_H
#define EVQ_WORKER_MODELS_PATCH_EMBEDDING_H

#include "worker/models/decoder_plan.h"

/* Adds the embedding, which reads the patches in the buffer `in`. A batch has the token 0 for the
 * class, whose row of patches is zero, and the token 1 for each patch. */
void evq_patch_embedding_add(struct evq_decoder_plan *plan, int32_t in, int32_t out);

#endif
