#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/tokenizer/tokenizer_internal.h"

#define TEXT_MAX 4096

/* A byte-level tokenizer.json of a vocabulary and a list of merges. */
#define TOKENIZER(vocabulary, merges)                                                              \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":" vocabulary ",\"merges\":[" merges "]}}"

static struct evq_tokenizer *open_named(const char *name)
{
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_error err = {.status = EVQ_OK};
    char path[256];

    (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/tokenizers/%s", name);
    assert_status_err(evq_tokenizer_open(AT_FDCWD, path, &tokenizer, &err), EVQ_OK, &err);
    return tokenizer;
}

static struct evq_tokens encode(const struct evq_tokenizer *tokenizer,
                                struct evq_tokenizer_scratch *scratch, const char *text,
                                size_t bytes, bool special)
{
    struct evq_tokens tokens = {0};
    struct evq_error err = {.status = EVQ_OK};

    assert_status_err(evq_tokenizer_encode(tokenizer, scratch, text, bytes, special, &tokens, &err),
                      EVQ_OK, &err);
    return tokens;
}

static void print_ids(const struct evq_tokens *tokens, char *out, size_t out_bytes)
{
    size_t at = 0;

    out[0] = '\0';
    for (size_t i = 0; i < tokens->count && at < out_bytes; i++) {
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%d", i > 0 ? " " : "",
                               (int)tokens->ids[i]);
    }
}

static size_t unhex(const char *hex, char *out)
{
    size_t bytes = 0;
    unsigned value = 0;

    while (bytes < TEXT_MAX && sscanf(hex + 2 * bytes, "%2x", &value) == 1 &&
           hex[2 * bytes] != '\t') {
        out[bytes++] = (char)value;
    }
    return bytes;
}

/* One line of golden.txt, with the tokenizer it names. */
static void check_line(char *line, const struct evq_tokenizer *tokenizer,
                       struct evq_tokenizer_scratch *scratch)
{
    char *special = strchr(line, '\t');
    char *hex = special != NULL ? strchr(special + 1, '\t') : NULL;
    char *ids = hex != NULL ? strchr(hex + 1, '\t') : NULL;
    char text[TEXT_MAX];
    char got[8 * TEXT_MAX];

    assert_non_null(ids);
    ids[strcspn(ids, "\n")] = '\0';
    const size_t bytes = hex[1] == '\t' ? 0 : unhex(hex + 1, text);
    struct evq_tokens tokens =
        encode(tokenizer, scratch, text, bytes, strncmp(special + 1, "special", 7) == 0);
    print_ids(&tokens, got, sizeof(got));
    evq_tokens_free(&tokens);
    if (strcmp(got, ids + 1) != 0) {
        fail_msg("%s\n got %s", line, got);
    }
}

static void tokenizer_gives_the_tokens_of_hugging_face(void **state)
{
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = NULL;
    char name[64] = "";
    static char line[16 * TEXT_MAX];
    size_t lines = 0;
    size_t kinds = 0;

    (void)state;
    assert_non_null(scratch);
    FILE *golden = fopen(EVQ_TEST_DATA "/tokenizers/golden.txt", "r");
    assert_non_null(golden);
    while (fgets(line, sizeof(line), golden) != NULL) {
        const size_t bytes = strcspn(line, "\t");
        if (strlen(name) != bytes || strncmp(name, line, bytes) != 0) {
            evq_tokenizer_free(tokenizer);
            (void)snprintf(name, sizeof(name), "%.*s", (int)bytes, line);
            tokenizer = open_named(name);
            kinds++;
        }
        check_line(line, tokenizer, scratch);
        lines++;
    }
    (void)fclose(golden);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
    assert_true(kinds >= 22);
    assert_true(lines >= 700);
}

