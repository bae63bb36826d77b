/* Reads post_processor, which tells which tokens are put before and after a text. */
#include <string.h>

#include "worker/tokenizer/settings.h"

struct template
{
    struct evq_tokenizer_json *definition;
    const struct evq_json_tree *tokens; // special_tokens: from name to id.
    bool text;                          // The place of the text itself was reached.
};

static enum evq_status add_id(struct template *template, uint64_t id, struct evq_error *err)
{
    struct evq_tokenizer_json *definition = template->definition;
    int32_t *ids = template->text ? definition->after : definition->before;
    size_t *count = template->text ? &definition->after_count : &definition->before_count;

    if (*count == EVQ_TOKENIZER_TEMPLATE_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "the template has more than %d tokens on one side",
                             EVQ_TOKENIZER_TEMPLATE_MAX);
    }
    if (id >= EVQ_TOKENIZER_IDS_MAX) {
        return evq_tokenizer_json_bad(definition, err,
                                      "the template has the id %llu, expected below %d",
                                      (unsigned long long)id, EVQ_TOKENIZER_IDS_MAX);
    }
    ids[(*count)++] = (int32_t)id;
    return EVQ_OK;
}

static enum evq_status special(struct template *template, const struct evq_json_tree *piece,
                               struct evq_error *err)
{
    const struct evq_json_tree *name = evq_json_tree_get(piece, "id");
    enum evq_status status = EVQ_OK;
    uint64_t id = 0;

    const struct evq_json_tree *token = name != NULL && name->kind == EVQ_JSON_STRING
                                            ? evq_json_tree_get(template->tokens, name->text.text)
                                            : NULL;
    const struct evq_json_tree *ids = evq_json_tree_get(token, "ids");
    if (ids == NULL || ids->kind != EVQ_JSON_ARRAY) {
        return evq_tokenizer_json_bad(template->definition, err,
                                      "the template names a special token without ids");
    }
    for (const struct evq_json_tree *at = ids->first; status == EVQ_OK && at != NULL;
         at = at->next) {
        status = evq_json_tree_u64(at, &id)
                     ? add_id(template, id, err)
                     : evq_tokenizer_json_bad(template->definition, err,
                                              "an id of the template is no whole "
                                              "number");
    }
    return status;
}

static enum evq_status read_template(struct evq_tokenizer_json *definition,
                                     const struct evq_json_tree *tree, struct evq_error *err)
{
    struct template template = {.definition = definition,
                                .tokens = evq_json_tree_get(tree, "special_tokens")};
    const struct evq_json_tree *single = evq_json_tree_get(tree, "single");
    enum evq_status status = EVQ_OK;

    if (definition->before_count > 0 || definition->after_count > 0) {
        return evq_tokenizer_json_refuse(definition, err, "has more than one template");
    }
    if (single == NULL || single->kind != EVQ_JSON_ARRAY) {
        return evq_tokenizer_json_bad(definition, err, "the template's single is no list");
    }
    for (const struct evq_json_tree *at = single->first; status == EVQ_OK && at != NULL;
         at = at->next) {
        const struct evq_json_tree *sequence = evq_json_tree_get(at, "Sequence");
        if (evq_json_tree_is(evq_json_tree_get(sequence, "id"), "A") && !template.text) {
            template.text = true;
        } else if (sequence == NULL) {
            status = special(&template, evq_json_tree_get(at, "SpecialToken"), err);
        } else {
            status = evq_tokenizer_json_refuse(definition, err, "has a template of several texts");
        }
    }
    if (status == EVQ_OK && !template.text) {
        status = evq_tokenizer_json_bad(definition, err, "the template has no place for the text");
    }
    return status;
}

static enum evq_status one(struct evq_tokenizer_json *definition, const struct evq_json_tree *tree,
                           struct evq_error *err)
{
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");
    char shown[260];

    if (evq_json_tree_is(type, "ByteLevel")) {
        return EVQ_OK; // It changes offsets but no tokens.
    }
    if (evq_json_tree_is(type, "TemplateProcessing")) {
        return read_template(definition, tree, err);
    }
    if (type == NULL || type->kind != EVQ_JSON_STRING) {
        return evq_tokenizer_json_bad(definition, err, "a post_processor has no type");
    }
    return evq_tokenizer_json_refuse(definition, err,
                                     "has a post_processor '%s' that is not handled",
                                     evq_tokenizer_text_shown(type->text, shown, sizeof(shown)));
}

enum evq_status evq_settings_post_processor(struct evq_tokenizer_json *definition,
                                            const struct evq_json_tree *tree, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (evq_json_tree_none(tree)) {
        return EVQ_OK;
    }
    if (!evq_json_tree_is(evq_json_tree_get(tree, "type"), "Sequence")) {
        return one(definition, tree, err);
    }
    const struct evq_json_tree *processors = evq_json_tree_get(tree, "processors");
    if (processors == NULL || processors->kind != EVQ_JSON_ARRAY) {
        return evq_tokenizer_json_bad(definition, err, "a Sequence has no list of processors");
    }
    for (tree = processors->first; status == EVQ_OK && tree != NULL; tree = tree->next) {
        status = one(definition, tree, err);
    }
    return status;
}
