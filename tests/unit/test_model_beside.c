/* What stands beside a recognised model: another type in its configuration, tensors of its own. */
#include "model_fixture.h"

#include "tests/fixture/safetensors.h"
#include "worker/evaluators/native/native_run.h"

/* The user's word for a type that evalq does not know; of some it knows that they differ. */
static void models_forced_family_is_checked_against_the_type(void **state)
{
    static const struct {
        const char *type, *family, *words; // words "": accepted.
    } cases[] = {
        {"own_llama", "llama", ""},
        {"smollm4", "llama", ""},
        {"smollm3", "llama", "of type smollm3, not llama: leave out"},
        {"own_llama", "gemma", "own_llama, which computes otherwise than gemma"},
        {"helium", "llama", "helium, which computes otherwise than llama, as its rotary"},
        {"ernie4_5", "mistral", "ernie4_5, which computes otherwise than mistral"},
        {"qwen3", "llama", "of type qwen3, not llama: leave out"},
    };
    const struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct evq_pair options[] = {{"family", cases[i].family}};
        struct edit edit = {.family = "llama", .from = "\"model_type\": \"llama\""};
        struct evq_error err = {0};
        struct scored scored;
        char to[80];
        (void)snprintf(to, sizeof(to), "\"model_type\": \"%s\", \"architectures\": [\"Own\"]",
                       cases[i].type);
        edit.to = to;
        copy_model(folder, &edit);
        const enum evq_status status =
            scored_build(&scored, folder->path, ".", options, 1, 0, &err);
        scored_close(&scored);
        if ((status == EVQ_OK) != (cases[i].words[0] == '\0') ||
            strstr(err.message, cases[i].words) == NULL) {
            fail_msg("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].words);
        }
    }
}

/* tests/data/models/gpt2 with a prefix before its names and one more tensor. */
static void write_wrapped(const struct fixture_folder *folder, const char *prefix,
                          const struct fixture_tensor *extra)
{
    const struct edit same = {.family = "gpt2", .from = "{", .to = "{"};
    struct fixture_tensor tensors[64];
    struct scored scored;
    char names[64][80];
    char path[128];
    size_t count = 0;

    copy_model(folder, &same);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, NULL), EVQ_OK);
    for (; count < scored.checkpoint->tensor_count; count++) {
        const struct evq_tensor *tensor = &scored.checkpoint->tensors[count];
        size_t elements = 0;
        assert_true(count < 63 && evq_tensor_elements(tensor, &elements));
        float *values = malloc(elements * sizeof(*values));
        assert_status(evq_checkpoint_read_f32(scored.checkpoint, tensor, values, elements, NULL),
                      EVQ_OK);
        (void)snprintf(names[count], sizeof(names[count]), "%s%s", prefix, tensor->name);
        tensors[count] = (struct fixture_tensor){
            .name = names[count], .dtype = EVQ_DTYPE_F32, .rank = tensor->rank, .data = values};
        memcpy(tensors[count].shape, tensor->shape, sizeof(tensors[count].shape));
    }
    scored_close(&scored);
    tensors[count] = *extra;
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder->path);
    fixture_safetensors(path, tensors, count + 1);
    for (size_t i = 0; i < count; i++) {
        free((void *)(uintptr_t)tensors[i].data);
    }
}

