/* Reads texts with labels from JSON lines: a text or a pair of texts made by templates, and the
 * number or the name of a class. */
#include <inttypes.h>
#include <string.h>

#include "worker/datasets/corpus_build.h"
#include "worker/datasets/jsonl.h"
#include "worker/datasets/prompt_template.h"
#include "worker/tasks/task_options.h"

struct reading {
    struct evq_corpus_build *build;
    const struct evq_task_config *task;
    const char *templates[2], *label; // The second template may be NULL.
    int64_t length;                   // The option max_length.
    struct evq_buffer texts[2];
};

static enum evq_status read_length(const struct evq_task_config *task, int64_t *ret_length,
                                   struct evq_error *err)
{
    return evq_task_options_integer(task->data, task->data_count, "max_length", "data", 1,
                                    INT32_MAX, INT32_MAX, ret_length, err);
}

enum evq_status evq_labelled_text_check(const struct evq_task_config *task, struct evq_error *err)
{
    static const char *const keys[] = {"template", "pair_template"};
    int64_t length = 0;

    if (evq_corpus_option(task, "template", "")[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: template is missing, such as \"{sentence}\"");
    }
    enum evq_status status = read_length(task, &length, err);
    for (size_t i = 0; i < 2 && status == EVQ_OK; i++) {
        status = evq_prompt_template_check(evq_corpus_option(task, keys[i], ""), err);
    }
    return status;
}

/* The position of a name in the option class_names, which is the class; -1: it is not there. */
static int64_t named_label(const struct reading *reading, const char *text, size_t bytes)
{
    const struct evq_task_config *task = reading->task;
    const char *name = NULL;
    size_t name_bytes = 0;

    for (size_t i = 0;
         evq_task_options_item(task->data, task->data_count, "class_names", i, &name, &name_bytes);
         i++) {
        if (name_bytes == bytes && memcmp(name, text, bytes) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}

static enum evq_status read_label(const struct reading *reading, const json_t *object,
                                  int32_t *ret_label, struct evq_error *err)
{
    const json_t *value = evq_prompt_template_field(object, reading->label, strlen(reading->label));
    const bool named = json_is_string(value);
    const int64_t label =
        named ? named_label(reading, json_string_value(value), json_string_length(value))
              : json_integer_value(value);

    if (value == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "field '%s' is missing", reading->label);
    }
    if ((!named && !json_is_integer(value)) || label < 0 || label > INT32_MAX) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "field '%s' is neither the number of a class nor one of data: "
                             "class_names",
                             reading->label);
    }
    *ret_label = (int32_t)label;
    return EVQ_OK;
}

static enum evq_status add_item(struct reading *reading, const json_t *object,
                                struct evq_error *err)
{
    struct evq_corpus_build *build = reading->build;
    struct evq_corpus *corpus = build->corpus;
    const struct evq_passage passage = {.first = (int64_t)corpus->tokens.count};
    struct evq_tokenizer_text texts[2] = {{0}};
    int32_t label = 0;

    enum evq_status status = read_label(reading, object, &label, err);
    for (size_t i = 0; i < 2 && reading->templates[i] != NULL && status == EVQ_OK; i++) {
        struct evq_buffer *text = &reading->texts[i];
        evq_buffer_clear(text);
        status = evq_prompt_template_expand(reading->templates[i], object, text, err);
        const char *whole = evq_buffer_string(text);
        if (status == EVQ_OK && whole == NULL) {
            status = evq_error_set(err, EVQ_E_NOMEM, "a text of an item");
        }
        texts[i] = (struct evq_tokenizer_text){whole, text->bytes};
    }
    if (status == EVQ_OK) {
        status = evq_tokenizer_encode_pair(build->source->tokenizer, build->scratch, texts,
                                           (size_t)reading->length, &corpus->tokens, &corpus->types,
                                           err);
    }
    if (status == EVQ_OK && (int64_t)corpus->tokens.count == passage.first) {
        status = evq_error_set(err, EVQ_E_INVALID, "the text gives no token");
    }
    if (status == EVQ_OK) {
        status = evq_corpus_add_passage(build, passage, NULL, 0, err);
    }
    return status == EVQ_OK ? evq_corpus_add_item(build, 1, label, err) : status;
}

static enum evq_status add_all(struct reading *reading, struct evq_jsonl *lines,
                               struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    while ((int64_t)reading->build->corpus->item_count < reading->build->limit) {
        json_t *object = NULL;
        status = evq_corpus_report_left(reading->build, (size_t)(lines->end - lines->at));
        if (status == EVQ_OK) {
            status = evq_jsonl_next(lines, &object, err);
        }
        if (status != EVQ_OK || object == NULL) {
            return status;
        }
        status = add_item(reading, object, err);
        json_decref(object);
        if (status != EVQ_OK) {
            return evq_error_prefix(err, "'%s', line %" PRId64, lines->name, lines->number);
        }
    }
    return status;
}

enum evq_status evq_labelled_text_read(struct evq_corpus_build *build, struct evq_error *err)
{
    const struct evq_task_config *task = build->source->task;
    struct reading reading = {.build = build,
                              .task = task,
                              .templates = {evq_corpus_option(task, "template", ""),
                                            evq_corpus_option(task, "pair_template", NULL)},
                              .label = evq_corpus_option(task, "label", "label")};
    struct evq_buffer file;

    evq_buffer_init(&file, EVQ_CORPUS_FILE_BYTES_MAX);
    evq_buffer_init(&reading.texts[0], 0);
    evq_buffer_init(&reading.texts[1], 0);
    enum evq_status status = read_length(task, &reading.length, err);
    if (status == EVQ_OK) {
        status = evq_corpus_read_file(build->corpus->name, &file, err);
    }
    if (status == EVQ_OK) {
        const char *text = (const char *)file.data;
        struct evq_jsonl lines = {
            .name = build->corpus->name, .at = text, .end = text + file.bytes};
        build->file_bytes = (int64_t)file.bytes;
        status = add_all(&reading, &lines, err);
    }
    evq_buffer_free(&file);
    evq_buffer_free(&reading.texts[0]);
    evq_buffer_free(&reading.texts[1]);
    return status;
}
