#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "tests/fixture/safetensors.h"

static int lora_root(void)
{
    int fd = open(EVQ_TEST_DATA "/checkpoints/made/lora", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(fd >= 0);
    return fd;
}

static float *read_floats(const struct evq_checkpoint *checkpoint, const struct evq_tensor *tensor,
                          size_t *ret_elements)
{
    struct evq_error err;

    assert_true(evq_tensor_elements(tensor, ret_elements));
    float *values = malloc(*ret_elements * sizeof(*values) + 1);
    assert_status_err(evq_checkpoint_read_f32(checkpoint, tensor, values, *ret_elements, &err),
                      EVQ_OK, &err);
    return values;
}

/* What is read as raw bytes is the same as what is read as floats. */
static void check_raw(const struct evq_checkpoint *checkpoint, const struct evq_tensor *tensor,
                      const float *values, size_t elements)
{
    const size_t size = evq_dtype_bytes(tensor->dtype);
    uint8_t *raw = malloc(elements * size);
    struct evq_error err;

    assert_status_err(evq_checkpoint_read_raw(checkpoint, tensor, raw, elements * size, &err),
                      EVQ_OK, &err);
    for (size_t i = 0; i < elements; i++) {
        uint32_t bits = 0;
        float value;
        memcpy((uint8_t *)&bits + (size == 2 ? 2 : 0), raw + i * size,
               size); // bf16: the upper half.
        memcpy(&value, &bits, sizeof(value));
        assert_true(value == values[i]);
    }
    free(raw);
}

static size_t compare(int root_fd, const char *name, size_t *ret_merged)
{
    char path[64];
    struct evq_checkpoint *merged = NULL;
    struct evq_checkpoint *expected = NULL;
    struct evq_error err;

    (void)snprintf(path, sizeof(path), "%s.merged.safetensors", name);
    assert_status_err(evq_checkpoint_open(root_fd, name, NULL, &merged, &err), EVQ_OK, &err);
    assert_status_err(evq_checkpoint_open(root_fd, path, NULL, &expected, &err), EVQ_OK, &err);
    assert_string_equal(merged->format, "peft-lora");
    assert_int_equal(merged->tensor_count, expected->tensor_count);
    *ret_merged = 0;
    for (size_t i = 0; i < expected->tensor_count; i++) {
        const struct evq_tensor *wanted = &expected->tensors[i];
        const struct evq_tensor *tensor = &merged->tensors[i];
        size_t elements = 0;
        size_t count = 0;
        assert_string_equal(tensor->name, wanted->name);
        assert_string_equal(tensor->dtype_name, wanted->dtype_name);
        float *got = read_floats(merged, tensor, &elements);
        float *want = read_floats(expected, wanted, &count);
        assert_int_equal(elements, count);
        // A sum in another order may round to the next bfloat16.
        const double step = wanted->dtype == EVQ_DTYPE_BF16 ? 0x1p-8 : 0;
        for (size_t k = 0; k < elements; k++) {
            if (!(fabs((double)got[k] - want[k]) <= 1e-5 + step * fabs((double)want[k]))) {
                fail_msg("%s: %s[%zu] is %.9g, PEFT has %.9g", name, tensor->name, k,
                         (double)got[k], (double)want[k]);
            }
        }
        check_raw(merged, tensor, got, elements);
        assert_true(tensor->merge == NULL || !tensor->contiguous);
        *ret_merged += tensor->merge != NULL ? 1 : 0;
        free(got);
        free(want);
    }
    const size_t tensors = merged->tensor_count;
    evq_checkpoint_close(merged);
    evq_checkpoint_close(expected);
    return tensors;
}

static void adapter_reads_what_peft_merges(void **state)
{
    static const struct {
        const char *name;
        size_t merged;
    } cases[] = {{"plain", 3}, {"square", 1}, {"patterns", 3}, {"half", 4}};
    int root_fd = lora_root();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t merged = 0;
        assert_true(compare(root_fd, cases[i].name, &merged) > 10);
        assert_int_equal(merged, cases[i].merged);
    }
    (void)close(root_fd);
}

