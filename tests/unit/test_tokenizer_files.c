/* What the files beside tokenizer.json say: special tokens, where a text is cut, and what must
 * agree with tokenizer.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/tokenizer/tokenizer_internal.h"

/* A byte-level tokenizer.json of a vocabulary and a list of merges. */
#define TOKENIZER(vocabulary, merges)                                                              \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":" vocabulary ",\"merges\":[" merges "]}}"
#define WORDS(settings)                                                                            \
    "{\"normalizer\":{\"type\":\"BertNormalizer\"," settings                                       \
    "},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"model\":{\"type\":\"WordPiece\","       \
    "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":9,\"unk_token\":\"a\","     \
    "\"vocab\":{\"a\":0}}}"
#define CASED "\"lowercase\":false,\"strip_accents\":null"
#define LOWER "\"lowercase\":true,\"strip_accents\":null"

#define VOCABULARY "{\"a\":0,\"<s>\":1,\"</s>\":2,\"<|endoftext|>\":3}"

static const struct {
    const char *label;
    const char *tokenizer_config, *map, *config; // NULL: no such file.
    int32_t bos, eos;
} ends[] = {
    {"no file", NULL, NULL, NULL, -1, -1},
    {"texts", "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}", NULL, NULL, 1, 2},
    {"objects",
     "{\"eos_token\":{\"x\":[1],\"content\":\"</s>\"},\"bos_token\":{\"content\":\"<s>\"}}", NULL,
     NULL, 1, 2},
    {"null is none", "{\"bos_token\":null,\"eos_token\":\"</s>\"}", NULL, NULL, -1, 2},
    {"the map adds", "{\"eos_token\":\"</s>\",\"tokenizer_class\":\"GPT2Tokenizer\"}",
     "{\"bos_token\":\"<s>\"}", NULL, 1, 2},
    {"the map overrules", "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}",
     "{\"bos_token\":null,\"eos_token\":\"<s>\"}", NULL, -1, 1},
    {"the map does not count beside added_tokens_decoder",
     "{\"added_tokens_decoder\":{},\"eos_token\":\"</s>\"}",
     "{\"bos_token\":\"<s>\",\"eos_token\":\"<s>\"}", NULL, -1, 2},
    {"the class adds", "{\"eos_token\":\"</s>\",\"tokenizer_class\":\"GPT2TokenizerFast\"}", NULL,
     NULL, 3, 2},
    {"Qwen has no bos", "{\"tokenizer_class\":\"Qwen2Tokenizer\"}", NULL, NULL, -1, 3},
    {"config.json alone", NULL, NULL, "{\"bos_token_id\":1,\"eos_token_id\":[2,0]}", 1, 2},
    {"config.json as Python writes it", NULL, NULL,
     "{\"scale\":[NaN,-Infinity],\"bos_token_id\":1,\"eos_token_id\":2}", 1, 2},
    {"config.json does not overrule", "{\"bos_token\":null,\"eos_token\":\"</s>\"}", NULL,
     "{\"bos_token_id\":1,\"eos_token_id\":0}", -1, 2},
};

static void write_or_not(const struct fixture_folder *folder, const char *name, const char *text)
{
    if (text != NULL) {
        fixture_folder_write(folder, name, text, strlen(text));
    }
}

static void tokenizer_finds_what_begins_and_ends_a_text(void **state)
{
    struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct evq_tokenizer *tokenizer = NULL;
        struct evq_error err = {.status = EVQ_OK};
        char name[16];
        char path[64];
        (void)snprintf(name, sizeof(name), "t%zu", i);
        fixture_folder_mkdir(folder, name);
        (void)snprintf(path, sizeof(path), "%s/tokenizer.json", name);
        write_or_not(folder, path, TOKENIZER(VOCABULARY, ""));
        (void)snprintf(path, sizeof(path), "%s/tokenizer_config.json", name);
        write_or_not(folder, path, ends[i].tokenizer_config);
        (void)snprintf(path, sizeof(path), "%s/special_tokens_map.json", name);
        write_or_not(folder, path, ends[i].map);
        (void)snprintf(path, sizeof(path), "%s/config.json", name);
        write_or_not(folder, path, ends[i].config);
        assert_status_err(evq_tokenizer_open(folder->fd, name, &tokenizer, &err), EVQ_OK, &err);
        if (tokenizer->bos != ends[i].bos || tokenizer->eos != ends[i].eos) {
            fail_msg("%s: bos %d, eos %d", ends[i].label, (int)tokenizer->bos, (int)tokenizer->eos);
        }
        assert_int_equal(evq_tokenizer_prefix(tokenizer),
                         ends[i].bos >= 0 ? ends[i].bos : ends[i].eos);
        evq_tokenizer_free(tokenizer);
    }
}

