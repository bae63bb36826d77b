#include "worker/options.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum option_key {
    KEY_CONFIG = 'c',
    KEY_URL = 'u',
    KEY_QUEUE = 'q',
    KEY_HELP = 'h',
    KEY_VERSION = 'V',
    KEY_SLOTS = 256,
    KEY_DEVICES,
    KEY_SUITES,
    KEY_SUITE,
    KEY_THREADS,
    KEY_MAX_JOBS,
    KEY_IDLE_EXIT,
    KEY_DEADLINE,
    KEY_JSON,
    KEY_DIGEST,
    KEY_LOG_LEVEL,
    KEY_LOG_FORMAT
};

static const struct option_row {
    const char *name;
    int key;
    const char *argument; // NULL: none.
    const char *help;
} option_table[] = {
    {"config", KEY_CONFIG, "FILE",
     "configuration (else $EVALQ_CONFIG, ./evalq.yaml, /etc/evalq/evalq.yaml)"},
    {"url", KEY_URL, "URL",
     "Redis: redis://HOST:PORT or unix:///PATH (else $EVALQ_URL, ./.evalq/url, the file)"},
    {"queue", KEY_QUEUE, "NAME", "queue (else $EVALQ_QUEUE, the file, \"main\")"},
    {"slots", KEY_SLOTS, "N",
     "run: jobs at once; devices are dealt out evenly (default: one per device)"},
    {"devices", KEY_DEVICES, "LIST", "run, eval: auto, cpu, or GPU numbers such as 0,1"},
    {"suites", KEY_SUITES, "LIST", "run: only these suites of the configuration, such as a,b"},
    {"suite", KEY_SUITE, "NAME", "eval: which suite"},
    {"threads", KEY_THREADS, "N", "run, eval: CPU threads per slot (default: cores / slots)"},
    {"max-jobs", KEY_MAX_JOBS, "N", "run: exit after N jobs"},
    {"idle-exit", KEY_IDLE_EXIT, "SECONDS", "run: exit after so long without a job"},
    {"deadline", KEY_DEADLINE, "UNIX", "run: be gone by this time (else $SLURM_JOB_END_TIME)"},
    {"json", KEY_JSON, NULL, "eval, inspect: print one JSON object"},
    {"digest", KEY_DIGEST, NULL, "inspect: digest all weights too (reads everything)"},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", "error, warn, info (default) or debug"},
    {"log-format", KEY_LOG_FORMAT, "FORMAT", "logfmt (default) or json"},
    {"help", KEY_HELP, NULL, "print this"},
    {"version", KEY_VERSION, NULL, "print the version"},
};
#define OPTION_COUNT (sizeof(option_table) / sizeof(option_table[0]))

void evq_options_help(FILE *out)
{
    (void)fputs(
        "usage: evalq-worker [run] [OPTION...]        take jobs from the queue and evaluate them\n"
        "       evalq-worker eval PATH --suite NAME   evaluate one checkpoint here and now, "
        "without Redis\n"
        "       evalq-worker inspect PATH             print what a checkpoint holds\n\noptions:\n",
        out);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &option_table[i];
        char left[64];
        (void)snprintf(left, sizeof(left), "%s%c%s --%s %s", row->key < 256 ? "-" : " ",
                       row->key < 256 ? row->key : ' ', row->key < 256 ? "," : " ", row->name,
                       row->argument != NULL ? row->argument : "");
        (void)fprintf(out, "  %-26s %s\n", left, row->help);
    }
    (void)fputs("\nSIGTERM or SIGINT drains: running jobs end or are released within "
                "worker.drain_seconds; a second "
                "signal\nreleases them at once. Exit status: 0 ok, 1 error, 2 usage, 4 evaluation "
                "failed, 5 Redis "
                "unreachable,\n6 permission, 7 function library, 8 configuration, 9 bad checkpoint "
                "or data, 124 time "
                "limit, 130 interrupted.\n",
                out);
}

static enum evq_status number_parse(const char *name, const char *text, int64_t min, int64_t max,
                                    int64_t *ret_value, struct evq_error *err)
{
    char *end = NULL;

    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < min || value > max) {
        return evq_error_set(err, EVQ_E_INVALID, "--%s takes a number from %lld to %lld, not '%s'",
                             name, (long long)min, (long long)max, text);
    }
    *ret_value = value;
    return EVQ_OK;
}

