/* What kernels/cuda/product.c keeps of cuBLASLt's answers, against a cuBLASLt that is this file: a
 * product is computed as its own shape says, however many shapes share a place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/product.h"

enum { SHAPES = EVQ_CUDA_PRODUCTS + 88 }; // More than places: some share one.

struct layout {
    int type;
    uint64_t rows, columns;
    int64_t stride;
};

static size_t held;                            // Objects made and not destroyed.
static int asked;                              // Of the heuristics.
static const struct layout *in, *out, *weight; // Of the last product.
static int32_t epilogue;
static float beta;
static int answer;                            // matmul()'s.
static size_t unused_bytes = (size_t)1 << 40; // Of the device's memory.
static cudaError_t sticky;
static uint32_t schemes;    // That the heuristics may choose from.
static uint64_t asked_rows; // That they were asked about for the last product.

cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    *unused = unused_bytes;
    *total = (size_t)1 << 40;
    return sticky;
}

static int handle_create(void **handle)
{
    static char one;

    *handle = &one;
    return 0;
}

static int nothing(void *object)
{
    return object != NULL ? 0 : 1;
}

static int object_destroy(void *object)
{
    free(object);
    held--;
    return 0;
}

struct desc {
    int32_t epilogue;
    const void *bias;
};

static int desc_create(void **desc, int compute, int scale_type)
{
    assert_int_equal(compute, EVQ_CUBLASLT_COMPUTE_32F);
    assert_int_equal(scale_type, EVQ_CUDA_R_32F);
    *desc = calloc(1, sizeof(struct desc));
    assert_non_null(*desc);
    held++;
    return 0;
}

static int desc_set(void *desc, int attribute, const void *value, size_t bytes)
{
    if (attribute == EVQ_CUBLASLT_EPILOGUE) {
        assert_int_equal(bytes, sizeof(int32_t));
        ((struct desc *)desc)->epilogue = *(const int32_t *)value;
    } else if (attribute == EVQ_CUBLASLT_BIAS_POINTER) {
        assert_int_equal(bytes, sizeof(void *));
        ((struct desc *)desc)->bias = *(const void *const *)value;
    }
    return 0;
}

static int layout_create(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    struct layout *made = malloc(sizeof(*made));

    assert_non_null(made);
    *made = (struct layout){type, rows, columns, stride};
    *layout = made;
    held++;
    return 0;
}

static int layout_set(void *layout, int attribute, const void *value, size_t bytes)
{
    struct layout *set = layout;

    assert_int_equal(attribute, EVQ_CUBLASLT_LAYOUT_COLUMNS);
    assert_int_equal(bytes, sizeof(set->columns));
    memcpy(&set->columns, value, bytes);
    return 0;
}

static int preference_create(void **preference)
{
    return desc_create(preference, EVQ_CUBLASLT_COMPUTE_32F, EVQ_CUDA_R_32F);
}

static int preference_set(void *preference, int attribute, const void *value, size_t bytes)
{
    assert_true(preference != NULL && attribute > 0 && value != NULL && bytes > 0);
    if (attribute == EVQ_CUBLASLT_REDUCTION_SCHEMES) {
        memcpy(&schemes, value, sizeof(schemes));
    }
    return 0;
}

/* Whoever is asked for a product with a bias, or computes it, is told where it lies. */
static void assert_bias(const struct desc *desc)
{
    assert_true((desc->bias != NULL) == ((desc->epilogue & EVQ_CUBLASLT_BIAS) != 0));
}

static int heuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference,
                     int wanted, struct evq_cublaslt_found *found, int *ret_count)
{
    assert_true(handle != NULL && desc != NULL && a != NULL && b != NULL && preference != NULL);
    assert_ptr_equal(c, d);
    assert_int_equal(wanted, 1);
    assert_bias(desc);
    assert_int_equal(schemes, EVQ_CUBLASLT_REDUCE_NONE);
    *found = (struct evq_cublaslt_found){.workspace_bytes = 1024};
    found->algo.data[0] = ((const struct layout *)b)->columns;
    assert_int_equal(((const struct layout *)d)->columns, found->algo.data[0]);
    *ret_count = 1;
    asked++;
    return 0;
}

