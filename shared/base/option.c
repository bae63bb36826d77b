#include "shared/base/option.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/base/nearest.h"

#define OPTIONS_MAX 64

const struct evq_option evq_option_common[] = {
    {"config", 'c', EVQ_OPTION_TEXT, "FILE",
     "configuration file; default: the first of $EVALQ_CONFIG, ./evalq.yaml, "
     "./.evalq/evalq.yaml and /etc/evalq/evalq.yaml",
     0, 0},
    {"url", 'u', EVQ_OPTION_TEXT, "URL",
     "address of Redis, redis://[USER@]HOST[:PORT][/DB] or unix://[USER@]PATH; default: the first "
     "of $EVALQ_URL, ./.evalq/url and the configuration",
     0, 0},
    {"queue", 'Q', EVQ_OPTION_TEXT, "NAME",
     "name of the queue; default: the first of $EVALQ_QUEUE, the configuration and main", 0, 0},
    {"quiet", 'q', EVQ_OPTION_FLAG, NULL, "print no messages except errors", 0, 0},
    {"help", 'h', EVQ_OPTION_FLAG, NULL, "print this text", 0, 0},
    {"version", 'V', EVQ_OPTION_FLAG, NULL, "print the version", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_option evq_option_log[] = {
    {"log-level", 0, EVQ_OPTION_CHOICE, "error|warn|info|debug",
     "log messages of this level and above; default info", 0, 0},
    {"log-format", 0, EVQ_OPTION_CHOICE, "logfmt|json", "format of the log; default logfmt", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

/* The index-th option over all tables, NULL past the last. */
static const struct evq_option *option_at(const struct evq_option *const *tables, size_t index)
{
    for (; *tables != NULL; tables++) {
        for (const struct evq_option *o = *tables; o->name != NULL; o++) {
            if (index-- == 0) {
                return o;
            }
        }
    }
    return NULL;
}

static enum evq_status unknown(const struct evq_option *const *tables, const char *word, int letter,
                               struct evq_error *err)
{
    char shown[128];
    if (strncmp(word, "--", 2) != 0) {
        char text[3] = {'-', (char)letter, '\0'};
        return evq_error_set(err, EVQ_E_INVALID, "unknown option %s; --help lists the options",
                             evq_error_escape(text, strlen(text), shown, sizeof shown));
    }
    const char *names[OPTIONS_MAX];
    size_t count = 0;
    const struct evq_option *o = NULL;
    while (count < OPTIONS_MAX && (o = option_at(tables, count)) != NULL) {
        names[count++] = o->name;
    }
    char name[64];
    size_t bytes = strcspn(word + 2, "=");
    if (bytes >= sizeof name) {
        bytes = sizeof name - 1;
    }
    memcpy(name, word + 2, bytes);
    name[bytes] = '\0';
    const char *near = evq_nearest_word(name, names, count);
    evq_error_escape(name, bytes, shown, sizeof shown);
    if (near != NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "unknown option --%s; did you mean --%s?", shown,
                             near);
    }
    return evq_error_set(err, EVQ_E_INVALID, "unknown option --%s; --help lists the options",
                         shown);
}

static enum evq_status check_integer(const struct evq_option *option, const char *text,
                                     int64_t *ret_value, struct evq_error *err)
{
    char shown[128];
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < option->min || value > option->max) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "--%s '%s' is not a whole number from %lld to %lld", option->name,
                             evq_error_escape(text, strlen(text), shown, sizeof shown),
                             (long long)option->min, (long long)option->max);
    }
    *ret_value = value;
    return EVQ_OK;
}

static enum evq_status check_choice(const struct evq_option *option, const char *text,
                                    struct evq_error *err)
{
    size_t bytes = strlen(text);
    const char *word = option->value;
    while (word != NULL && bytes > 0) {
        size_t word_bytes = strcspn(word, "|");
        if (word_bytes == bytes && memcmp(word, text, bytes) == 0) {
            return EVQ_OK;
        }
        word = word[word_bytes] == '|' ? word + word_bytes + 1 : NULL;
    }
    char shown[128];
    return evq_error_set(err, EVQ_E_INVALID, "--%s '%s' is none of %s", option->name,
                         evq_error_escape(text, bytes, shown, sizeof shown), option->value);
}

static enum evq_status add(struct evq_option_set *set, const struct evq_option *option,
                           const char *text, struct evq_error *err)
{
    struct evq_option_value value = {.option = option, .text = text, .integer = 0};
    enum evq_status status = EVQ_OK;
    if (set->count == EVQ_OPTION_VALUES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "more than %d options", EVQ_OPTION_VALUES_MAX);
    }
    if (option->kind == EVQ_OPTION_INTEGER) {
        status = check_integer(option, text, &value.integer, err);
    } else if (option->kind == EVQ_OPTION_CHOICE) {
        status = check_choice(option, text, err);
    } else if (option->kind != EVQ_OPTION_FLAG && text[0] == '\0') {
        status =
            evq_error_set(err, EVQ_E_INVALID, "--%s needs a value that is not empty", option->name);
    }
    if (status == EVQ_OK) {
        set->values[set->count++] = value;
    }
    return status;
}

