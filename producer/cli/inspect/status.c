/*
 * evalq status: the queue on one screen, warnings first.
 */
#include <inttypes.h>
#include <string.h>

#include "producer/cli/inspect/health.h"
#include "producer/cli/inspect/status.h"
#include "producer/cli/table.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"

#define WAITING_SHOWN 20
#define ALIKE_SHOWN   5 // Warnings of one kind.

static void begin(struct evq_table *table, const struct evq_terminal *terminal, const char *kind)
{
    evq_table_row(table);
    if (terminal->plain) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", kind);
    }
}

/* A table whose rows in --plain begin with their kind. */
static struct evq_table *table_of(const struct evq_terminal *terminal, const char *const *titles,
                                  size_t count, const char *right)
{
    struct evq_table *table = evq_table_new();
    if (table == NULL) {
        return NULL;
    }
    if (terminal->plain) {
        evq_table_column(table, "KIND", false);
    }
    for (size_t i = 0; i < count; i++) {
        evq_table_column(table, titles[i], right[i] == 'r');
    }
    return table;
}

static enum evq_status print_and_free(struct evq_table *table, const struct evq_terminal *terminal,
                                      const char *title, struct evq_error *err)
{
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    enum evq_status status = EVQ_OK;
    if (evq_table_rows(table) > 0) {
        if (!terminal->plain) {
            (void)printf("\n%s\n", title);
        }
        status = evq_table_print(table, terminal, terminal->plain ? 0 : 2, stdout, err);
    }
    evq_table_free(table);
    return status;
}

static void print_warning(const struct evq_terminal *terminal, const json_t *check)
{
    char text[1024];
    char advice[512];
    const char *raw = evq_json_text(check, "text", "");
    const char *raw_advice = evq_json_text(check, "advice", "");
    const bool failed = evq_health_level(check) == EVQ_HEALTH_FAIL;

    evq_error_escape(raw, strlen(raw), text, sizeof text);
    evq_error_escape(raw_advice, strlen(raw_advice), advice, sizeof advice);
    if (terminal->plain) {
        (void)printf("warning\t%s\t%s\t%s\n", evq_json_text(check, "level", ""), text, advice);
        return;
    }
    (void)printf("%s%s%s %s%s%s%s\n",
                 evq_terminal_colour(terminal, failed ? EVQ_COLOUR_RED : EVQ_COLOUR_YELLOW),
                 failed ? "problem:" : "warning:", evq_terminal_colour(terminal, EVQ_COLOUR_NONE),
                 text, advice[0] != '\0' ? " (" : "", advice, advice[0] != '\0' ? ")" : "");
}

/* How many of the checks from here up to there are of this one's kind and level. */
static size_t count_alike(const json_t *checks, const json_t *check, size_t from, size_t to)
{
    size_t count = 0;
    for (size_t i = from; i < to; i++) {
        const json_t *other = json_array_get(checks, i);
        count += evq_health_level(other) == evq_health_level(check) &&
                 strcmp(evq_json_text(other, "check", ""), evq_json_text(check, "check", "")) == 0;
    }
    return count;
}

/* A machine room that went dark must not push the queue off the screen. */
static void print_warnings(const struct evq_terminal *terminal, const json_t *checks)
{
    size_t index = 0;
    const json_t *check = NULL;
    for (int level = EVQ_HEALTH_FAIL; level >= EVQ_HEALTH_WARN; level--) {
        json_array_foreach(checks, index, check)
        {
            if ((int)evq_health_level(check) != level) {
                continue;
            }
            const size_t before = terminal->plain ? 0 : count_alike(checks, check, 0, index);
            if (before < ALIKE_SHOWN) {
                print_warning(terminal, check);
            } else if (before == ALIKE_SHOWN) {
                (void)printf("... and %zu more of these; `evalq doctor` lists all\n",
                             count_alike(checks, check, index, json_array_size(checks)));
            }
        }
    }
}