static int matmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                  const void *b, void *b_layout, const void *beta_at, const void *c, void *c_layout,
                  void *d, void *d_layout, const struct evq_cublaslt_algo *algo, void *workspace,
                  size_t workspace_bytes, cudaStream_t stream)
{
    assert_true(handle != NULL && alpha != NULL && a != NULL && b != NULL && algo != NULL);
    assert_true(c == d && c_layout == d_layout && workspace != NULL && stream == NULL);
    assert_int_equal(workspace_bytes, 1024);
    weight = a_layout;
    in = b_layout;
    out = d_layout;
    epilogue = ((const struct desc *)desc)->epilogue;
    assert_bias(desc);
    beta = *(const float *)beta_at;
    asked_rows = algo->data[0];
    return answer;
}

static const struct evq_cublas cublas = {.lt_create = handle_create,
                                         .lt_destroy = nothing,
                                         .desc_create = desc_create,
                                         .desc_destroy = object_destroy,
                                         .desc_set = desc_set,
                                         .layout_create = layout_create,
                                         .layout_destroy = object_destroy,
                                         .layout_set = layout_set,
                                         .preference_create = preference_create,
                                         .preference_destroy = object_destroy,
                                         .preference_set = preference_set,
                                         .heuristic = heuristic,
                                         .matmul = matmul};

/* Number n of products that differ in one of their numbers alone, the one called `which`. */
static struct evq_cuda_product product_of(int which, int32_t n)
{
    struct evq_cuda_product product = {.weight_stride = 64,
                                       .in_stride = 64,
                                       .out_stride = 64,
                                       .asked_rows = 4096,
                                       .n = 64,
                                       .k = 64,
                                       .epilogue = EVQ_CUBLASLT_DEFAULT,
                                       .out_type = EVQ_CUDA_R_32F};
    int64_t *const strides[] = {&product.weight_stride, &product.in_stride, &product.out_stride};
    int32_t *const counts[] = {&product.asked_rows, &product.n, &product.k};

    if (which < 3) {
        *strides[which] += 8 * (int64_t)n;
    } else {
        *counts[which - 3] += 8 * n;
    }
    return product;
}

static void check_last(const struct evq_cuda_product *product, int32_t rows)
{
    assert_int_equal(weight->rows, product->k);
    assert_int_equal(weight->columns, product->n);
    assert_int_equal(weight->stride, product->weight_stride);
    assert_int_equal(in->rows, product->k);
    assert_int_equal(in->columns, rows);
    assert_int_equal(in->stride, product->in_stride);
    assert_int_equal(out->rows, product->n);
    assert_int_equal(out->columns, rows);
    assert_int_equal(out->stride, product->out_stride);
    assert_int_equal(out->type, product->out_type);
    assert_int_equal(epilogue, product->epilogue);
    assert_int_equal(asked_rows, product->asked_rows);
    assert_true(!(beta < (float)product->adds) && !(beta > (float)product->adds));
}

static void run(struct evq_cuda_products *products, const struct evq_cuda_product *product,
                int32_t rows)
{
    static char memory[8];
    const struct evq_cuda_operands operands = {rows,       memory,     memory + 1,
                                               memory + 2, memory + 3, memory + 4};
    struct evq_error err = {0};
    bool done = false;

    assert_int_equal(evq_cuda_product_run(products, &cublas, product, &operands, NULL, &done, &err),
                     EVQ_OK);
    assert_true(done);
    check_last(product, rows);
}

static void product_is_its_own_shapes_however_many_there_are(void **state)
{
    struct evq_error err = {0};

    (void)state;
    for (int which = 0; which < 6; which++) {
        struct evq_cuda_products products = {0};
        assert_int_equal(evq_cuda_products_open(&products, &cublas, &err), EVQ_OK);
        for (int turn = 0; turn < 2; turn++) {
            for (int32_t n = 0; n < SHAPES; n++) {
                const struct evq_cuda_product product = product_of(which, n);
                run(&products, &product, 128);
            }
        }
        evq_cuda_products_close(&products, &cublas);
        assert_int_equal(held, 0);
    }
}

/* The few shapes of a model are asked for once, and differ in what is done along with them. */
static void product_is_asked_for_once(void **state)
{
    struct evq_cuda_products products = {0};
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(evq_cuda_products_open(&products, &cublas, &err), EVQ_OK);
    asked = 0;
    for (int turn = 0; turn < 3; turn++) {
        struct evq_cuda_product product = product_of(0, 0);
        run(&products, &product, 128);
        product.epilogue = EVQ_CUBLASLT_BIAS | EVQ_CUBLASLT_GELU;
        run(&products, &product, 128);
        product.out_type = EVQ_CUDA_R_16BF;
        run(&products, &product, 128);
        product.adds = 1;
        run(&products, &product, 128);
    }
    assert_int_equal(asked, 4);
    assert_int_equal(products.lookups, 4);
    evq_cuda_products_close(&products, &cublas);
    assert_int_equal(held, 0);
}

