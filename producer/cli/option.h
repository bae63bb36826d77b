/*
 * Command-line options: one table per verb, from which parsing, --help and the manual pages come.
 * One thread.
 */
#ifndef EVQ_CLI_OPTION_H
#define EVQ_CLI_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shared/error.h"

enum evq_option_kind {
    EVQ_OPTION_FLAG,
    EVQ_OPTION_TEXT,
    EVQ_OPTION_CHOICE,  // One of the words in `value`, separated by '|'.
    EVQ_OPTION_INTEGER, // min to max.
    EVQ_OPTION_LIST     // May be given several times.
};

struct evq_option { // A table ends with name NULL.
    const char *name;
    char letter; // '\0': none.
    enum evq_option_kind kind;
    const char *value; // What the help calls the value; NULL for a flag.
    const char *help;
    int64_t min;
    int64_t max;
};

struct evq_cli;
struct evq_verb {
    const char *name;
    const char *arguments;   // "PATH --run RUN", as usage shows them.
    const char *summary;     // One line, no full stop.
    const char *description; // Paragraphs separated by an empty line.
    const struct evq_option *options;
    int arg_min;
    int arg_max; // -1: any number.
    enum evq_status (*run)(struct evq_cli *cli, struct evq_error *err);
};

#define EVQ_OPTION_VALUES_MAX 256

struct evq_option_value {
    const struct evq_option *option;
    const char *text; // NULL for a flag. Points into argv.
    int64_t integer;
};

struct evq_option_set {                 // What was given, in order.
    const struct evq_option *tables[2]; // Global and the verb's.
    struct evq_option_value values[EVQ_OPTION_VALUES_MAX];
    size_t count;
    char **args;
    int arg_count;
};

/* The options that stand before or after any verb. */
extern const struct evq_option evq_option_global[];

/*
 * Reads the options of argv[1...], known from the global table and `table` (may be NULL), into set,
 * which adds to what it holds. stop_at_word: ends at the first word that is no option (the verb);
 * else options may stand anywhere, "--" ends them. Reorders argv. EVQ_E_INVALID names the option
 * and the nearest known one.
 */
enum evq_status evq_option_parse(struct evq_option_set *set, const struct evq_option *table,
                                 int argc, char **argv, bool stop_at_word,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* What was given last; the name must be in one of the tables. */
const char *evq_option_text(const struct evq_option_set *set, const char *name,
                            const char *fallback);
int64_t evq_option_integer(const struct evq_option_set *set, const char *name, int64_t fallback);
bool evq_option_flag(const struct evq_option_set *set, const char *name);
/* The index-th value of a list, NULL past the last. */
const char *evq_option_item(const struct evq_option_set *set, const char *name, size_t index);

/* --help of one verb, and of the program. */
void evq_option_help(const struct evq_verb *verb, FILE *out);
void evq_option_overview(const struct evq_verb *const *verbs, size_t verb_count, FILE *out);

#endif
