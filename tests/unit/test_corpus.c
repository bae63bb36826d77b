/* Text and items on their way to tokens: templates, WikiText, words, labels, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <fcntl.h>

#include "tests/fixture/bad.h"
#include "tests/fixture/check.h"
#include "worker/datasets/corpus.h"
#include "worker/datasets/jsonl.h"
#include "worker/datasets/prompt_template.h"
#include "worker/datasets/python_text.h"
#include "worker/datasets/wikitext.h"

#define TOKENIZER EVQ_TEST_DATA "/tokenizers/gpt2/tokenizer.json"
#define PAIRS_MAX 12

struct fixture {
    char directory[64];
    struct evq_tokenizer *tokenizer;
    struct evq_corpus *corpus;
    struct evq_error err;
};

static int setup(void **state)
{
    static struct fixture fixture;

    fixture = (struct fixture){0};
    (void)snprintf(fixture.directory, sizeof(fixture.directory), "/tmp/evalq-corpus-XXXXXX");
    *state = &fixture;
    return mkdtemp(fixture.directory) != NULL &&
                   evq_tokenizer_open(AT_FDCWD, TOKENIZER, &fixture.tokenizer, &fixture.err) ==
                       EVQ_OK
               ? 0
               : -1;
}

static int teardown(void **state)
{
    struct fixture *fx = *state;
    static const char *const names[] = {"data", "labels"};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, names[i]);
        (void)unlink(path);
    }
    evq_corpus_free(fx->corpus);
    evq_tokenizer_free(fx->tokenizer);
    return rmdir(fx->directory);
}

static void write_bytes(const struct fixture *fx, const char *name, const char *data, size_t bytes)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", fx->directory, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Opens text with the options given as key, value, ..., at most PAIRS_MAX - 1 pairs, up to NULL. */
static enum evq_status open_pairs(struct fixture *fx, enum evq_corpus_kind kind, const char *text,
                                  const char *const *options)
{
    struct evq_pair pairs[PAIRS_MAX] = {{"text", "data"}};
    size_t count = 1;

    write_bytes(fx, "data", text, strlen(text));
    for (; options[0] != NULL; options += 2) {
        pairs[count++] = (struct evq_pair){options[0], options[1]};
    }
    const struct evq_task_config task = {.name = "t", .data = pairs, .data_count = count};
    const struct evq_corpus_source source = {
        .task = &task, .kind = kind, .directory = fx->directory, .tokenizer = fx->tokenizer};
    evq_corpus_free(fx->corpus);
    fx->corpus = NULL;
    return evq_corpus_open(&source, &fx->corpus, &fx->err);
}

/* The same with the options as arguments. */
static enum evq_status open_with(struct fixture *fx, enum evq_corpus_kind kind, const char *text,
                                 ...)
{
    const char *options[2 * PAIRS_MAX] = {NULL};
    size_t count = 0;
    va_list list;

    va_start(list, text);
    do {
        options[count] = va_arg(list, const char *);
    } while (options[count++] != NULL);
    va_end(list);
    return open_pairs(fx, kind, text, options);
}

static void assert_fault(const struct fixture *fx, enum evq_status got, enum evq_status wanted,
                         const char *part)
{
    assert_int_equal(got, wanted);
    if (strstr(fx->err.message, part) == NULL) {
        print_error("'%s' does not say:\n", fx->err.message);
        fail_msg("%s", part);
    }
}

/* A passage's tokens are those of the text; its context the first of them. */
static void assert_passage(const struct fixture *fx, size_t at, const char *context,
                           const char *continuation)
{
    const struct evq_passage *passage = &fx->corpus->passages[at];
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct evq_tokens tokens = {0};
    char text[512];

    assert_true(at < fx->corpus->passage_count);
    (void)snprintf(text, sizeof(text), "%s%s", context, continuation);
    assert_int_equal(
        evq_tokenizer_encode(fx->tokenizer, scratch, context, strlen(context), true, &tokens, NULL),
        EVQ_OK);
    const size_t lead = tokens.count;
    assert_int_equal(passage->context, lead);
    assert_memory_equal(fx->corpus->tokens.ids + passage->first, tokens.ids,
                        lead * sizeof(*tokens.ids));
    tokens.count = 0;
    assert_int_equal(
        evq_tokenizer_encode(fx->tokenizer, scratch, text, strlen(text), true, &tokens, NULL),
        EVQ_OK);
    assert_int_equal(passage->count, tokens.count);
    assert_memory_equal(fx->corpus->tokens.ids + passage->first + lead, tokens.ids + lead,
                        (tokens.count - lead) * sizeof(*tokens.ids));
    evq_tokens_free(&tokens);
    evq_tokenizer_scratch_free(scratch);
}

