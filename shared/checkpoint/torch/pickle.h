/* Parses a pickle into an inert tree: what it would build, without building it. No class is
 * imported and nothing is called. An unknown object keeps its arguments and state. One thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_PICKLE_H
#define EVQ_SHARED_CHECKPOINT_TORCH_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

enum evq_pickle_kind {
    EVQ_PICKLE_NONE,
    EVQ_PICKLE_BOOL,
    EVQ_PICKLE_INT,
    EVQ_PICKLE_BIG_INT, // Beyond 64 bits: its value is not kept.
    EVQ_PICKLE_FLOAT,
    EVQ_PICKLE_TEXT,
    EVQ_PICKLE_BYTES,
    EVQ_PICKLE_TUPLE,
    EVQ_PICKLE_LIST,
    EVQ_PICKLE_SET,
    EVQ_PICKLE_DICT,   // Also OrderedDict, defaultdict, Counter.
    EVQ_PICKLE_GLOBAL, // A name of a class or function.
    EVQ_PICKLE_OBJECT, // What a call would have made.
    EVQ_PICKLE_PERSISTENT
};

struct evq_pickle_node;

struct evq_pickle_object {
    struct evq_pickle_node *callable;
    struct evq_pickle_node *arguments; // A TUPLE.
    struct evq_pickle_node *state;     // The argument of BUILD; NULL: none.
    struct evq_pickle_node *items;     // Items that were added, as a DICT, LIST or SET; NULL: none.
};

struct evq_pickle_global {
    const char *module;
    const char *name;
};

struct evq_pickle_node {
    enum evq_pickle_kind kind;
    uint32_t count; // TUPLE, LIST, SET: items; DICT: keys and values together; TEXT, BYTES: bytes.
    uint32_t capacity; // Number of items that fit.
    union {
        int64_t integer; // INT, BOOL.
        double real;
        const char *text;               // TEXT, BYTES: in the pickle itself, not NUL-terminated.
        struct evq_pickle_node **items; // A DICT: key, value, key, value.
        struct evq_pickle_object *object;
        const struct evq_pickle_global *global;
        struct evq_pickle_node *id; // PERSISTENT.
    } as;
};

struct evq_pickle;

/*
 * Parses a pickle that fills data, which stays the caller's and must outlive the tree. The tree may
 * share nodes and contain cycles, so walk it with limits. Memory is bounded by a multiple of bytes.
 * EVQ_E_CORRUPT, EVQ_E_LIMIT and EVQ_E_UNSUPPORTED name opcode and byte. EVQ_E_INVALID: the pickle
 * names something that only an attack needs.
 */
enum evq_status evq_pickle_read(const uint8_t *data, size_t bytes, struct evq_pickle **ret_pickle,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for a pickle at the start of data; *ret_bytes is its length. EVQ_E_INCOMPLETE: data ends
 * inside it. */
enum evq_status evq_pickle_read_first(const uint8_t *data, size_t bytes,
                                      struct evq_pickle **ret_pickle, size_t *ret_bytes,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_pickle_free(struct evq_pickle *pickle); // Accepts NULL.
const struct evq_pickle_node *evq_pickle_root(const struct evq_pickle *pickle);

/* Returns the number of PERSISTENT nodes; *ret_nodes lists them all. */
size_t evq_pickle_persistent(const struct evq_pickle *pickle,
                             struct evq_pickle_node *const **ret_nodes);

/* Whether node is the GLOBAL module.name. */
bool evq_pickle_is_global(const struct evq_pickle_node *node, const char *module, const char *name);
/* Whether node is TEXT equal to text. */
bool evq_pickle_is_text(const struct evq_pickle_node *node, const char *text);
/* Compares two TEXT nodes like strcmp(). */
int evq_pickle_text_compare(const struct evq_pickle_node *left,
                            const struct evq_pickle_node *right);
/* Returns the value of the TEXT key in a DICT, the last one as in Python; NULL: no such key, or not
 * a DICT. */
const struct evq_pickle_node *evq_pickle_get(const struct evq_pickle_node *dict, const char *key);

#endif