static void adapter_digest_is_that_of_the_merged_weights(void **state)
{
    int root_fd = lora_root();
    struct evq_checkpoint *checkpoint = NULL;
    char adapter[33];
    char base[33];
    char again[33];

    (void)state;
    assert_status(evq_checkpoint_open(root_fd, "plain", NULL, &checkpoint, NULL), EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, adapter, NULL), EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, again, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_status(evq_checkpoint_open(root_fd, "gpt2", NULL, &checkpoint, NULL), EVQ_OK);
    assert_status(evq_checkpoint_digest(checkpoint, base, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
    assert_string_equal(adapter, again);
    assert_string_not_equal(adapter, base);
    (void)close(root_fd);
}

static void adapter_has_the_files_beside_it_and_those_beside_its_base(void **state)
{
    int root_fd = lora_root();
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_buffer manifest;
    char out[33];
    int fd = -1;

    (void)state;
    assert_status(evq_checkpoint_open(root_fd, "plain", NULL, &checkpoint, NULL), EVQ_OK);
    assert_status(evq_checkpoint_open_sibling(checkpoint, "adapter_config.json", &fd, NULL),
                  EVQ_OK);
    (void)close(fd);
    assert_status(evq_checkpoint_open_sibling(checkpoint, "config.json", &fd, NULL), EVQ_OK);
    (void)close(fd);
    assert_status(evq_checkpoint_open_sibling(checkpoint, "none.json", &fd, NULL), EVQ_E_GONE);
    evq_checkpoint_close(checkpoint);
    // What a producer sends and pins is the adapter alone: it need not have the base.
    evq_buffer_init(&manifest, 0);
    assert_status(evq_checkpoint_fingerprint(root_fd, "plain", out, &manifest, NULL), EVQ_OK);
    assert_holds(evq_buffer_string(&manifest), "adapter_config.json\t");
    assert_holds(evq_buffer_string(&manifest), "adapter_model.safetensors\t");
    assert_null(strstr(evq_buffer_string(&manifest), "\nmodel.safetensors"));
    evq_buffer_free(&manifest);
    (void)close(root_fd);
}

static const float numbers[64];

/* An adapter directory d and its base, both of tensors that are given as name and shape. */
struct shaped {
    const char *name;
    int64_t rows; // 0: none of this name. Negative: of one dimension.
    int64_t columns;
};

static void put_tensors(const struct fixture_folder *folder, const char *path,
                        const struct shaped *shapes, size_t count)
{
    struct fixture_tensor tensors[4];
    char full[128];
    size_t used = 0;

    for (size_t i = 0; i < count && shapes[i].name != NULL; i++) {
        const bool flat = shapes[i].rows < 0;
        tensors[used++] = (struct fixture_tensor){
            .name = shapes[i].name,
            .dtype = EVQ_DTYPE_F32,
            .rank = flat ? 1 : 2,
            .shape = {flat ? -shapes[i].rows : shapes[i].rows, flat ? 0 : shapes[i].columns},
            .data = numbers};
    }
    (void)snprintf(full, sizeof(full), "%s/%s", folder->path, path);
    fixture_safetensors(full, tensors, used);
}

static const struct shaped base_tensors[] = {
    {"m.w.weight", 4, 2}, {"m.w.bias", -4, 0}, {"m.v.weight", 3, 3}};
static const struct shaped good_tensors[] = {{"base_model.model.m.w.lora_A.weight", 1, 2},
                                             {"base_model.model.m.w.lora_B.weight", 4, 1}};
#define GOOD "\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"base\""

static void put_good(const struct fixture_folder *folder)
{
    fixture_folder_mkdir(folder, "base");
    fixture_folder_mkdir(folder, "d");
    put_tensors(folder, "base/model.safetensors", base_tensors, 3);
    put_tensors(folder, "d/adapter_model.safetensors", good_tensors, 2);
    fixture_folder_write(folder, "d/adapter_config.json", "{" GOOD "}", strlen("{" GOOD "}"));
}

static size_t refuse(const struct fixture_folder *folder, const char *what,
                     const struct evq_checkpoint_options *options, enum evq_status want,
                     const char *holds)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.message = ""};
    enum evq_status status = evq_checkpoint_open(folder->fd, "d", options, &checkpoint, &err);
    const bool wrong = status != want || strstr(err.message, holds) == NULL;

    if (wrong) {
        print_error("%s: %s '%s', wanted %s '%s'\n", what, evq_status_name(status), err.message,
                    evq_status_name(want), holds);
    }
    evq_checkpoint_close(checkpoint);
    return wrong ? 1 : 0;
}