static void words_are_counted_as_python_counts_them(void **state)
{
    static const struct {
        const char *text;
        int64_t words, characters;
        size_t begin, end;
    } cases[] = {
        {"", 1, 0, 0, 0},
        {"a b", 2, 3, 0, 3},
        {" a  b\n", 4, 6, 1, 5},
        {"\xc2\xa0x\xe2\x80\x83y\xe3\x80\x80", 4, 5, 2, 7}, // U+00A0 x U+2003 y U+3000.
        {"\x1c"
         "a\x85"
         "b",
         2, 4, 1, 4}, // The lone byte is no UTF-8.
        {"\xf0\x9f\x98\x80 \xff", 2, 3, 0, 6},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const size_t bytes = strlen(cases[i].text);
        assert_int_equal(evq_python_text_words(cases[i].text, bytes), cases[i].words);
        assert_int_equal(evq_python_text_characters(cases[i].text, bytes), cases[i].characters);
        assert_int_equal(evq_python_text_leading_space(cases[i].text, bytes), cases[i].begin);
        assert_int_equal(evq_python_text_trim_end(cases[i].text, bytes), cases[i].end);
    }
}

static void template_puts_fields_in(void **state)
{
    static const struct {
        const char *pattern, *text; // NULL: a fault with this in it.
        const char *fault;
    } cases[] = {
        {"{a} and {b.c}{{}}", "x and 7{}", NULL},
        {"{d|capitalize}.", "Abc \xc3\x89 z.", NULL},
        {"{r}", "0.5", NULL},
        {"{s.0} {s.1} {s.2} {s.3} {s.4} {s.5} {s.6} {s.7}",
         "3.0 0.1 -0.0 1e+16 1000000000000000.0 1e-05 0.0001 0.30000000000000004", NULL},
        {"", "", NULL},
        {"{l.0}{l.2.k.1}{l.10}", "ayk", NULL},
        {"{l.11}", NULL, "field 'l.11' is missing: 'l' is a list with 11 entries"},
        {"{l.2.k.2}", NULL, "field 'l.2.k.2' is missing: 'l.2.k' is a list with 2 entries"},
        {"{l.-1}", NULL, "a list with 11 entries, which are numbered from 0"},
        {"{l.01}", NULL, "a list with 11 entries"},
        {"{l.}", NULL, "a list with 11 entries"},
        {"{l.x}", NULL, "a list with 11 entries"},
        {"{l.18446744073709551616}", NULL, "a list with 11 entries"},
        {"{l.0.0}", NULL, "field 'l.0.0' is missing"},
        {"{l.3}", NULL, "field 'l.3' is neither text nor a number"},
        {"{nothing}", NULL, "field 'nothing' is missing"},
        {"{a.b}", NULL, "field 'a.b' is missing"},
        {"{b}", NULL, "field 'b' is neither text nor a number"},
        {"{a", NULL, "brace without its partner"},
        {"a}", NULL, "brace without its partner"},
        {"{}", NULL, "brace without its partner"},
    };
    json_t *object =
        json_loads("{\"a\": \"x\", \"b\": {\"c\": 7}, \"d\": \"aBC \\u00c9 Z\","
                   " \"r\": 0.5, \"s\": {\"0\": 3.0, \"1\": 0.1, \"2\": -0.0, \"3\": 1e16,"
                   " \"4\": 1e15, \"5\": 1e-5, \"6\": 0.0001, \"7\": 0.30000000000000004},"
                   " \"l\": [\"a\", \"b\", {\"k\": [\"x\", \"y\"]}, [], 4, 5, 6, 7, 8, 9, \"k\"]}",
                   0, NULL);

    (void)state;
    assert_non_null(object);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_buffer out;
        struct evq_error err = {0};
        evq_buffer_init(&out, 0);
        const enum evq_status status =
            evq_prompt_template_expand(cases[i].pattern, object, &out, &err);
        if (cases[i].text != NULL) {
            assert_int_equal(status, EVQ_OK);
            assert_string_equal(evq_buffer_string(&out), cases[i].text);
        } else {
            assert_int_equal(status, EVQ_E_INVALID);
            assert_non_null(strstr(err.message, cases[i].fault));
        }
        evq_buffer_free(&out);
    }
    json_decref(object);
}