/* Checks one line of pairs.txt with the tokenizer it names. */
static void check_pair(char *line, struct evq_tokenizer_scratch *scratch)
{
    char *part[6] = {line};
    char texts[2][TEXT_MAX];
    char got[8 * TEXT_MAX];
    struct evq_tokenizer_text both[2] = {{0}};
    struct evq_tokens ids = {0};
    struct evq_tokens types = {0};
    struct evq_error err = {.status = EVQ_OK};

    line[strcspn(line, "\n")] = '\0';
    for (size_t i = 1; i < 6; i++) {
        part[i] = strchr(part[i - 1], '\t');
        assert_non_null(part[i]);
        *part[i]++ = '\0';
    }
    for (size_t i = 0; i < 2; i++) {
        if (strcmp(part[2 + i], "-") != 0) {
            both[i] = (struct evq_tokenizer_text){texts[i], unhex(part[2 + i], texts[i])};
        }
    }
    struct evq_tokenizer *tokenizer = open_named(part[0]);
    assert_status_err(evq_tokenizer_encode_pair(tokenizer, scratch, both,
                                                strtoul(part[1], NULL, 10), &ids, &types, &err),
                      EVQ_OK, &err);
    print_ids(&ids, got, sizeof(got));
    assert_string_equal(got, part[4]);
    print_ids(&types, got, sizeof(got));
    assert_string_equal(got, part[5]);
    evq_tokens_free(&ids);
    evq_tokens_free(&types);
    evq_tokenizer_free(tokenizer);
}

static void tokenizer_joins_and_cuts_pairs_like_hugging_face(void **state)
{
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    static char line[16 * TEXT_MAX];
    size_t lines = 0;

    (void)state;
    assert_non_null(scratch);
    FILE *golden = fopen(EVQ_TEST_DATA "/tokenizers/pairs.txt", "r");
    assert_non_null(golden);
    while (fgets(line, sizeof(line), golden) != NULL) {
        check_pair(line, scratch);
        lines++;
    }
    (void)fclose(golden);
    evq_tokenizer_scratch_free(scratch);
    assert_true(lines >= 80);
}

