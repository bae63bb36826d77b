#include "producer/cli/inspect/health.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_BYTES (128 << 20) // Enough for 1,000 results of 64 KiB with their fields.

static const char *const level_names[] = {"ok", "note", "warn", "fail"};

void evq_health_add(json_t *checks, const char *check, enum evq_health_level level,
                    const char *advice, const char *format, ...)
{
    char raw[512];
    char text[4 * sizeof raw]; // Escaped, because text that is cut within a character is not valid
                               // JSON.
    va_list args;
    va_start(args, format);
    (void)vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    evq_error_escape(raw, strlen(raw), text, sizeof text);
    // Out of memory leaves the check out; the document that holds it then fails to print.
    (void)json_array_append_new(checks, json_pack("{s:s, s:s, s:s#, s:s}", "check", check, "level",
                                                  level_names[level], "text", text,
                                                  (int)strlen(text), "advice", advice));
}

enum evq_health_level evq_health_level(const json_t *check)
{
    const char *name = evq_json_text(check, "level", "fail");
    for (int i = EVQ_HEALTH_OK; i < EVQ_HEALTH_FAIL; i++) {
        if (strcmp(level_names[i], name) == 0) {
            return (enum evq_health_level)i;
        }
    }
    return EVQ_HEALTH_FAIL;
}

/* A field of INFO's text: "name:value\r\n". */
static const char *info_field(const char *info, const char *name, char out[64])
{
    size_t bytes = strlen(name);
    const char *at = info;
    out[0] = '\0';
    while ((at = strstr(at, name)) != NULL) {
        if ((at == info || at[-1] == '\n') && at[bytes] == ':') {
            size_t value = strcspn(at + bytes + 1, "\r\n");
            value = value < 63 ? value : 63;
            memcpy(out, at + bytes + 1, value);
            out[value] = '\0';
            break;
        }
        at += bytes;
    }
    return out;
}

static void check_version(const char *info, json_t *checks)
{
    char redis[64];
    char valkey[64];
    info_field(info, "redis_version", redis);
    info_field(info, "valkey_version", valkey);
    bool known = redis[0] != '\0';
    bool good = strtol(redis, NULL, 10) >= 7;
    evq_health_add(checks, "server version",
                   !known ? EVQ_HEALTH_NOTE
                   : good ? EVQ_HEALTH_OK
                          : EVQ_HEALTH_FAIL,
                   good ? "" : "evalq needs Redis 7.0 or Valkey 7.2, or newer", "%s %s",
                   valkey[0] != '\0' ? "Valkey" : "Redis",
                   valkey[0] != '\0' ? valkey
                   : known           ? redis
                                     : "unknown");
}

/* Reads a setting of the server. false: this user may not ask for it. */
static bool config_value(struct evq_cli *cli, const char *name, char out[64])
{
    struct evq_reply *reply = NULL;
    const bool told = evq_cli_call(cli, &reply, NULL, 3, "CONFIG", "GET", name) == EVQ_OK &&
                      reply->type == EVQ_REPLY_ARRAY && reply->item_count == 2 &&
                      reply->items[1]->text != NULL;
    (void)snprintf(out, 64, "%.63s", told ? reply->items[1]->text : "");
    evq_reply_free(reply);
    return told;
}

