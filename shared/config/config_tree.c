#include "shared/config/config_tree.h"

#include <string.h>
#include <yaml.h>

struct tree {
    yaml_parser_t parser;
    const char *file_name;
    struct evq_arena *arena;
    struct evq_error *err;
    struct evq_node *open[EVQ_CONFIG_DEPTH_MAX]; // Maps and lists being filled.
    size_t depth;
    size_t nodes;
    struct evq_node *root;
    // The key of the next value in the innermost map.
    const char *key;
    size_t key_line;
    size_t key_column;
    size_t documents;
};

const char *evq_node_kind_name(enum evq_node_kind kind)
{
    static const char *const names[] = {
        [EVQ_NODE_NULL] = "nothing",
        [EVQ_NODE_SCALAR] = "a single value",
        [EVQ_NODE_LIST] = "a list",
        [EVQ_NODE_MAP] = "a map",
    };
    return names[kind];
}

static enum evq_status tree_fail(struct tree *tree, const yaml_mark_t *mark, enum evq_status status,
                                 const char *problem)
{
    return evq_error_set(tree->err, status, "%s:%zu:%zu: %s", tree->file_name, mark->line + 1,
                         mark->column + 1, problem);
}

static enum evq_status parser_fail(struct tree *tree)
{
    const yaml_parser_t *parser = &tree->parser;
    if (parser->error == YAML_MEMORY_ERROR) {
        return evq_error_set(tree->err, EVQ_E_NOMEM, "%s", tree->file_name);
    }
    if (parser->error == YAML_READER_ERROR) {
        return evq_error_set(tree->err, EVQ_E_INVALID, "%s: byte %zu: %s", tree->file_name,
                             parser->problem_offset,
                             parser->problem != NULL ? parser->problem : "not UTF-8");
    }
    return evq_error_set(tree->err, EVQ_E_INVALID, "%s:%zu:%zu: %s%s%s", tree->file_name,
                         parser->problem_mark.line + 1, parser->problem_mark.column + 1,
                         parser->problem != NULL ? parser->problem : "not YAML",
                         parser->context != NULL ? " " : "",
                         parser->context != NULL ? parser->context : "");
}

/* Adds node to the innermost open container, or makes it the root. */
static enum evq_status tree_attach(struct tree *tree, struct evq_node *node,
                                   const yaml_mark_t *mark)
{
    if (tree->depth == 0) {
        tree->root = node;
        return EVQ_OK;
    }
    struct evq_node *parent = tree->open[tree->depth - 1];
    if (parent->count >= EVQ_CONFIG_ENTRIES_MAX) {
        return tree_fail(tree, mark, EVQ_E_LIMIT, "more than 4096 entries in one map or list");
    }
    if (parent->kind == EVQ_NODE_MAP) {
        node->key = tree->key;
        node->key_line = tree->key_line;
        node->key_column = tree->key_column;
        tree->key = NULL;
    }
    if (parent->last != NULL) {
        parent->last->next = node;
    } else {
        parent->first = node;
    }
    parent->last = node;
    parent->count++;
    return EVQ_OK;
}

static bool wants_key(const struct tree *tree)
{
    return tree->depth > 0 && tree->open[tree->depth - 1]->kind == EVQ_NODE_MAP &&
           tree->key == NULL;
}

static enum evq_status tree_key(struct tree *tree, const char *text, const yaml_mark_t *mark)
{
    const struct evq_node *parent = tree->open[tree->depth - 1];
    if (text[0] == '\0') {
        return tree_fail(tree, mark, EVQ_E_INVALID, "a key is empty");
    }
    for (const struct evq_node *entry = parent->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, text) == 0) {
            char shown[128];
            evq_error_escape(text, strlen(text), shown, sizeof shown);
            return evq_error_set(
                tree->err, EVQ_E_INVALID, "%s:%zu:%zu: key \"%s\" comes twice, first on line %zu",
                tree->file_name, mark->line + 1, mark->column + 1, shown, entry->key_line);
        }
    }
    tree->key = text;
    tree->key_line = mark->line + 1;
    tree->key_column = mark->column + 1;
    return EVQ_OK;
}

static bool is_null(const char *text, bool quoted)
{
    return !quoted && (text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0 ||
                       strcmp(text, "Null") == 0 || strcmp(text, "NULL") == 0);
}