static enum evq_status option_take(struct evq_options *options, int key, const char *value,
                                   struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    int64_t number = 0;

    switch (key) {
    case KEY_CONFIG:
        options->source.file = value;
        break;
    case KEY_URL:
        options->source.url = value;
        break;
    case KEY_QUEUE:
        options->source.queue = value;
        break;
    case KEY_DEVICES:
        options->devices = value;
        break;
    case KEY_SUITES:
        options->suites = value;
        break;
    case KEY_SUITE:
        options->suite = value;
        break;
    case KEY_SLOTS:
        status = number_parse("slots", value, 1, 256, &number, err);
        options->slots = (int32_t)number;
        break;
    case KEY_THREADS:
        status = number_parse("threads", value, 0, 4096, &number, err);
        options->threads = (int32_t)number;
        break;
    case KEY_MAX_JOBS:
        status = number_parse("max-jobs", value, 1, INT64_C(1) << 40, &options->max_jobs, err);
        break;
    case KEY_IDLE_EXIT:
        status = number_parse("idle-exit", value, 0, 1 << 30, &options->idle_exit_s, err);
        break;
    case KEY_DEADLINE:
        status = number_parse("deadline", value, 1, INT64_C(1) << 40, &options->deadline_s, err);
        break;
    case KEY_JSON:
        options->json = true;
        break;
    case KEY_DIGEST:
        options->digest = true;
        break;
    case KEY_LOG_LEVEL:
        if (evq_log_level_parse(value, &options->log_level) != EVQ_OK) {
            status = evq_error_set(err, EVQ_E_INVALID,
                                   "--log-level takes error, warn, info or debug, not '%s'", value);
        }
        break;
    case KEY_LOG_FORMAT:
        options->log_format = strcmp(value, "json") == 0 ? EVQ_LOG_JSON : EVQ_LOG_LOGFMT;
        if (strcmp(value, "json") != 0 && strcmp(value, "logfmt") != 0) {
            status = evq_error_set(err, EVQ_E_INVALID,
                                   "--log-format takes logfmt or json, not '%s'", value);
        }
        break;
    case KEY_HELP:
        options->help = true;
        break;
    case KEY_VERSION:
        options->version = true;
        break;
    default: // getopt has said nothing: opterr is 0.
        status = evq_error_set(err, EVQ_E_INVALID, "unknown option");
        break;
    }
    return status;
}

static enum evq_status words_take(struct evq_options *options, char **words, int count,
                                  struct evq_error *err)
{
    const char *command = count > 0 ? words[0] : "run";

    if (strcmp(command, "run") == 0) {
        options->command = EVQ_COMMAND_RUN;
    } else if (strcmp(command, "eval") == 0) {
        options->command = EVQ_COMMAND_EVAL;
    } else if (strcmp(command, "inspect") == 0) {
        options->command = EVQ_COMMAND_INSPECT;
    } else if (strcmp(command, "child") == 0) {
        options->command = EVQ_COMMAND_CHILD;
    } else {
        return evq_error_set(err, EVQ_E_INVALID,
                             "unknown command '%s': expected run, eval or inspect", command);
    }
    const bool wants_path =
        options->command == EVQ_COMMAND_EVAL || options->command == EVQ_COMMAND_INSPECT;
    if (options->help || options->version) {
        return EVQ_OK;
    }
    if (wants_path && count < 2) {
        return evq_error_set(err, EVQ_E_INVALID, "%s needs the PATH of a checkpoint", command);
    }
    if (count > (wants_path ? 2 : 1)) {
        return evq_error_set(err, EVQ_E_INVALID, "unexpected argument '%s'",
                             words[wants_path ? 2 : 1]);
    }
    options->path = wants_path ? words[1] : NULL;
    if (options->command == EVQ_COMMAND_EVAL && options->suite == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "eval needs --suite NAME");
    }
    return EVQ_OK;
}

enum evq_status evq_options_parse(int argc, char **argv, struct evq_options *ret_options,
                                  struct evq_error *err)
{
    struct option rows[OPTION_COUNT + 1] = {{0}};
    struct evq_options options = {
        .slots = -1, .idle_exit_s = -1, .threads = -1, .log_level = EVQ_LOG_INFO};
    int key;

    for (size_t i = 0; i < OPTION_COUNT; i++) {
        rows[i] = (struct option){.name = option_table[i].name,
                                  .has_arg = option_table[i].argument != NULL ? required_argument
                                                                              : no_argument,
                                  .val = option_table[i].key};
    }
    opterr = 0;
    while ((key = getopt_long(argc, argv, ":c:u:q:hV", rows, NULL)) != -1) {
        if (key == '?' || key == ':') {
            return evq_error_set(err, EVQ_E_INVALID,
                                 key == ':' ? "'%s' needs a value" : "unknown option '%s'",
                                 argv[optind - 1]);
        }
        const enum evq_status status = option_take(&options, key, optarg, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    const enum evq_status status = words_take(&options, argv + optind, argc - optind, err);
    if (status == EVQ_OK) {
        *ret_options = options;
    }
    return status;
}
