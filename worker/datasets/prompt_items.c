/* Reads prompt items from JSON lines: a context made by a template, its possible continuations, and
 * which of them is right. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/datasets/corpus_build.h"
#include "worker/datasets/jsonl.h"
#include "worker/datasets/prompt_template.h"
#include "worker/datasets/python_text.h"
#include "worker/tasks/task_options.h"

struct choice {
    struct evq_buffer text; // The continuation without its delimiter.
};

struct items {
    struct evq_corpus_build *build;
    const struct evq_task_config *task;
    const char *template, *target, *delimiter, *label, *label_names;
    bool last_word;          // The continuation is the last word of the template's text.
    bool clean;              // Texts are cleaned as for HellaSwag.
    struct evq_jsonl labels; // at NULL: each object contains its own label.
    struct evq_buffer context, scratch;
    struct choice choices[EVQ_CORPUS_CHOICES_MAX];
    int32_t choice_count;
};

static const char *choice_pattern(const struct evq_task_config *task, int32_t i)
{
    char key[32];

    (void)snprintf(key, sizeof(key), "choices.%d", (int)i);
    return evq_corpus_option(task, key, NULL);
}

static bool option_is(const struct evq_task_config *task, const char *key, const char *word)
{
    return strcmp(evq_corpus_option(task, key, ""), word) == 0;
}

/* Refuses options that mean nothing for the other kind of task. */
static enum evq_status check_kind(const struct evq_task_config *task, bool choices,
                                  struct evq_error *err)
{
    static const char *const of_choices[] = {"choices", "choices.0",   "target_delimiter",
                                             "label",   "label_names", "labels"};

    if (choices && evq_corpus_option(task, "target", NULL) != NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: target is only for tasks of type loglikelihood");
    }
    for (size_t i = 0; i < sizeof(of_choices) / sizeof(of_choices[0]) && !choices; i++) {
        if (evq_corpus_option(task, of_choices[i], NULL) != NULL) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "data: %s is only for tasks of type multiple_choice",
                                 of_choices[i]);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_prompt_items_check(const struct evq_task_config *task,
                                       enum evq_corpus_kind kind, struct evq_error *err)
{
    static const char *const cleaners[] = {"hellaswag"};
    const char *template = evq_corpus_option(task, "template", "");
    const char *target = evq_corpus_option(task, "target", "last_word");
    const bool choices = kind == EVQ_CORPUS_CHOICES;

    if (template[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: template is missing, such as \"Question: {goal}\\nAnswer:\"");
    }
    if (evq_corpus_option(task, "clean", NULL) != NULL && !option_is(task, "clean", "hellaswag")) {
        return evq_task_options_unknown("data: clean", evq_corpus_option(task, "clean", ""),
                                        cleaners, 1, err);
    }
    if (choices && choice_pattern(task, 0) == NULL && option_is(task, "choices", "")) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "data: choices is missing: a field that holds a list, or a list of "
                             "templates");
    }
    enum evq_status status = check_kind(task, choices, err);
    if (status == EVQ_OK) {
        status = evq_prompt_template_check(template, err);
    }
    if (status == EVQ_OK && !choices && strcmp(target, "last_word") != 0) {
        status = evq_prompt_template_check(target, err);
    }
    for (int32_t i = 0; status == EVQ_OK && i < EVQ_CORPUS_CHOICES_MAX; i++) {
        const char *pattern = choice_pattern(task, i);
        if (pattern == NULL) {
            break;
        }
        status = evq_prompt_template_check(pattern, err);
    }
    return status;
}

/* Cleans a text as the harness's HellaSwag task does: outer whitespace is removed, " [title]"
 * becomes ". ", other brackets are removed with their content, and two spaces become one. */
static void clean(struct evq_buffer *text, struct evq_buffer *scratch)
{
    const char *data = (const char *)text->data;
    const size_t end = evq_python_text_trim_end(data, text->bytes);

    evq_buffer_clear(scratch);
    for (size_t at = evq_python_text_leading_space(data, end); at < end;) {
        if (end - at >= 8 && memcmp(data + at, " [title]", 8) == 0) {
            evq_buffer_text(scratch, ". ");
            at += 8;
        } else {
            evq_buffer_append(scratch, data + at++, 1);
        }
    }
    evq_buffer_clear(text);
    for (size_t at = 0; at < scratch->bytes;) {
        const uint8_t *from = scratch->data + at;
        const uint8_t *close = from[0] == '[' ? memchr(from, ']', scratch->bytes - at) : NULL;
        if (close != NULL && memchr(from, '\n', (size_t)(close - from)) == NULL) {
            at += (size_t)(close - from) + 1;
        } else {
            evq_buffer_append(text, from, 1);
            at++;
        }
    }
    evq_buffer_clear(scratch);
    for (size_t at = 0; at < text->bytes; at++) {
        evq_buffer_append(scratch, text->data + at, 1);
        at += text->data[at] == ' ' && at + 1 < text->bytes && text->data[at + 1] == ' ';
    }
    evq_buffer_clear(text);
    evq_buffer_append(text, scratch->data, scratch->bytes);
}

