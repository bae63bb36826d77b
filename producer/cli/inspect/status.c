/*
 * evalq status: the queue on one screen, warnings first.
 */
#include <inttypes.h>
#include <string.h>

#include "producer/cli/inspect/health.h"
#include "producer/cli/json_table.h"
#include "producer/cli/verbs.h"
#include "producer/cli/view.h"
#include "shared/base/clock.h"

#define WAITING_SHOWN      20
#define ALIKE_SHOWN        5 // Warnings of one kind.
#define WORKER_BYTES_SHOWN 20

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

static void cell_done(struct evq_table *table, const json_t *job)
{
    const int64_t done = evq_json_integer(job, "progress", -1);
    const int64_t total = evq_json_integer(job, "total", 0);

    if (done >= 0 && total > 0) {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%" PRId64 "%%", 100 * done / total);
    } else {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s", "");
    }
}

static void cell_doing(struct evq_table *table, const json_t *job)
{
    const char *shards = evq_json_text(job, "shards", "");

    if (evq_json_true(job, "suspect")) {
        evq_table_cell(table, EVQ_COLOUR_YELLOW, "silent; goes to another worker soon");
    } else {
        evq_table_cell(table, EVQ_COLOUR_NONE, "%s%s%s", evq_json_text(job, "status", ""),
                       shards[0] != '\0' ? "shards: " : "", shards);
    }
}

static const struct evq_column running_columns[] = {
    {"JOB", .key = "id"},
    {"FOR", "started", .kind = EVQ_COLUMN_SINCE},
    {"DONE", NULL, .kind = EVQ_COLUMN_INTEGER, .cell = cell_done},
    {"ATTEMPT", "attempts", .kind = EVQ_COLUMN_INTEGER},
    {"WORKER", "worker", .colour = EVQ_COLOUR_DIM, .bytes_max = WORKER_BYTES_SHOWN},
    {"DOING", .cell = cell_doing},
};

static const struct evq_column waiting_columns[] = {
    {"JOB", .key = "id"},
    {"FOR", "submitted", .kind = EVQ_COLUMN_SINCE},
    {"STATE", .key = "state"},
    {"WHY", .key = "why"},
};

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

/* Returns the reason of its first slot that waits for GPUs or has no process; "": there is none. */
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

static const char *worker_state(const json_t *worker)
{
    const json_t *info = json_object_get(worker, "info");
    const char *state = evq_json_text(worker, "state", "?");

    if (strcmp(state, "alive") != 0) {
        return state;
    }
    const char *problem = evq_json_text(info, "problem", ""); // "sick" or "no room".

    return problem[0] != '\0' ? problem : evq_json_true(info, "draining") ? "draining" : state;
}

static void cell_state(struct evq_table *table, const json_t *worker)
{
    const char *state = evq_json_text(worker, "state", "?");

    evq_table_cell(table, strcmp(state, "alive") == 0 ? EVQ_COLOUR_GREEN : EVQ_COLOUR_RED, "%s",
                   state);
}

static const struct evq_column worker_columns[] = {
    {"WORKER", "id", .bytes_max = WORKER_BYTES_SHOWN},
    {"HOST", .key = "host"},
    {"STATE", .cell = cell_state},
    {"HEARTBEAT", "age", .kind = EVQ_COLUMN_AGE, .suffix = " ago"},
    {"SLOTS", "slots", .kind = EVQ_COLUMN_INTEGER},
    {"VERSION", "version", .colour = EVQ_COLOUR_DIM},
    {"SUITES", .key = "suites"},
};