static void print_counts(const struct evq_cli *cli, const json_t *stats)
{
    static const char *const states[] = {"queued", "delayed", "running",  "done",
                                         "dead",   "skipped", "cancelled"};
    const struct evq_terminal *terminal = &cli->terminal;
    const json_t *counts = json_object_get(stats, "states");
    int64_t oldest = evq_json_integer(stats, "oldest_waiting_ms", -1);
    char span[EVQ_TERMINAL_SPAN_BYTES];

    if (!terminal->plain) {
        (void)printf("%squeue %s%s at %s: ", evq_terminal_colour(terminal, EVQ_COLOUR_BOLD),
                     evq_queue_name(cli->queue), evq_terminal_colour(terminal, EVQ_COLOUR_NONE),
                     evq_conn_where(cli->conn));
    }
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        int64_t count = evq_json_integer(counts, states[i], 0);
        if (terminal->plain) {
            (void)printf("count\t%s\t%" PRId64 "\n", states[i], count);
            continue;
        }
        bool always = strcmp(states[i], "queued") == 0 || strcmp(states[i], "running") == 0 ||
                      strcmp(states[i], "done") == 0;
        if (count == 0 && !always) {
            continue; // One line, also where a terminal is narrow.
        }
        bool red = count > 0 && strcmp(states[i], "dead") == 0;
        (void)printf("%s%s%" PRId64 " %s%s", i > 0 ? ", " : "",
                     red ? evq_terminal_colour(terminal, EVQ_COLOUR_RED) : "", count, states[i],
                     red ? evq_terminal_colour(terminal, EVQ_COLOUR_NONE) : "");
    }
    if (!terminal->plain) {
        if (oldest >= 0) {
            (void)printf("; the oldest waits for %s", evq_terminal_span(oldest, span));
        }
        (void)fputc('\n', stdout);
    }
}

static enum evq_status print_running(const struct evq_cli *cli, const json_t *jobs, int64_t now,
                                     struct evq_error *err)
{
    static const char *const titles[] = {"JOB", "FOR", "DONE", "ATTEMPT", "WORKER", "DOING"};
    size_t index = 0;
    const json_t *job = NULL;
    struct evq_table *table = table_of(&cli->terminal, titles, 6, "lrrrll");
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    json_array_foreach(jobs, index, job)
    {
        char span[EVQ_TERMINAL_SPAN_BYTES];
        int64_t started = evq_json_integer(job, "started", 0);
        int64_t done = evq_json_integer(job, "progress", -1);
        int64_t total = evq_json_integer(job, "total", 0);
        const char *suspect = evq_json_text(job, "suspect", "");
        const char *shards = evq_json_text(job, "shards", "");
        begin(table, &cli->terminal, "running");
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(job, "id", "?"));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s",
                       evq_terminal_span(started > 0 ? now - started : -1, span));
        if (done >= 0 && total > 0) {
            evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64 "%%", 100 * done / total);
        } else {
            evq_table_cell(table, EVQ_COLOUR_NONE, "%s", "");
        }
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(job, "attempts", ""));
        evq_table_cell(table, EVQ_COLOUR_DIM, "%.20s", evq_json_text(job, "worker", ""));
        if (suspect[0] != '\0' && strcmp(suspect, "0") != 0) {
            evq_table_cell(table, EVQ_COLOUR_YELLOW, "%s", "silent; goes to another worker soon");
        } else {
            evq_table_cell(table, EVQ_COLOUR_NONE, "%s%s%s", evq_json_text(job, "status", ""),
                           shards[0] != '\0' ? "shards: " : "", shards);
        }
    }
    return print_and_free(table, &cli->terminal, "Running", err);
}

