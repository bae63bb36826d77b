/* The matrix products of a language model, as kernels/cuda/step.c asks cuBLASLt for them. */
#ifndef EVQ_TESTS_GPU_LM_PRODUCTS_H
#define EVQ_TESTS_GPU_LM_PRODUCTS_H

#include "kernels/cuda/product.h"
#include "tests/gpu/lm_plan.h"

enum { LM_PRODUCTS = 5 };

struct lm_product {
    const char *name; // The last is "logits"; all others come once a layer.
    struct evq_cuda_product product;
};

/* Their strides are those of the buffers that step.c has them in. */
void lm_products(const struct lm_shape *shape, struct lm_product products[LM_PRODUCTS]);
/* The same for one product by itself. */
void lm_strides(struct evq_cuda_product *product);

#endif
