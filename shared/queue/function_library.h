/*
 * The function library evalq_v1: its text, which the build embeds from shared/queue/lua, and its
 * version rules. The major number is the key layout and part of the name. Within a major number,
 * functions and arguments are only added. Threads as the connection.
 */
#ifndef EVQ_SHARED_QUEUE_FUNCTION_LIBRARY_H
#define EVQ_SHARED_QUEUE_FUNCTION_LIBRARY_H

#include <stdint.h>

#include "shared/redis/conn.h"

#define EVQ_FUNCTIONS_MAJOR   1
#define EVQ_FUNCTIONS_LIBRARY "evalq_v1"
#define EVQ_FUNCTIONS_PREFIX  "evalq_v1_"

extern const char evq_function_library_text[];   // Generated: the joined Lua source.
extern const int64_t evq_function_library_build; // From shared/queue/lua/BUILD, which rises when
                                                 // the meaning of a function changes.

/*
 * Installs the library if there is none, or one with a lower build. An equal or higher build is
 * kept. ret_build: the build that is installed afterwards. EVQ_E_AUTH: the user must not load
 * functions.
 */
enum evq_status evq_function_library_install(struct evq_conn *conn, int64_t *ret_build,
                                             struct evq_error *err) EVQ_CHECK_RESULT;

/* The same on the node that holds the keys of this prefix: in a cluster each node has its own
 * library. */
enum evq_status evq_function_library_install_for(struct evq_conn *conn, const char *prefix,
                                                 int64_t *ret_build,
                                                 struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Checks the version that evalq_v1_info returned. EVQ_E_VERSION: this program cannot work with it.
 */
enum evq_status evq_function_library_judge(const struct evq_conn *conn, int64_t major,
                                           int64_t build, struct evq_error *err) EVQ_CHECK_RESULT;

/* Sets the EVQ_E_VERSION message for a server without the library. Keeps the message if the server
 * itself is too old. */
enum evq_status evq_function_library_missing_error(const struct evq_conn *conn,
                                                   struct evq_error *err);

#endif
