/*
 * A pickle as an inert tree: what it would build, without building it. No class is looked up,
 * nothing is called; what is not known stays an object with its arguments and state below it. One
 * thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_PICKLE_H
#define EVQ_SHARED_CHECKPOINT_PICKLE_H

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
    EVQ_PICKLE_OBJECT, // What calling one would have made.
    EVQ_PICKLE_PERSISTENT
};

struct evq_pickle_node;

struct evq_pickle_object {
    struct evq_pickle_node *callable;
    struct evq_pickle_node *arguments; // A TUPLE.
    struct evq_pickle_node *state;     // What BUILD gave it; NULL: nothing.
    struct evq_pickle_node *items; // What was put into it, a DICT or LIST or SET; NULL: nothing.
};

struct evq_pickle_global {
    const char *module;
    const char *name;
};

struct evq_pickle_node {
    enum evq_pickle_kind kind;
    uint32_t count; // TUPLE, LIST, SET: items; DICT: keys and values together; TEXT, BYTES: bytes.
    uint32_t capacity; // Of items.
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
 * Reads one pickle that fills data (which stays the caller's and must outlive the tree). The tree
 * may share nodes and hold cycles: walk it with limits. Memory is bounded by a multiple of bytes.
 * EVQ_E_CORRUPT, EVQ_E_LIMIT, EVQ_E_UNSUPPORTED name opcode and byte; EVQ_E_INVALID: it names
 * something that only an attack has use for.
 */
enum evq_status evq_pickle_read(const uint8_t *data, size_t bytes, struct evq_pickle **ret_pickle,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/*
 * The same for a pickle at the start of data, which something follows; *ret_bytes is its length.
 * EVQ_E_INCOMPLETE: data ends inside it.
 */
enum evq_status evq_pickle_read_first(const uint8_t *data, size_t bytes,
                                      struct evq_pickle **ret_pickle, size_t *ret_bytes,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_pickle_free(struct evq_pickle *pickle); // Accepts NULL.
const struct evq_pickle_node *evq_pickle_root(const struct evq_pickle *pickle);

/* Every PERSISTENT of the pickle, wherever it stands; returns their number. */
size_t evq_pickle_persistent(const struct evq_pickle *pickle,
                             struct evq_pickle_node *const **ret_nodes);

/* Whether node is the GLOBAL module.name. */
bool evq_pickle_is_global(const struct evq_pickle_node *node, const char *module, const char *name);
/* Whether node is TEXT equal to text. */
bool evq_pickle_is_text(const struct evq_pickle_node *node, const char *text);
/* Of two TEXT nodes, as strcmp() does. */
int evq_pickle_text_compare(const struct evq_pickle_node *left,
                            const struct evq_pickle_node *right);
/* The value of the TEXT key in a DICT, the last one as Python has it; NULL: none, or no DICT. */
const struct evq_pickle_node *evq_pickle_get(const struct evq_pickle_node *dict, const char *key);

#endif
