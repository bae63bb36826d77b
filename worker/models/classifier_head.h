/*
 * The head of an encoder that classifies: it takes the first row of a sequence, or the mean of all
 * rows, and applies an optional matrix, an optional norm and the matrix of the classes. Not for
 * sharing between threads.
 */
#ifndef EVQ_WORKER_MODELS_CLASSIFIER_HEAD_H
#define EVQ_WORKER_MODELS_CLASSIFIER_HEAD_H

#include "worker/models/decoder_plan.h"

#define EVQ_CLASSIFIER_BUFFERS 3 // Buffers of a head.

/* Sets the widths of the head's EVQ_CLASSIFIER_BUFFERS buffers; 1 if there are no classes. */
void evq_classifier_columns(const struct evq_decoder *shape, int32_t *columns);

/* Adds the head, which reads the buffer `in`. pooled: the number of the first of its buffers. */
void evq_classifier_add_head(struct evq_decoder_plan *plan, int32_t in, int32_t pooled);

#endif
