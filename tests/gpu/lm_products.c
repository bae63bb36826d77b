#include "tests/gpu/lm_products.h"

#include "kernels/cuda/state.h"

void lm_strides(struct evq_cuda_product *product)
{
    product->weight_stride = product->in_stride = evq_cuda_up(product->k, 8);
    product->out_stride = evq_cuda_up(product->n, 8);
}

void lm_products(const struct lm_shape *shape, struct lm_product products[LM_PRODUCTS])
{
    const int32_t heads = shape->heads * shape->size;
    const int32_t bias = shape->layer_norm ? EVQ_CUBLASLT_BIAS : 0;
    const int32_t gelu =
        !shape->gated && shape->activation == EVQ_ACT_GELU_TANH ? EVQ_CUBLASLT_GELU : 0;
    const struct lm_product all[LM_PRODUCTS] = {
        {"qkv",
         {.asked_rows = EVQ_CUDA_ASKED_ROWS,
          .n = heads + 2 * shape->kv_heads * shape->size,
          .k = shape->width,
          .epilogue = shape->qkv_bias ? EVQ_CUBLASLT_BIAS : 0,
          .out_type = EVQ_CUDA_R_16BF}},
        {"output",
         {.asked_rows = EVQ_CUDA_ASKED_ROWS,
          .n = shape->width,
          .k = heads,
          .epilogue = bias,
          .out_type = EVQ_CUDA_R_32F,
          .adds = 1}},
        {"up",
         {.asked_rows = EVQ_CUDA_ASKED_ROWS,
          .n = shape->gated ? 2 * shape->hidden : shape->hidden,
          .k = shape->width,
          .epilogue = bias | gelu,
          .out_type = EVQ_CUDA_R_16BF}},
        {"down",
         {.asked_rows = EVQ_CUDA_ASKED_ROWS,
          .n = shape->width,
          .k = shape->hidden,
          .epilogue = bias,
          .out_type = EVQ_CUDA_R_32F,
          .adds = 1}},
        {"logits",
         {.asked_rows = evq_cuda_score_chunk(EVQ_COMPUTE_BF16, shape->vocabulary),
          .n = (int32_t)evq_cuda_up(shape->vocabulary, 8),
          .k = shape->width,
          .out_type = EVQ_CUDA_R_32F}},
    };

    for (size_t i = 0; i < LM_PRODUCTS; i++) {
        products[i] = all[i];
        if (products[i].product.epilogue == 0) {
            products[i].product.epilogue = EVQ_CUBLASLT_DEFAULT;
        }
        lm_strides(&products[i].product);
    }
}