/* One row per worker. Workers that died over an hour ago are left out. */
static json_t *worker_rows(const json_t *stats)
{
    json_t *rows = json_array();
    size_t index = 0;
    const json_t *worker = NULL;

    json_array_foreach(json_object_get(stats, "workers"), index, worker)
    {
        const json_t *info = json_object_get(worker, "info");
        const json_t *slots = json_object_get(info, "slots");
        const int64_t age = evq_json_integer(worker, "heartbeat_age_ms", -1);
        const char *wait = slot_wait(slots);
        char suites[256];
        if (strcmp(evq_json_text(worker, "state", "?"), "dead") == 0 && age > 3600000) {
            continue;
        }
        joined(json_object_get(info, "suites"), suites, sizeof suites);
        const json_int_t slot_count = json_is_array(slots) ? (json_int_t)json_array_size(slots)
                                                           : evq_json_integer(info, "slots", 0);
        (void)json_array_append_new(rows, json_pack("{s:s, s:s, s:s, s:I, s:I, s:s, s:s+++}", "id",
                                                    evq_json_text(worker, "id", "?"), "host",
                                                    evq_json_text(info, "host", ""), "state",
                                                    worker_state(worker), "age", (json_int_t)age,
                                                    "slots", slot_count, "version",
                                                    evq_json_text(info, "version", ""), "suites",
                                                    suites, wait[0] != '\0' ? ": " : "", wait, ""));
    }
    return rows;
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

static const struct evq_column gpu_columns[] = {
    {"GPU", .key = "gpu"},
    {"WORKER", "worker", .colour = EVQ_COLOUR_DIM, .bytes_max = WORKER_BYTES_SHOWN},
    {"SLOT", "slot", .kind = EVQ_COLUMN_INTEGER},
    {"BUSY", "busy_percent", .kind = EVQ_COLUMN_INTEGER, .suffix = "%"},
    {"MEMORY", "memory", .right = true},
    {"HEAT", "temperature_c", .kind = EVQ_COLUMN_INTEGER, .suffix = " C"},
};

/* One row per GPU of each live worker, as the worker last reported it. */
static json_t *gpu_rows(const json_t *stats)
{
    json_t *rows = json_array();
    size_t at = 0;
    const json_t *worker = NULL;

    json_array_foreach(json_object_get(stats, "workers"), at, worker)
    {
        size_t number = 0;
        const json_t *slot = NULL;
        if (strcmp(evq_json_text(worker, "state", "?"), "alive") != 0) {
            continue; // The state of its GPUs is not known.
        }
        json_array_foreach(json_object_get(json_object_get(worker, "info"), "slots"), number, slot)
        {
            size_t i = 0;
            json_t *reading = NULL;
            json_array_foreach(json_object_get(slot, "readings"), i, reading)
            {
                char memory[2 * EVQ_TERMINAL_SPAN_BYTES + 8];
                json_t *row = json_copy(reading);
                (void)json_object_set(row, "worker", json_object_get(worker, "id"));
                (void)json_object_set(row, "slot", json_object_get(slot, "number"));
                (void)json_object_set_new(row, "memory", json_string(memory_text(reading, memory)));
                (void)json_array_append_new(rows, row);
            }
        }
    }
    return rows;
}

static void cell_behind(struct evq_table *table, const json_t *sink)
{
    const int64_t behind = evq_json_integer(sink, "lag", 0) + evq_json_integer(sink, "pending", 0);

    evq_table_cell(table, behind > 0 ? EVQ_COLOUR_YELLOW : EVQ_COLOUR_NONE, "%" PRId64, behind);
}

static const struct evq_column sink_columns[] = {
    {"SINK", .key = "name"},
    {"BEHIND", NULL, .kind = EVQ_COLUMN_INTEGER, .cell = cell_behind},
    {"SEEN", "seen_age_ms", .kind = EVQ_COLUMN_AGE, .suffix = " ago"},
    {"ERROR", "error", .colour = EVQ_COLOUR_RED},
};

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
    const int64_t now = evq_json_integer(stats, "now_ms", 0);
    const json_t *states = json_object_get(stats, "states");
    const int64_t all =
        evq_json_integer(states, "queued", 0) + evq_json_integer(states, "delayed", 0);
    char title[64] = "Waiting";
    json_t *workers = worker_rows(stats);
    json_t *gpus = gpu_rows(stats);
    enum evq_status status = EVQ_OK;

    if (all > (int64_t)json_array_size(waiting)) {
        (void)snprintf(title, sizeof title, "Waiting (%zu of %" PRId64 ")",
                       json_array_size(waiting), all);
    }
    const struct {
        struct evq_json_table table;
        const json_t *rows;
    } parts[] = {
        {{EVQ_COLUMNS(running_columns), "Running", "running", now}, running},
        {{EVQ_COLUMNS(waiting_columns), title, "waiting", now}, waiting},
        {{EVQ_COLUMNS(worker_columns), "Workers", "worker", now}, workers},
        {{EVQ_COLUMNS(gpu_columns), "GPUs", "gpu", now}, gpus},
        {{EVQ_COLUMNS(sink_columns), "Sinks", "sink", now}, json_object_get(stats, "sinks")},
    };
    print_warnings(&cli->terminal, checks);
    print_counts(cli, stats);
    for (size_t i = 0; status == EVQ_OK && i < sizeof parts / sizeof parts[0]; i++) {
        status = evq_json_table_print(&parts[i].table, parts[i].rows, &cli->terminal, err);
    }
    json_decref(workers);
    json_decref(gpus);
    return status;
}

static enum evq_status show(struct evq_cli *cli, struct evq_error *err)
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
    return status == EVQ_OK ? show(cli, err) : status;
}

const struct evq_verb evq_verb_status = {
    .name = "status",
    .arguments = "[--json|--plain]",
    .summary = "Show the queue on one screen, warnings first",
    .description =
        "Prints counts by state, the running jobs and their progress, the first waiting jobs "
        "and why each waits, workers and sinks. Problems come first, for example: jobs "
        "without workers, lost results, an append-only file that is off, eviction, silent "
        "workers, sinks that lag.\n\nExample: `evalq status`",
    .arg_min = 0,
    .arg_max = 0,
    .run = status_run,
};
