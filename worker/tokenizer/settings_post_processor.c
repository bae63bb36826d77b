/* Reads post_processor, which tells which tokens are put around a text or a pair of texts. */
#include <string.h>

#include "worker/tokenizer/settings.h"

static enum evq_status add_part(const struct evq_tokenizer_json *definition,
                                struct evq_template *template, int32_t id, uint64_t type,
                                struct evq_error *err)
{
    if (template->count == EVQ_TEMPLATE_PARTS_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s': the template has more than %d parts",
                             definition->path, EVQ_TEMPLATE_PARTS_MAX);
    }
    if (type > INT32_MAX) {
        return evq_tokenizer_json_bad(definition, err, "the template has the type id %llu",
                                      (unsigned long long)type);
    }
    template->parts[template->count].id = id;
    template->parts[template->count++].type = (int32_t)type;
    return EVQ_OK;
}

static enum evq_status add_token(const struct evq_tokenizer_json *definition,
                                 struct evq_template *template, const struct evq_json_tree *number,
                                 uint64_t type, struct evq_error *err)
{
    uint64_t id = 0;

    if (!evq_json_tree_u64(number, &id) || id >= EVQ_TOKENIZER_IDS_MAX) {
        return evq_tokenizer_json_bad(definition, err,
                                      "an id of the template is no whole number below %d",
                                      EVQ_TOKENIZER_IDS_MAX);
    }
    return add_part(definition, template, (int32_t)id, type, err);
}

static enum evq_status special(const struct evq_tokenizer_json *definition,
                               struct evq_template *template, const struct evq_json_tree *tokens,
                               const struct evq_json_tree *piece, uint64_t type,
                               struct evq_error *err)
{
    const struct evq_json_tree *name = evq_json_tree_get(piece, "id");
    enum evq_status status = EVQ_OK;

    const struct evq_json_tree *token = name != NULL && name->kind == EVQ_JSON_STRING
                                            ? evq_json_tree_get(tokens, name->text.text)
                                            : NULL;
    const struct evq_json_tree *ids = evq_json_tree_get(token, "ids");
    if (ids == NULL || ids->kind != EVQ_JSON_ARRAY) {
        return evq_tokenizer_json_bad(definition, err,
                                      "the template names a special token without ids");
    }
    for (const struct evq_json_tree *at = ids->first; status == EVQ_OK && at != NULL;
         at = at->next) {
        status = add_token(definition, template, at, type, err);
    }
    return status;
}

/* Whether the template contains this text exactly once. */
static bool has_once(const struct evq_template *template, int32_t text)
{
    size_t count = 0;

    for (size_t i = 0; i < template->count; i++) {
        count += template->parts[i].id == text;
    }
    return count == 1;
}

/* Reads `single`, or `pair` with two texts. */
static enum evq_status read_parts(const struct evq_tokenizer_json *definition,
                                  const struct evq_json_tree *tree, const char *key, bool two,
                                  struct evq_template *template, struct evq_error *err)
{
    const struct evq_json_tree *tokens = evq_json_tree_get(tree, "special_tokens");
    const struct evq_json_tree *parts = evq_json_tree_get(tree, key);
    enum evq_status status = EVQ_OK;

    if (parts == NULL || parts->kind != EVQ_JSON_ARRAY) {
        return evq_tokenizer_json_bad(definition, err, "the template's %s is no list", key);
    }
    for (const struct evq_json_tree *at = parts->first; status == EVQ_OK && at != NULL;
         at = at->next) {
        const struct evq_json_tree *sequence = evq_json_tree_get(at, "Sequence");
        const struct evq_json_tree *piece =
            sequence != NULL ? sequence : evq_json_tree_get(at, "SpecialToken");
        const struct evq_json_tree *type_id = evq_json_tree_get(piece, "type_id");
        const bool second = evq_json_tree_is(evq_json_tree_get(sequence, "id"), "B");
        uint64_t type = 0;
        if (type_id != NULL && !evq_json_tree_u64(type_id, &type)) {
            return evq_tokenizer_json_bad(definition, err, "a type_id is no whole number");
        }
        status = sequence == NULL
                     ? special(definition, template, tokens, piece, type, err)
                     : add_part(definition, template,
                                second ? EVQ_TEMPLATE_SECOND : EVQ_TEMPLATE_FIRST, type, err);
    }
    if (status == EVQ_OK && (!has_once(template, EVQ_TEMPLATE_FIRST) ||
                             has_once(template, EVQ_TEMPLATE_SECOND) != two)) {
        status = evq_tokenizer_json_refuse(definition, err,
                                           "has a template that does not use each text once");
    }
    return status;
}

