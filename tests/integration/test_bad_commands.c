/*
 * Tests command lines that cannot be executed, for every program: each ends with its documented
 * exit code and one line that says what is wrong. The rows are in tests/bad/commands.txt: exit
 * code, a part of the line ($DIR is the working directory), and the words as in a shell. NAME=VALUE
 * before the program sets its environment.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/bad.h"
#include "tests/fixture/user.h"

#define WORDS_MAX 32

static const char configuration[] = "roots: {ckpt: ./ckpt}\n"
                                    "evaluators:\n"
                                    "  nothing: {argv: [\"true\"]}\n"
                                    "  gone: {argv: [./no-such-program]}\n"
                                    "  fails: {argv: [\"false\"]}\n"
                                    "suites:\n"
                                    "  s: {evaluator: nothing, tasks: [{name: t}]}\n"
                                    "  gone: {evaluator: gone, tasks: [{name: t}]}\n"
                                    "  fails: {evaluator: fails, tasks: [{name: t}]}\n"
                                    "  digits: {tasks: [{name: t, type: classification,"
                                    " data: {format: idx, inputs: no-data, labels: no-data}}]}\n";

/* Writes a safetensors file with one tensor. */
#define WEIGHTS                                                                                    \
    "\x35\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[0,3]}}abc"

static const struct {
    const char *name;
    mode_t mode;
    const char *data;
    size_t bytes;
} files[] = {
#define TEXT(name, mode, text)                                                                     \
    {                                                                                              \
        name, mode, text, sizeof(text) - 1                                                         \
    }
    TEXT("evalq.yaml", 0644, configuration),
    TEXT("good.yaml", 0644, configuration),
    TEXT("roots.yaml", 0644, "roots: {ckpt: ./ckpt}\n"),
    TEXT("plain.yaml", 0644,
         "roots: {ckpt: ./ckpt}\nevaluators: {plain: {argv: [./words.yaml]}}\n"
         "suites: {plain: {evaluator: plain, tasks: [{name: t}]}}\n"),
    TEXT("unknown.yaml", 0644, "suits: {}\n"),
    TEXT("words.yaml", 0644, "hello\n"),
    TEXT("latin.yaml", 0644, "roots: {a: \xff}\n"),
    TEXT("empty", 0600, ""),
    TEXT("ckpt/1.safetensors", 0644, WEIGHTS),
    TEXT("ckpt/2.safetensors", 0644, WEIGHTS),
    TEXT("ckpt/final.safetensors", 0644, WEIGHTS),
    TEXT("ckpt/words.txt", 0644, "words\n"),
    TEXT("ckpt/torn.pt", 0644, "words\n"),
    TEXT("ckpt/empty.safetensors", 0644, ""),
    TEXT("ckpt/long.safetensors", 0644, "\xff\xff\xff\xff\xff\xff\xff\xff{}"),
    {"ckpt/cut.safetensors", 0644, WEIGHTS, 20},
    TEXT("roles-half", 0600, "worker\n"),
    TEXT("roles-unknown", 0600, "root secret\n"),
    TEXT("tokens", 0600, "all write 0123456789abcdef\n"),
    TEXT("tokens-open", 0644, "all write 0123456789abcdef\n"),
    TEXT("tokens-two", 0600, "all write\n"),
    TEXT("tokens-role", 0600, "all root 0123456789abcdef\n"),
    TEXT("tokens-short", 0600, "all write short\n"),
    TEXT("tokens-digest", 0600, "all write sha256:xyz\n"),
#undef TEXT
};

static int setup(void **state)
{
    char path[256];
    const int failed = fixture_user_setup(state, EVQ_TEST_BIN "/evalq");
    struct site *site = *state;

    if (failed != 0) {
        return failed;
    }
    (void)snprintf(path, sizeof path, "%s/ckpt", site->dir);
    (void)mkdir(path, 0755); // It may exist already.
    (void)snprintf(path, sizeof path, "%s/ckpt/folder", site->dir);
    (void)mkdir(path, 0755);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", site->dir, files[i].name);
        FILE *file = fopen(path, "we");
        assert_non_null(file);
        assert_int_equal(fwrite(files[i].data, 1, files[i].bytes, file), files[i].bytes);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(chmod(path, files[i].mode), 0);
    }
    (void)snprintf(path, sizeof path, "%s/ckpt/out.safetensors", site->dir);
    assert_int_equal(symlink("/etc/hostname", path), 0);
    (void)snprintf(path, sizeof path, "%s/ckpt/loop.safetensors", site->dir);
    assert_int_equal(symlink("loop.safetensors", path), 0);
    (void)snprintf(path, sizeof path, "%s/ckpt/pipe", site->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    return 0;
}

/* Splits text at blanks; text in single quotes is one word. */
static size_t words_of(char *text, char *words[WORDS_MAX])
{
    size_t count = 0;

    for (char *at = text + strspn(text, " "); *at != '\0'; at += strspn(at, " ")) {
        const bool quoted = *at == '\'';
        at += quoted ? 1 : 0;
        assert_true(count + 1 < WORDS_MAX);
        words[count++] = at;
        at += strcspn(at, quoted ? "'" : " ");
        if (*at != '\0') {
            *at++ = '\0';
        }
    }
    words[count] = NULL;
    return count;
}

/* Returns the line of err that begins with the program's name; NULL: there is none. */
static const char *line_of(char *err, const char *program)
{
    for (char *line = strtok(err, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        if (strncmp(line, program, strlen(program)) == 0 && line[strlen(program)] == ':') {
            return line;
        }
    }
    return NULL;
}

static bool is_clean(const char *text)
{
    for (; *text != '\0'; text++) {
        if (((unsigned char)*text < 0x20 && *text != '\n') || *text == 0x7f) {
            return false;
        }
    }
    return true;
}

static bool refused(void *context, const struct fixture_bad *row)
{
    struct site *site = context;
    struct fixture_program program = site->program;
    char *words[WORDS_MAX];
    char path[512];
    char text[4096];
    char got[1200];

    assert_true(snprintf(text, sizeof text, "%s", row->fields[2]) < (int)sizeof text);
    assert_true(words_of(text, words) > 0);
    char **word = words;
    while (strchr(*word, '=') != NULL) {
        word++;
    }
    char *environment[WORDS_MAX] = {NULL};
    memcpy(environment, words, (size_t)(word - words) * sizeof *words);
    program.more = environment;
    (void)snprintf(path, sizeof path, EVQ_TEST_BIN "/%s", *word);
    program.path = path;
    fixture_program_run_words(&program, &site->output, (const char *const *)word);
    (void)snprintf(got, sizeof got, "exit code %d, said: %.1000s", site->output.exit_code,
                   site->output.err);
    const bool clean = is_clean(site->output.err);
    const char *line = line_of(site->output.err, *word);
    if (site->output.exit_code != atoi(row->fields[0]) || line == NULL || !clean ||
        !fixture_bad_holds(line, site->dir, "$DIR", row->fields[1])) {
        return fixture_bad_wrong(row, got);
    }
    return true;
}

static void commands_that_cannot_be_executed_say_why(void **state)
{
    fixture_bad_each("commands.txt", 3, "command lines", refused, *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        commands_that_cannot_be_executed_say_why, setup, fixture_user_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
