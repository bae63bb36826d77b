#include "producer/cli/operate/acl.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/sha256.h"
#include "shared/queue/function_library.h"

#define COMMANDS_MAX 160
#define WORD_MAX     40

struct commands {
    char words[COMMANDS_MAX][WORD_MAX]; // "hset", "xgroup|create".
    size_t count;
};

struct role {
    const char *name;
    const char *keys;      // Rights on the keys of the queue: "~" all, "%R~" reading.
    bool library;          // It may call every command that the function library uses.
    const char *functions; // Changing functions that it may call, separated by blanks.
    const char *commands;  // Further commands, separated by blanks.
};

static const struct role roles[] = {
    {"init", "%R~", false, "",
     "fcall_ro hget hmget function|load function|list function|delete info"},
    {"producer", "~", true, "cancel idle put submit submit_batch", "fcall_ro function|list"},
    {"worker", "~", true,
     "adopt claim complete complete_claim complete_many fail gpus heartbeat leave publish release "
     "samples_add split suite",
     "fcall_ro function|list bzpopmin"},
    {"logger", "~", true, "bad best_put samples_remove sink_ack sink_open sink_serve",
     "fcall_ro function|list xread xreadgroup xautoclaim"},
    {"gateway", "~", true,
     "cancel pause put retry submit submit_batch ticket_cancel ticket_put tickets",
     "fcall_ro function|list xread xinfo|stream"},
    {"viewer", "%R~", true, "", "fcall_ro function|list info"},
    {"admin", "~", true, "",
     "fcall fcall_ro function|load function|list function|delete function|dump function|restore "
     "info config|get config|set del scan type object|encoding memory|usage slowlog|get "
     "client|list client|kill acl|list acl|log acl|whoami xinfo|stream xreadgroup bzpopmin dbsize "
     "lastsave bgrewriteaof latency|latest xautoclaim"},
};
#define ROLE_COUNT (sizeof roles / sizeof roles[0])

// Commands of every role: to connect and to name the connection.
static const char common[] = "ping hello auth select quit time role client|setname client|id "
                             "client|getname client|setinfo command|info";

static bool add(struct commands *list, const char *word, size_t bytes)
{
    if (bytes == 0 || bytes >= WORD_MAX) {
        return bytes == 0;
    }
    char lower[WORD_MAX];
    for (size_t i = 0; i < bytes; i++) {
        lower[i] = (char)tolower((unsigned char)word[i]);
    }
    lower[bytes] = '\0';
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->words[i], lower) == 0) {
            return true;
        }
    }
    if (list->count == COMMANDS_MAX) {
        return false;
    }
    memcpy(list->words[list->count++], lower, bytes + 1);
    return true;
}

static bool add_words(struct commands *list, const char *words)
{
    bool good = true;
    while (*words != '\0') {
        size_t bytes = strcspn(words, " ");
        good = add(list, words, bytes) && good;
        words += bytes + strspn(words + bytes, " ");
    }
    return good;
}

/* Redis lets a user call FCALL with the first arguments that it names: "fcall|evalq_v1_submit". */
static bool add_functions(struct commands *list, const char *functions)
{
    bool good = true;
    while (*functions != '\0') {
        const size_t bytes = strcspn(functions, " ");
        char word[WORD_MAX];
        const int used = snprintf(word, sizeof word, "fcall|evalq_v1_%.*s", (int)bytes, functions);
        good = used < WORD_MAX && add(list, word, (size_t)used) && good;
        functions += bytes + strspn(functions + bytes, " ");
    }
    return good;
}

/* Returns the length of a quoted word of upper-case letters at text, the form in which Lua names a
 * command; 0: there is none. */
