#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "shared/config/config.h"
#include "tests/fixture/check.h"

static struct evq_config *parsed(const char *text)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;
    assert_status_err(evq_config_parse(text, strlen(text), "/etc/evalq/evalq.yaml", &config, &err),
                      EVQ_OK, &err);
    return config;
}

static const char *option(const struct evq_pair *pairs, size_t count, const char *key)
{
    return evq_pair_get(pairs, count, key, "(absent)");
}

/* What the program evalq.model_server is told, and what of it counts for the suite's digest. */
static void config_parse_hands_a_model_server_over_as_json(void **state)
{
    (void)state;
    static const char *const text =
        "evaluators:\n"
        "  m: {kind: model_server, python: %s/bin/python, start_seconds: 9, env: {A: b},\n"
        "      options: {max_model_len: %s, dtype: \"1\", enforce_eager: true, x: 007}}\n"
        "suites:\n"
        "  s: {evaluator: m, harness: {kind: lm-eval, tasks: [gsm8k, a/b], include_path: %s/t}}\n";
    static const char *const places[][3] = {
        {"/a", "256", "/x"}, {"/b", "256", "/y"}, {"/a", "512", "/x"}};
    char digests[3][33];

    for (size_t i = 0; i < 3; i++) {
        char filled[1024];
        (void)snprintf(filled, sizeof filled, text, places[i][0], places[i][1], places[i][2]);
        struct evq_config *config = parsed(filled);
        memcpy(digests[i], config->suites[0].digest, 33);
        const struct evq_evaluator *server = evq_config_evaluator(config, "m");
        assert_int_equal(server->kind, EVQ_EVALUATOR_PERSISTENT);
        assert_string_equal(server->argv[0], "python3");
        assert_string_equal(server->argv[2], "evalq.model_server");
        assert_string_equal(option(server->env, server->env_count, "A"), "b");
        const struct evq_suite *suite = &config->suites[0];
        assert_int_equal(suite->task_count, 2);
        assert_string_equal(suite->tasks[0].name, "gsm8k");
        assert_true(evq_job_name_valid(suite->tasks[1].name, EVQ_JOB_NAME_BYTES_MAX));
        assert_string_equal(option(suite->tasks[1].options, 2, "source"), "a/b");
        if (i == 0) {
            assert_string_equal(
                option(server->env, server->env_count, "EVALQ_MODEL_SERVER"),
                "{\"name\":\"m\",\"directory\":\"/etc/evalq\",\"given\":{\"python\":\"/a/bin/"
                "python\",\"start_seconds\":9,\"options\":{\"max_model_len\":256,\"dtype\":\"1\","
                "\"enforce_eager\":true,\"x\":\"007\"}}}");
            assert_string_equal(option(suite->tasks[0].options, 2, "harness"),
                                "{\"name\":\"harness\",\"directory\":\"/etc/evalq\",\"given\":{"
                                "\"kind\":\"lm-eval\",\"tasks\":[\"gsm8k\",\"a/b\"],"
                                "\"include_path\":\"/x/t\"}}");
        }
        evq_config_free(config);
    }
    assert_string_equal(digests[0], digests[1]);
    assert_string_not_equal(digests[0], digests[2]);
}

static void refused(const char *text, const char *why)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;

    assert_int_equal(evq_config_parse(text, strlen(text), "/etc/evalq/evalq.yaml", &config, &err),
                     EVQ_E_INVALID);
    assert_non_null(strstr(err.message, why));
}

/* Where a conversion finds what a checkpoint lacks: for model servers only, and in the digest. */
static void config_parse_takes_base_and_tokenizer_of_a_model_server(void **state)
{
    (void)state;
    static const char *const text = "evaluators: {m: {kind: model_server}}\n"
                                    "suites:\n"
                                    "  s:\n"
                                    "    evaluator: m\n"
                                    "    harness: {kind: command, argv: [./a]}\n%s";
    static const char *const more[] = {"", "    base: b\n", "    base: /other/b\n",
                                       "    tokenizer: b\n", "    base: c\n"};
    char digests[5][33];

    for (size_t i = 0; i < 5; i++) {
        char filled[512];
        (void)snprintf(filled, sizeof filled, text, more[i]);
        struct evq_config *config = parsed(filled);
        memcpy(digests[i], config->suites[0].digest, 33);
        assert_string_equal(config->suites[0].base, i == 1   ? "/etc/evalq/b"
                                                    : i == 2 ? "/other/b"
                                                    : i == 4 ? "/etc/evalq/c"
                                                             : "");
        assert_string_equal(config->suites[0].tokenizer, i == 3 ? "/etc/evalq/b" : "");
        for (size_t k = 0; k < i; k++) { // Absolute paths count by their base name.
            assert_int_equal(strcmp(digests[i], digests[k]) == 0, k == 1 && i == 2);
        }
        evq_config_free(config);
    }
    refused("evaluators: {c: {kind: command, argv: [a]}}\nsuites:\n  s: {evaluator: c, base: b}\n",
            "evalq.yaml:3:21: suites.s.base is for the conversion to a model server's format, but "
            "the evaluator is no model_server");
    refused("evaluators: {m: {kind: model_server}, c: {kind: command, argv: [a]}}\nsuites:\n"
            "  s: {evaluator: m, harness: {kind: command, argv: [a]}, prepare: c, tokenizer: b}\n",
            "suites.s.tokenizer is for the conversion to a model server's format, but prepare "
            "converts here");
    refused("evaluators: {m: {kind: model_server}}\nsuites:\n"
            "  s: {evaluator: m, harness: {kind: command, argv: [a]}, tokeniser: b}\n",
            "tokenizer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_parse_hands_a_model_server_over_as_json),
        cmocka_unit_test(config_parse_takes_base_and_tokenizer_of_a_model_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