static enum evq_status tree_scalar(struct tree *tree, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t bytes = event->data.scalar.length;
    const yaml_mark_t *mark = &event->start_mark;

    if (event->data.scalar.anchor != NULL || event->data.scalar.tag != NULL) {
        return tree_fail(tree, mark, EVQ_E_INVALID, "anchors and tags are not allowed");
    }
    if (memchr(value, '\0', bytes) != NULL) {
        return tree_fail(tree, mark, EVQ_E_INVALID, "a value holds a NUL byte");
    }
    const char *text = evq_arena_strndup(tree->arena, value, bytes);
    struct evq_node *node = evq_arena_alloc(tree->arena, sizeof *node);
    if (text == NULL || node == NULL) {
        return evq_error_set(tree->err, EVQ_E_NOMEM, "%s", tree->file_name);
    }
    if (wants_key(tree)) {
        return tree_key(tree, text, mark);
    }
    node->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->kind = is_null(text, node->quoted) ? EVQ_NODE_NULL : EVQ_NODE_SCALAR;
    node->line = mark->line + 1;
    node->column = mark->column + 1;
    node->text = text;
    return tree_attach(tree, node, mark);
}

static enum evq_status tree_open(struct tree *tree, enum evq_node_kind kind, bool decorated,
                                 const yaml_mark_t *mark)
{
    if (decorated) {
        return tree_fail(tree, mark, EVQ_E_INVALID, "anchors and tags are not allowed");
    }
    if (wants_key(tree)) {
        return tree_fail(tree, mark, EVQ_E_INVALID, "a key is a map or list, expected a word");
    }
    if (tree->depth == EVQ_CONFIG_DEPTH_MAX) {
        return tree_fail(tree, mark, EVQ_E_LIMIT, "nested deeper than 16");
    }
    struct evq_node *node = evq_arena_alloc(tree->arena, sizeof *node);
    if (node == NULL) {
        return evq_error_set(tree->err, EVQ_E_NOMEM, "%s", tree->file_name);
    }
    node->kind = kind;
    node->line = mark->line + 1;
    node->column = mark->column + 1;
    enum evq_status status = tree_attach(tree, node, mark);
    if (status == EVQ_OK) {
        tree->open[tree->depth++] = node;
    }
    return status;
}

static enum evq_status tree_event(struct tree *tree, const yaml_event_t *event)
{
    const yaml_mark_t *mark = &event->start_mark;
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        tree->documents++;
        return tree->documents == 1
                   ? EVQ_OK
                   : tree_fail(tree, mark, EVQ_E_INVALID, "a second document begins, expected one");
    case YAML_ALIAS_EVENT:
        return tree_fail(tree, mark, EVQ_E_INVALID, "aliases are not allowed");
    case YAML_SCALAR_EVENT:
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        if (++tree->nodes > EVQ_CONFIG_NODES_MAX) {
            return tree_fail(tree, mark, EVQ_E_LIMIT, "more than 100000 values");
        }
        break;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        tree->depth--;
        return EVQ_OK;
    default:
        return EVQ_OK;
    }
    if (event->type == YAML_SCALAR_EVENT) {
        return tree_scalar(tree, event);
    }
    if (event->type == YAML_SEQUENCE_START_EVENT) {
        return tree_open(tree, EVQ_NODE_LIST,
                         event->data.sequence_start.anchor != NULL ||
                             event->data.sequence_start.tag != NULL,
                         mark);
    }
    return tree_open(
        tree, EVQ_NODE_MAP,
        event->data.mapping_start.anchor != NULL || event->data.mapping_start.tag != NULL, mark);
}

enum evq_status evq_tree_parse(const char *text, size_t bytes, const char *file_name,
                               struct evq_arena *arena, const struct evq_node **ret_root,
                               struct evq_error *err)
{
    static const struct evq_node nothing = {.kind = EVQ_NODE_NULL, .line = 1, .column = 1};
    struct tree tree = {.file_name = file_name, .arena = arena, .err = err};
    enum evq_status status = EVQ_OK;
    bool ended = false;

    if (bytes > EVQ_CONFIG_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "%s: %zu bytes, allowed %zu", file_name, bytes,
                             EVQ_CONFIG_BYTES_MAX);
    }
    if (yaml_parser_initialize(&tree.parser) == 0) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", file_name);
    }
    yaml_parser_set_encoding(&tree.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&tree.parser, (const unsigned char *)text, bytes);
    while (status == EVQ_OK && !ended) {
        yaml_event_t event;
        if (yaml_parser_parse(&tree.parser, &event) == 0) {
            status = parser_fail(&tree);
            break;
        }
        ended = event.type == YAML_STREAM_END_EVENT;
        status = tree_event(&tree, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&tree.parser);
    if (status == EVQ_OK) {
        *ret_root = tree.root != NULL ? tree.root : &nothing;
    }
    return status;
}