static enum evq_status expand(struct items *items, const char *pattern, const json_t *object,
                              struct evq_buffer *out, struct evq_error *err)
{
    evq_buffer_clear(out);
    const enum evq_status status = evq_prompt_template_expand(pattern, object, out, err);
    if (status == EVQ_OK && items->clean) {
        clean(out, &items->scratch);
    }
    if (status == EVQ_OK && out->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "a text of an item");
    }
    return status;
}

static enum evq_status next_choice(struct items *items, struct evq_buffer **ret_text,
                                   struct evq_error *err)
{
    if (items->choice_count == EVQ_CORPUS_CHOICES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "more than %d choices", EVQ_CORPUS_CHOICES_MAX);
    }
    *ret_text = &items->choices[items->choice_count++].text;
    evq_buffer_clear(*ret_text);
    return EVQ_OK;
}

/* Reads the choices from a list field. */
static enum evq_status list_choices(struct items *items, const json_t *object,
                                    struct evq_error *err)
{
    const char *field = evq_corpus_option(items->task, "choices", "");
    const json_t *list = evq_prompt_template_field(object, field, strlen(field));
    enum evq_status status = EVQ_OK;

    if (list == NULL) {
        return evq_prompt_template_missing(object, field, strlen(field), err);
    }
    if (!json_is_array(list)) {
        return evq_error_set(err, EVQ_E_INVALID, "field '%s' is not a list", field);
    }
    for (size_t i = 0; i < json_array_size(list) && status == EVQ_OK; i++) {
        const json_t *text = json_array_get(list, i);
        struct evq_buffer *out = NULL;
        if (!json_is_string(text)) {
            return evq_error_set(err, EVQ_E_INVALID, "entry %zu of field '%s' is not text", i,
                                 field);
        }
        status = next_choice(items, &out, err);
        if (status == EVQ_OK) {
            evq_buffer_append(out, json_string_value(text), json_string_length(text));
            if (items->clean) {
                clean(out, &items->scratch);
            }
        }
    }
    return status;
}

static enum evq_status read_choices(struct items *items, const json_t *object,
                                    struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    items->choice_count = 0;
    if (choice_pattern(items->task, 0) == NULL) {
        status = list_choices(items, object, err);
    } else {
        for (int32_t i = 0; status == EVQ_OK && choice_pattern(items->task, i) != NULL; i++) {
            struct evq_buffer *out = NULL;
            status = next_choice(items, &out, err);
            if (status == EVQ_OK) {
                status = expand(items, choice_pattern(items->task, i), object, out, err);
            }
        }
    }
    if (status == EVQ_OK && items->choice_count < 2) {
        return evq_error_set(err, EVQ_E_INVALID, "%d choices, expected at least 2",
                             (int)items->choice_count);
    }
    for (int32_t i = 0; i < items->choice_count && status == EVQ_OK; i++) {
        if (items->choices[i].text.failed || items->choices[i].text.bytes == 0) {
            status = evq_error_set(err, EVQ_E_INVALID, "choice %d is empty", (int)i);
        }
    }
    return status;
}

static bool equals(const char *text, size_t bytes, const char *other, size_t other_bytes)
{
    return bytes == other_bytes && memcmp(text, other, bytes) == 0;
}

/* The number that a text of digits stands for; -1: the text is something else, or far too large. */
static int32_t number_of(const char *text, size_t bytes)
{
    int32_t number = bytes > 0 ? 0 : -1;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9' || number > EVQ_CORPUS_CHOICES_MAX) {
            return -1;
        }
        number = number * 10 + (text[i] - '0');
    }
    return number;
}

static int32_t label_among_names(const struct items *items, const json_t *object, const char *text,
                                 size_t bytes)
{
    const json_t *names =
        evq_prompt_template_field(object, items->label_names, strlen(items->label_names));

    for (size_t i = 0; i < json_array_size(names) && i < (size_t)items->choice_count; i++) {
        const json_t *name = json_array_get(names, i);
        if (json_is_string(name) &&
            equals(text, bytes, json_string_value(name), json_string_length(name))) {
            return (int32_t)i;
        }
    }
    return -1;
}

