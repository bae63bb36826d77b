/*
 * The head of an encoder that chooses a class: it reads the first row of a sequence, or the mean of
 * all rows, through an optional matrix and norm. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_CLASSIFIER_HEAD_H
#define EVQ_WORKER_MODELS_CLASSIFIER_HEAD_H

#include "worker/models/decoder_plan.h"

#define EVQ_CLASSIFIER_BUFFERS 3 // Buffers of a head.

/* Sets the widths of the buffers of the head; 1 without classes. */
void evq_classifier_columns(const struct evq_decoder *shape, int32_t *columns);

/* Adds the head, which reads the buffer `in`. pooled: the first of its buffers. */
void evq_classifier_add_head(struct evq_decoder_plan *plan, int32_t in, int32_t pooled);

#endif
