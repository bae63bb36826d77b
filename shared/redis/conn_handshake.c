#include "shared/redis/conn_handshake.h"

#include <stdio.h>
#include <string.h>

#include "shared/redis/conn_error.h"
#include "shared/redis/conn_password.h"

enum { COMMANDS_MAX = 4, WORDS_MAX = 3 };

struct command {
    size_t count;
    const char *words[WORDS_MAX];
    bool courtesy; // An error reply to it is ignored.
};

static size_t commands_of(const struct evq_conn_greeting *greeting, char db[16],
                          struct command out[COMMANDS_MAX])
{
    const char *user = *greeting->user != '\0' ? greeting->user : "default";
    size_t count = 0;

    if (*greeting->password != '\0' || strcmp(user, "default") != 0) {
        // The password is empty for a user with `nopass`.
        out[count++] = (struct command){3, {"AUTH", user, greeting->password}, false};
    }
    if (greeting->db != 0) {
        (void)snprintf(db, 16, "%d", greeting->db);
        out[count++] = (struct command){2, {"SELECT", db}, false};
    }
    if (*greeting->name != '\0') {
        out[count++] = (struct command){3, {"CLIENT", "SETNAME", greeting->name}, true};
    }
    if (greeting->primary) {
        out[count++] = (struct command){1, {"ROLE"}, true};
    }
    return count;
}

/* A replica would refuse writes and answer with old data. */
static enum evq_status check_role(const struct evq_reply *reply, struct evq_error *err)
{
    if (reply == NULL || reply->type != EVQ_REPLY_ARRAY || reply->item_count == 0 ||
        reply->items[0]->text == NULL || strcmp(reply->items[0]->text, "master") == 0) {
        return EVQ_OK; // Unknown role: READONLY would reveal a replica too.
    }
    return evq_error_set(err, EVQ_E_RETRY,
                         "is a replica: its sentinels have not agreed on a primary yet");
}

enum evq_status evq_conn_handshake(struct evq_conn_wire *wire,
                                   const struct evq_conn_greeting *greeting, int64_t deadline_ms,
                                   char ret_refusal[EVQ_CONN_REFUSAL_BYTES], struct evq_error *err)
{
    char db[16];
    struct evq_buffer out;
    struct command commands[COMMANDS_MAX];
    const size_t count = commands_of(greeting, db, commands);
    enum evq_status status = EVQ_OK;

    *ret_refusal = '\0';
    evq_buffer_init(&out, 0);
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = evq_conn_reader_format(commands[i].count, commands[i].words, NULL, &out, err);
    }
    if (status == EVQ_OK && count > 0) { // Sent together.
        status = evq_conn_wire_send(wire, out.data, out.bytes, deadline_ms, err);
    }
    for (size_t i = 0; i < count && status == EVQ_OK && *ret_refusal == '\0'; i++) {
        struct evq_reply *reply = NULL;
        status = evq_conn_wire_receive(wire, deadline_ms, &reply, ret_refusal, err);
        // An error about too many clients answers whichever command comes first.
        if (commands[i].courtesy && evq_conn_error_parse(ret_refusal).status != EVQ_E_RETRY) {
            *ret_refusal = '\0';
        }
        if (status == EVQ_OK && strcmp(commands[i].words[0], "ROLE") == 0) {
            status = check_role(reply, err);
        }
        evq_reply_free(reply);
    }
    if (out.data != NULL) {
        evq_conn_password_wipe((char *)out.data, out.bytes);
    }
    evq_buffer_free(&out);
    return status;
}