static enum evq_status print_waiting(const struct evq_cli *cli, const json_t *jobs, int64_t now,
                                     int64_t all, struct evq_error *err)
{
    static const char *const titles[] = {"JOB", "FOR", "STATE", "WHY"};
    char title[64];
    size_t index = 0;
    const json_t *job = NULL;
    struct evq_table *table = table_of(&cli->terminal, titles, 4, "lrll");
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    json_array_foreach(jobs, index, job)
    {
        char span[EVQ_TERMINAL_SPAN_BYTES];
        int64_t since = evq_json_integer(job, "submitted", 0);
        begin(table, &cli->terminal, "waiting");
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(job, "id", "?"));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s",
                       evq_terminal_span(since > 0 ? now - since : -1, span));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(job, "state", ""));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(job, "why", ""));
    }
    if (all > (int64_t)json_array_size(jobs)) {
        (void)snprintf(title, sizeof title, "Waiting (%zu of %" PRId64 ")", json_array_size(jobs),
                       all);
    } else {
        (void)snprintf(title, sizeof title, "Waiting");
    }
    return print_and_free(table, &cli->terminal, title, err);
}

/* A list of names or of objects with names, joined. */
static void joined(const json_t *list, char *out, size_t out_bytes)
{
    size_t index = 0;
    size_t used = 0;
    const json_t *item = NULL;
    out[0] = '\0';
    json_array_foreach(list, index, item)
    {
        const char *name =
            json_is_string(item) ? json_string_value(item) : evq_json_text(item, "name", "?");
        int bytes = snprintf(out + used, out_bytes - used, "%s%s", index > 0 ? " " : "", name);
        if (bytes < 0 || (size_t)bytes >= out_bytes - used) {
            return;
        }
        used += (size_t)bytes;
    }
}

/* Why its first slot that waits for GPUs does, or has no process; "" when none does. */
static const char *slot_wait(const json_t *slots)
{
    size_t index = 0;
    const json_t *slot = NULL;

    json_array_foreach(slots, index, slot)
    {
        if (evq_json_true(slot, "waits") || strcmp(evq_json_text(slot, "state", ""), "down") == 0) {
            return evq_json_text(slot, "note", "");
        }
    }
    return "";
}

static enum evq_status print_workers(const struct evq_cli *cli, const json_t *stats,
                                     struct evq_error *err)
{
    static const char *const titles[] = {"WORKER", "HOST",    "STATE", "HEARTBEAT",
                                         "SLOTS",  "VERSION", "SUITES"};
    size_t index = 0;
    const json_t *worker = NULL;
    struct evq_table *table = table_of(&cli->terminal, titles, 7, "lllrrll");
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    json_array_foreach(json_object_get(stats, "workers"), index, worker)
    {
        char span[EVQ_TERMINAL_SPAN_BYTES];
        char suites[256];
        const json_t *info = json_object_get(worker, "info");
        const json_t *slots = json_object_get(info, "slots");
        const char *state = evq_json_text(worker, "state", "?");
        if (strcmp(state, "alive") == 0 && evq_json_true(info, "sick")) {
            state = "sick"; // Jobs keep crashing on it: it claims none.
        } else if (strcmp(state, "alive") == 0 && evq_json_true(info, "no_room")) {
            state = "no room"; // A full disk, or no descriptors: its log says which.
        } else if (strcmp(state, "alive") == 0 && evq_json_true(info, "draining")) {
            state = "draining";
        }
        const char *wait = slot_wait(slots);
        int64_t age = evq_json_integer(worker, "heartbeat_age_ms", -1);
        if (strcmp(state, "dead") == 0 && age > 3600000) {
            continue; // It is no news any more.
        }
        joined(json_object_get(info, "suites"), suites, sizeof suites);
        begin(table, &cli->terminal, "worker");
        evq_table_cell(table, EVQ_COLOUR_NONE, "%.20s", evq_json_text(worker, "id", "?"));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(info, "host", ""));
        evq_table_cell(table, strcmp(state, "alive") == 0 ? EVQ_COLOUR_GREEN : EVQ_COLOUR_RED, "%s",
                       state);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s ago", evq_terminal_span(age, span));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64,
                       json_is_array(slots) ? (int64_t)json_array_size(slots)
                                            : evq_json_integer(info, "slots", 0));
        evq_table_cell(table, EVQ_COLOUR_DIM, "%s", evq_json_text(info, "version", ""));
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s%s%s", suites, wait[0] != '\0' ? ": " : "", wait);
    }
    return print_and_free(table, &cli->terminal, "Workers", err);
}

