/*
 * A YAML file as a tree of maps, lists and scalars, each with its position. Private to the
 * configuration; the only user of libyaml. Aliases, tags, duplicate keys and second documents are
 * refused; size, depth and nodes are bounded. One thread.
 */
#ifndef EVQ_SHARED_CONFIG_CONFIG_TREE_H
#define EVQ_SHARED_CONFIG_CONFIG_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/arena.h"

#define EVQ_CONFIG_BYTES_MAX   ((size_t)1 << 20)
#define EVQ_CONFIG_NODES_MAX   100000
#define EVQ_CONFIG_DEPTH_MAX   16
#define EVQ_CONFIG_ENTRIES_MAX 4096 // Limit of one map or list.

enum evq_node_kind { EVQ_NODE_NULL, EVQ_NODE_SCALAR, EVQ_NODE_LIST, EVQ_NODE_MAP };

struct evq_node {
    enum evq_node_kind kind;
    size_t line; // From 1.
    size_t column;
    const char *text; // Scalar: as written, without quotes.
    bool quoted;
    const char *key; // Set for an entry of a map.
    size_t key_line;
    size_t key_column;
    struct evq_node *next;  // The next sibling.
    struct evq_node *first; // Map, list: the entries.
    struct evq_node *last;
    size_t count;
};

/*
 * An empty file gives a null node. Errors begin with file_name:line:column. The tree is in arena.
 */
enum evq_status evq_tree_parse(const char *text, size_t bytes, const char *file_name,
                               struct evq_arena *arena, const struct evq_node **ret_root,
                               struct evq_error *err) EVQ_CHECK_RESULT;

const char *evq_node_kind_name(enum evq_node_kind kind); // "a map", ...

#endif