/* Python writes integers of any length: one costs nothing but what asks for it. */
static void jsonl_reads_what_stands_beside_an_integer_of_more_than_64_bits(void **state)
{
    static const char text[] =
        "{\"n\": 18446744073709551616, \"a\": \"99999999999999999999\\\" -1\", \"l\": "
        "[-9223372036854775809,7,-9223372036854775808], \"r\": 0.5}\n"
        "{\"n\": 099999999999999999999}\n{\"n\": 1e999}\n";
    struct evq_jsonl lines = {.name = "x", .at = text, .end = text + sizeof(text) - 1};
    struct evq_error err;
    struct evq_buffer out;
    json_t *object = NULL;

    (void)state;
    evq_buffer_init(&out, 0);
    assert_status_err(evq_jsonl_next(&lines, &object, &err), EVQ_OK, &err);
    assert_status_err(evq_prompt_template_expand("{a} {r}", object, &out, &err), EVQ_OK, &err);
    assert_string_equal(evq_buffer_string(&out), "99999999999999999999\" -1 0.5");
    assert_status(evq_prompt_template_expand("{n}", object, &out, &err), EVQ_E_INVALID);
    assert_holds(err.message, "field 'n' is neither text nor a number of 64 bits");
    const json_t *list = json_object_get(object, "l");
    assert_true(json_is_null(json_array_get(list, 0)));
    assert_int_equal(json_integer_value(json_array_get(list, 1)), 7);
    assert_true(json_integer_value(json_array_get(list, 2)) == INT64_MIN);
    json_decref(object);
    evq_buffer_free(&out);
    assert_status(evq_jsonl_next(&lines, &object, &err), EVQ_E_CORRUPT); // As JSON has it.
    assert_status(evq_jsonl_next(&lines, &object, &err), EVQ_E_CORRUPT);
    assert_holds(err.message, "line 3");
}

static void wikitext_pages_end_at_titles_of_the_first_level(void **state)
{
    static const char text[] = "\n = One = \n\n text \n = = Part = = \n more \n = Two = \n end\n";
    size_t next = 0;

    (void)state;
    assert_int_equal(evq_wikitext_page(text, sizeof(text) - 1, &next), 0);
    assert_int_equal(next, 1);
    const size_t page = evq_wikitext_page(text + next, sizeof(text) - 1 - next, &next);
    assert_memory_equal(text + 1, " = One = \n\n text \n = = Part = = \n more ", page);
    assert_int_equal(page, strlen(" = One = \n\n text \n = = Part = = \n more "));
    assert_int_equal(1 + next, strlen(text) - strlen(" = Two = \n end\n"));
}

static void wikitext_is_detokenised(void **state)
{
    static const char *const cases[][2] = {
        {"the 2 @,@ 000 @.@ 5 @-@ year plan , and ( it ) : yes ; no . So !",
         "the 2,000.5-year plan, and (it): yes; no. So !"},
        {" = = = Head = = = \n dogs ' food \n", " === Head ===\ndogs' food\n"},
        {"say \" hello \" to [ all ] { of } it 's ' here ' N ",
         "say \"hello\" to [all] {of} it's' here ' 1 "},
        {"90 \xc2\xb0 C (  ) ( open", "90\xc2\xb0"
                                      "C () ( open"},
        {"", ""},
        {"a/' 5/b", "a/'[0-9]/b"}, // The harness's pattern is its own replacement.
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_buffer out;
        evq_buffer_init(&out, 0);
        evq_wikitext_detokenize(cases[i][0], strlen(cases[i][0]), &out);
        assert_string_equal(evq_buffer_string(&out), cases[i][1]);
        evq_buffer_free(&out);
    }
}