/* Asked about its own rows once, whatever number there is. */
static void product_has_one_way_for_any_number_of_rows(void **state)
{
    static const int32_t rows[] = {384, 128, 4096, 65536};
    const struct evq_cuda_product product = product_of(0, 0);
    struct evq_cuda_products products = {0};
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(evq_cuda_products_open(&products, &cublas, &err), EVQ_OK);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        run(&products, &product, rows[i]);
        assert_int_equal(products.lookups, 1);
    }
    evq_cuda_products_close(&products, &cublas);
    assert_int_equal(held, 0);
}

/* What the heuristics found and cuBLASLt then refuses is not asked for again; another fault is one,
 * named with the product's shape. */
static void product_that_is_refused_when_it_runs_has_no_way(void **state)
{
    static char memory[8];
    const struct evq_cuda_operands operands = {128, memory, memory, memory, memory, memory};
    const struct evq_cuda_product product = product_of(0, 0);
    struct evq_cuda_products products = {0};
    struct evq_error err = {0};
    bool done = true;

    (void)state;
    assert_int_equal(evq_cuda_products_open(&products, &cublas, &err), EVQ_OK);
    asked = 0;
    answer = EVQ_CUBLAS_NOT_SUPPORTED;
    for (int turn = 0; turn < 2; turn++) {
        assert_int_equal(
            evq_cuda_product_run(&products, &cublas, &product, &operands, NULL, &done, &err),
            EVQ_OK);
        assert_false(done);
        answer = 0; // It is remembered, not asked.
    }
    assert_int_equal(asked, 1);
    answer = 13;
    struct evq_cuda_product other = product;
    other.asked_rows = 256;
    assert_int_equal(evq_cuda_product_run(&products, &cublas, &other, &operands, NULL, &done, &err),
                     EVQ_E_DEVICE);
    assert_string_equal(err.message, "product of 128 rows (64 apart) of 64 values by 64 (64 apart) "
                                     "into fp32 (64 apart), epilogue 1, adds 0: cuBLAS status 13, "
                                     "execution failed");
    answer = 0;
    evq_cuda_products_close(&products, &cublas);
    assert_int_equal(held, 0);
}

/* A kernel that finds no room to be loaded is said to be refused, or to have failed. Neither is a
 * fault of the device, and there is a way again when there is room. */
static void product_without_room_for_its_kernel_lacks_memory(void **state)
{
    static const int answers[] = {EVQ_CUBLAS_NOT_SUPPORTED, EVQ_CUBLAS_INVALID_VALUE, 1, 13, 14};
    static char memory[8];
    const struct evq_cuda_operands operands = {128, memory, memory, memory, memory, memory};
    struct evq_cuda_products products = {0};
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(evq_cuda_products_open(&products, &cublas, &err), EVQ_OK);
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        const struct evq_cuda_product product = product_of(3, (int32_t)i);
        bool done = false;
        answer = answers[i];
        unused_bytes = ((size_t)64 << 20) - 1;
        assert_int_equal(
            evq_cuda_product_run(&products, &cublas, &product, &operands, NULL, &done, &err),
            EVQ_E_NOMEM);
        assert_non_null(strstr(err.message, "with less than 64 MiB of the GPU free"));
        sticky = cudaErrorInvalidValue; // A fault that every call tells from then on.
        assert_int_equal(evq_cublas_status(answer, "it", &err), EVQ_E_DEVICE);
        sticky = cudaSuccess;
        unused_bytes++;
        answer = 0;
        run(&products, &product, 128);
    }
    evq_cuda_products_close(&products, &cublas);
    assert_int_equal(held, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(product_is_its_own_shapes_however_many_there_are),
        cmocka_unit_test(product_is_asked_for_once),
        cmocka_unit_test(product_has_one_way_for_any_number_of_rows),
        cmocka_unit_test(product_that_is_refused_when_it_runs_has_no_way),
        cmocka_unit_test(product_without_room_for_its_kernel_lacks_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