/* Interprets a label that is text: the choice itself, its number or its letter; -1: none of them.
 * "1" among the choices 0, 1 and 2 is ambiguous and therefore not a label. */
static enum evq_status named_label(const struct items *items, const char *text, size_t bytes,
                                   int64_t *ret_label, struct evq_error *err)
{
    const int32_t number = number_of(text, bytes);
    const bool letter = bytes == 1 && text[0] >= 'A' && text[0] <= 'Z';

    *ret_label = number < 0 && letter ? text[0] - 'A' : number;
    for (int32_t i = 0; i < items->choice_count; i++) {
        const struct evq_buffer *choice = &items->choices[i].text;
        if (!equals(text, bytes, (const char *)choice->data, choice->bytes)) {
            continue;
        }
        if (number >= 0 && number < items->choice_count && number != i) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "the label '%d' is the text of choice %d and also the number of "
                                 "another choice: use a letter as the label",
                                 (int)number, (int)i);
        }
        *ret_label = i;
        break;
    }
    return EVQ_OK;
}

static enum evq_status read_label(struct items *items, const json_t *object, int32_t *ret_gold,
                                  struct evq_error *err)
{
    const json_t *value = NULL;
    const char *text = NULL;
    size_t bytes = 0;
    int64_t gold = -1;
    enum evq_status status = EVQ_OK;

    if (items->labels.at != NULL) {
        if (!evq_jsonl_line(&items->labels, &text, &bytes)) {
            return evq_error_set(err, EVQ_E_INVALID, "'%s' ends after line %" PRId64,
                                 items->labels.name, items->labels.number);
        }
        bytes = evq_python_text_trim_end(text, bytes);
    } else {
        value = evq_prompt_template_field(object, items->label, strlen(items->label));
        if (value == NULL) {
            return evq_prompt_template_missing(object, items->label, strlen(items->label), err);
        }
        if (!json_is_integer(value) && !json_is_string(value)) { // `true` is not choice 1.
            return evq_error_set(err, EVQ_E_INVALID,
                                 "field '%s' is neither a whole number nor text: it must name one "
                                 "of the %d choices",
                                 items->label, (int)items->choice_count);
        }
        text = json_string_value(value); // NULL if it is an integer.
        bytes = json_string_length(value);
    }
    if (text == NULL) {
        gold = json_integer_value(value);
    } else if (items->label_names != NULL) {
        gold = label_among_names(items, object, text, bytes);
    } else {
        status = named_label(items, text, bytes, &gold, err);
    }
    if (status == EVQ_OK && (gold < 0 || gold >= items->choice_count)) {
        return evq_error_set(err, EVQ_E_INVALID, "the label names none of the %d choices",
                             (int)items->choice_count);
    }
    *ret_gold = (int32_t)gold;
    return status;
}

static enum evq_status add_choices(struct items *items, const json_t *object, struct evq_error *err)
{
    struct evq_buffer *joined = &items->scratch;
    int32_t gold = 0;

    enum evq_status status = read_choices(items, object, err);
    if (status == EVQ_OK) {
        status = read_label(items, object, &gold, err);
    }
    for (int32_t i = 0; i < items->choice_count && status == EVQ_OK; i++) {
        const struct evq_buffer *choice = &items->choices[i].text;
        evq_buffer_clear(joined);
        evq_buffer_text(joined, items->delimiter);
        evq_buffer_append(joined, choice->data, choice->bytes);
        status = joined->failed
                     ? evq_error_set(err, EVQ_E_NOMEM, "a choice of %zu bytes", choice->bytes)
                     : evq_corpus_add_pair(items->build, (const char *)items->context.data,
                                           items->context.bytes, (const char *)joined->data,
                                           joined->bytes, (const char *)choice->data, choice->bytes,
                                           err);
    }
    return status == EVQ_OK ? evq_corpus_add_item(items->build, items->choice_count, gold, err)
                            : status;
}

/* The last word of the text is the continuation, and begins with its space. Everything before it is
 * the context. */
static enum evq_status add_target(struct items *items, const json_t *object, struct evq_error *err)
{
    struct evq_buffer *target = &items->choices[0].text;
    size_t lead = items->context.bytes;
    enum evq_status status = EVQ_OK;