static void documents_are_a_text_its_lines_or_its_fields(void **state)
{
    struct fixture *fx = *state;

    assert_int_equal(
        open_with(fx, EVQ_CORPUS_DOCUMENTS, "one two\n\nthree\n", "format", "text", NULL), EVQ_OK);
    assert_int_equal(fx->corpus->passage_count, 1);
    assert_passage(fx, 0, "", "one two\n\nthree\n");
    assert_int_equal(fx->corpus->passages[0].words, 4);
    assert_int_equal(fx->corpus->passages[0].bytes, 15);
    assert_int_equal(fx->corpus->prefix, evq_tokenizer_prefix(fx->tokenizer));
    assert_int_equal(open_with(fx, EVQ_CORPUS_DOCUMENTS, "one two\n\nthree\n", "format", "text",
                               "split", "lines", "prefix", "7", NULL),
                     EVQ_OK);
    assert_int_equal(fx->corpus->passage_count, 2);
    assert_passage(fx, 1, "", "three");
    assert_int_equal(fx->corpus->prefix, 7);
    assert_int_equal(open_with(fx, EVQ_CORPUS_DOCUMENTS,
                               "{\"d\": {\"t\": \"caf\\u00e9\"}}\n \n{\"d\": {\"t\": \"\"}}",
                               "format", "jsonl", "field", "d.t", NULL),
                     EVQ_OK);
    assert_int_equal(fx->corpus->passage_count, 2);
    assert_int_equal(fx->corpus->passages[0].bytes, 5);
    assert_int_equal(fx->corpus->passages[0].characters, 4);
    assert_int_equal(fx->corpus->passages[1].count, 0);
    assert_int_equal(open_with(fx, EVQ_CORPUS_DOCUMENTS, " \n = A = \n x\n = B = \n y @-@ z\n",
                               "format", "text", "split", "wikitext", "detokenize", "true", "limit",
                               "2", NULL),
                     EVQ_OK);
    assert_int_equal(fx->corpus->passage_count, 2); // What is before the first title is blank.
    assert_passage(fx, 1, "", " = B =\ny-z\n");
    assert_int_equal(fx->corpus->passages[1].bytes, strlen(" = B = \n y @-@ z\n"));
}

static void items_divide_context_and_continuation(void **state)
{
    struct fixture *fx = *state;

    assert_int_equal(open_with(fx, EVQ_CORPUS_TARGETS,
                               "{\"text\": \"He gave it to Mary\"}\n{\"text\": \"alone\"}\n",
                               "format", "jsonl", "template", "{text}", "prefix", "360", NULL),
                     EVQ_OK);
    assert_int_equal(fx->corpus->item_count, 2);
    assert_passage(fx, 0, "He gave it to", " Mary");
    assert_int_equal(fx->corpus->passages[1].context, 1); // The prefix.
    assert_int_equal(fx->corpus->tokens.ids[fx->corpus->passages[1].first], fx->corpus->prefix);
    assert_int_equal(
        open_with(fx, EVQ_CORPUS_CHOICES,
                  "{\"q\": \"Which? \\n\", \"c\": [\"caf\\u00e9\", \"a b\"], \"l\": \"B\"}",
                  "format", "jsonl", "template", "{q}", "choices", "c", "label", "l", NULL),
        EVQ_OK);
    assert_int_equal(fx->corpus->item_count, 1);
    assert_int_equal(fx->corpus->items[0].passages, 2);
    assert_int_equal(fx->corpus->items[0].gold, 1);
    assert_passage(fx, 0, "Which?", " \n caf\xc3\xa9"); // Blanks move to what is scored.
    assert_int_equal(fx->corpus->passages[0].characters, 4);
    assert_int_equal(fx->corpus->passages[0].bytes, 5);
}

/* As lm-evaluation-harness: a text that says <s> itself gets no second one from the template. */
static void texts_that_begin_with_the_prefix_get_no_template(void **state)
{
    struct fixture *fx = *state;
    const struct evq_passage *passages = NULL;
    const int32_t *ids = NULL;

    evq_tokenizer_free(fx->tokenizer);
    fx->tokenizer = NULL;
    assert_int_equal(
        evq_tokenizer_open(AT_FDCWD, EVQ_TEST_DATA "/tokenizers/llama2", &fx->tokenizer, &fx->err),
        EVQ_OK);
    assert_int_equal(open_with(fx, EVQ_CORPUS_TARGETS,
                               "{\"a\": \"<s>[INST] why\", \"b\": \" not\"}\n"
                               "{\"a\": \"why\", \"b\": \" not\"}\n",
                               "format", "jsonl", "template", "{a}", "target", "{b}", "prefix", "1",
                               NULL),
                     EVQ_OK);
    passages = fx->corpus->passages;
    ids = fx->corpus->tokens.ids;
    assert_int_equal(ids[passages[0].first], 1);
    assert_int_not_equal(ids[passages[0].first + 1], 1);
    assert_int_equal(ids[passages[1].first], 1);
    assert_int_equal(passages[0].count - passages[0].context,
                     passages[1].count - passages[1].context);
    assert_int_equal(open_with(fx, EVQ_CORPUS_DOCUMENTS, "<s>why not\nwhy not\n", "format", "text",
                               "split", "lines", "prefix", "1", NULL),
                     EVQ_OK);
    passages = fx->corpus->passages;
    ids = fx->corpus->tokens.ids;
    assert_int_equal(passages[0].context, 1); // What a Trainer sees, and the harness does not.
    assert_int_equal(ids[passages[0].first], 1);
    assert_int_equal(ids[passages[0].first + 1], 1);
    assert_int_equal(passages[1].context, 0);
    assert_int_equal(ids[passages[1].first], 1);
}

