/* Reads maps of the configuration by tables of keys. Errors say what is wrong and where. Private to
 * the configuration; one thread. */
#ifndef EVQ_SHARED_CONFIG_CONFIG_READ_H
#define EVQ_SHARED_CONFIG_CONFIG_READ_H

#include "shared/config/config.h"
#include "shared/config/config_tree.h"

struct evq_config_reader {
    struct evq_arena *arena;
    struct evq_error *err;
    const char *file_name;
    const char *directory; // Absolute directory of the file. Relative paths are relative to it.
    struct evq_config *config;
};

enum evq_key_type {
    EVQ_KEY_TEXT,  // const char *
    EVQ_KEY_NAME,  // const char *, a legal name of at most max bytes
    EVQ_KEY_PATH,  // const char *, made absolute
    EVQ_KEY_INT32, // int32_t or uint32_t, min to max
    EVQ_KEY_INT64, // int64_t, min to max
    EVQ_KEY_BOOL,  // bool, true or false
    EVQ_KEY_TEXTS, // const char *const *, a list of names of at most max bytes, and its count
    EVQ_KEY_BYTES, // int64_t, min to max, "24GiB" or a number
    EVQ_KEY_CALL,  // Read by a function.
    EVQ_KEY_ANY    // Accepted; read elsewhere.
};

struct evq_key {
    const char *name;
    enum evq_key_type type;
    size_t offset;
    size_t count_offset; // TEXTS: of the size_t that counts them.
    int64_t min;
    int64_t max;
    enum evq_status (*call)(const struct evq_config_reader *reader, const struct evq_node *node,
                            const char *where, void *base);
};

/* Rows of a table of keys. */
#define EVQ_KEY_PLAIN(key, kind, type_name, member)                                                \
    {                                                                                              \
        .name = (key), .type = (kind), .offset = offsetof(type_name, member)                       \
    }
#define EVQ_KEY_RANGE(key, kind, type_name, member, low, high)                                     \
    {                                                                                              \
        .name = (key), .type = (kind), .offset = offsetof(type_name, member), .min = (low),        \
        .max = (high)                                                                              \
    }
#define EVQ_KEY_LIST(key, type_name, member, count, bytes_max)                                     \
    {                                                                                              \
        .name = (key), .type = EVQ_KEY_TEXTS, .offset = offsetof(type_name, member),               \
        .count_offset = offsetof(type_name, count), .max = (bytes_max)                             \
    }
#define EVQ_KEY_BY(key, function)                                                                  \
    {                                                                                              \
        .name = (key), .type = EVQ_KEY_CALL, .call = (function)                                    \
    }

/* Reads a map. where names it in messages: "suites.quick"; "" is the whole file. A null value keeps
 * the default. */
enum evq_status evq_read_map(const struct evq_config_reader *reader, const struct evq_node *node,
                             const char *where, const struct evq_key *keys, size_t key_count,
                             void *base) EVQ_CHECK_RESULT;

/* EVQ_E_INVALID with "FILE:LINE:COLUMN: sentence" for a node, or for its key. */
enum evq_status evq_read_fail(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *format, ...) EVQ_PRINTF(3, 4);
enum evq_status evq_read_fail_key(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *format, ...)
    EVQ_PRINTF(3, 4);
enum evq_status evq_read_nomem(const struct evq_config_reader *reader);

enum evq_status evq_read_kind(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, enum evq_node_kind kind) EVQ_CHECK_RESULT;
/* Checks that node is a map or list (kind) of at most entries_max entries, and makes an array for
 * them of item_bytes each in *ret_items. */
enum evq_status evq_read_entries(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where,
                                 enum evq_node_kind kind, size_t entries_max, size_t item_bytes,
                                 void **ret_items) EVQ_CHECK_RESULT;
/* Reads true or false. */
enum evq_status evq_read_bool(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, bool *ret) EVQ_CHECK_RESULT;
/* Reads a list of scalars into a NULL-terminated array. name_bytes_max > 0: each must be a name of
 * at most that many bytes. */
enum evq_status evq_read_texts(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, size_t name_bytes_max,
                               const char *const **ret_texts, size_t *ret_count) EVQ_CHECK_RESULT;
/* Reads the scalars below node, flattened: "a.b", lists as "a.0". Skips entries of node named in
 * `except` (NULL-terminated). */
enum evq_status evq_read_pairs(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, const char *const *except,
                               struct evq_pair **ret_pairs, size_t *ret_count) EVQ_CHECK_RESULT;
/* Checks that the key of an entry is a legal name. */
enum evq_status evq_read_name(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *what) EVQ_CHECK_RESULT;
/* Returns path made absolute against the file's directory; NULL: out of memory. */
const char *evq_read_path(const struct evq_config_reader *reader, const char *path);

/* Reads the whole file into reader->config, which holds the defaults. */
enum evq_status evq_read_file(const struct evq_config_reader *reader,
                              const struct evq_node *root) EVQ_CHECK_RESULT;
/* Readers of sections; base is the struct evq_config. */
enum evq_status evq_read_redis(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, void *base) EVQ_CHECK_RESULT;
enum evq_status evq_read_suites(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base) EVQ_CHECK_RESULT;
enum evq_status evq_read_evaluators(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where,
                                    void *base) EVQ_CHECK_RESULT;
/* An evaluator of kind model_server whose other keys were read: argv, env and settings. */
enum evq_status evq_read_model_server(const struct evq_config_reader *reader,
                                      const struct evq_node *node, const char *where,
                                      struct evq_evaluator *evaluator, const char *server,
                                      const char *python) EVQ_CHECK_RESULT;
/* The map `harness` of a suite, which gives the suite its tasks. */
enum evq_status evq_read_harness(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where,
                                 struct evq_suite *suite) EVQ_CHECK_RESULT;
/* Sets digest and definition of a suite that is otherwise complete. */
enum evq_status evq_suite_digest(const struct evq_config_reader *reader,
                                 struct evq_suite *suite) EVQ_CHECK_RESULT;

#endif
