/*
 * Who may do what: bearer tokens from a file, one a line, "NAME ROLE TOKEN". ROLE is read, write
 * (which includes the others) or lmms. TOKEN is the token itself or "sha256:" and 64 hex digits of
 * it. Empty lines and those that begin with "#" are passed over. Any thread.
 */
#ifndef EVQ_GATEWAY_TOKENS_H
#define EVQ_GATEWAY_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/error.h"

#define EVQ_TOKENS_MAX       256
#define EVQ_TOKEN_BYTES_MIN  16
#define EVQ_TOKEN_BYTES_MAX  256
#define EVQ_TOKEN_NAME_BYTES 33

struct evq_tokens;

/* Reads path; NULL: there are no tokens. EVQ_E_INVALID names file and line, or says that everybody
 * can read the file; EVQ_E_IO; EVQ_E_NOMEM. */
enum evq_status evq_tokens_open(const char *path, struct evq_tokens **ret_tokens,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokens_free(struct evq_tokens *tokens); // Accepts NULL.

/* Whether path is another file, or was written, since it was read. */
bool evq_tokens_changed(const struct evq_tokens *tokens);
/* Reads path again; on a fault the tokens stay as they were. *ret_count: how many there are. */
enum evq_status evq_tokens_reload(struct evq_tokens *tokens, size_t *ret_count,
                                  struct evq_error *err) EVQ_CHECK_RESULT;

/* What "Bearer TOKEN" gives: rights, bits of enum evq_http_right, and the token's name. false: no
 * such token. It takes as long whichever token it is like. */
bool evq_tokens_check(struct evq_tokens *tokens, const char *authorization, unsigned *ret_rights,
                      char ret_name[EVQ_TOKEN_NAME_BYTES]);

#endif