    if (items->last_word) {
        const char *space = memrchr(items->context.data, ' ', items->context.bytes);
        lead = space != NULL ? (size_t)(space - (const char *)items->context.data) : 0;
        evq_buffer_clear(target);
        evq_buffer_text(target, space != NULL ? "" : " ");
        evq_buffer_append(target, items->context.data + lead, items->context.bytes - lead);
    } else {
        status = expand(items, items->target, object, target, err);
    }
    if (status == EVQ_OK) {
        status = evq_corpus_add_pair(items->build, (const char *)items->context.data, lead,
                                     (const char *)target->data, target->bytes,
                                     (const char *)target->data, target->bytes, err);
    }
    return status == EVQ_OK ? evq_corpus_add_item(items->build, 1, 0, err) : status;
}

/* If there are more labels than items, the two files do not belong together. */
static enum evq_status check_labels_end(struct items *items, struct evq_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;

    while (items->labels.at != NULL && evq_jsonl_line(&items->labels, &text, &bytes)) {
        if (evq_python_text_trim_end(text, bytes) > 0) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "'%s' has a label in line %" PRId64 ", but '%s' holds %zu items",
                                 items->labels.name, items->labels.number,
                                 items->build->corpus->name, items->build->corpus->item_count);
        }
    }
    return EVQ_OK;
}

static enum evq_status add_all(struct items *items, struct evq_jsonl *lines, struct evq_error *err)
{
    const bool choices = items->build->source->kind == EVQ_CORPUS_CHOICES;
    enum evq_status status = EVQ_OK;

    while ((int64_t)items->build->corpus->item_count < items->build->limit) {
        json_t *object = NULL;
        status = evq_corpus_report_left(items->build, (size_t)(lines->end - lines->at));
        if (status == EVQ_OK) {
            status = evq_jsonl_next(lines, &object, err);
        }
        if (status != EVQ_OK || object == NULL) {
            return status == EVQ_OK ? check_labels_end(items, err) : status;
        }
        status = expand(items, items->template, object, &items->context, err);
        if (status == EVQ_OK) {
            status = choices ? add_choices(items, object, err) : add_target(items, object, err);
        }
        json_decref(object);
        if (status != EVQ_OK) {
            return evq_error_prefix(err, "'%s', line %" PRId64, lines->name, lines->number);
        }
    }
    return status;
}

static void items_open(struct items *items, struct evq_corpus_build *build)
{
    const struct evq_task_config *task = build->source->task;

    *items = (struct items){.build = build, .task = task};
    items->template = evq_corpus_option(task, "template", "");
    items->target = evq_corpus_option(task, "target", "last_word");
    items->last_word = strcmp(items->target, "last_word") == 0;
    items->delimiter = evq_corpus_option(task, "target_delimiter", " ");
    items->label = evq_corpus_option(task, "label", "label");
    items->label_names = evq_corpus_option(task, "label_names", NULL);
    items->clean = evq_corpus_option(task, "clean", NULL) != NULL;
    evq_buffer_init(&items->context, 0);
    evq_buffer_init(&items->scratch, 0);
    for (size_t i = 0; i < EVQ_CORPUS_CHOICES_MAX; i++) {
        evq_buffer_init(&items->choices[i].text, 0);
    }
}

static void items_close(struct items *items)
{
    evq_buffer_free(&items->context);
    evq_buffer_free(&items->scratch);
    for (size_t i = 0; i < EVQ_CORPUS_CHOICES_MAX; i++) {
        evq_buffer_free(&items->choices[i].text);
    }
}

enum evq_status evq_prompt_items_read(struct evq_corpus_build *build, struct evq_error *err)
{
    struct items items;
    struct evq_buffer file;
    struct evq_buffer labels;

    items_open(&items, build);
    evq_buffer_init(&file, EVQ_CORPUS_FILE_BYTES_MAX);
    evq_buffer_init(&labels, EVQ_CORPUS_FILE_BYTES_MAX);
    enum evq_status status = evq_corpus_read_file(build->corpus->name, &file, err);
    if (status == EVQ_OK && build->corpus->paths[1][0] != '\0') {
        status = evq_corpus_read_file(build->corpus->paths[1], &labels, err);
        items.labels = (struct evq_jsonl){.name = build->corpus->paths[1],
                                          .at = (const char *)labels.data,
                                          .end = (const char *)labels.data + labels.bytes};
    }
    if (status == EVQ_OK) {
        const char *text = (const char *)file.data;
        struct evq_jsonl lines = {
            .name = build->corpus->name, .at = text, .end = text + file.bytes};
        build->file_bytes = (int64_t)file.bytes;
        status = add_all(&items, &lines, err);
    }
    evq_buffer_free(&file);
    evq_buffer_free(&labels);
    items_close(&items);
    return status;
}
