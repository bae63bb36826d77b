/*
 * Reads maps of the configuration by tables of keys, and says in one sentence what is wrong where.
 * Private to the configuration.
 */
#ifndef EVQ_SHARED_CONFIG_READ_H
#define EVQ_SHARED_CONFIG_READ_H

#include "shared/config/config.h"
#include "shared/config/config_tree.h"

struct evq_config_reader {
    struct evq_arena *arena;
    struct evq_error *err;
    const char *file_name;
    const char *directory; // Of the file, absolute: what relative paths are relative to.
    struct evq_config *config;
};

enum evq_key_type {
    EVQ_KEY_TEXT,  // const char *
    EVQ_KEY_PATH,  // const char *, made absolute
    EVQ_KEY_INT32, // int32_t or uint32_t, min to max
    EVQ_KEY_INT64, // int64_t, min to max
    EVQ_KEY_BYTES, // int64_t, min to max, "24GiB" or a number
    EVQ_KEY_CALL,  // By function.
    EVQ_KEY_ANY    // Accepted, not read.
};

struct evq_key {
    const char *name;
    enum evq_key_type type;
    size_t offset;
    int64_t min;
    int64_t max;
    enum evq_status (*call)(const struct evq_config_reader *reader, const struct evq_node *node,
                            const char *where, void *base);
};

/* where names the map in messages: "suites.quick"; "" is the file itself. Null values leave
 * defaults. */
enum evq_status evq_read_map(const struct evq_config_reader *reader, const struct evq_node *node,
                             const char *where, const struct evq_key *keys, size_t key_count,
                             void *base) EVQ_CHECK_RESULT;

/* "FILE:LINE:COLUMN: sentence" for a node, or for its key. */
enum evq_status evq_read_fail(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *format, ...) EVQ_PRINTF(3, 4);
enum evq_status evq_read_fail_key(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *format, ...)
    EVQ_PRINTF(3, 4);
enum evq_status evq_read_nomem(const struct evq_config_reader *reader);

enum evq_status evq_read_kind(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, enum evq_node_kind kind) EVQ_CHECK_RESULT;
/* true or false. */
enum evq_status evq_read_bool(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, bool *ret) EVQ_CHECK_RESULT;
/* A list of scalars; NULL-terminated. name_bytes_max > 0: each is a name of at most that many
 * bytes. */
enum evq_status evq_read_texts(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, size_t name_bytes_max,
                               const char *const **ret_texts, size_t *ret_count) EVQ_CHECK_RESULT;
/* Scalars below node, flattened: "a.b", lists as "a.0". Entries of node named in `except`
 * (NULL-terminated) are left out. */
enum evq_status evq_read_pairs(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, const char *const *except,
                               struct evq_pair **ret_pairs, size_t *ret_count) EVQ_CHECK_RESULT;
/* The key of an entry as a name of the queue's alphabet. */
enum evq_status evq_read_name(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *what) EVQ_CHECK_RESULT;
/* path made absolute against the file's directory; NULL: out of memory. */
const char *evq_read_path(const struct evq_config_reader *reader, const char *path);

/* The whole file into reader->config, which holds the defaults. */
enum evq_status evq_read_file(const struct evq_config_reader *reader,
                              const struct evq_node *root) EVQ_CHECK_RESULT;
/* Sections; base is the struct evq_config. */
enum evq_status evq_read_redis(const struct evq_config_reader *reader, const struct evq_node *node,
                               const char *where, void *base) EVQ_CHECK_RESULT;
enum evq_status evq_read_suites(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base) EVQ_CHECK_RESULT;
enum evq_status evq_read_evaluators(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where,
                                    void *base) EVQ_CHECK_RESULT;
/* The map `lmms` of the section gateway. */
enum evq_status evq_read_lmms(const struct evq_config_reader *reader, const struct evq_node *node,
                              const char *where, void *base) EVQ_CHECK_RESULT;
/* Digest and definition of a suite that is otherwise complete. */
enum evq_status evq_suite_digest(const struct evq_config_reader *reader,
                                 struct evq_suite *suite) EVQ_CHECK_RESULT;

#endif
