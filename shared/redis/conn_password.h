/* Reads the password of Redis from a file or the environment, never from a command line. Any
 * thread. */
#ifndef EVQ_SHARED_REDIS_CONN_PASSWORD_H
#define EVQ_SHARED_REDIS_CONN_PASSWORD_H

#include <stdbool.h>

#include "shared/base/error.h"

#define EVQ_CONN_PASSWORD_BYTES_MAX 1024
#define EVQ_CONN_PASSWORD_ENV       "EVALQ_REDIS_PASSWORD"
#define EVQ_CONN_PASSWORD_FILE_ENV  "EVALQ_REDIS_PASSWORD_FILE"

/*
 * Returns the first of: the first line of `file` (unless ""), $EVALQ_REDIS_PASSWORD, the first line
 * of the file that $EVALQ_REDIS_PASSWORD_FILE names; "" if there is none. EVQ_E_INVALID: the file
 * is readable by every user (except below /run/secrets, where container engines make it so), is not
 * a regular file, is empty or too long. EVQ_E_IO: it cannot be read. Unless keep_environment is
 * set, the first call overwrites and unsets $EVALQ_REDIS_PASSWORD, so that child processes do not
 * get it, and remembers it for later calls. Make that call before the program's first thread; a
 * library inside another process sets keep_environment.
 */
enum evq_status evq_conn_password_read(const char *file, bool keep_environment,
                                       char out[EVQ_CONN_PASSWORD_BYTES_MAX],
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* The first line of path; errors as above. */
enum evq_status evq_conn_password_file(const char *path, char out[EVQ_CONN_PASSWORD_BYTES_MAX],
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Overwrites a secret in a way that the compiler keeps. */
void evq_conn_password_wipe(char *secret, size_t bytes);

#endif
