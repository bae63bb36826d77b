/* Command-line options of every program. Parsing, --help and the manual pages (shared/base/man.h)
 * use the same tables. One thread. */
#ifndef EVQ_SHARED_BASE_OPTION_H
#define EVQ_SHARED_BASE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

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

#define EVQ_OPTION_VALUES_MAX 256

struct evq_option_value {
    const struct evq_option *option;
    const char *text; // NULL for a flag. Points into argv.
    int64_t integer;
};

struct evq_option_set { // The options that were given, in order.
    struct evq_option_value values[EVQ_OPTION_VALUES_MAX];
    size_t count;
    char **args;
    int arg_count;
};

/* Common options, spelled alike in every program: --config, --url, --queue, --quiet, --help,
 * --version. */
extern const struct evq_option evq_option_common[];
/* Options that services add: --log-level, --log-format. */
extern const struct evq_option evq_option_log[];

/*
 * Reads the options of argv[1...] into set, which keeps what it already holds. tables ends with
 * NULL and has at most 64 options. stop_at_word: stops at the first word that is not an option (the
 * verb); otherwise options may stand anywhere and "--" ends them. Reorders argv. EVQ_E_INVALID
 * names the option and the nearest known one.
 */
enum evq_status evq_option_parse(struct evq_option_set *set, const struct evq_option *const *tables,
                                 int argc, char **argv, bool stop_at_word,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* The value that was given last, or fallback. */
const char *evq_option_text(const struct evq_option_set *set, const char *name,
                            const char *fallback);
int64_t evq_option_integer(const struct evq_option_set *set, const char *name, int64_t fallback);
bool evq_option_flag(const struct evq_option_set *set, const char *name);
/* The index-th value of a list, NULL past the last. */
const char *evq_option_item(const struct evq_option_set *set, const char *name, size_t index);

/* Opens the log. Level: --log-level, else errors only with --quiet, else info. Format:
 * --log-format. */
void evq_option_log_open(const struct evq_option_set *set, const char *program);

#endif
