/* What stands beside a recognised model: another type in its configuration, tensors of its own. */
#include "model_fixture.h"

#include "tests/fixture/safetensors.h"

/* The user's word for a type that evalq does not know; of some it knows that they differ. */
static void models_forced_family_is_checked_against_the_type(void **state)
{
    static const struct {
        const char *type, *family, *words; // words "": accepted.
    } cases[] = {
        {"own_llama", "llama", ""},
        {"smollm3", "llama", ""},
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
        {"backbone.", EXTRA("head.weight", 2, 16, 37), NULL, NULL, "stands outside the model"},
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

int main(void)
{
#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(models_forced_family_is_checked_against_the_type),
        IN_FOLDER(models_name_the_tensors_that_they_ignore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
