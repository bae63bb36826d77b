/*
 * What a program or verb says about itself, once: printed by --help, and written as its manual page
 * at build time.
 */
#ifndef EVQ_MAN_H
#define EVQ_MAN_H

#include <stdio.h>

#include "shared/base/option.h"

struct evq_man_item { // A list ends with name NULL.
    const char *name;
    const char *text;
};

struct evq_man {
    const char *name;        // "evalq-submit": of the page, less ".1".
    const char *command;     // "evalq submit", as it is typed.
    const char *usage;       // What follows the command; each further line is another use.
    const char *summary;     // One line, no full stop.
    const char *description; // Paragraphs separated by an empty line.
    const char *list_title;  // Of list, such as "Verbs".
    const struct evq_man_item *list;
    const char *words; // Those that may follow the command, "a|b"; NULL: none is known.
    const struct evq_option *const *options; // Its own; both lists of tables end with NULL.
    const struct evq_option *const *common;  // Those it shares with others.
    const char *environment;                 // Variables that it reads.
};

void evq_man_help(const struct evq_man *man, FILE *out);

/* Writes directory/NAME.1; the directory must exist. EVQ_E_IO, EVQ_E_LIMIT. */
enum evq_status evq_man_write(const struct evq_man *man, const char *directory,
                              struct evq_error *err) EVQ_CHECK_RESULT;

#endif
