/*
 * Where the password of Redis comes from: a file, or the environment. Never from a command line.
 */
#ifndef EVQ_SHARED_CONN_PASSWORD_H
#define EVQ_SHARED_CONN_PASSWORD_H

#include <stdbool.h>

#include "shared/base/error.h"

#define EVQ_CONN_PASSWORD_BYTES_MAX 1024
#define EVQ_CONN_PASSWORD_ENV       "EVALQ_REDIS_PASSWORD"
#define EVQ_CONN_PASSWORD_FILE_ENV  "EVALQ_REDIS_PASSWORD_FILE"

/*
 * The first of: the first line of `file` (when not ""), $EVALQ_REDIS_PASSWORD, the first line of
 * the file $EVALQ_REDIS_PASSWORD_FILE names; "" when there is none. EVQ_E_INVALID: the file is
 * readable by every user of the machine (outside /run/secrets, where container engines put it so),
 * is not a regular file, is empty or too long. EVQ_E_IO: it cannot be read. Unless
 * keep_environment, $EVALQ_REDIS_PASSWORD is overwritten and unset at the first call, so that child
 * processes do not get it, and remembered for later calls. That call belongs before a program's
 * first thread; a guest in somebody's process passes keep_environment.
 */
enum evq_status evq_conn_password_read(const char *file, bool keep_environment,
                                       char out[EVQ_CONN_PASSWORD_BYTES_MAX],
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* The first line of path; errors as above. */
enum evq_status evq_conn_password_file(const char *path, char out[EVQ_CONN_PASSWORD_BYTES_MAX],
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Overwrites it in a way that the compiler keeps. */
void evq_conn_password_wipe(char *secret, size_t bytes);

#endif
