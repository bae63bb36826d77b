/* Quantised weights: their values by formula, whole models of them, and what is refused. */
#include "model_fixture.h"

#include "tests/fixture/safetensors.h"
#include "worker/loader/dequantise.h"
#include "worker/models/quantised.h"

#define FP8_CONFIG                                                                                 \
    "\"use_cache\": true, \"quantization_config\": {\"quant_method\": \"fp8\", "                   \
    "\"weight_block_size\": [4, 8]}"

static float fp8_value(int byte) // F8_E4M3, from its definition.
{
    const int exponent = byte >> 3 & 15;
    const int mantissa = byte & 7;
    const double magnitude = exponent == 15 && mantissa == 7 ? (double)NAN
                             : exponent == 0                 ? ldexp(mantissa, -9)
                                                             : ldexp(8 + mantissa, exponent - 10);

    return (float)(byte >= 128 ? -magnitude : magnitude);
}

static void assert_same(float got, float wanted, size_t at)
{
    if (isnan(wanted) ? !isnan(got) : memcmp(&got, &wanted, sizeof(got)) != 0) {
        fail_msg("value %zu is %a instead of %a", at, (double)got, (double)wanted);
    }
}

/* Dequantises each range of rows, and the whole. */
static void check_rows(const struct evq_checkpoint *checkpoint, const struct evq_source *source,
                       size_t rows, size_t columns, const uint8_t *stored, const float *wanted)
{
    const size_t row_bytes = source->tensor->bytes / rows;
    float *out = malloc(rows * columns * sizeof(*out));
    struct evq_error err = {0};

    for (size_t first = 0; first < rows; first++) {
        for (size_t count = 1; first + count <= rows; count += 1 + count / 4) {
            void *scratch = malloc(evq_dequantise_room(source, count * row_bytes));
            assert_int_equal(evq_dequantise_values(source, count * row_bytes), count * columns);
            assert_status(evq_dequantise(checkpoint, source, first * row_bytes, count * row_bytes,
                                         stored + first * row_bytes, scratch, out, &err),
                          EVQ_OK);
            for (size_t i = 0; i < count * columns; i++) {
                assert_same(out[i], wanted[first * columns + i], first * columns + i);
            }
            free(scratch);
        }
    }
    free(out);
}

/* Opens two tensors, "values" and "scales", as a source. */
static struct evq_checkpoint *open_pair(const struct fixture_folder *folder,
                                        const struct fixture_tensor tensors[2],
                                        struct evq_source *source)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {0};
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/pair.safetensors", folder->path);
    fixture_safetensors(path, tensors, 2);
    assert_status(evq_checkpoint_open(folder->fd, "pair.safetensors", NULL, &checkpoint, &err),
                  EVQ_OK);
    source->tensor = evq_checkpoint_find(checkpoint, "values");
    source->scale = evq_checkpoint_find(checkpoint, "scales");
    return checkpoint;
}

static void fp8_is_each_value_times_the_scale_of_its_block(void **state)
{
    static const int64_t grids[][2] = {{1, 1}, {16, 16}, {4, 2}, {1, 8}, {16, 1}, {2, 16}};
    static const float kinds[] = {1.0f,  -0.3f, 1.7e-3f, 3e38f, 1e-40f,          0x1p-149f,
                                  -0.0f, 0.0f,  448.0f,  1e30f, (float)INFINITY, (float)NAN};
    const struct fixture_folder *folder = *state;
    uint8_t bytes[256];
    float scales[256];
    float wanted[256];

    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
    }
    for (size_t turn = 0; turn < 12 * sizeof(grids) / sizeof(grids[0]); turn++) {
        const int64_t *grid = grids[turn / 12];
        const size_t down = 16 / (size_t)grid[0];
        const size_t across = 16 / (size_t)grid[1];
        struct evq_source source = {.kind = EVQ_SOURCE_SCALED, .rows = 16};
        for (size_t i = 0; i < (size_t)(grid[0] * grid[1]); i++) {
            scales[i] = kinds[(i + turn) % 12];
        }
        for (size_t i = 0; i < 256; i++) {
            const size_t block = i / 16 / down * (size_t)grid[1] + i % 16 / across;
            wanted[i] = fp8_value((int)i) * scales[block];
        }
        const struct fixture_tensor tensors[] = {
            {"values", EVQ_DTYPE_F8_E4M3, 2, {16, 16}, bytes},
            {"scales", EVQ_DTYPE_F32, 2, {grid[0], grid[1]}, scales}};
        struct evq_checkpoint *checkpoint = open_pair(folder, tensors, &source);
        check_rows(checkpoint, &source, 16, 16, bytes, wanted);
        evq_checkpoint_close(checkpoint);
    }
}