/* Finds a server that answers every read but refuses every write. */
static void check_changes(struct evq_cli *cli, const char *info, json_t *checks)
{
    char value[64];
    char other[64];
    if (strcmp(info_field(info, "role", value), "slave") == 0) {
        evq_health_add(checks, "changes", EVQ_HEALTH_FAIL,
                       "give the primary's address; or, where this one is to be it, REPLICAOF NO "
                       "ONE",
                       "this Redis is a replica of %s: it refuses every change",
                       info_field(info, "master_host", other));
    }
    if (strcmp(info_field(info, "rdb_last_bgsave_status", value), "err") == 0 &&
        !(config_value(cli, "stop-writes-on-bgsave-error", value) && strcmp(value, "no") == 0) &&
        !(config_value(cli, "save", value) && value[0] == '\0')) {
        evq_health_add(checks, "changes", EVQ_HEALTH_FAIL,
                       "look at the disk of the Redis server; where the append-only file is on, "
                       "CONFIG SET save \"\" does without snapshots",
                       "Redis could not save its snapshot, and refuses every change until it can");
    }
    if (info_field(info, "min_slaves_good_slaves", value)[0] != '\0') {
        const bool told = config_value(cli, "min-replicas-to-write", other);
        const int64_t good = strtoll(value, NULL, 10);
        const int64_t wanted = told ? strtoll(other, NULL, 10) : 1;
        if (good < wanted) {
            evq_health_add(checks, "changes", EVQ_HEALTH_FAIL,
                           "start its replicas, or CONFIG SET min-replicas-to-write",
                           "Redis has %" PRId64 " good replicas of the %" PRId64
                           " that it wants, and refuses every change until it has them",
                           good, wanted);
        }
    }
}

/* A page of results must fit into the output buffer, or Redis closes the connection of its reader.
 */
static void check_replies(struct evq_cli *cli, json_t *checks)
{
    char value[64];
    char shown[EVQ_TERMINAL_SPAN_BYTES];
    long long hard = 0;
    long long soft = 0;
    if (!config_value(cli, "client-output-buffer-limit", value) ||
        sscanf(value, "normal %lld %lld", &hard, &soft) != 2) {
        return;
    }
    const long long limit = soft > 0 && (hard == 0 || soft < hard) ? soft : hard;
    if (limit > 0 && limit < REPLY_BYTES) {
        evq_health_add(checks, "replies", EVQ_HEALTH_WARN,
                       "CONFIG SET client-output-buffer-limit \"normal 0 0 0\"; and in redis.conf",
                       "Redis cuts off who is sent more than %s at once: results and sinks may "
                       "need more",
                       evq_terminal_bytes(limit, shown));
    }
}

static void check_durability(struct evq_cli *cli, const char *info, json_t *checks)
{
    char text[64];
    char fsync[64];
    if (info_field(info, "loading", text)[0] == '1') {
        evq_health_add(checks, "append-only file", EVQ_HEALTH_WARN, "wait",
                       "Redis is loading its data");
        return;
    }
    if (info_field(info, "aof_enabled", text)[0] != '1') {
        evq_health_add(
            checks, "append-only file", EVQ_HEALTH_WARN,
            "CONFIG SET appendonly yes, CONFIG SET appendfsync always; and in redis.conf",
            "AOF is off: a restart of Redis loses jobs and results");
        return;
    }
    if (!config_value(cli, "appendfsync", fsync)) {
        (void)snprintf(fsync, sizeof fsync, "unknown");
    }
    bool failed =
        strcmp(info_field(info, "aof_last_write_status", text), "ok") != 0 && text[0] != '\0';
    if (failed) {
        evq_health_add(checks, "append-only file", EVQ_HEALTH_FAIL,
                       "look at the disk of the Redis server",
                       "Redis cannot write its append-only file");
    } else if (strcmp(fsync, "always") == 0 || strcmp(fsync, "unknown") == 0) {
        evq_health_add(checks, "append-only file", EVQ_HEALTH_OK, "", "on, fsync %s", fsync);
    } else {
        evq_health_add(checks, "append-only file", EVQ_HEALTH_NOTE,
                       "CONFIG SET appendfsync always, if the server is evalq's own",
                       "on, fsync %s: a crash of its host may lose a second of submits and results",
                       fsync);
    }
}

/* Redis replays its append-only file as the default user and drops writes of functions that this
 * user may not make. The check needs permission for ACL LIST. */