/* Fills getopt's tables from ours. letters holds 2 * OPTIONS_MAX + 3 bytes. */
static void getopt_tables(const struct evq_option *const *tables, bool stop_at_word,
                          struct option *longs, char *letters)
{
    *letters++ = stop_at_word ? '+' : ':';
    if (stop_at_word) {
        *letters++ = ':';
    }
    size_t count = 0;
    for (;; count++) {
        const struct evq_option *o = option_at(tables, count);
        if (o == NULL) {
            break;
        }
        assert(count < OPTIONS_MAX);
        bool has_value = o->kind != EVQ_OPTION_FLAG;
        longs[count] = (struct option){.name = o->name,
                                       .has_arg = has_value ? required_argument : no_argument,
                                       .val = 256 + (int)count};
        if (o->letter != 0) {
            *letters++ = o->letter;
            if (has_value) {
                *letters++ = ':';
            }
        }
    }
    longs[count] = (struct option){.name = NULL};
    *letters = '\0';
}

static const struct evq_option *option_by_code(const struct evq_option *const *tables, int code)
{
    if (code >= 256) {
        return option_at(tables, (size_t)(code - 256));
    }
    const struct evq_option *o = NULL;
    for (size_t i = 0; (o = option_at(tables, i)) != NULL; i++) {
        if (o->letter == code) {
            return o;
        }
    }
    return NULL;
}

enum evq_status evq_option_parse(struct evq_option_set *set, const struct evq_option *const *tables,
                                 int argc, char **argv, bool stop_at_word, struct evq_error *err)
{
    struct option longs[OPTIONS_MAX + 1];
    char letters[2 * OPTIONS_MAX + 3];

    getopt_tables(tables, stop_at_word, longs, letters);
    opterr = 0;
    optind = 0; // Starts over, as glibc wants it.
    for (;;) {
        int at = optind > 0 ? optind : 1; // The word that getopt looks at next, for messages.
        int code = getopt_long(argc, argv, letters, longs, NULL);
        if (code == -1) {
            break;
        }
        const char *word = optind > 1 ? argv[optind - 1] : argv[at];
        if (code == '?' && optopt >= 256) {
            const struct evq_option *o = option_by_code(tables, optopt);
            return evq_error_set(err, EVQ_E_INVALID, "--%s takes no value", o->name);
        }
        if (code == '?') {
            return unknown(tables, word, optopt, err);
        }
        if (code == ':') {
            const struct evq_option *o = option_by_code(tables, optopt);
            return evq_error_set(err, EVQ_E_INVALID, "--%s needs a value (%s)", o->name, o->value);
        }
        enum evq_status status = add(set, option_by_code(tables, code), optarg, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    set->args = argv + optind;
    set->arg_count = argc - optind;
    return EVQ_OK;
}

/* The index-th value given for name, from the end when `last`. */
static const struct evq_option_value *find(const struct evq_option_set *set, const char *name,
                                           size_t index, bool last)
{
    for (size_t i = 0; i < set->count; i++) {
        const struct evq_option_value *value = &set->values[last ? set->count - 1 - i : i];
        if (strcmp(value->option->name, name) == 0 && index-- == 0) {
            return value;
        }
    }
    return NULL;
}

const char *evq_option_text(const struct evq_option_set *set, const char *name,
                            const char *fallback)
{
    const struct evq_option_value *value = find(set, name, 0, true);
    return value != NULL ? value->text : fallback;
}

int64_t evq_option_integer(const struct evq_option_set *set, const char *name, int64_t fallback)
{
    const struct evq_option_value *value = find(set, name, 0, true);
    return value != NULL ? value->integer : fallback;
}

bool evq_option_flag(const struct evq_option_set *set, const char *name)
{
    return find(set, name, 0, true) != NULL;
}

const char *evq_option_item(const struct evq_option_set *set, const char *name, size_t index)
{
    const struct evq_option_value *value = find(set, name, index, false);
    return value != NULL ? value->text : NULL;
}

void evq_option_log_open(const struct evq_option_set *set, const char *program)
{
    const char *word = evq_option_flag(set, "quiet") ? "error" : "info";
    enum evq_log_level level = EVQ_LOG_INFO;

    if (evq_log_level_parse(evq_option_text(set, "log-level", word), &level) != EVQ_OK) {
        assert(!"--log-level is one of its choices");
    }
    evq_log_open(program, level,
                 strcmp(evq_option_text(set, "log-format", "logfmt"), "json") == 0
                     ? EVQ_LOG_JSON
                     : EVQ_LOG_LOGFMT);
}
