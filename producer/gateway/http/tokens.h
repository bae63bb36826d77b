/*
 * Bearer tokens from a file with lines "NAME ROLE TOKEN". ROLE is read, write (which includes the
 * others) or lmms. TOKEN is the token itself or "sha256:" and its 64 hex digits. Empty lines and
 * lines that begin with "#" are ignored. Any thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_TOKENS_H
#define EVQ_PRODUCER_GATEWAY_HTTP_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/error.h"

#define EVQ_TOKENS_MAX       256
#define EVQ_TOKEN_BYTES_MIN  16
#define EVQ_TOKEN_BYTES_MAX  256
#define EVQ_TOKEN_NAME_BYTES 33

struct evq_tokens;

/* Reads path. NULL: there are no tokens. EVQ_E_INVALID: the message names file and line, or every
 * user can read the file. EVQ_E_IO, EVQ_E_NOMEM. */
enum evq_status evq_tokens_open(const char *path, struct evq_tokens **ret_tokens,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokens_free(struct evq_tokens *tokens); // Accepts NULL.

/* Whether the file was replaced or written since it was read. */
bool evq_tokens_changed(const struct evq_tokens *tokens);
/* Reads the file again. After an error the tokens stay as they were. *ret_count: how many there
 * are. */
enum evq_status evq_tokens_reload(struct evq_tokens *tokens, size_t *ret_count,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks "Bearer TOKEN" and sets the rights (bits of enum evq_http_right) and the name of the
 * token. false: there is no such token. The time does not depend on how much of a token is right.
 */
bool evq_tokens_check(struct evq_tokens *tokens, const char *authorization, unsigned *ret_rights,
                      char ret_name[EVQ_TOKEN_NAME_BYTES]);

#endif
