/*
 * The text of evalq.yaml, as `evalq init` and `evalq suite` write it. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_INIT_CONFIG_FILE_H
#define EVQ_PRODUCER_CLI_INIT_CONFIG_FILE_H

#include "shared/base/buffer.h"

#define EVQ_CONFIG_FILE "evalq.yaml"

/* Appends a YAML string in double quotes. */
void evq_config_file_quoted(struct evq_buffer *out, const char *text, size_t bytes);

/* Appends the first lines of a new file, with its roots. */
void evq_config_file_head(struct evq_buffer *out);

/* Writes evalq.yaml into the working directory. *ret_exists: there is one already, and it stays as
 * it is. EVQ_E_IO. */
enum evq_status evq_config_file_create(const char *text, bool *ret_exists,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Appends text to out, with lines added at the end of its top-level section, or with a new section
 * at the end. All other bytes stay as they are. lines: the first has the indentation 2; they are
 * indented like the entries that the section has. EVQ_E_INVALID: the section is written in another
 * form, such as `suites: {...}`.
 */
enum evq_status evq_config_file_insert(const char *text, const char *section, const char *lines,
                                       struct evq_buffer *out,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