static void check_default_user(struct evq_cli *cli, const char *info, json_t *checks)
{
    static const char name[] = "user default ";
    char aof[64];
    struct evq_reply *reply = NULL;
    if (info_field(info, "aof_enabled", aof)[0] == '1' &&
        evq_cli_call(cli, &reply, NULL, 2, "ACL", "LIST") == EVQ_OK &&
        reply->type == EVQ_REPLY_ARRAY) {
        for (size_t i = 0; i < reply->item_count; i++) {
            const char *line = reply->items[i]->text;
            if (line != NULL && strncmp(line, name, sizeof name - 1) == 0 &&
                (strstr(line, " +@all") == NULL || strstr(line, " ~*") == NULL)) {
                evq_health_add(checks, "default user", EVQ_HEALTH_FAIL,
                               "in the ACL file: user default off resetpass ~* &* +@all",
                               "it may not do everything: when Redis reads its append-only file, "
                               "it drops what functions wrote");
            }
        }
    }
    evq_reply_free(reply);
}

static void check_memory(const char *info, json_t *checks)
{
    char policy[64];
    char text[64];
    info_field(info, "maxmemory_policy", policy);
    int64_t max = strtoll(info_field(info, "maxmemory", text), NULL, 10);
    int64_t used = strtoll(info_field(info, "used_memory", text), NULL, 10);
    if (strcmp(policy, "noeviction") != 0 && policy[0] != '\0') {
        evq_health_add(checks, "eviction", max > 0 ? EVQ_HEALTH_FAIL : EVQ_HEALTH_WARN,
                       "CONFIG SET maxmemory-policy noeviction; and in redis.conf",
                       "the eviction policy is %s: Redis may throw jobs away", policy);
    } else {
        evq_health_add(checks, "eviction", EVQ_HEALTH_OK, "", "%s",
                       policy[0] != '\0' ? policy : "unknown");
    }
    if (strtoll(info_field(info, "evicted_keys", text), NULL, 10) > 0) {
        evq_health_add(
            checks, "eviction", EVQ_HEALTH_WARN,
            "evalq_v1_audit (docs/redis-cli.md) tells what broke, `evalq scan` submits what "
            "is missing, CONFIG RESETSTAT counts anew",
            "Redis has thrown away %s keys since it was started: jobs and results may "
            "be among them",
            text);
    }
    char a[EVQ_TERMINAL_SPAN_BYTES];
    char b[EVQ_TERMINAL_SPAN_BYTES];
    evq_terminal_bytes(used, a);
    evq_terminal_bytes(max, b);
    bool full = max > 0 && used > max / 10 * 9;
    evq_health_add(checks, "memory", full ? EVQ_HEALTH_WARN : EVQ_HEALTH_OK,
                   full ? "raise maxmemory, or `evalq gc` and `evalq forget` old runs" : "",
                   max > 0 ? "%s of %s used" : "%s used, no limit", a, b);
}

enum evq_status evq_health_server(struct evq_cli *cli, json_t *checks, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    enum evq_status status = evq_cli_call(cli, &reply, err, 1, "INFO");
    if (status == EVQ_E_AUTH) {
        evq_health_add(checks, "server", EVQ_HEALTH_NOTE, "ask as the user admin",
                       "this user may not ask the server about itself");
        return EVQ_OK;
    }
    if (status == EVQ_OK && (reply->type != EVQ_REPLY_STRING || reply->text == NULL)) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "INFO did not answer with text");
    }
    if (status == EVQ_OK) {
        check_version(reply->text, checks);
        check_changes(cli, reply->text, checks);
        check_replies(cli, checks);
        check_durability(cli, reply->text, checks);
        check_default_user(cli, reply->text, checks);
        check_memory(reply->text, checks);
    }
    evq_reply_free(reply);
    return status;
}

static const char *loss_why(const char *why)
{
    return strcmp(why, "cap") == 0       ? "the stream was full"
           : strcmp(why, "rubbish") == 0 ? "another key stood where the stream was"
                                         : "it was silent for days";
}

static void check_losses(const json_t *stats, json_t *checks)
{
    size_t index = 0;
    const json_t *loss = NULL;
    json_array_foreach(json_object_get(stats, "losses"), index, loss)
    {
        evq_health_add(checks, "results", EVQ_HEALTH_FAIL,
                       "`evalq results --replay SINK` repeats them from the stored results",
                       "the sink '%s' lost the results from %s to %s (%s)",
                       evq_json_text(loss, "sink", "?"), evq_json_text(loss, "from", "?"),
                       evq_json_text(loss, "to", "?"), loss_why(evq_json_text(loss, "why", "")));
    }
}

