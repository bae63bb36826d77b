/* The help text of a program or verb. --help prints it, and the build writes it as a manual page.
 * One thread. */
#ifndef EVQ_SHARED_BASE_MAN_H
#define EVQ_SHARED_BASE_MAN_H

#include <stdio.h>

#include "shared/base/option.h"

struct evq_man_item { // A list ends with name NULL.
    const char *name;
    const char *text;
};

struct evq_man {
    const char *name;        // "evalq-submit": the page's name without ".1".
    const char *command;     // "evalq submit", as it is typed.
    const char *usage;       // What follows the command; each further line is another form.
    const char *summary;     // One line, no full stop.
    const char *description; // Paragraphs separated by an empty line.
    const char *list_title;  // Heading of list, such as "Verbs".
    const struct evq_man_item *list;
    const char *words; // Words that may follow the command, "a|b"; NULL: not known.
    const struct evq_option *const *options; // The command's own tables; both arrays end with NULL.
    const struct evq_option *const *common;  // Tables that it shares with other commands.
    const char *environment;                 // Environment variables that it reads.
};

void evq_man_help(const struct evq_man *man, FILE *out);

/* Writes directory/NAME.1; the directory must exist. EVQ_E_IO, EVQ_E_LIMIT. */
enum evq_status evq_man_write(const struct evq_man *man, const char *directory,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