static const struct {
    const char *config;
    enum evq_status status;
    const char *holds;
} configs[] = {
    {"", EVQ_E_INCOMPLETE, "adapter_config.json holds 0 bytes"},
    {"{", EVQ_E_INCOMPLETE, "still being written"},
    {"{" GOOD, EVQ_E_INCOMPLETE, "still being written"},
    {"{" GOOD "}x", EVQ_E_CORRUPT, "JSON byte"},
    {"[]", EVQ_E_CORRUPT, "is not an object"},
    {"3", EVQ_E_CORRUPT, "is not an object"},
    {"{}", EVQ_E_CORRUPT, "has no 'peft_type'"},
    {"{\"peft_type\":\"LORA\"}", EVQ_E_CORRUPT, "has no 'lora_alpha'"},
    {"{\"\xff\":1}", EVQ_E_CORRUPT, "byte 2 is not UTF-8"},
    {"{\"peft_type\":null}", EVQ_E_UNSUPPORTED, "of type 'null' is not merged"},
    {"{\"peft_type\":1}", EVQ_E_CORRUPT, "'peft_type' is no text"},
    {"{\"peft_type\":\"IA3\"}", EVQ_E_UNSUPPORTED,
     "an adapter of type 'IA3' is not merged, only LORA: merge it first, in a `prepare` command"},
    {"{\"init_ia3_weights\":true,\"bias\":3,\"peft_type\":\"IA3\"}", EVQ_E_CORRUPT,
     "'bias' is no text"},
    {"{\"init_ia3_weights\":true,\"x\":{\"y\":[1,{}]},\"peft_type\":\"IA3\"}", EVQ_E_UNSUPPORTED,
     "an adapter of type 'IA3' is not merged"},
    {"{" GOOD ",\"empty\":[],\"none\":{},\"off\":false,\"full\":{\"a\":{}}}", EVQ_E_UNSUPPORTED,
     "sets 'full'"},
    {"{" GOOD ",\"full\":[[]]}", EVQ_E_UNSUPPORTED, "sets 'full'"},
    {"{\"peft_type\":\"LOHA\"}", EVQ_E_UNSUPPORTED, "of type 'LOHA'"},
    {"{\"peft_type\":\"LOKR\"}", EVQ_E_UNSUPPORTED, "of type 'LOKR'"},
    {"{\"peft_type\":\"ADALORA\"}", EVQ_E_UNSUPPORTED, "of type 'ADALORA'"},
    {"{\"peft_type\":\"PREFIX_TUNING\"}", EVQ_E_UNSUPPORTED, "of type 'PREFIX_TUNING'"},
    {"{\"peft_type\":\"PROMPT_TUNING\"}", EVQ_E_UNSUPPORTED, "of type 'PROMPT_TUNING'"},
    {"{\"peft_type\":\"OFT\"}", EVQ_E_UNSUPPORTED, "of type 'OFT'"},
    {"{\"peft_type\":\"\\u001b[2J\"}", EVQ_E_UNSUPPORTED, "of type '\\x1b[2J'"},
    {"{" GOOD ",\"use_dora\":true}", EVQ_E_UNSUPPORTED, "a DoRA adapter (use_dora)"},
    {"{" GOOD ",\"use_dora\":1}", EVQ_E_CORRUPT, "'use_dora' is no boolean"},
    {"{" GOOD ",\"use_rslora\":\"yes\"}", EVQ_E_CORRUPT, "'use_rslora' is no boolean"},
    {"{" GOOD ",\"fan_in_fan_out\":[]}", EVQ_E_CORRUPT, "'fan_in_fan_out' is no boolean"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":\"2\"}", EVQ_E_CORRUPT, "'lora_alpha' is no number"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":1e999}", EVQ_E_CORRUPT, "is no finite number"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":NaN}", EVQ_E_CORRUPT, "a value was expected"},
    {"{" GOOD ",\"bias\":\"some\"}", EVQ_E_UNSUPPORTED, "sets 'bias', which is not merged"},
    {"{" GOOD ",\"lora_bias\":true}", EVQ_E_UNSUPPORTED, "sets 'lora_bias'"},
    {"{" GOOD ",\"use_qalora\":true}", EVQ_E_UNSUPPORTED, "sets 'use_qalora'"},
    {"{" GOOD ",\"layer_replication\":[[0,2]]}", EVQ_E_UNSUPPORTED, "sets 'layer_replication'"},
    {"{" GOOD ",\"target_parameters\":[\"w\"]}", EVQ_E_UNSUPPORTED, "sets 'target_parameters'"},
    {"{" GOOD ",\"trainable_token_indices\":[1]}", EVQ_E_UNSUPPORTED,
     "sets 'trainable_token_indices'"},
    {"{" GOOD ",\"alora_invocation_tokens\":[1]}", EVQ_E_UNSUPPORTED,
     "sets 'alora_invocation_tokens'"},
    {"{" GOOD ",\"arrow_config\":{\"top_k\":1}}", EVQ_E_UNSUPPORTED, "sets 'arrow_config'"},
    {"{" GOOD ",\"megatron_config\":{\"a\":1}}", EVQ_E_UNSUPPORTED, "sets 'megatron_config'"},
    {"{" GOOD ",\"what_comes_next\":1}", EVQ_E_UNSUPPORTED, "sets 'what_comes_next'"},
    {"{" GOOD ",\"init_lora_weights\":\"pissa\"}", EVQ_E_UNSUPPORTED,
     "init_lora_weights is 'pissa', which may change the base too"},
    {"{" GOOD ",\"init_lora_weights\":\"olora\"}", EVQ_E_UNSUPPORTED, "is 'olora'"},
    {"{" GOOD ",\"init_lora_weights\":{}}", EVQ_E_UNSUPPORTED, "init_lora_weights is ''"},
    {"{" GOOD ",\"alpha_pattern\":[]}", EVQ_E_CORRUPT, "'alpha_pattern' is no object"},
    {"{" GOOD ",\"alpha_pattern\":{\"w\":\"2\"}}", EVQ_E_CORRUPT, "'alpha_pattern' is no number"},
    {"{" GOOD ",\"alpha_pattern\":{\".*w\":2}}", EVQ_E_UNSUPPORTED,
     "alpha_pattern holds '.*w': of regular expressions only names and dots"},
    {"{" GOOD ",\"alpha_pattern\":{\"(a|b)\":2}}", EVQ_E_UNSUPPORTED, "alpha_pattern holds"},
    {"{" GOOD ",\"alpha_pattern\":{\"\":2}}", EVQ_E_UNSUPPORTED, "alpha_pattern holds ''"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2}", EVQ_E_NOT_FOUND,
     "does not name its base: set `base`"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"\"}", EVQ_E_NOT_FOUND,
     "does not name its base"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":3}", EVQ_E_CORRUPT,
     "'base_model_name_or_path' is no text"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"meta/llama\"}",
     EVQ_E_NOT_FOUND, "base 'meta/llama' is beneath none of the roots: set `base` to its path"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"/etc\"}",
     EVQ_E_NOT_FOUND, "base '/etc' is beneath none of the roots"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"../base\"}",
     EVQ_E_INVALID, "holds '..'"},
    {"{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"d\"}",
     EVQ_E_UNSUPPORTED, "the base is an adapter itself"},
};

