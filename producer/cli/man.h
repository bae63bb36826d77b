/*
 * The manual pages, made from the option tables at build time: evalq.1 and one evalq-VERB.1 per
 * verb.
 */
#ifndef EVQ_CLI_MAN_H
#define EVQ_CLI_MAN_H

#include "shared/error.h"

/* Writes all pages into directory, which must exist. */
enum evq_status evq_man_write(const char *directory, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
