/*
 * The part of a decoder's plan that is a mixture of experts.
 */
#ifndef EVQ_WORKER_MODELS_DECODER_EXPERTS_H
#define EVQ_WORKER_MODELS_DECODER_EXPERTS_H

#include "worker/models/decoder_plan.h"

/* Adds the router and the experts of a layer, from the buffer `in` to `stream`. `routes` is the
 * buffer for the weights of the experts. */
void evq_decoder_add_experts(struct evq_decoder_plan *plan, int32_t layer, int32_t in,
                             int32_t stream, int32_t routes);

#endif