static void adapter_refuses_every_config_that_is_not_a_plain_lora(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    size_t wrong = 0;

    put_good(folder); // What the others are bent from.
    assert_status_err(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_OK, &err);
    assert_int_equal(checkpoint->tensor_count, 3);
    evq_checkpoint_close(checkpoint);
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        fixture_folder_write(folder, "d/adapter_config.json", configs[i].config,
                             strlen(configs[i].config));
        wrong += refuse(folder, configs[i].config, NULL, configs[i].status, configs[i].holds);
    }
    assert_int_equal(wrong, 0);
    print_message("%zu configurations refused\n", sizeof(configs) / sizeof(configs[0]));
}

#define A(module)  "base_model.model." module ".lora_A.weight"
#define BB(module) "base_model.model." module ".lora_B.weight"

static const struct {
    struct shaped tensors[4];
    enum evq_status status;
    const char *holds;
} adapters[] = {
    {{{NULL, 0, 0}}, EVQ_E_CORRUPT, "the adapter holds no tensors"},
    {{{A("m.w"), 1, 2}}, EVQ_E_CORRUPT, "has no lora_B beside it"},
    {{{BB("m.w"), 4, 1}}, EVQ_E_CORRUPT, "has no lora_A beside it"},
    {{{A("m.x"), 1, 2}, {BB("m.x"), 4, 1}},
     EVQ_E_NOT_FOUND,
     "changes a weight that the base does not have: it is another base"},
    {{{A("m.w"), 1, 2}, {BB("m.w"), 4, 1}, {A("a.m.v"), 1, 3}, {BB("a.m.v"), 3, 1}},
     EVQ_E_NOT_FOUND,
     "changes a weight that the base does not have"}, // With another part left out.
    {{{A("m.w"), 1, 3}, {BB("m.w"), 4, 1}}, EVQ_E_CORRUPT, "do not have the shape of the base"},
    {{{A("m.w"), 1, 2}, {BB("m.w"), 5, 1}}, EVQ_E_CORRUPT, "do not have the shape of the base"},
    {{{A("m.v"), 1, 4}, {BB("m.v"), 3, 1}}, EVQ_E_CORRUPT, "do not have the shape of the base"},
    {{{A("m.w"), 1, 2}, {BB("m.w"), 4, 2}}, EVQ_E_CORRUPT, "has another rank than its lora_B"},
    {{{A("m.w"), 0, 2}, {BB("m.w"), 4, 0}}, EVQ_E_CORRUPT, "has another rank than its lora_B"},
    {{{A("m.w"), -2, 0}, {BB("m.w"), 4, 1}}, EVQ_E_UNSUPPORTED, "does not have two dimensions"},
    {{{A("m.w"), 1, 2},
      {BB("m.w"), 4, 1},
      {"base_model.model.m.w.lora_embedding_A", 1, 4},
      {"base_model.model.m.w.lora_embedding_B", 2, 1}},
     EVQ_E_CORRUPT,
     "changes a weight that another one changes"},
    {{{A("m.w"), 1, 2}, {BB("m.w"), 4, 1}, {"base_model.model.m.w.lora_magnitude_vector", -4, 0}},
     EVQ_E_UNSUPPORTED,
     "belongs to a kind of LoRA that is not merged"},
    {{{A("m.w"), 1, 2}, {BB("m.w"), 4, 1}, {"base_model.model.m.w.lora_B.bias", -4, 0}},
     EVQ_E_UNSUPPORTED,
     "belongs to a kind of LoRA that is not merged"},
    {{{A("m.w.default"), 1, 2}, {BB("m.w.default"), 4, 1}},
     EVQ_E_NOT_FOUND,
     "changes a weight that the base does not have"},
    {{{"base_model.model.m.w.ia3_l", 4, 1}},
     EVQ_E_NOT_FOUND,
     "replaces what the base does not have"},
    {{{"base_model.model.m.w.hada_w1_a", 4, 1}},
     EVQ_E_NOT_FOUND,
     "replaces what the base does not have"},
    {{{"base_model.model.lm_head.weight", 4, 2}},
     EVQ_E_NOT_FOUND,
     "replaces what the base does not have (tied weights, or another base)"},
    {{{"base_model.model.m.w.base_layer.bias", -3, 0}},
     EVQ_E_CORRUPT,
     "has another shape than the base's"},
    {{{"base_model.model.m.w.weight", 2, 4}}, EVQ_E_CORRUPT, "has another shape than the base's"},
    {{{"prompt_embeddings", 2, 4}}, EVQ_E_NOT_FOUND, "replaces what the base does not have"},
};