static const char *machine_of(const json_t *worker)
{
    const json_t *info = json_object_get(worker, "info");

    return evq_json_text(info, "machine", evq_json_text(info, "host", "?"));
}

/* Notes GPUs of a machine that no worker uses, once for all live workers of that machine. `number`
 * is the worker's index. It is only a note, because a training may use those GPUs. */
static void check_gpus_left(const json_t *workers, size_t number, json_t *checks)
{
    const json_t *worker = json_array_get(workers, number);
    const char *machine = machine_of(worker);
    const json_t *other = NULL;
    int64_t seen = 0;
    int64_t taken = 0;
    size_t index = 0;

    json_array_foreach(workers, index, other)
    {
        const json_t *info = json_object_get(other, "info");
        const int64_t sees = evq_json_integer(info, "gpus_seen", 0);
        if (strcmp(evq_json_text(other, "state", ""), "alive") != 0 ||
            strcmp(machine_of(other), machine) != 0) {
            continue;
        }
        if (index < number) {
            return; // An earlier worker of this machine had the check.
        }
        seen = sees > seen ? sees : seen;
        taken += evq_json_integer(info, "gpus_taken", 0);
    }
    if (taken < seen) {
        evq_health_add(checks, "GPUs", EVQ_HEALTH_NOTE,
                       "more worker.slots, or further workers there, take the others",
                       "workers on %s take %" PRId64 " of the %" PRId64 " GPUs that they see",
                       evq_json_text(json_object_get(worker, "info"), "host", "?"), taken, seen);
    }
}

static void check_workers(const json_t *stats, json_t *checks)
{
    size_t alive = 0;
    size_t index = 0;
    const json_t *worker = NULL;
    const json_t *states = json_object_get(stats, "states");
    int64_t waiting =
        evq_json_integer(states, "queued", 0) + evq_json_integer(states, "delayed", 0);
    const json_t *workers = json_object_get(stats, "workers");
    json_array_foreach(workers, index, worker)
    {
        const char *state = evq_json_text(worker, "state", "");
        int64_t age = evq_json_integer(worker, "heartbeat_age_ms", 0);
        char span[EVQ_TERMINAL_SPAN_BYTES];
        alive += strcmp(state, "alive") == 0;
        if (strcmp(state, "alive") == 0) {
            check_gpus_left(workers, index, checks);
        } else if (age < 3600000) {
            const char *host = evq_json_text(json_object_get(worker, "info"), "host", "?");
            evq_health_add(checks, "workers", EVQ_HEALTH_WARN,
                           "look at its log; other workers take its jobs",
                           "the worker %.20s on %s has been silent for %s",
                           evq_json_text(worker, "id", "?"), host, evq_terminal_span(age, span));
        }
    }
    if (alive == 0 && waiting > 0) {
        evq_health_add(checks, "workers", EVQ_HEALTH_FAIL, "start evalq-worker",
                       "%" PRId64 " %s and no worker is alive", waiting,
                       waiting == 1 ? "job waits" : "jobs wait");
    } else {
        evq_health_add(checks, "workers", alive > 0 ? EVQ_HEALTH_OK : EVQ_HEALTH_NOTE,
                       alive > 0 ? "" : "start evalq-worker", "%zu alive", alive);
    }
    const char *why = NULL;
    const json_t *count = NULL;
    json_t *reasons = json_object_get(stats, "waiting");
    json_object_foreach(reasons, why, count)
    {
        if (strcmp(why, "paused (queue)") != 0 &&
            (alive > 0 || strncmp(why, "no worker", 9) != 0)) {
            evq_health_add(checks, "waiting", EVQ_HEALTH_WARN, "", "%" PRId64 " %s: %s",
                           (int64_t)json_number_value(count),
                           json_number_value(count) == 1 ? "job waits" : "jobs wait", why);
        }
    }
}

