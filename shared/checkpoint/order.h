/*
 * Sorting many tensors by name: names share long beginnings, so eight bytes at a time are compared
 * as one number.
 */
#ifndef EVQ_SHARED_CHECKPOINT_ORDER_H
#define EVQ_SHARED_CHECKPOINT_ORDER_H

#include "shared/checkpoint/checkpoint.h"

/* Sorts as strcmp() would; false when out of memory, the order then being as it was. */
bool evq_order_by_name(struct evq_tensor *tensors, size_t count);

#endif