/* Each of the 16 values with each of the 256 exponents, in both halves of a byte. Transformers
 * takes 255 for 2^128, not for NaN: 0 stays 0, a half becomes 2^127, and the others are infinite.
 */
static void mxfp4_is_each_value_times_a_power_of_two(void **state)
{
    static const double values[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    static uint8_t bytes[256 * 16];
    static float wanted[256 * 32];
    const struct fixture_folder *folder = *state;
    struct evq_source source = {.kind = EVQ_SOURCE_MXFP4, .parts = 2, .rows = 128};
    uint8_t scales[256];

    for (int row = 0; row < 256; row++) {
        scales[row] = (uint8_t)row;
        for (int i = 0; i < 16; i++) {
            const int halves[] = {i, 15 - i};
            bytes[row * 16 + i] = (uint8_t)(halves[0] | halves[1] << 4);
            for (int k = 0; k < 2; k++) {
                const double value = halves[k] < 8 ? values[halves[k]] : -values[halves[k] - 8];
                wanted[row * 32 + 2 * i + k] = (float)ldexp(value, row - 127);
            }
        }
    }
    assert_true(wanted[255 * 32 + 2] == 0x1p127f && isinf(wanted[255 * 32 + 4]));
    const struct fixture_tensor tensors[] = {{"values", EVQ_DTYPE_U8, 4, {2, 128, 1, 16}, bytes},
                                             {"scales", EVQ_DTYPE_U8, 3, {2, 128, 1}, scales}};
    struct evq_checkpoint *checkpoint = open_pair(folder, tensors, &source);
    check_rows(checkpoint, &source, 256, 32, bytes, wanted);
    evq_checkpoint_close(checkpoint);
}

#define TENSOR(dtype_, text, rank_, ...)                                                           \
    {                                                                                              \
        .name = "m.weight", .dtype = EVQ_DTYPE_##dtype_, .dtype_name = text, .rank = rank_,        \
        .shape = {__VA_ARGS__}, .contiguous = true                                                 \
    }
#define FP8(...) TENSOR(F8_E4M3, "F8_E4M3", 2, __VA_ARGS__)

static void quantised_refuses_scales_that_do_not_fit(void **state)
{
    static const struct {
        int64_t block_rows, block_columns; // MXFP4: -1.
        struct evq_tensor tensor, scale;   // A scale of dtype_name NULL: it is missing.
        const char *words;                 // NULL: taken.
    } cases[] = {
        {4, 8, FP8(8, 16), TENSOR(F32, "F32", 2, 2, 2), NULL},
        {4, 8, FP8(8, 16), TENSOR(BF16, "BF16", 2, 2, 2), NULL},
        {128, 128, FP8(8, 16), TENSOR(F32, "F32", 2, 1, 1), NULL},
        {0, 0, FP8(8, 16), TENSOR(F32, "F32", 0, 0), NULL},
        {0, 0, FP8(8, 16), TENSOR(F32, "F32", 1, 1), NULL},
        {0, 0, FP8(8, 16), TENSOR(F32, "F32", 1, 8), "1 x 1 scales"},
        {0, 0, FP8(8, 16), TENSOR(F32, "F32", 2, 2, 1), "2 x 1 scales for 8 x 16"},
        {4, 8, TENSOR(F32, "F32", 2, 8, 16), {.name = NULL}, NULL},
        {4, 8, FP8(8, 16), {.name = NULL}, "scales are missing (..._scale_inv)"},
        {4, 8, FP8(8, 16), TENSOR(F32, "F32", 2, 1, 1), "1 x 1 scales"},
        {4, 8, FP8(8, 16), TENSOR(F32, "F32", 2, 2, 1), "2 x 1 scales"},
        {4, 8, FP8(8, 16), TENSOR(F32, "F32", 2, 2, 16), "2 x 16 scales"},
        {4, 8, FP8(8, 16), TENSOR(F32, "F32", 0, 0), "1 x 1 scales"},
        {3, 8, FP8(8, 16), TENSOR(F32, "F32", 2, 3, 2), "no shorter blocks"},
        {3, 8, FP8(9, 20), TENSOR(F32, "F32", 2, 3, 3), "no shorter blocks"},
        {4, 8, FP8(8, 16), TENSOR(U8, "U8", 2, 2, 2), "is U8, expected scales of F32"},
        {4, 8, FP8(8, 16), TENSOR(OTHER, "F8_E8M0", 2, 2, 2), "is F8_E8M0, expected scales"},
        {4, 8, TENSOR(BF16, "BF16", 2, 8, 16), TENSOR(F32, "F32", 2, 2, 2), "is BF16 with 2 dim"},
        {4, 8, TENSOR(F8_E4M3, "F8_E4M3", 1, 8), TENSOR(F32, "F32", 1, 2), "with 1 dimensions"},
        {4, 8, TENSOR(F8_E4M3, "F8_E4M3", 3, 2, 8, 16), TENSOR(F32, "F32", 3, 2, 2, 2), "with 3"},
        {-1, -1, TENSOR(U8, "U8", 4, 2, 8, 1, 16), TENSOR(U8, "U8", 3, 2, 8, 1), NULL},
        {-1, -1, TENSOR(U8, "U8", 4, 2, 8, 1, 16), {.name = NULL}, "missing (..._scales)"},
        {-1, -1, TENSOR(U8, "U8", 4, 2, 8, 1, 16), TENSOR(U8, "U8", 3, 2, 8, 2), "does not fit"},
        {-1, -1, TENSOR(U8, "U8", 4, 2, 8, 1, 16), TENSOR(U8, "U8", 2, 2, 8), "does not fit"},
        {-1, -1, TENSOR(U8, "U8", 4, 2, 8, 1, 16), TENSOR(F32, "F32", 3, 2, 8, 1), "U8 scales"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const bool packed = cases[i].block_rows < 0;
        const struct evq_tensor *scale = cases[i].scale.name != NULL ? &cases[i].scale : NULL;
        const struct evq_quantised quantised = {packed ? EVQ_QUANTISED_MXFP4 : EVQ_QUANTISED_FP8,
                                                cases[i].block_rows, cases[i].block_columns};
        struct evq_error err = {0};
        for (int pieces = 0; pieces < 3; pieces++) { // In one piece; values in more; scales so.
            struct evq_tensor values = cases[i].tensor;
            struct evq_tensor other = cases[i].scale;
            struct evq_source source = {.kind = packed ? EVQ_SOURCE_MXFP4 : EVQ_SOURCE_TENSOR,
                                        .rows = 8,
                                        .tensor = &values};
            const char *words = cases[i].words != NULL || pieces == 0 || scale == NULL
                                    ? cases[i].words
                                    : "not stored in one piece";
            values.contiguous = pieces != 1;
            other.contiguous = pieces != 2;
            const enum evq_status status =
                evq_quantised_take(&quantised, "f", scale != NULL ? &other : NULL, &source, &err);
            if ((status == EVQ_OK) != (words == NULL) ||
                (words != NULL && strstr(err.message, words) == NULL)) {
                fail_msg("case %zu, pieces %d: \"%s\"", i, pieces, err.message);
            }
        }
    }
}

/* Writes the llama of tests/data/models with random FP8 matrices in its layers, or with the fp32
 * values that these stand for. */
static void write_llama(const struct fixture_folder *folder, bool fp8)
{
    const struct edit edit = {
        "llama", "\"use_cache\": true", fp8 ? FP8_CONFIG : "\"a\": null", EVQ_OK, {NULL}};
    static char names[64][80];
    static float values[64][1024];
    static uint8_t stored[64][1024];
    struct fixture_tensor tensors[64];
    struct scored scored;
    char path[128];
    size_t count = 0;

    copy_model(folder, &(struct edit){"llama", "{", "{", EVQ_OK, {NULL}});
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, NULL), EVQ_OK);
    for (size_t i = 0; i < scored.checkpoint->tensor_count; i++) {
        const struct evq_tensor *tensor = &scored.checkpoint->tensors[i];
        const bool matrix = tensor->rank == 2 && strstr(tensor->name, "layers.") != NULL;
        size_t elements = 0;
        assert_true(count < 62 && evq_tensor_elements(tensor, &elements) && elements <= 1024);
        assert_status(
            evq_checkpoint_read_f32(scored.checkpoint, tensor, values[count], elements, NULL),
            EVQ_OK);
        (void)snprintf(names[count], sizeof(names[count]), "%s", tensor->name);
        struct fixture_tensor *out = &tensors[count];
        *out =
            (struct fixture_tensor){names[count], EVQ_DTYPE_F32, tensor->rank, {0}, values[count]};
        memcpy(out->shape, tensor->shape, sizeof(out->shape));
        count++;
        if (!matrix) {
            continue;
        }
        float *scales = values[count];
        const size_t columns = (size_t)tensor->shape[1];
        for (size_t k = 0; k < elements; k++) {
            const size_t block = k / columns / 4 * (columns / 8) + k % columns / 8;
            stored[count][k] = (uint8_t)((k * 37 + i) % 119 + 128 * (k % 3 == 0)); // No NaN.
            scales[block] = 0.001f * (float)(1 + (block + i) % 7);
            values[count - 1][k] = fp8_value(stored[count][k]) * scales[block];
        }
        if (fp8) {
            out->dtype = EVQ_DTYPE_F8_E4M3;
            out->data = stored[count];
            (void)snprintf(names[count], sizeof(names[count]), "%s_scale_inv", tensor->name);
            tensors[count] = (struct fixture_tensor){names[count],
                                                     EVQ_DTYPE_F32,
                                                     2,
                                                     {tensor->shape[0] / 4, tensor->shape[1] / 8},
                                                     scales};
            count++;
        }
    }
    scored_close(&scored);
    copy_model(folder, &edit);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder->path);
    fixture_safetensors(path, tensors, count);
}