/* Reads BertProcessing, which makes "cls A sep" and "cls A sep B sep", or RobertaProcessing, which
 * makes "cls A sep sep B sep" and has no types. */
static enum evq_status read_bert(struct evq_tokenizer_json *definition,
                                 const struct evq_json_tree *tree, bool roberta,
                                 struct evq_error *err)
{
    const struct evq_json_tree *ids[2];
    static const char *const names[2] = {"cls", "sep"};
    static const char single[] = "cAs";
    const char *pair = roberta ? "cAssBs" : "cAsBs";
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < 2; i++) {
        const struct evq_json_tree *token = evq_json_tree_get(tree, names[i]);
        ids[i] = token != NULL && token->kind == EVQ_JSON_ARRAY && token->first != NULL
                     ? token->first->next
                     : NULL;
        if (ids[i] == NULL) {
            return evq_tokenizer_json_bad(
                definition, err, "%s of the post_processor is no pair of token and id", names[i]);
        }
    }
    for (size_t two = 0; two < 2; two++) {
        struct evq_template *template = two == 1 ? &definition->pair : &definition->single;
        uint64_t type = 0;
        for (const char *at = two == 1 ? pair : single; status == EVQ_OK && *at != '\0'; at++) {
            type = *at == 'B' && !roberta ? 1 : type;
            status = *at == 'A'   ? add_part(definition, template, EVQ_TEMPLATE_FIRST, type, err)
                     : *at == 'B' ? add_part(definition, template, EVQ_TEMPLATE_SECOND, type, err)
                                  : add_token(definition, template, ids[*at == 's'], type, err);
        }
    }
    return status;
}

static enum evq_status one(struct evq_tokenizer_json *definition, const struct evq_json_tree *tree,
                           struct evq_error *err)
{
    const struct evq_json_tree *type = evq_json_tree_get(tree, "type");
    const bool roberta = evq_json_tree_is(type, "RobertaProcessing");
    const bool template = evq_json_tree_is(type, "TemplateProcessing");
    char shown[260];

    if (evq_json_tree_is(type, "ByteLevel")) {
        return EVQ_OK; // It changes offsets but no tokens.
    }
    if (type == NULL || type->kind != EVQ_JSON_STRING) {
        return evq_tokenizer_json_bad(definition, err, "a post_processor has no type");
    }
    if (!roberta && !template && !evq_json_tree_is(type, "BertProcessing")) {
        return evq_tokenizer_json_refuse(
            definition, err, "has a post_processor '%s' that is not handled",
            evq_tokenizer_text_shown(type->text, shown, sizeof(shown)));
    }
    if (definition->single.count > 0) {
        return evq_tokenizer_json_refuse(definition, err, "has more than one template");
    }
    if (!template) {
        return read_bert(definition, tree, roberta, err);
    }
    enum evq_status status =
        read_parts(definition, tree, "single", false, &definition->single, err);
    if (status == EVQ_OK && evq_json_tree_get(tree, "pair") != NULL) {
        status = read_parts(definition, tree, "pair", true, &definition->pair, err);
    }
    return status;
}

static enum evq_status each(struct evq_tokenizer_json *definition, const struct evq_json_tree *tree,
                            struct evq_error *err)
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

enum evq_status evq_settings_post_processor(struct evq_tokenizer_json *definition,
                                            const struct evq_json_tree *tree, struct evq_error *err)
{
    enum evq_status status = each(definition, tree, err);

    if (status == EVQ_OK && definition->single.count == 0) {
        status = add_part(definition, &definition->single, EVQ_TEMPLATE_FIRST, 0, err);
    }
    if (status == EVQ_OK && definition->pair.count == 0) {
        status = add_part(definition, &definition->pair, EVQ_TEMPLATE_FIRST, 0, err);
        if (status == EVQ_OK) {
            status = add_part(definition, &definition->pair, EVQ_TEMPLATE_SECOND, 1, err);
        }
    }
    return status;
}