/* Of the same files, what lies beside them makes another tokenizer. */
static void tokenizer_digest_changes_with_the_files_beside(void **state)
{
    static const char *const configs[] = {"{}", "{\"bos_token\":\"a\"}",
                                          "{\"tokenizer_class\":\"Qwen2Tokenizer\"}"};
    static const char json[] = TOKENIZER(VOCABULARY, "");
    struct fixture_folder *folder = *state;
    char digests[3][33];

    fixture_folder_write(folder, "tokenizer.json", json, sizeof(json) - 1);
    for (size_t i = 0; i < 3; i++) {
        struct evq_tokenizer *tokenizer = NULL;
        fixture_folder_write(folder, "tokenizer_config.json", configs[i], strlen(configs[i]));
        assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
        memcpy(digests[i], evq_tokenizer_digest(tokenizer), sizeof(digests[i]));
        evq_tokenizer_free(tokenizer);
    }
    for (size_t i = 1; i < 3; i++) {
        assert_string_not_equal(digests[0], digests[i]);
    }
}

/* tokenizer_config.json says where a pair is cut, otherwise tokenizer.json does. */
static void tokenizer_cuts_on_the_side_that_the_files_name(void **state)
{
    static const char right[] = TOKENIZER("{\"a\":0,\"b\":1,\"c\":2,\"d\":3}", "");
    static const char left[] = "{\"truncation\":{\"direction\":\"Left\",\"max_length\":9},"
                               "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3},"
                               "\"merges\":[]}}";
    static const struct {
        const char *json, *config;
        int32_t ids[3];
    } rows[] = {
        {right, "{}", {0, 1, 3}},
        {right, "{\"truncation_side\":\"left\"}", {1, 2, 3}},
        {left, "{}", {1, 2, 3}},
        {left, "{\"truncation_side\":\"right\"}", {0, 1, 3}},
    };
    const struct evq_tokenizer_text texts[2] = {{"abc", 3}, {"d", 1}};
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct fixture_folder *folder = *state;
    char digests[4][33];

    assert_non_null(scratch);
    for (size_t i = 0; i < 4; i++) {
        struct evq_tokenizer *tokenizer = NULL;
        struct evq_tokens ids = {0};
        struct evq_tokens types = {0};
        fixture_folder_write(folder, "tokenizer.json", rows[i].json, strlen(rows[i].json));
        fixture_folder_write(folder, "tokenizer_config.json", rows[i].config,
                             strlen(rows[i].config));
        assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
        assert_status(evq_tokenizer_encode_pair(tokenizer, scratch, texts, 3, &ids, &types, NULL),
                      EVQ_OK);
        assert_int_equal(ids.count, 3);
        assert_memory_equal(ids.ids, rows[i].ids, sizeof(rows[i].ids));
        memcpy(digests[i], evq_tokenizer_digest(tokenizer), sizeof(digests[i]));
        evq_tokens_free(&ids);
        evq_tokens_free(&types);
        evq_tokenizer_free(tokenizer);
    }
    assert_string_not_equal(digests[0], digests[1]);
    evq_tokenizer_scratch_free(scratch);
}

static const struct {
    const char *config;
    int32_t type; // Of the second text of a pair.
} inputs[] = {
    {"{}", 1},
    {"{\"tokenizer_class\":\"BertTokenizer\"}", 1},
    {"{\"tokenizer_class\":\"TokenizersBackend\"}", 0},
    {"{\"tokenizer_class\":\"PreTrainedTokenizerFast\"}", 0},
    {"{\"tokenizer_class\":\"TokenizersBackend\","
     "\"model_input_names\":[\"input_ids\",\"token_type_ids\"]}",
     1},
    {"{\"model_input_names\":[\"input_ids\",[7],\"attention_mask\"]}", 0},
    {"{\"model_input_names\":null}", 1},
};

