#include "shared/redis/conn_error.h"

#include <string.h>
#include <strings.h>

struct word {
    const char *text;
    enum evq_status status;
};

// The first word of an error reply.
static const struct word words[] = {
    {"LOADING", EVQ_E_RETRY},  // Reading its data after a start.
    {"BUSY", EVQ_E_RETRY},     // A script runs too long.
    {"MISCONF", EVQ_E_RETRY},  // Cannot persist: the disk is full.
    {"OOM", EVQ_E_RETRY},      // maxmemory is reached.
    {"READONLY", EVQ_E_RETRY}, // Became a replica.
    {"MASTERDOWN", EVQ_E_RETRY},
    {"NOREPLICAS", EVQ_E_RETRY},
    {"TRYAGAIN", EVQ_E_RETRY},
    {"CLUSTERDOWN", EVQ_E_RETRY},
    {"UNBLOCKED", EVQ_E_RETRY}, // A blocked call ended by a change of role.
    {"UNKILLABLE", EVQ_E_RETRY},
    {"MOVED", EVQ_E_RETRY}, // Followed; the caller then repeats the command.
    {"ASK", EVQ_E_RETRY},   // Not followed: the slot is moving, and MOVED comes later.
    {"NOAUTH", EVQ_E_AUTH},
    {"WRONGPASS", EVQ_E_AUTH},
    {"NOPERM", EVQ_E_AUTH},
    {"DENIED", EVQ_E_AUTH}, // Protected mode.
    {"NOSCRIPT", EVQ_E_VERSION},
    {"NOGROUP", EVQ_E_NOT_FOUND},
    {"BUSYGROUP", EVQ_E_CONFLICT},
    {"EVQ_INVALID", EVQ_E_INVALID},
    {"EVQ_RETRY", EVQ_E_RETRY}, // A key of the queue's own is of another type.
    {"EVQ_LIMIT", EVQ_E_LIMIT},
    {"EVQ_CORRUPT", EVQ_E_CORRUPT},
    {"EVQ_CONFLICT", EVQ_E_CONFLICT},
    {"EVQ_NOT_FOUND", EVQ_E_NOT_FOUND},
    {"EVQ_VERSION", EVQ_E_VERSION},
    {"EVQ_INTERNAL", EVQ_E_BUG},
};

// Replies whose first word is only ERR: how the text after it begins.
static const struct word sentences[] = {
    {"Function not found", EVQ_E_VERSION},
    {"unknown command 'FCALL", EVQ_E_VERSION}, // Also FCALL_RO: a server before 7.0.
    {"unknown command 'FUNCTION", EVQ_E_VERSION},
    {"max number of clients reached", EVQ_E_RETRY},
    {"max number of clients + cluster", EVQ_E_RETRY},
    {"AUTH <password> called without any password", EVQ_E_AUTH},
    {"Client sent AUTH, but no password is set", EVQ_E_AUTH},
    {"invalid password", EVQ_E_AUTH},
    {"The user executing the script can't run this command", EVQ_E_AUTH}, // Within a function.
    {"The user executing the script can't access", EVQ_E_AUTH},
    {"ACL failure in script", EVQ_E_AUTH}, // The same, of Redis 8 and Valkey.
};

/* Returns what follows the second space of "MOVED SLOT HOST:PORT". */
static const char *moved_target(const char *text)
{
    const char *slot = strchr(text, ' ');
    const char *target = slot != NULL ? strchr(slot + 1, ' ') : NULL;
    return target != NULL ? target + 1 : NULL;
}

struct evq_conn_error evq_conn_error_parse(const char *text)
{
    struct evq_conn_error refusal = {.status = EVQ_E_INVALID, .text = text};
    size_t bytes = strcspn(text, " ");
    const char *rest = text[bytes] == ' ' ? text + bytes + 1 : text + bytes;

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i].text) == bytes && memcmp(text, words[i].text, bytes) == 0) {
            refusal.status = words[i].status;
        }
    }
    if (strncmp(text, "EVQ_", 4) == 0) {
        refusal.own = true;
        refusal.text = *rest != '\0' ? rest : text;
    }
    if (bytes == 3 && memcmp(text, "ERR", 3) == 0) {
        for (size_t i = 0; i < sizeof sentences / sizeof sentences[0]; i++) {
            if (strncasecmp(rest, sentences[i].text, strlen(sentences[i].text)) == 0) {
                refusal.status = sentences[i].status;
            }
        }
    }
    if (bytes == 5 && memcmp(text, "MOVED", 5) == 0) {
        refusal.moved = moved_target(text);
    }
    // A load balancer, a name or the sentinels may lead to the new primary by now. With too many
    // clients, the server hangs up.
    refusal.reconnect = (bytes == 8 && memcmp(text, "READONLY", 8) == 0) ||
                        (bytes == 10 && memcmp(text, "NOREPLICAS", 10) == 0) ||
                        strncmp(text, "ERR max number of clients", 25) == 0;
    return refusal;
}

/* Whether the user is known but lacks a permission, also within a function. */
static bool lacks_permission(const char *text)
{
    return strncmp(text, "NOPERM", 6) == 0 || strncmp(text, "ERR The user executing", 22) == 0 ||
           strncmp(text, "ERR ACL failure", 15) == 0;
}

enum evq_status evq_conn_error_describe(const struct evq_conn_error *refusal, const char *where,
                                        const char *user, struct evq_error *err)
{
    if (refusal->own) {
        return evq_error_set(err, refusal->status, "%s", refusal->text);
    }
    if (refusal->status == EVQ_E_AUTH) {
        const char *advice = "";
        if (strncmp(refusal->text, "NOAUTH", 6) == 0) {
            advice = " Set EVALQ_REDIS_PASSWORD_FILE to a file with the password.";
        } else if (strncmp(refusal->text, "WRONGPASS", 9) == 0) {
            advice = " (the password is that of redis.password_file, or of $EVALQ_REDIS_PASSWORD, "
                     "or of the file $EVALQ_REDIS_PASSWORD_FILE)";
        } else if (lacks_permission(refusal->text)) {
            advice = " (`evalq admin acl` prints the permissions of each role)";
        }
        return evq_error_set(err, EVQ_E_AUTH, "%s refuses user '%s': %s%s", where,
                             *user != '\0' ? user : "default", refusal->text, advice);
    }
    if (refusal->status == EVQ_E_VERSION && strstr(refusal->text, "unknown command") != NULL) {
        return evq_error_set(err, EVQ_E_VERSION,
                             "%s: %s: evalq needs Redis 7.0, Valkey 7.2 or later", where,
                             refusal->text);
    }
    if (refusal->status == EVQ_E_VERSION) {
        return evq_error_set(err, EVQ_E_VERSION,
                             "%s: %s: the function library is missing or too old: run `evalq admin "
                             "install`",
                             where, refusal->text);
    }
    return evq_error_set(err, refusal->status, "%s: %s", where, refusal->text);
}