static void adapter_refuses_every_file_that_does_not_fit_its_base(void **state)
{
    const struct fixture_folder *folder = *state;
    size_t wrong = 0;

    put_good(folder);
    for (size_t i = 0; i < sizeof(adapters) / sizeof(adapters[0]); i++) {
        char what[32];
        (void)snprintf(what, sizeof(what), "adapter %zu", i);
        put_tensors(folder, "d/adapter_model.safetensors", adapters[i].tensors, 4);
        wrong += refuse(folder, what, NULL, adapters[i].status, adapters[i].holds);
    }
    fixture_folder_write(folder, "d/adapter_model.safetensors", "\x08", 1);
    wrong += refuse(folder, "cut", NULL, EVQ_E_INCOMPLETE, "'adapter_model.safetensors': ");
    assert_int_equal(unlinkat(folder->fd, "d/adapter_model.safetensors", 0), 0);
    wrong += refuse(folder, "none", NULL, EVQ_E_INCOMPLETE, "is not there (yet)");
    fixture_folder_mkdir(folder, "d/adapter_model.safetensors");
    wrong += refuse(folder, "folder", NULL, EVQ_E_INVALID, "is not a regular file");
    assert_int_equal(wrong, 0);
    print_message("%zu adapters refused\n", sizeof(adapters) / sizeof(adapters[0]) + 3);
}