/* "12 GiB of 80 GiB"; "" when it is not known. */
static const char *memory_text(const json_t *reading, char out[2 * EVQ_TERMINAL_SPAN_BYTES + 8])
{
    char used[EVQ_TERMINAL_SPAN_BYTES];
    char all[EVQ_TERMINAL_SPAN_BYTES];
    const int64_t bytes = evq_json_integer(reading, "memory_used_bytes", -1);

    out[0] = '\0';
    if (bytes >= 0) {
        (void)snprintf(out, 2 * EVQ_TERMINAL_SPAN_BYTES + 8, "%s of %s",
                       evq_terminal_bytes(bytes, used),
                       evq_terminal_bytes(evq_json_integer(reading, "memory_bytes", 0), all));
    }
    return out;
}

static void cell_number(struct evq_table *table, int64_t value, const char *unit)
{
    if (value >= 0) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64 "%s", value, unit);
    } else {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", "");
    }
}

/* What the workers' GPUs did when they last told. */
static enum evq_status print_gpus(const struct evq_cli *cli, const json_t *stats,
                                  struct evq_error *err)
{
    static const char *const titles[] = {"GPU", "WORKER", "SLOT", "BUSY", "MEMORY", "HEAT"};
    size_t at = 0;
    const json_t *worker = NULL;
    struct evq_table *table = table_of(&cli->terminal, titles, 6, "llrrrr");
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    json_array_foreach(json_object_get(stats, "workers"), at, worker)
    {
        size_t number = 0;
        const json_t *slot = NULL;
        const json_t *info = json_object_get(worker, "info");
        if (strcmp(evq_json_text(worker, "state", "?"), "alive") != 0) {
            continue; // Its GPUs may be doing something else by now.
        }
        json_array_foreach(json_object_get(info, "slots"), number, slot)
        {
            size_t i = 0;
            const json_t *reading = NULL;
            json_array_foreach(json_object_get(slot, "readings"), i, reading)
            {
                char memory[2 * EVQ_TERMINAL_SPAN_BYTES + 8];
                begin(table, &cli->terminal, "gpu");
                evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(reading, "gpu", "?"));
                evq_table_cell(table, EVQ_COLOUR_DIM, "%.20s", evq_json_text(worker, "id", "?"));
                cell_number(table, evq_json_integer(slot, "number", 0), "");
                cell_number(table, evq_json_integer(reading, "busy_percent", -1), "%");
                evq_table_cell(table, EVQ_COLOUR_NONE, "%s", memory_text(reading, memory));
                cell_number(table, evq_json_integer(reading, "temperature_c", -1), " C");
            }
        }
    }
    return print_and_free(table, &cli->terminal, "GPUs", err);
}

static enum evq_status print_sinks(const struct evq_cli *cli, const json_t *stats,
                                   struct evq_error *err)
{
    static const char *const titles[] = {"SINK", "BEHIND", "SEEN", "ERROR"};
    size_t index = 0;
    const json_t *sink = NULL;
    struct evq_table *table = table_of(&cli->terminal, titles, 4, "lrrl");
    if (table == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a table");
    }
    json_array_foreach(json_object_get(stats, "sinks"), index, sink)
    {
        char span[EVQ_TERMINAL_SPAN_BYTES];
        int64_t behind = evq_json_integer(sink, "lag", 0) + evq_json_integer(sink, "pending", 0);
        begin(table, &cli->terminal, "sink");
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", evq_json_text(sink, "name", "?"));
        evq_table_cell(table, behind > 0 ? EVQ_COLOUR_YELLOW : EVQ_COLOUR_NONE, "%" PRId64, behind);
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s ago",
                       evq_terminal_span(evq_json_integer(sink, "seen_age_ms", -1), span));
        evq_table_cell(table, EVQ_COLOUR_RED, "%s", evq_json_text(sink, "error", ""));
    }
    return print_and_free(table, &cli->terminal, "Sinks", err);
}