static size_t quoted(const char *text)
{
    size_t bytes = text[0] == '\'' ? strspn(text + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") : 0;
    return bytes > 0 && text[bytes + 1] == '\'' ? bytes : 0;
}

/* Collects every command that the function library calls, from its text: call('HSET', ...),
 * pcall(call, 'HSET', ...). */
static bool add_library(struct commands *list)
{
    static const char *const containers[] = {"XGROUP", "XINFO", "OBJECT", "FUNCTION"};
    bool good = true;
    for (const char *at = evq_function_library_text; (at = strstr(at, "call")) != NULL; at++) {
        const char *word = at + 4;
        word += *word == '(' || *word == ',';
        word += strspn(word, " \n");
        size_t bytes = quoted(word);
        if (bytes == 0) {
            continue;
        }
        char full[WORD_MAX];
        size_t used =
            (size_t)snprintf(full, sizeof full, "%.*s", (int)(bytes < 16 ? bytes : 16), word + 1);
        for (size_t i = 0; i < sizeof containers / sizeof containers[0]; i++) {
            const char *sub = word + bytes + 2;
            sub += strspn(sub, ", \n");
            size_t sub_bytes = quoted(sub);
            if (strcmp(full, containers[i]) == 0 && sub_bytes > 0 && sub_bytes < 16) {
                used += (size_t)snprintf(full + used, sizeof full - used, "|%.*s", (int)sub_bytes,
                                         sub + 1);
                break;
            }
        }
        good = add(list, full, used) && good;
    }
    return good;
}

/* Whether the server knows a command, by COMMAND INFO: one entry per name, nil for an unknown one.
 */
static enum evq_status known_to_server(struct evq_cli *cli, const char *word, bool *ret_known,
                                       struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    // A function is an argument of FCALL, not a command.
    const char *asked = strncmp(word, "fcall|", 6) == 0 ? "fcall" : word;
    enum evq_status status = evq_cli_call(cli, &reply, err, 3, "COMMAND", "INFO", asked);
    if (status == EVQ_OK) {
        *ret_known = reply->type == EVQ_REPLY_ARRAY && reply->item_count == 1 &&
                     reply->items[0]->type == EVQ_REPLY_ARRAY && reply->items[0]->item_count > 0;
    }
    evq_reply_free(reply);
    return status;
}

/* Returns the length of the role's password in a line; 0: the line is of another role. whole_line:
 * the file is only for this role. */
static size_t password_in(char *line, const char *role, bool whole_line, char **ret_password)
{
    size_t name = whole_line ? 0 : strcspn(line, " \t:\r\n");
    *ret_password = line + name + (whole_line ? 0 : strspn(line + name, " \t:"));
    bool own =
        whole_line || (line[0] != '#' && name == strlen(role) && strncmp(line, role, name) == 0);
    return own ? strcspn(*ret_password, "\r\n") : 0;
}

/* Whether a line of the password file is empty or names a role. A typing error would disable a
 * role.
 */
static enum evq_status check_line(const char *path, int number, const char *line,
                                  struct evq_error *err)
{
    const size_t name = strcspn(line, " \t:\r\n");
    const size_t blanks = strspn(line + name, " \t:");
    char shown[64];

    if (name == 0 || line[0] == '#') {
        return EVQ_OK;
    }
    for (size_t i = 0; i < ROLE_COUNT; i++) {
        if (strlen(roles[i].name) == name && strncmp(line, roles[i].name, name) == 0) {
            return blanks > 0 && strcspn(line + name + blanks, "\r\n") > 0
                       ? EVQ_OK
                       : evq_error_set(err, EVQ_E_INVALID,
                                       "%s:%d: the role %s has no password, expected ROLE PASSWORD",
                                       path, number, roles[i].name);
        }
    }
    return evq_error_set(
        err, EVQ_E_INVALID,
        "%s:%d: '%s' is no role, expected init, producer, worker, logger, gateway, "
        "viewer or admin",
        path, number, evq_error_escape(line, name, shown, sizeof shown));
}

/* Writes "#" and the SHA-256 of the role's password, or "" if it has none. The password comes from
 * a file with lines "ROLE PASSWORD", or from the first line of the file ROLE in a directory. */
static enum evq_status hash_of(const char *source, const char *role, char out[66],
                               struct evq_error *err)
{
    char path[4096];
    char line[2048];
    struct stat info;
    enum evq_status status = EVQ_OK;
    out[0] = '\0';
    if (source == NULL) {
        return EVQ_OK;
    }
    bool directory = stat(source, &info) == 0 && S_ISDIR(info.st_mode);
    (void)snprintf(path, sizeof path, directory ? "%s/%s" : "%s", source, role);
    FILE *file = fopen(path, "re");
    if (file == NULL && directory && errno == ENOENT) {
        return EVQ_OK;
    }
    if (file == NULL || fstat(fileno(file), &info) != 0) {
        status =
            evq_error_set(err, EVQ_E_INVALID, "the password file '%s': %s", path, strerror(errno));
        goto out;
    }
    if ((info.st_mode & S_IROTH) != 0 && strncmp(path, "/run/secrets/", 13) != 0) {
        status = evq_error_set(
            err, EVQ_E_INVALID,
            "the password file '%s' is readable by every user: run chmod 600 on it", path);
        goto out;
    }
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        char *password = NULL;
        status = directory ? EVQ_OK : check_line(path, number, line, err);
        if (status != EVQ_OK || out[0] != '\0') {
            break;
        }
        size_t bytes = password_in(line, role, directory, &password);
        if (bytes > 0) {
            out[0] = '#';
            evq_sha256_hex(password, bytes, out + 1);
        }
    }
    explicit_bzero(line, sizeof line);
out:
    if (file != NULL) {
        (void)fclose(file); // Opened for reading: a failed close loses nothing.
    }
    return status;
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static enum evq_status print_role(struct evq_cli *cli, const struct role *role,
                                  const char *password_file, bool offline, struct evq_error *err)
{
    struct commands list = {.count = 0};
    char hash[66];
    // The library is the server's, so the role that installs it may read the keys of all queues.
    const char *queue = role->library ? evq_queue_name(cli->queue) : "*";
    bool good = add_words(&list, common) && add_words(&list, role->commands) &&
                add_functions(&list, role->functions);
    good = good && (!role->library || add_library(&list));
    enum evq_status status =
        good ? hash_of(password_file, role->name, hash, err)
             : evq_error_set(err, EVQ_E_BUG, "more than %d commands", COMMANDS_MAX);
    if (status != EVQ_OK) {
        return status;
    }
    qsort(list.words, list.count, sizeof list.words[0], compare);
    (void)printf("user %s %s %s%ssanitize-payload resetchannels resetkeys %sevalq:{%s}:* -@all",
                 role->name, hash[0] != '\0' ? "on" : "off", hash, hash[0] != '\0' ? " " : "",
                 role->keys, queue);
    for (size_t i = 0; status == EVQ_OK && i < list.count; i++) {
        // If no server answers, leave out the only command that Redis 7.0 lacks; 7.2 has it.
        bool known = strcmp(list.words[i], "client|setinfo") != 0;
        if (!offline) {
            status = known_to_server(cli, list.words[i], &known, err);
        }
        if (known) {
            (void)printf(" +%s", list.words[i]);
        }
    }
    (void)fputc('\n', stdout);
    return status;
}

enum evq_status evq_acl_print(struct evq_cli *cli, const char *role, const char *password_file,
                              bool offline, struct evq_error *err)
{
    bool known = false;
    enum evq_status status = offline ? EVQ_OK : known_to_server(cli, "ping", &known, err);
    if (status == EVQ_E_IO || status == EVQ_E_TIMEOUT) {
        // The server may need this file to start, so write it anyway.
        evq_cli_say(cli, "evalq: no server to ask: written for Redis 7.0 and newer");
        offline = true;
        status = EVQ_OK;
    }
    if (role == NULL && status == EVQ_OK) {
        // The user `default` is off, so nobody can log in as it. But Redis replays its append-only
        // file as this user. Without these permissions it would drop each MULTI ... EXEC of the
        // file, and so everything that functions wrote.
        (void)puts("user default off resetpass ~* &* +@all");
    }
    for (size_t i = 0; status == EVQ_OK && i < ROLE_COUNT; i++) {
        if (role == NULL || strcmp(role, roles[i].name) == 0) {
            status = print_role(cli, &roles[i], password_file, offline, err);
        }
    }
    return status;
}