static void items_read_labels_of_every_form(void **state)
{
    static const struct {
        const char *label; // As JSON.
        int32_t gold;
    } cases[] = {{"0", 0}, {"1", 1}, {"\"1\"", 1}, {"\"C\"", 2}, {"\"no\"", 1}};
    struct fixture *fx = *state;
    char line[128];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(line, sizeof(line), "{\"q\": \"x\", \"a\": \"yes\", \"label\": %s}",
                       cases[i].label);
        assert_int_equal(open_with(fx, EVQ_CORPUS_CHOICES, line, "format", "jsonl", "template",
                                   "{q}", "choices.0", "{a}", "choices.1", "no", "choices.2",
                                   "maybe", NULL),
                         EVQ_OK);
        assert_int_equal(fx->corpus->items[0].gold, cases[i].gold);
    }
    assert_int_equal(
        open_with(fx, EVQ_CORPUS_CHOICES,
                  "{\"q\": \"x\", \"c\": {\"text\": [\"u\", \"v\"], \"label\": [\"1\", \"2\"]}, "
                  "\"answerKey\": \"2\"}",
                  "format", "jsonl", "template", "{q}", "choices", "c.text", "label", "answerKey",
                  "label_names", "c.label", NULL),
        EVQ_OK);
    assert_int_equal(fx->corpus->items[0].gold, 1);
    assert_int_equal(open_with(fx, EVQ_CORPUS_CHOICES,
                               "{\"q\": \"1 + 1 =\", \"c\": [\"2\", \"1\"], \"label\": \"2\"}",
                               "format", "jsonl", "template", "{q}", "choices", "c", NULL),
                     EVQ_OK);
    assert_int_equal(fx->corpus->items[0].gold, 0); // No number of a choice.
    write_bytes(fx, "labels", "1\n0\n", 4);
    assert_int_equal(open_with(fx, EVQ_CORPUS_CHOICES, "{\"q\": \"x\"}\n{\"q\": \"y\"}\n", "format",
                               "jsonl", "labels", "labels", "template", "{q}", "choices.0", "a",
                               "choices.1", "b", NULL),
                     EVQ_OK);
    assert_int_equal(fx->corpus->items[0].gold, 1);
    assert_int_equal(fx->corpus->items[1].gold, 0);
}

static void items_refuse_labels_of_another_file(void **state)
{
    static const char line[] = "{\"q\": \"x\"}\n";
    struct fixture *fx = *state;

    write_bytes(fx, "labels", "1\n \n", 4);
    assert_int_equal(open_with(fx, EVQ_CORPUS_CHOICES, line, "format", "jsonl", "labels", "labels",
                               "template", "{q}", "choices.0", "a", "choices.1", "b", NULL),
                     EVQ_OK);
    write_bytes(fx, "labels", "1\n\n0\n", 5);
    assert_fault(fx,
                 open_with(fx, EVQ_CORPUS_CHOICES, line, "format", "jsonl", "labels", "labels",
                           "template", "{q}", "choices.0", "a", "choices.1", "b", NULL),
                 EVQ_E_INVALID, "labels' has a label in line 3, but");
    assert_int_equal(open_with(fx, EVQ_CORPUS_CHOICES, line, "format", "jsonl", "labels", "labels",
                               "template", "{q}", "choices.0", "a", "choices.1", "b", "limit", "1",
                               NULL),
                     EVQ_OK);
}