/* What lies beside a model is named, and what may be its own head is refused. */
static void models_name_the_tensors_that_they_ignore(void **state)
{
    static const float zeros[37 * 16];
#define EXTRA(name_, rank_, ...)                                                                   \
    {                                                                                              \
        .name = name_, .dtype = EVQ_DTYPE_F32, .rank = rank_, .shape = {__VA_ARGS__},              \
        .data = zeros                                                                              \
    }
    static const struct {
        const char *prefix;
        struct fixture_tensor extra;
        const char *ignore;  // The option; NULL: none.
        const char *ignored; // NULL: refused.
        const char *words;
    } cases[] = {
        {"backbone.", EXTRA("head.weight", 2, 37, 16), NULL, NULL, "'head.weight' in 'model.saf"},
        {"backbone.", EXTRA("head.weight", 2, 16, 37), NULL, NULL, "is not one of the"},
        {"backbone.", EXTRA("out.bias", 1, 37), NULL, NULL, "'out.bias'"},
        {"backbone.", EXTRA("lm_head.weight", 2, 37, 16), NULL, NULL, "model: {ignore: [NAME]}"},
        {"backbone.", EXTRA("head.weight", 2, 37, 16), "other, head.", "head.weight", ""},
        {"backbone.", EXTRA("soft_prompt.weight", 2, 4, 16), NULL, "soft_prompt.weight", ""},
        {"backbone.", EXTRA("lora.a", 2, 2, 16), NULL, "lora.a", ""},
        {"model.", EXTRA("ema.transformer.wte.weight", 2, 37, 16), NULL,
         "ema.transformer.wte.weight", ""},
        {"", EXTRA("v_head.summary.weight", 2, 1, 16), NULL, "v_head.summary.weight", ""},
        {"", EXTRA("lora.a", 2, 2, 16), NULL, NULL, "'lora.a' in 'model.safetensors' has no place"},
        {"", EXTRA("lora.a", 2, 2, 16), "lora.a", "lora.a", ""},
        {"", EXTRA("transformer.h.0.attn.bias", 1, 1), NULL, "", ""},
    };
    const struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct evq_pair options[] = {{"ignore", cases[i].ignore}};
        struct evq_error err = {0};
        struct scored scored;
        write_wrapped(folder, cases[i].prefix, &cases[i].extra);
        const enum evq_status status = scored_build(&scored, folder->path, ".", options,
                                                    cases[i].ignore != NULL ? 1 : 0, 0, &err);
        if ((status == EVQ_OK) != (cases[i].ignored != NULL) ||
            strstr(err.message, cases[i].words) == NULL ||
            (status == EVQ_OK && strcmp(scored.model->ignored, cases[i].ignored) != 0)) {
            fail_msg("case %zu: \"%s\", ignored \"%s\"", i, err.message,
                     status == EVQ_OK ? scored.model->ignored : "");
        }
        scored_close(&scored);
    }
}

/* compute: auto is bf16 for half weights on a GPU, and fp32 else. */
static void models_compute_by_their_weights_and_the_device(void **state)
{
    static const struct {
        const char *model, *compute; // compute NULL: the default.
        bool fast_bf16;
        enum evq_compute expected;
    } cases[] = {
        {"qwen2", NULL, true, EVQ_COMPUTE_BF16},      // bf16
        {"llama_yarn", NULL, true, EVQ_COMPUTE_BF16}, // fp16
        {"llama", NULL, true, EVQ_COMPUTE_F32},       // fp32
        {"qwen2", NULL, false, EVQ_COMPUTE_F32},      {"qwen2", "auto", true, EVQ_COMPUTE_BF16},
        {"qwen2", "fp32", true, EVQ_COMPUTE_F32},     {"llama", "bf16", false, EVQ_COMPUTE_BF16},
    };
    const int root_fd = open(EVQ_TEST_DATA "/models", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    (void)state;
    assert_true(root_fd >= 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct evq_pair option = {"compute", cases[i].compute};
        const struct evq_task_config config = {.name = "t",
                                               .type = "perplexity",
                                               .options = &option,
                                               .option_count = cases[i].compute != NULL ? 1 : 0};
        const struct evq_task *task = NULL;
        struct evq_checkpoint *checkpoint = NULL;
        struct evq_model *model = NULL;
        struct evq_error err;
        int32_t length = 0;
        assert_status_err(evq_task_find(&config, &task, &err), EVQ_OK, &err);
        assert_status_err(evq_checkpoint_open(root_fd, cases[i].model, NULL, &checkpoint, &err),
                          EVQ_OK, &err);
        assert_status_err(evq_native_model_build(task, &config, checkpoint, cases[i].fast_bf16,
                                                 &length, &model, &err),
                          EVQ_OK, &err);
        if (model->plan.compute != cases[i].expected) {
            fail_msg("case %zu computes in %s", i,
                     model->plan.compute == EVQ_COMPUTE_BF16 ? "bf16" : "fp32");
        }
        evq_model_free(model);
        evq_checkpoint_close(checkpoint);
    }
    (void)close(root_fd);
}

int main(void)
{
#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(models_forced_family_is_checked_against_the_type),
        IN_FOLDER(models_name_the_tensors_that_they_ignore),
        cmocka_unit_test(models_compute_by_their_weights_and_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
