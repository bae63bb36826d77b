/* Reads documents: a whole text, its lines, the pages of WikiText, or a field of each JSON line. */
#include <inttypes.h>
#include <string.h>

#include "worker/datasets/corpus_build.h"
#include "worker/datasets/jsonl.h"
#include "worker/datasets/prompt_template.h"
#include "worker/datasets/python_text.h"
#include "worker/datasets/wikitext.h"
#include "worker/tasks/task_options.h"

struct documents {
    struct evq_corpus_build *build;
    bool detokenize;
    struct evq_buffer text; // The present document, detokenized.
};

static enum evq_status add(struct documents *documents, const char *text, size_t bytes,
                           struct evq_error *err)
{
    if (!documents->detokenize) {
        return evq_corpus_add_document(documents->build, text, bytes, text, bytes, err);
    }
    evq_buffer_clear(&documents->text);
    evq_wikitext_detokenize(text, bytes, &documents->text);
    if (documents->text.failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "a document of %zu bytes", bytes);
    }
    return evq_corpus_add_document(documents->build, (const char *)documents->text.data,
                                   documents->text.bytes, text, bytes, err);
}

static bool full(const struct documents *documents)
{
    return (int64_t)documents->build->corpus->passage_count >= documents->build->limit;
}

/* Adds the pages of a text. Blank pages are skipped, but the last page is always added. */
static enum evq_status add_pages(struct documents *documents, const char *text, size_t bytes,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t at = 0; at < bytes && status == EVQ_OK && !full(documents);) {
        size_t next = 0;
        const size_t page = evq_wikitext_page(text + at, bytes - at, &next);
        if (at + next == bytes || evq_python_text_trim_end(text + at, page) > 0) {
            status = evq_corpus_report_left(documents->build, bytes - at);
            if (status == EVQ_OK) {
                status = add(documents, text + at, page, err);
            }
        }
        at += next;
    }
    return status;
}

static enum evq_status add_lines(struct documents *documents, struct evq_jsonl *lines,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    const char *line = NULL;
    size_t bytes = 0;

    while (status == EVQ_OK && !full(documents) && evq_jsonl_line(lines, &line, &bytes)) {
        status = evq_corpus_report_left(documents->build, (size_t)(lines->end - line));
        if (status == EVQ_OK && evq_python_text_trim_end(line, bytes) > 0) {
            status = add(documents, line, bytes, err);
        }
    }
    return status;
}

static enum evq_status add_objects(struct documents *documents, struct evq_jsonl *lines,
                                   const char *field, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && !full(documents)) {
        json_t *object = NULL;
        status = evq_corpus_report_left(documents->build, (size_t)(lines->end - lines->at));
        if (status == EVQ_OK) {
            status = evq_jsonl_next(lines, &object, err);
        }
        if (status != EVQ_OK || object == NULL) {
            break;
        }
        const json_t *text = evq_prompt_template_field(object, field, strlen(field));
        if (json_is_string(text)) {
            status = add(documents, json_string_value(text), json_string_length(text), err);
        } else {
            status = text == NULL
                         ? evq_prompt_template_missing(object, field, strlen(field), err)
                         : evq_error_set(err, EVQ_E_INVALID, "field '%s' is not text", field);
            // It returns the status that it was given.
            (void)evq_error_prefix(err, "'%s', line %" PRId64, lines->name, lines->number);
        }
        json_decref(object);
    }
    return status;
}

static enum evq_status read_detokenize(const struct evq_task_config *task, bool *ret_flag,
                                       struct evq_error *err)
{
    const char *word = evq_corpus_option(task, "detokenize", "false");

    *ret_flag = strcmp(word, "true") == 0;
    return *ret_flag || strcmp(word, "false") == 0
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_INVALID,
                               "data: detokenize is '%s', expected true or false", word);
}

enum evq_status evq_documents_check(const struct evq_task_config *task, struct evq_error *err)
{
    static const char *const splits[] = {"none", "lines", "wikitext"};
    const char *split = evq_corpus_option(task, "split", "none");
    const bool jsonl = strcmp(evq_corpus_option(task, "format", ""), "jsonl") == 0;
    bool flag = false;

    if (strcmp(split, "none") != 0 && strcmp(split, "lines") != 0 &&
        strcmp(split, "wikitext") != 0) {
        return evq_task_options_unknown("data: split", split, splits, 3, err);
    }
    if (jsonl && evq_corpus_option(task, "split", NULL) != NULL) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "data: split is only for format text, because each line of jsonl is one document");
    }
    return read_detokenize(task, &flag, err);
}

enum evq_status evq_documents_read(struct evq_corpus_build *build, struct evq_error *err)
{
    const struct evq_task_config *task = build->source->task;
    const char *split = evq_corpus_option(task, "split", "none");
    struct documents documents = {.build = build};
    struct evq_buffer file;

    evq_buffer_init(&file, EVQ_CORPUS_FILE_BYTES_MAX);
    evq_buffer_init(&documents.text, EVQ_CORPUS_FILE_BYTES_MAX);
    enum evq_status status = read_detokenize(task, &documents.detokenize, err);
    if (status == EVQ_OK) {
        status = evq_corpus_read_file(build->corpus->name, &file, err);
    }
    const char *text = (const char *)file.data;
    struct evq_jsonl lines = {.name = build->corpus->name, .at = text, .end = text + file.bytes};
    build->file_bytes = (int64_t)file.bytes;
    if (status != EVQ_OK) {
        // The error was reported already.
    } else if (strcmp(evq_corpus_option(task, "format", ""), "jsonl") == 0) {
        status = add_objects(&documents, &lines, evq_corpus_option(task, "field", "text"), err);
    } else if (strcmp(split, "lines") == 0) {
        status = add_lines(&documents, &lines, err);
    } else if (strcmp(split, "wikitext") == 0) {
        status = add_pages(&documents, text, file.bytes, err);
    } else {
        status = add(&documents, text, file.bytes, err);
    }
    evq_buffer_free(&file);
    evq_buffer_free(&documents.text);
    return status;
}