static void check_sinks(const json_t *stats, json_t *checks)
{
    const json_t *sinks = json_object_get(stats, "sinks");
    size_t index = 0;
    const json_t *sink = NULL;
    json_array_foreach(sinks, index, sink)
    {
        const char *name = evq_json_text(sink, "name", "?");
        const char *error = evq_json_text(sink, "error", "");
        int64_t lag = evq_json_integer(sink, "lag", 0) + evq_json_integer(sink, "pending", 0);
        int64_t age = evq_json_integer(sink, "seen_age_ms", 0);
        char span[EVQ_TERMINAL_SPAN_BYTES];
        if (error[0] != '\0') {
            evq_health_add(checks, "sinks", EVQ_HEALTH_WARN, "look at the log of evalq-logger",
                           "the sink '%s' fails, %" PRId64 " result%s behind: %s", name, lag,
                           lag == 1 ? "" : "s", error);
        } else if (lag > 0 && age > 60000) {
            evq_health_add(checks, "sinks", EVQ_HEALTH_WARN, "is evalq-logger running?",
                           "the sink '%s' is %" PRId64 " result%s behind and silent for %s", name,
                           lag, lag == 1 ? "" : "s", evq_terminal_span(age, span));
        } else {
            evq_health_add(checks, "sinks", EVQ_HEALTH_OK, "", "%s: %" PRId64 " behind", name, lag);
        }
    }
    const json_t *results = json_object_get(stats, "results");
    int64_t length = evq_json_integer(results, "length", 0);
    if (json_array_size(sinks) == 0 && length > 0) {
        evq_health_add(checks, "sinks", EVQ_HEALTH_WARN, "start evalq-logger",
                       "%" PRId64 " %s in the stream and no sink was ever there", length,
                       length == 1 ? "result waits" : "results wait");
    }
    if (length > evq_json_integer(results, "max", INT64_MAX) / 10 * 9) {
        evq_health_add(checks, "results", EVQ_HEALTH_WARN, "which sink is behind?",
                       "the stream of results is nearly full: the oldest will be lost");
    }
}

/* Finds keys of evalq that hold a value of another type, as after a manual write. Calls that need
 * the key fail. */
static void check_keys(const json_t *stats, json_t *checks)
{
    size_t index = 0;
    const json_t *key = NULL;
    json_array_foreach(json_object_get(stats, "keys"), index, key)
    {
        evq_health_add(checks, "keys", EVQ_HEALTH_FAIL,
                       "look at it with redis-cli, then UNLINK it (docs/troubleshooting.md)",
                       "the key %s is a %s, not the %s that evalq keeps there",
                       evq_json_text(key, "key", "?"), evq_json_text(key, "type", "?"),
                       evq_json_text(key, "expected", "?"));
    }
}

void evq_health_queue(const json_t *stats, json_t *checks)
{
    const json_t *paused = json_object_get(stats, "paused");
    int64_t bad = evq_json_integer(stats, "bad", 0);
    check_keys(stats, checks);
    check_losses(stats, checks);
    check_workers(stats, checks);
    check_sinks(stats, checks);
    if (evq_json_true(paused, "queue")) {
        evq_health_add(checks, "pause", EVQ_HEALTH_WARN, "evalq resume", "the queue is paused");
    }
    size_t index = 0;
    const json_t *run = NULL;
    json_array_foreach(json_object_get(paused, "runs"), index, run)
    {
        evq_health_add(checks, "pause", EVQ_HEALTH_WARN, "evalq resume run NAME",
                       "the run '%s' is paused",
                       json_string_value(run) != NULL ? json_string_value(run) : "?");
    }
    if (bad > 0) {
        evq_health_add(checks, "bad records", EVQ_HEALTH_WARN, "`evalq dead --bad` lists them",
                       "%" PRId64 " malformed %s set aside", bad,
                       bad == 1 ? "record was" : "records were");
    }
}