/* Adds to each waiting job why it waits. */
static enum evq_status add_reasons(struct evq_cli *cli, json_t *jobs, struct evq_error *err)
{
    size_t index = 0;
    json_t *job = NULL;
    json_array_foreach(jobs, index, job)
    {
        json_t *view = NULL;
        enum evq_status status = evq_view_job(cli, evq_json_text(job, "id", ""), &view, err);
        if (status == EVQ_OK) {
            (void)json_object_set_new(job, "why", json_string(evq_json_text(view, "why", "")));
        } else if (status != EVQ_E_NOT_FOUND && status != EVQ_E_INVALID) {
            return status;
        }
        json_decref(view);
    }
    return EVQ_OK;
}

static enum evq_status print_all(struct evq_cli *cli, const json_t *stats, const json_t *checks,
                                 const json_t *running, const json_t *waiting,
                                 struct evq_error *err)
{
    int64_t now = evq_json_integer(stats, "now_ms", 0);
    const json_t *states = json_object_get(stats, "states");
    int64_t all = evq_json_integer(states, "queued", 0) + evq_json_integer(states, "delayed", 0);
    print_warnings(&cli->terminal, checks);
    print_counts(cli, stats);
    enum evq_status status = print_running(cli, running, now, err);
    if (status == EVQ_OK) {
        status = print_waiting(cli, waiting, now, all, err);
    }
    if (status == EVQ_OK) {
        status = print_workers(cli, stats, err);
    }
    if (status == EVQ_OK) {
        status = print_gpus(cli, stats, err);
    }
    return status == EVQ_OK ? print_sinks(cli, stats, err) : status;
}

enum evq_status evq_status_show(struct evq_cli *cli, struct evq_error *err)
{
    json_t *stats = NULL;
    json_t *checks = json_array();
    json_t *running = json_array();
    json_t *waiting = json_array();
    enum evq_status status = evq_view_stats(cli, &stats, err);
    if (status == EVQ_OK) {
        status = evq_health_server(cli, checks, err);
    }
    if (status == EVQ_OK) {
        evq_health_queue(stats, checks);
        status = evq_view_jobs(cli, "running", "", 100, &running, err);
    }
    if (status == EVQ_OK) {
        status = evq_view_jobs(cli, "queued", "", WAITING_SHOWN, &waiting, err);
    }
    if (status == EVQ_OK && json_array_size(waiting) < WAITING_SHOWN) {
        status = evq_view_jobs(cli, "delayed", "", WAITING_SHOWN - json_array_size(waiting),
                               &waiting, err);
    }
    if (status == EVQ_OK) {
        status = add_reasons(cli, waiting, err);
    }
    if (status == EVQ_OK && cli->terminal.json) {
        char now[EVQ_CLOCK_ISO_BYTES];
        evq_clock_iso(evq_json_integer(stats, "now_ms", 0), now);
        json_t *doc =
            json_pack("{s:s, s:s, s:s, s:O, s:O, s:O, s:O}", "queue", evq_queue_name(cli->queue),
                      "server", evq_conn_where(cli->conn), "now", now, "checks", checks, "stats",
                      stats, "running", running, "waiting", waiting);
        status = evq_json_print(doc, err);
        json_decref(doc);
    } else if (status == EVQ_OK) {
        status = print_all(cli, stats, checks, running, waiting, err);
    }
    json_decref(stats);
    json_decref(checks);
    json_decref(running);
    json_decref(waiting);
    return status;
}

static enum evq_status status_run(struct evq_cli *cli, struct evq_error *err)
{
    const enum evq_status status = evq_cli_open(cli, err);
    return status == EVQ_OK ? evq_status_show(cli, err) : status;
}

const struct evq_verb evq_verb_status = {
    .name = "status",
    .arguments = "[--json|--plain]",
    .summary = "Show the queue on one screen, warnings first",
    .description = "Counts by state, what runs and how far it is, the first waiting jobs and why "
                   "each of them waits, "
                   "workers and sinks. Problems come first: jobs without workers, results that a "
                   "sink has lost, "
                   "an append-only file that is off, eviction, silent workers, sinks that lag.",
    .arg_min = 0,
    .arg_max = 0,
    .run = status_run,
};
