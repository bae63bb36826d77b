/*
 * evalq show: prints everything that the queue knows about one job.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"

/* The fields of a job's hash that are times in unix ms. */
static const char *const times[] = {"submitted", "queued", "started", "ended", "due"};

static void add_iso_times(json_t *view)
{
    json_t *hash = json_object_get(view, "job");
    json_t *iso = json_object();
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        evq_json_set_time(iso, times[i], evq_json_integer(hash, times[i], 0));
    }
    (void)json_object_set_new(view, "times", iso); // Out of memory shows when printing.
}

static void print_pair(const struct evq_terminal *terminal, const char *key, const char *value)
{
    char name[128];
    char text[4096];
    evq_error_escape(key, strlen(key), name, sizeof name);
    evq_error_escape(value, strlen(value), text, sizeof text);
    if (terminal->plain) {
        (void)printf("%s\t%s\n", name, text);
    } else {
        (void)printf("%s%-14s%s %s\n", evq_terminal_colour(terminal, EVQ_COLOUR_BOLD), name,
                     evq_terminal_colour(terminal, EVQ_COLOUR_NONE), text);
    }
}

static bool is_time(const char *key)
{
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        if (strcmp(times[i], key) == 0) {
            return true;
        }
    }
    return false;
}

static void print_hash(const struct evq_terminal *terminal, json_t *hash)
{
    static const char *const hidden[] = {
        "run",   "step", "variant", "suite", "state", "reason",
        "token", "last", "place",   "hb",    "class"}; // Its number says nothing to people.
    const char *key = NULL;
    json_t *value = NULL;
    const bool running = strcmp(evq_json_text(hash, "state", ""), "running") == 0;
    int64_t now = evq_clock_unix_ms();
    json_object_foreach(hash, key, value)
    {
        bool skip = json_string_value(value) != NULL && json_string_value(value)[0] == '\0';
        for (size_t i = 0; i < sizeof hidden / sizeof hidden[0]; i++) {
            skip = skip || strcmp(hidden[i], key) == 0;
        }
        if (skip || (strcmp(key, "status") == 0 && !running)) {
            continue;
        }
        if (strcmp(key, "status") == 0) {
            print_pair(terminal, "doing", json_string_value(value));
            continue;
        }
        int64_t at = evq_json_integer(hash, key, -1);
        if (is_time(key) && at > 0 && !terminal->plain) {
            char span[EVQ_TERMINAL_SPAN_BYTES];
            char text[64];
            (void)snprintf(text, sizeof text, at <= now ? "%s ago" : "in %s",
                           evq_terminal_span(at <= now ? now - at : at - now, span));
            print_pair(terminal, key, text);
            continue;
        }
        if (strcmp(key, "lease") == 0 && at > 0 && !terminal->plain) {
            char span[EVQ_TERMINAL_SPAN_BYTES];
            print_pair(terminal, key, evq_terminal_span(at, span));
            continue;
        }
        char *dumped = json_is_string(value) ? NULL : json_dumps(value, JSON_ENCODE_ANY);
        const char *text = dumped != NULL ? dumped : json_string_value(value);
        print_pair(terminal, key, text != NULL ? text : "");
        free(dumped);
    }
}

static void print_message(const struct evq_terminal *terminal, const json_t *message)
{
    static const char *const fields[] = {"root",   "path",   "pin",  "format",  "host",
                                         "policy", "params", "tags", "trackers"};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *value = json_object_get(message, fields[i]);
        const char *text = json_string_value(value);
        if (text != NULL && text[0] != '\0') {
            print_pair(terminal, fields[i], text);
        } else if (json_object_size(value) > 0 || json_array_size(value) > 0) {
            char *dumped = json_dumps(value, JSON_COMPACT);
            print_pair(terminal, fields[i], dumped != NULL ? dumped : "");
            free(dumped);
        }
    }
}

/* "accuracy 0.932 +- 0.0056, cross_entropy 0.2193" */
static void print_tasks(const struct evq_terminal *terminal, json_t *tasks)
{
    const char *task = NULL;
    json_t *result = NULL;
    json_object_foreach(tasks, task, result)
    {
        char key[64];
        char text[1024];
        size_t used = 0;
        size_t index = 0;
        const json_t *metric = NULL;
        text[0] = '\0';
        json_array_foreach(json_object_get(result, "metrics"), index, metric)
        {
            const json_t *value = json_object_get(metric, "value");
            double error = json_number_value(json_object_get(metric, "std_error"));
            char number[64] = "";
            (void)snprintf(number, sizeof number, error > 0.0 ? "%.6g +- %.2g" : "%.6g",
                           json_number_value(value), error);
            int bytes =
                snprintf(text + used, sizeof text - used, "%s%s %s", index > 0 ? ", " : "",
                         evq_json_text(metric, "name", "?"),
                         json_is_number(value) ? number : evq_json_text(metric, "value", "NaN"));
            if (bytes < 0 || (size_t)bytes >= sizeof text - used) {
                break;
            }
            used += (size_t)bytes;
        }
        (void)snprintf(key, sizeof key, "task %s", task);
        print_pair(terminal, key, text);
        const char *note = evq_json_text(result, "note", "");
        if (note[0] != '\0') {
            (void)snprintf(key, sizeof key, "note %s", task);
            print_pair(terminal, key, note);
        }
    }
}

static enum evq_status show_run(struct evq_cli *cli, struct evq_error *err)
{
    json_t *view = NULL;
    const struct evq_terminal *terminal = &cli->terminal;
    enum evq_status status = evq_cli_open(cli, err);
    if (status == EVQ_OK) {
        status = evq_view_job(cli, evq_cli_arg(cli, 0), &view, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (terminal->json) {
        add_iso_times(view);
        status = evq_json_print(json_incref(view), err);
    } else {
        json_t *hash = json_object_get(view, "job");
        const char *reason = evq_json_text(hash, "reason", "");
        const char *why = evq_json_text(view, "why", "");
        const char *detail = evq_json_text(view, "detail", "");
        print_pair(terminal, "job", evq_json_text(view, "id", "?"));
        print_pair(terminal, "state", evq_json_text(hash, "state", "?"));
        if (reason[0] != '\0') {
            print_pair(terminal, "reason", reason);
        }
        size_t whole = strcspn(detail, "\n"); // The hash keeps 64 bytes of it.
        if (whole > 0) {
            char line[1024];
            (void)snprintf(line, sizeof line, "%.*s", (int)(whole < 1000 ? whole : 1000), detail);
            print_pair(terminal, "in full", line);
        }
        if (why[0] != '\0') {
            print_pair(terminal, "why", why);
        }
        print_hash(terminal, hash);
        print_message(terminal, json_object_get(view, "message"));
        print_tasks(terminal, json_object_get(view, "tasks"));
        if (detail[whole] != '\0' && detail[whole + 1] != '\0') {
            evq_cli_say(cli, "evalq: `evalq logs %s` shows the end of its log",
                        evq_json_text(view, "id", "JOB"));
        }
    }
    json_decref(view);
    return status;
}

const struct evq_verb evq_verb_show = {
    .name = "show",
    .arguments = "JOB",
    .summary = "Show everything that is known about one job",
    .description = "Prints the state of a job, why it waits, its attempts and times, where its "
                   "checkpoint is, and its published results with the notes of their "
                   "evaluations. JOB is "
                   "RUN/STEP/VARIANT/SUITE.\n\nExample: `evalq show my-run/500/regular/heldout`",
    .arg_min = 1,
    .arg_max = 1,
    .takes = EVQ_TAKES_JOBS,
    .run = show_run,
};
