/*
 * Completion for bash from the same tables as --help and the manual pages: words, options and the
 * values that are known. Written at build time. One thread.
 */
#ifndef EVQ_SHARED_BASE_BASH_COMPLETION_H
#define EVQ_SHARED_BASE_BASH_COMPLETION_H

#include "shared/base/man.h"

/*
 * Writes directory/NAME.bash; the directory must exist. mans[0] is the program, whose list, if any,
 * holds the words that may come first; mans[1...] are the pages "NAME-WORD" of words that have
 * options of their own. EVQ_E_IO, EVQ_E_LIMIT.
 */
enum evq_status evq_bash_completion_write(const struct evq_man *const *mans, size_t count,
                                          const char *directory,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* Manual page and completion of a program that has one page. Errors as above. */
enum evq_status evq_bash_completion_pages(const struct evq_man *man, const char *directory,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

#endif