static void tokenizer_refuses_a_template_longer_than_the_limit(void **state)
{
    const struct evq_tokenizer_text texts[2] = {{"a", 1}, {"b", 1}};
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = open_named("bert");
    struct evq_tokens ids = {0};
    struct evq_tokens types = {0};
    struct evq_error err = {.status = EVQ_OK};

    (void)state;
    assert_non_null(scratch);
    assert_status(evq_tokenizer_encode_pair(tokenizer, scratch, texts, 2, &ids, &types, &err),
                  EVQ_E_LIMIT);
    assert_holds(err.message, "has 3 tokens, expected at most 2");
    assert_int_equal(ids.count + types.count, 0);
    assert_status(evq_tokenizer_encode_pair(tokenizer, scratch, texts, 3, &ids, &types, &err),
                  EVQ_OK);
    assert_int_equal(ids.count, 3);
    assert_int_equal(types.count, 3);
    evq_tokens_free(&ids);
    evq_tokens_free(&types);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

/* Pieces cached for one tokenizer must not answer for another. */
static void tokenizer_keeps_caches_apart_when_a_scratch_is_shared(void **state)
{
    static const char text[] = "the shared words of two tokenizers";
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer_scratch *fresh = evq_tokenizer_scratch_new();
    struct evq_tokenizer *first = open_named("llama3");
    struct evq_tokenizer *second = open_named("mistral");
    char got[TEXT_MAX];
    char want[TEXT_MAX];

    (void)state;
    assert_non_null(scratch);
    assert_non_null(fresh);
    struct evq_tokens tokens = encode(first, scratch, text, sizeof(text) - 1, false);
    evq_tokens_free(&tokens);
    tokens = encode(second, scratch, text, sizeof(text) - 1, false);
    print_ids(&tokens, got, sizeof(got));
    evq_tokens_free(&tokens);
    tokens = encode(second, fresh, text, sizeof(text) - 1, false);
    print_ids(&tokens, want, sizeof(want));
    evq_tokens_free(&tokens);
    assert_string_equal(got, want);
    assert_string_not_equal(evq_tokenizer_digest(first), evq_tokenizer_digest(second));
    evq_tokenizer_free(first);
    evq_tokenizer_free(second);
    evq_tokenizer_scratch_free(scratch);
    evq_tokenizer_scratch_free(fresh);
}

/* A piece that goes to the heap gives the tokens of short ones: a line of one letter, whose pairs
 * all have one rank, merges from the left. */
static void tokenizer_merges_long_pieces_from_the_left(void **state)
{
    static const char json[] =
        TOKENIZER("{\"a\":0,\"aa\":1,\"aaaa\":2,\"b\":3,\"ab\":4}", "\"a a\",\"aa aa\",\"a b\"");
    struct fixture_folder *folder = *state;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = NULL;
    static char text[100001];

    assert_non_null(scratch);
    fixture_folder_write(folder, "tokenizer.json", json, sizeof(json) - 1);
    assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
    for (size_t bytes = 1; bytes <= sizeof(text); bytes = bytes < 200 ? bytes + 1 : bytes * 5 - 3) {
        memset(text, 'a', bytes);
        text[bytes - 1] = 'b';
        struct evq_tokens tokens = encode(tokenizer, scratch, text, bytes, false);
        // All pairs first, so that a letter left over waits for b.
        const size_t letters = bytes - 1;
        const size_t want = letters / 4 + letters % 4 / 2 + 1;
        assert_int_equal(tokens.count, want);
        assert_int_equal(tokens.ids[want - 1], letters % 2 == 1 ? 4 : 3);
        assert_int_equal(tokens.ids[0], letters >= 4 ? 2 : letters >= 2 ? 1 : letters == 1 ? 4 : 3);
        evq_tokens_free(&tokens);
    }
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

/* Two blanks strip the line end behind them, which then is no token of its own. */
static void tokenizer_gives_no_token_for_what_the_one_before_it_stripped(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":2,\"content\":\"  \",\"rstrip\":true,\"normalized\":false},"
        "{\"id\":3,\"content\":\"\\n\",\"lstrip\":true,\"normalized\":false}],"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    static const char text[] = "a  \nb\na";
    static const int32_t want[] = {0, 2, 1, 3, 0};
    struct fixture_folder *folder = *state;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = NULL;

    assert_non_null(scratch);
    fixture_folder_write(folder, "tokenizer.json", json, sizeof(json) - 1);
    assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
    struct evq_tokens tokens = encode(tokenizer, scratch, text, sizeof(text) - 1, false);
    assert_int_equal(tokens.count, sizeof(want) / sizeof(want[0]));
    assert_memory_equal(tokens.ids, want, sizeof(want));
    evq_tokens_free(&tokens);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

/* Of a token that is white space and strips more of it, each search begins where the last ended. */
static void tokenizer_strips_a_megabyte_in_linear_time(void **state)
{
    const size_t bytes = 1 << 20;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = open_named("gpt2"); // It has two spaces with rstrip.
    char *text = malloc(bytes);

    (void)state;
    assert_non_null(scratch);
    assert_non_null(text);
    memset(text, ' ', bytes);
    const clock_t start = clock();
    struct evq_tokens tokens = encode(tokenizer, scratch, text, bytes, false);
    assert_true((clock() - start) / CLOCKS_PER_SEC < 30); // In quadratic time it takes minutes.
    assert_int_equal(tokens.count, bytes / 2);
    evq_tokens_free(&tokens);
    free(text);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

/* Without an unknown token "z" leaves nothing between two U+2581, which then are one token. */
static void tokenizer_merges_across_characters_that_leave_no_token(void **state)
{
    static const char json[] =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\u2581\":1,\"\u2581\u2581\":2},"
        "\"merges\":[[\"\u2581\",\"\u2581\"]]}}";
    static const char text[] = "a\u2581z\u2581a\u2581";
    static const int32_t want[] = {0, 2, 0, 1};
    struct fixture_folder *folder = *state;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = NULL;

    assert_non_null(scratch);
    fixture_folder_write(folder, "tokenizer.json", json, sizeof(json) - 1);
    assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
    struct evq_tokens tokens = encode(tokenizer, scratch, text, sizeof(text) - 1, false);
    assert_int_equal(tokens.count, sizeof(want) / sizeof(want[0]));
    assert_memory_equal(tokens.ids, want, sizeof(want));
    evq_tokens_free(&tokens);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

/* The first LLaMA's files have <s> normalised, which puts U+2581 before it. */
static void tokenizer_knows_normalised_tokens_as_they_are_written(void **state)
{
    static const char json[] =
        "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"normalized\":true,\"special\":true}],"
        "\"normalizer\":{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"\u2581\":1},\"merges\":[]}}";
    static const char config[] = "{\"bos_token\": \"<s>\"}";
    struct fixture_folder *folder = *state;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = NULL;

    assert_non_null(scratch);
    fixture_folder_write(folder, "tokenizer.json", json, sizeof(json) - 1);
    fixture_folder_write(folder, "tokenizer_config.json", config, sizeof(config) - 1);
    assert_status(evq_tokenizer_open(folder->fd, "", &tokenizer, NULL), EVQ_OK);
    struct evq_tokens tokens = encode(tokenizer, scratch, "<s>a", 4, false);
    assert_int_equal(tokens.count, 2);
    assert_int_equal(tokens.ids[0], 2);
    assert_int_equal(tokenizer->bos, 2);
    assert_true(evq_tokenizer_text_begins_with(tokenizer, 2, "<s>a", 4));
    assert_false(evq_tokenizer_text_begins_with(tokenizer, 2, "<s", 2));
    assert_false(evq_tokenizer_text_begins_with(tokenizer, 2, "\u2581<s>", 6));
    assert_false(evq_tokenizer_text_begins_with(tokenizer, 0, "a", 1));
    evq_tokens_free(&tokens);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

static void tokenizer_refuses_a_piece_beyond_the_limit(void **state)
{
    const size_t bytes = EVQ_TOKENIZER_PIECE_BYTES_MAX + 1;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = open_named("gpt2");
    struct evq_tokens tokens = {0};
    struct evq_error err = {.status = EVQ_OK};
    char *text = malloc(bytes);

    (void)state;
    assert_non_null(scratch);
    assert_non_null(text);
    memset(text, 'a', bytes);
    memcpy(text, "one ", 4);
    assert_status(evq_tokenizer_encode(tokenizer, scratch, text, bytes, true, &tokens, &err),
                  EVQ_OK);
    text[3] = 'a';
    const size_t count = tokens.count;
    assert_status(evq_tokenizer_encode(tokenizer, scratch, text, bytes, true, &tokens, &err),
                  EVQ_E_LIMIT);
    assert_holds(err.message, "without a place to divide");
    assert_int_equal(tokens.count, count);
    evq_tokens_free(&tokens);
    free(text);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

static void tokenizer_appends_and_leaves_what_was_there(void **state)
{
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokenizer *tokenizer = open_named("llama2");
    struct evq_tokens tokens = {0};

    (void)state;
    assert_non_null(scratch);
    assert_status(evq_tokenizer_encode(tokenizer, scratch, "a", 1, true, &tokens, NULL), EVQ_OK);
    const size_t count = tokens.count;
    assert_int_equal(tokens.ids[0], 1); // <s>.
    assert_status(evq_tokenizer_encode(tokenizer, scratch, "", 0, true, &tokens, NULL), EVQ_OK);
    assert_int_equal(tokens.count, count + 1);
    assert_status(evq_tokenizer_encode(tokenizer, scratch, "", 0, false, &tokens, NULL), EVQ_OK);
    assert_int_equal(tokens.count, count + 1);
    evq_tokens_free(&tokens);
    evq_tokenizer_free(tokenizer);
    evq_tokenizer_scratch_free(scratch);
}

static void tokenizer_knows_its_vocabulary(void **state)
{
    struct evq_tokenizer *tokenizer = open_named("qwen2");

    (void)state;
    const int32_t added = evq_tokenizer_find(tokenizer, "<both>", 6);
    assert_int_equal(tokenizer->vocabulary, added + 1);         // The last that was added.
    assert_true(evq_tokenizer_find(tokenizer, "\xff", 1) >= 0); // A byte.
    assert_int_equal(evq_tokenizer_find(tokenizer, "no such token", 13), -1);
    assert_holds(evq_tokenizer_name(tokenizer), "qwen2/tokenizer.json");
    evq_tokenizer_free(tokenizer);
}

struct share { // One of several threads with one tokenizer.
    pthread_t thread;
    const struct evq_tokenizer *tokenizer;
    const char *text;
    size_t bytes;
    struct evq_tokens tokens;
    bool good;
};

static void *encode_share(void *context)
{
    struct share *share = context;
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();

    share->good = scratch != NULL;
    for (int i = 0; share->good && i < 20; i++) {
        share->tokens.count = 0;
        share->good = evq_tokenizer_encode(share->tokenizer, scratch, share->text, share->bytes,
                                           true, &share->tokens, NULL) == EVQ_OK;
    }
    evq_tokenizer_scratch_free(scratch);
    return NULL;
}

static void tokenizer_serves_several_threads(void **state)
{
    size_t bytes = 0;
    uint8_t *text = fixture_file_load(EVQ_TEST_DATA "/tokenizers/golden.txt", &bytes);
    struct evq_tokenizer *tokenizer = open_named("qwen2");
    struct share shares[4];

    (void)state;
    for (size_t i = 0; i < 4; i++) {
        shares[i] = (struct share){.tokenizer = tokenizer,
                                   .text = (const char *)text,
                                   .bytes = bytes < 20000 ? bytes : 20000};
        assert_int_equal(pthread_create(&shares[i].thread, NULL, encode_share, &shares[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(shares[i].thread, NULL), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        assert_true(shares[i].good);
        assert_int_equal(shares[i].tokens.count, shares[0].tokens.count);
        assert_memory_equal(shares[i].tokens.ids, shares[0].tokens.ids,
                            shares[0].tokens.count * sizeof(int32_t));
    }
    for (size_t i = 0; i < 4; i++) {
        evq_tokens_free(&shares[i].tokens);
    }
    evq_tokenizer_free(tokenizer);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_gives_the_tokens_of_hugging_face),
        cmocka_unit_test(tokenizer_joins_and_cuts_pairs_like_hugging_face),
        cmocka_unit_test(tokenizer_refuses_a_template_longer_than_the_limit),
        cmocka_unit_test(tokenizer_keeps_caches_apart_when_a_scratch_is_shared),
        cmocka_unit_test_setup_teardown(tokenizer_merges_long_pieces_from_the_left,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(
            tokenizer_gives_no_token_for_what_the_one_before_it_stripped, fixture_folder_setup,
            fixture_folder_teardown),
        cmocka_unit_test(tokenizer_strips_a_megabyte_in_linear_time),
        cmocka_unit_test_setup_teardown(tokenizer_merges_across_characters_that_leave_no_token,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test_setup_teardown(tokenizer_knows_normalised_tokens_as_they_are_written,
                                        fixture_folder_setup, fixture_folder_teardown),
        cmocka_unit_test(tokenizer_refuses_a_piece_beyond_the_limit),
        cmocka_unit_test(tokenizer_appends_and_leaves_what_was_there),
        cmocka_unit_test(tokenizer_knows_its_vocabulary),
        cmocka_unit_test(tokenizer_serves_several_threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