/* The options as key=value; ... */
static bool refused(void *context, const struct fixture_bad *row)
{
    static const char *const kinds[] = {"documents", "choices", "targets", "labels"};
    static const enum evq_corpus_kind known[] = {EVQ_CORPUS_DOCUMENTS, EVQ_CORPUS_CHOICES,
                                                 EVQ_CORPUS_TARGETS, EVQ_CORPUS_LABELS};
    struct fixture *fx = context;
    const char *options[2 * PAIRS_MAX] = {NULL};
    char words[1024];
    char *rest = words;
    size_t count = 0;
    size_t kind = 0;

    assert_true(snprintf(words, sizeof(words), "%s", row->fields[3]) < (int)sizeof(words));
    while (rest != NULL) {
        char *next = strstr(rest, "; ");
        char *equals = strchr(rest, '=');
        assert_true(equals != NULL && count + 2 < 2 * PAIRS_MAX);
        if (next != NULL) {
            *next = '\0';
            next += 2;
        }
        *equals = '\0';
        options[count++] = rest;
        options[count++] = equals + 1;
        rest = next;
    }
    while (strcmp(kinds[kind], row->fields[0]) != 0) {
        kind++;
        assert_true(kind < sizeof(kinds) / sizeof(kinds[0]));
    }
    const enum evq_status status = open_pairs(fx, known[kind], row->fields[4], options);
    return (strcmp(evq_status_name(status), row->fields[1]) == 0 &&
            strstr(fx->err.message, row->fields[2]) != NULL) ||
           fixture_bad_wrong(row, status == EVQ_OK ? "it was taken" : fx->err.message);
}

static void corpus_refuses_in_a_sentence(void **state)
{
    struct fixture *fx = *state;

    write_bytes(fx, "labels", "1\n", 2);
    fixture_bad_each("texts.txt", 5, "texts", refused, fx);
    // A blank at the context's end goes to the target, which is something then.
    assert_int_equal(open_with(fx, EVQ_CORPUS_TARGETS, "{\"q\": \"x \"}", "format", "jsonl",
                               "template", "{q}", "target", "", NULL),
                     EVQ_OK);
}

static void corpus_bounds_a_line(void **state)
{
    static const size_t bytes = ((size_t)8 << 20) + 16;
    struct fixture *fx = *state;
    char *text = malloc(bytes + 1);

    assert_non_null(text);
    memset(text, 'x', bytes);
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + bytes - 2, "\"}", 3);
    assert_fault(fx, open_with(fx, EVQ_CORPUS_DOCUMENTS, text, "format", "jsonl", NULL),
                 EVQ_E_LIMIT, "line 1: 8388624 bytes, allowed 8388608");
    free(text);
}

static void corpus_is_current_until_its_files_or_options_change(void **state)
{
    struct fixture *fx = *state;
    const struct evq_pair pairs[] = {{"format", "text"}, {"text", "data"}, {"limit", "1"}};
    const struct evq_task_config task = {.name = "t", .data = pairs, .data_count = 2};
    const struct evq_task_config limited = {.name = "t", .data = pairs, .data_count = 3};
    struct evq_corpus_source source = {.task = &task,
                                       .kind = EVQ_CORPUS_DOCUMENTS,
                                       .directory = fx->directory,
                                       .tokenizer = fx->tokenizer};
    char digest[33];

    write_bytes(fx, "data", "one", 3);
    assert_int_equal(evq_corpus_open(&source, &fx->corpus, &fx->err), EVQ_OK);
    assert_true(evq_corpus_current(fx->corpus, &source));
    assert_int_equal(strlen(fx->corpus->digest), 32);
    memcpy(digest, fx->corpus->digest, sizeof(digest));
    source.task = &limited;
    assert_false(evq_corpus_current(fx->corpus, &source));
    source.task = &task;
    write_bytes(fx, "data", "three", 5);
    assert_false(evq_corpus_current(fx->corpus, &source));
    evq_corpus_free(fx->corpus);
    assert_int_equal(evq_corpus_open(&source, &fx->corpus, &fx->err), EVQ_OK);
    assert_string_not_equal(digest, fx->corpus->digest);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_counted_as_python_counts_them),
        cmocka_unit_test(template_puts_fields_in),
        cmocka_unit_test(jsonl_reads_what_stands_beside_an_integer_of_more_than_64_bits),
        cmocka_unit_test(wikitext_pages_end_at_titles_of_the_first_level),
        cmocka_unit_test(wikitext_is_detokenised),
        TEST(documents_are_a_text_its_lines_or_its_fields),
        TEST(items_divide_context_and_continuation),
        TEST(texts_that_begin_with_the_prefix_get_no_template),
        TEST(items_read_labels_of_every_form),
        TEST(items_refuse_labels_of_another_file),
        TEST(corpus_refuses_in_a_sentence),
        TEST(corpus_bounds_a_line),
        TEST(corpus_is_current_until_its_files_or_options_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
