/*
 * The function library evalq_v1: its text, embedded by the build from shared/queue/lua, and its
 * version rules. Major = key layout and library name. Within a major, functions and arguments are
 * only appended.
 */
#ifndef EVQ_SHARED_FUNCTION_LIBRARY_H
#define EVQ_SHARED_FUNCTION_LIBRARY_H

#include <stdint.h>

#include "shared/redis/conn.h"

#define EVQ_FUNCTIONS_MAJOR   1
#define EVQ_FUNCTIONS_LIBRARY "evalq_v1"
#define EVQ_FUNCTIONS_PREFIX  "evalq_v1_"

extern const char evq_function_library_text[];   // Generated: the joined Lua source.
extern const int64_t evq_function_library_build; // From shared/queue/lua/BUILD; rises with every
                                                 // change of shared/queue/lua.

/*
 * Loads the library when none is there or the one there has a lower build; leaves an equal or
 * higher build alone. ret_build: the build that is there afterwards. EVQ_E_AUTH when the user may
 * not load functions.
 */
enum evq_status evq_function_library_install(struct evq_conn *conn, int64_t *ret_build,
                                             struct evq_error *err) EVQ_CHECK_RESULT;

/* The same where the keys of this prefix lie: in a cluster each node has its own library. */
enum evq_status evq_function_library_install_for(struct evq_conn *conn, const char *prefix,
                                                 int64_t *ret_build,
                                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* What evalq_v1_info answered, judged: EVQ_E_VERSION when this program cannot work with it. */
enum evq_status evq_function_library_judge(const struct evq_conn *conn, int64_t major,
                                           int64_t build, struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_VERSION's sentence for a server without the library; keeps err's where the server itself is
 * too old. */
enum evq_status evq_function_library_missing(const struct evq_conn *conn, struct evq_error *err);

#endif