static void model_of_fp8_scores_as_the_values_that_it_stands_for(void **state)
{
    const int32_t tokens[] = {2, 33, 33, 35, 9, 0, 20, 21, 14, 28, 23, 17};
    const struct fixture_folder *folder = *state;
    double losses[2][TOKENS_MAX];
    char digests[2][33];
    struct text text = {0};

    text_add(&text, tokens, 12);
    for (int fp8 = 0; fp8 < 2; fp8++) {
        struct scored scored;
        struct evq_error err = {0};
        char digest[33];
        write_llama(folder, fp8 == 1);
        assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
        assert_status(scored_load(&scored, &err), EVQ_OK);
        assert_status(evq_backend_cpu.exec(scored.state, &text.batch, scored.results, &err),
                      EVQ_OK);
        for (int32_t i = 0; i < text.batch.scores; i++) {
            losses[fp8][i] = scored.results[i].loss;
            assert_true(losses[fp8][i] > 0); // No NaN.
            assert_true(losses[fp8][i] == losses[0][i]);
        }
        (void)snprintf(digests[fp8], sizeof(digests[fp8]), "%s", scored.loaded.digest);
        assert_status(evq_checkpoint_digest(scored.checkpoint, digest, &err), EVQ_OK);
        assert_string_equal(digest, digests[fp8]); // Scales count too, and nothing twice.
        scored_close(&scored);
    }
    assert_string_not_equal(digests[0], digests[1]);
}

int main(void)
{
#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(fp8_is_each_value_times_the_scale_of_its_block),
        IN_FOLDER(mxfp4_is_each_value_times_a_power_of_two),
        cmocka_unit_test(quantised_refuses_scales_that_do_not_fit),
        IN_FOLDER(model_of_fp8_scores_as_the_values_that_it_stands_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
