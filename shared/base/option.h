/*
 * Command-line options of every program: tables, from which parsing, --help and the manual pages
 * (shared/base/man.h) come. One thread.
 */
#ifndef EVQ_OPTION_H
#define EVQ_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/config/config.h"

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

struct evq_option_set { // What was given, in order.
    struct evq_option_value values[EVQ_OPTION_VALUES_MAX];
    size_t count;
    char **args;
    int arg_count;
};

/* Spelled alike in every program: --config, --url, --queue, --quiet, --help, --version. */
extern const struct evq_option evq_option_common[];
/* What services add: --log-level, --log-format. */
extern const struct evq_option evq_option_log[];

/*
 * Reads the options of argv[1...], known from tables (ended by NULL; 64 options at most), into set,
 * which adds to what it holds. stop_at_word: ends at the first word that is no option (the verb);
 * else options may stand anywhere, "--" ends them. Reorders argv. EVQ_E_INVALID names the option
 * and the nearest known one.
 */
enum evq_status evq_option_parse(struct evq_option_set *set, const struct evq_option *const *tables,
                                 int argc, char **argv, bool stop_at_word,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* What was given last. */
const char *evq_option_text(const struct evq_option_set *set, const char *name,
                            const char *fallback);
int64_t evq_option_integer(const struct evq_option_set *set, const char *name, int64_t fallback);
bool evq_option_flag(const struct evq_option_set *set, const char *name);
/* The index-th value of a list, NULL past the last. */
const char *evq_option_item(const struct evq_option_set *set, const char *name, size_t index);

/* What the common options say about where configuration, Redis and queue are. */
struct evq_config_source evq_option_source(const struct evq_option_set *set);
/* Opens the log as --log-level, else --quiet (errors only), else info, and --log-format say. */
void evq_option_log_open(const struct evq_option_set *set, const char *program);

#endif
