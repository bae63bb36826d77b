/*
 * JSON lines through a template and WikiText's detokeniser: what comes out is text of a bounded
 * size or a sentence; pages cover the input; words and characters are never more than its bytes.
 */
// fuzz: engine
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/check.h"
#include "worker/datasets/jsonl.h"
#include "worker/datasets/prompt_template.h"
#include "worker/datasets/python_text.h"
#include "worker/datasets/wikitext.h"

/* The first line is the template, the others are objects. */
static void expand(const char *text, size_t bytes)
{
    struct evq_jsonl lines = {.name = "fuzz", .at = text, .end = text + bytes};
    struct evq_error err;
    const char *line = NULL;
    size_t length = 0;

    if (!evq_jsonl_line(&lines, &line, &length)) {
        return;
    }
    char *pattern = strndup(line, length);
    check(pattern != NULL);
    const bool good = evq_prompt_template_check(pattern, &err) == EVQ_OK;
    check(good || err.message[0] != '\0');
    for (json_t *object = NULL;
         evq_jsonl_next(&lines, &object, &err) == EVQ_OK && object != NULL;) {
        struct evq_buffer out;
        evq_buffer_init(&out, 0);
        const enum evq_status status = evq_prompt_template_expand(pattern, object, &out, &err);
        check(good || status != EVQ_OK); // What is expanded was right to begin with.
        check(out.bytes <= (strlen(pattern) + 1) * (bytes + 32) * 2);
        evq_buffer_free(&out);
        json_decref(object);
    }
    free(pattern);
}

static void detokenize(const char *text, size_t bytes)
{
    struct evq_buffer out;

    for (size_t at = 0; at < bytes;) {
        size_t next = 0;
        const size_t page = evq_wikitext_page(text + at, bytes - at, &next);
        check(next > 0 && page <= next && next <= bytes - at);
        at += next;
    }
    evq_buffer_init(&out, 4 * bytes + 64);
    evq_wikitext_detokenize(text, bytes, &out);
    check(!out.failed && out.bytes <= 2 * bytes);
    evq_buffer_free(&out);
    const size_t end = evq_python_text_trim_end(text, bytes);
    check(end <= bytes && evq_python_text_leading_space(text, end) <= end);
    check(evq_python_text_words(text, bytes) <= (int64_t)bytes + 1);
    check(evq_python_text_characters(text, bytes) <= (int64_t)bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    expand((const char *)data, bytes);
    detokenize((const char *)data, bytes);
    return 0;
}