static void adapter_finds_its_base_by_option_in_other_roots_and_by_absolute_path(void **state)
{
    const struct fixture_folder *folder = *state;
    const struct evq_checkpoint_options by_option = {.base = "elsewhere"};
    const struct evq_checkpoint_options wrong_base = {.base = "none"};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;
    char config[512];

    put_good(folder);
    assert_int_equal(renameat(folder->fd, "base", folder->fd, "elsewhere"), 0);
    assert_status(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_E_NOT_FOUND);
    assert_status_err(evq_checkpoint_open(folder->fd, "d", &by_option, &checkpoint, &err), EVQ_OK,
                      &err);
    evq_checkpoint_close(checkpoint);
    assert_status(evq_checkpoint_open(folder->fd, "d", &wrong_base, &checkpoint, &err),
                  EVQ_E_NOT_FOUND);
    fixture_folder_mkdir(folder, "other");
    assert_int_equal(renameat(folder->fd, "elsewhere", folder->fd, "other/base"), 0);
    const int other_fd = openat(folder->fd, "other", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const struct evq_checkpoint_options roots = {.root_fds = &other_fd, .root_count = 1};
    assert_status_err(evq_checkpoint_open(folder->fd, "d", &roots, &checkpoint, &err), EVQ_OK,
                      &err);
    evq_checkpoint_close(checkpoint);
    const int bytes =
        snprintf(config, sizeof(config),
                 "{\"peft_type\":\"LORA\",\"lora_alpha\":2,\"base_model_name_or_path\":\"%s/other//"
                 "base\"}",
                 folder->path);
    fixture_folder_write(folder, "d/adapter_config.json", config, (size_t)bytes);
    assert_status_err(evq_checkpoint_open(folder->fd, "d", NULL, &checkpoint, &err), EVQ_OK, &err);
    evq_checkpoint_close(checkpoint);
    (void)close(other_fd);
}

#define TEST(function)                                                                             \
    cmocka_unit_test_setup_teardown(function, fixture_folder_setup, fixture_folder_teardown)

static void copy_file(const struct fixture_folder *folder, const char *from, const char *to)
{
    char path[160];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/checkpoints/made/lora/%s", from);
    uint8_t *data = fixture_file_load(path, &bytes);
    fixture_folder_write(folder, to, data, bytes);
    free(data);
}

static void digest_of(int root_fd, const char *path, const char *adapter, char out[33])
{
    const struct evq_checkpoint_options options = {.key = "", .adapter = adapter};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err;

    assert_status_err(evq_checkpoint_open(root_fd, path, &options, &checkpoint, &err), EVQ_OK,
                      &err);
    assert_status(evq_checkpoint_digest(checkpoint, out, NULL), EVQ_OK);
    evq_checkpoint_close(checkpoint);
}

/* As a complete model with an embedded adapter, which Transformers applies. */
static void adapter_beside_a_model_is_applied_or_ignored_as_told(void **state)
{
    const struct fixture_folder *folder = *state;
    const struct evq_checkpoint_options nested = {.key = "", .adapter = "apply", .base = "both"};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {0};
    const int lora_fd = lora_root();
    char found[2][33];
    char wanted[2][33];
    char fingerprints[2][33];

    fixture_folder_mkdir(folder, "both");
    copy_file(folder, "gpt2/model.safetensors", "both/model.safetensors");
    copy_file(folder, "gpt2/config.json", "both/config.json");
    copy_file(folder, "plain/adapter_model.safetensors", "both/adapter_model.safetensors");
    assert_status(evq_checkpoint_open(folder->fd, "both", NULL, &checkpoint, &err), EVQ_E_INVALID);
    assert_holds(err.message, "if adapter_config.json is there");
    copy_file(folder, "plain/adapter_config.json", "both/adapter_config.json");
    assert_status(evq_checkpoint_open(folder->fd, "both", NULL, &checkpoint, &err), EVQ_E_INVALID);
    assert_holds(err.message, "holds both 'model.safetensors' and an adapter");
    assert_holds(err.message, "model: {adapter: apply}");

    digest_of(folder->fd, "both", "apply", found[0]);
    digest_of(folder->fd, "both", "ignore", found[1]);
    digest_of(lora_fd, "plain", NULL, wanted[0]);
    digest_of(lora_fd, "gpt2", NULL, wanted[1]);
    assert_string_equal(found[0], wanted[0]);
    assert_string_equal(found[1], wanted[1]);
    fixture_folder_mkdir(folder, "more");
    copy_file(folder, "plain/adapter_model.safetensors", "more/adapter_model.safetensors");
    copy_file(folder, "plain/adapter_config.json", "more/adapter_config.json");
    assert_status(evq_checkpoint_open(folder->fd, "more", &nested, &checkpoint, &err),
                  EVQ_E_UNSUPPORTED);
    assert_holds(err.message, "is an adapter itself");

    // Both files count: a training that changes the adapter alone has a new checkpoint.
    assert_status(evq_checkpoint_check_complete(folder->fd, "both", &err), EVQ_OK);
    assert_status(evq_checkpoint_fingerprint(folder->fd, "both", fingerprints[0], NULL, &err),
                  EVQ_OK);
    size_t bytes = 0;
    uint8_t *weights = fixture_file_load(
        EVQ_TEST_DATA "/checkpoints/made/lora/plain/adapter_model.safetensors", &bytes);
    weights[bytes - 1] ^= 1;
    fixture_folder_write(folder, "both/adapter_model.safetensors", weights, bytes);
    assert_status(evq_checkpoint_fingerprint(folder->fd, "both", fingerprints[1], NULL, &err),
                  EVQ_OK);
    assert_string_not_equal(fingerprints[0], fingerprints[1]);
    fixture_folder_write(folder, "both/adapter_model.safetensors", weights, bytes / 2);
    assert_status(evq_checkpoint_check_complete(folder->fd, "both", &err), EVQ_E_INCOMPLETE);
    free(weights);
    (void)close(lora_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapter_reads_what_peft_merges),
        cmocka_unit_test(adapter_digest_is_that_of_the_merged_weights),
        cmocka_unit_test(adapter_has_the_files_beside_it_and_those_beside_its_base),
        TEST(adapter_refuses_every_config_that_is_not_a_plain_lora),
        TEST(adapter_refuses_every_file_that_does_not_fit_its_base),
        TEST(adapter_beside_a_model_is_applied_or_ignored_as_told),
        TEST(adapter_finds_its_base_by_option_in_other_roots_and_by_absolute_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