static void tokenizer_gives_types_where_the_model_takes_them(void **state)
{
    static const char json[] = TOKENIZER(VOCABULARY, "");
    const struct evq_tokenizer_text texts[2] = {{"a", 1}, {"a", 1}};
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct fixture_folder *folder = *state;

    assert_non_null(scratch);
    write_or_not(folder, "tokenizer.json", json);
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        struct evq_tokenizer *tokenizer = NULL;
        struct evq_tokens ids = {0};
        struct evq_tokens types = {0};
        write_or_not(folder, "tokenizer_config.json", inputs[i].config);
        assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
        assert_status(evq_tokenizer_encode_pair(tokenizer, scratch, texts, 9, &ids, &types, NULL),
                      EVQ_OK);
        assert_int_equal(types.count, 2);
        if (types.ids[0] != 0 || types.ids[1] != inputs[i].type) {
            fail_msg("%s: types %d and %d", inputs[i].config, (int)types.ids[0], (int)types.ids[1]);
        }
        evq_tokens_free(&ids);
        evq_tokens_free(&types);
        evq_tokenizer_free(tokenizer);
    }
    evq_tokenizer_scratch_free(scratch);
}

static const struct {
    const char *json, *config, *differs; // differs NULL: the files agree.
} repeated[] = {
    {WORDS(LOWER), "{\"do_lower_case\":true,\"strip_accents\":null}", NULL},
    {WORDS(LOWER), "{\"do_lower_case\":false}", "do_lower_case"},
    {WORDS(LOWER), "{\"tokenizer_class\":\"BertTokenizer\",\"strip_accents\":false}",
     "strip_accents"},
    {WORDS(LOWER), "{\"tokenize_chinese_chars\":false}", "tokenize_chinese_chars"},
    {WORDS(LOWER), "{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"do_lower_case\":false}",
     NULL},
    {WORDS(LOWER), "{\"tokenizer_class\":\"TokenizersBackend\",\"do_lower_case\":false}", NULL},
    {WORDS(CASED), "{\"do_lower_case\":false}", NULL},
    {WORDS(CASED), "{\"do_lower_case\":true}", "do_lower_case"},
    {TOKENIZER(VOCABULARY, ""), "{\"add_prefix_space\":true}", NULL},
    {TOKENIZER(VOCABULARY, ""),
     "{\"tokenizer_class\":\"RobertaTokenizer\",\"add_prefix_space\":false}", NULL},
    {TOKENIZER(VOCABULARY, ""),
     "{\"tokenizer_class\":\"RobertaTokenizer\",\"add_prefix_space\":true}", "add_prefix_space"},
    {TOKENIZER(VOCABULARY, ""),
     "{\"tokenizer_class\":\"GPT2TokenizerFast\",\"add_prefix_space\":true}", "add_prefix_space"},
};

/* Transformers computes with what tokenizer_config.json says, so a difference is refused. */
static void tokenizer_refuses_files_that_differ(void **state)
{
    struct fixture_folder *folder = *state;

    for (size_t i = 0; i < sizeof(repeated) / sizeof(repeated[0]); i++) {
        const char *differs = repeated[i].differs;
        struct evq_tokenizer *tokenizer = NULL;
        struct evq_error err = {.status = EVQ_OK};
        write_or_not(folder, "tokenizer.json", repeated[i].json);
        write_or_not(folder, "tokenizer_config.json", repeated[i].config);
        const enum evq_status status = evq_tokenizer_open(folder->fd, "", &tokenizer, &err);
        if (status != (differs == NULL ? EVQ_OK : EVQ_E_UNSUPPORTED)) {
            fail_msg("%s: %s '%s'", repeated[i].config, evq_status_name(status), err.message);
        }
        if (differs != NULL) {
            assert_holds(err.message, "tokenizer_config.json beside it differ in ");
            assert_holds(err.message, differs);
        }
        evq_tokenizer_free(tokenizer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokenizer_finds_what_begins_and_ends_a_text,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(tokenizer_digest_changes_with_the_files_beside,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(tokenizer_cuts_on_the_side_that_the_files_name,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(tokenizer_gives_types_where_the_model_takes_them,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(tokenizer_refuses_files_that_differ, fixture_folder_setup,
                                        fixture_folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
