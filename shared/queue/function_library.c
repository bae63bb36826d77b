#include "shared/queue/function_library.h"

#include <stdlib.h>
#include <string.h>

// evalq_v1_info's reply: major build epoch now lease_ms heartbeat_ms.
enum { INFO_MAJOR, INFO_BUILD, INFO_ITEMS_MIN };

/* Asks about the library with any prefix. In a cluster each node has its own library, so there the
 * prefix matters. */
#define PREFIX_ANY "evalq:{main}:"

static bool reply_number(const struct evq_reply *reply, int64_t *ret_number)
{
    char *end = NULL;

    if (reply->type == EVQ_REPLY_INTEGER) {
        *ret_number = reply->integer;
        return true;
    }
    if (reply->type != EVQ_REPLY_STRING || reply->bytes == 0) {
        return false;
    }
    *ret_number = strtoll(reply->text, &end, 10);
    return *end == '\0';
}

enum evq_status evq_function_library_missing_error(const struct evq_conn *conn,
                                                   struct evq_error *err)
{
    if (err != NULL && strstr(err->message, "unknown command") != NULL) {
        return EVQ_E_VERSION;
    }
    return evq_error_set(err, EVQ_E_VERSION,
                         "the function library %s is missing in %s: run `evalq admin install`",
                         EVQ_FUNCTIONS_LIBRARY, evq_conn_where(conn));
}

enum evq_status evq_function_library_judge(const struct evq_conn *conn, int64_t major,
                                           int64_t build, struct evq_error *err)
{
    if (major != EVQ_FUNCTIONS_MAJOR) {
        return evq_error_set(err, EVQ_E_VERSION,
                             "the function library %s in %s is of major %lld, this program of %d",
                             EVQ_FUNCTIONS_LIBRARY, evq_conn_where(conn), (long long)major,
                             EVQ_FUNCTIONS_MAJOR);
    }
    if (build < evq_function_library_build) {
        return evq_error_set(err, EVQ_E_VERSION,
                             "the function library %s in %s is build %lld, this program needs %lld "
                             "or higher: run `evalq admin install`",
                             EVQ_FUNCTIONS_LIBRARY, evq_conn_where(conn), (long long)build,
                             (long long)evq_function_library_build);
    }
    return EVQ_OK;
}

/* Reads the major number and build of the installed library. EVQ_E_VERSION: there is none. */
static enum evq_status ask(struct evq_conn *conn, const char *prefix, int64_t *ret_major,
                           int64_t *ret_build, struct evq_error *err)
{
    const char *const info_words[] = {"FCALL_RO", EVQ_FUNCTIONS_PREFIX "info", "1", prefix};
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_conn_call(conn, 4, info_words, NULL, 0, &reply, err);
    if (status == EVQ_E_VERSION) {
        return evq_function_library_missing_error(conn, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (reply->type != EVQ_REPLY_ARRAY || reply->item_count < INFO_ITEMS_MIN ||
        !reply_number(reply->items[INFO_MAJOR], ret_major) ||
        !reply_number(reply->items[INFO_BUILD], ret_build)) {
        evq_conn_drop(conn); // Closes the connection, as after any malformed reply.
        status = evq_error_set(err, EVQ_E_IO, "%s: %sinfo answers out of shape",
                               evq_conn_where(conn), EVQ_FUNCTIONS_PREFIX);
    }
    evq_reply_free(reply);
    return status;
}

/* Whether a library of our name is loaded, whatever its version. */
static enum evq_status is_loaded(struct evq_conn *conn, bool *ret_loaded, struct evq_error *err)
{
    static const char *const words[] = {"FUNCTION", "LIST", "LIBRARYNAME", EVQ_FUNCTIONS_LIBRARY};
    struct evq_reply *reply = NULL;

    enum evq_status status = evq_conn_call(conn, 4, words, NULL, 0, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (reply->type != EVQ_REPLY_ARRAY) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "%s: FUNCTION LIST answers out of shape",
                               evq_conn_where(conn));
    } else {
        *ret_loaded = reply->item_count > 0;
    }
    evq_reply_free(reply);
    return status;
}

static enum evq_status load(struct evq_conn *conn, bool replace, struct evq_error *err)
{
    const char *words[4] = {"FUNCTION", "LOAD"};
    size_t count = 2;
    struct evq_reply *reply = NULL;

    if (replace) {
        words[count++] = "REPLACE";
    }
    words[count++] = evq_function_library_text;
    enum evq_status status = evq_conn_call(conn, count, words, NULL, 0, &reply, err);
    if (status == EVQ_OK &&
        (reply->text == NULL || strcmp(reply->text, EVQ_FUNCTIONS_LIBRARY) != 0)) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "%s: FUNCTION LOAD answers out of shape",
                               evq_conn_where(conn));
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_function_library_install(struct evq_conn *conn, int64_t *ret_build,
                                             struct evq_error *err)
{
    return evq_function_library_install_for(conn, PREFIX_ANY, ret_build, err);
}

enum evq_status evq_function_library_install_for(struct evq_conn *conn, const char *prefix,
                                                 int64_t *ret_build, struct evq_error *err)
{
    struct evq_error first = {EVQ_OK, ""};
    int64_t major = 0;
    int64_t build = 0;
    bool loaded = false;

    enum evq_status status = ask(conn, prefix, &major, &build, &first);
    if (status == EVQ_OK && (major != EVQ_FUNCTIONS_MAJOR || build >= evq_function_library_build)) {
        *ret_build = build;
        return evq_function_library_judge(conn, major, build, err);
    }
    if (status != EVQ_OK && status != EVQ_E_VERSION) {
        return evq_error_set(err, status, "%s", first.message);
    }
    status = is_loaded(conn, &loaded, err);
    if (status == EVQ_OK) {
        // Without REPLACE if there was none: of two installers at once, the slower one fails and
        // looks again.
        status = load(conn, loaded, err);
    }
    if (status == EVQ_E_INVALID && !loaded) {
        bool there = false;
        struct evq_error second;
        if (is_loaded(conn, &there, &second) == EVQ_OK && there) {
            // The other installer's library is there. The next call checks its version.
            status = EVQ_OK;
        }
    }
    if (status == EVQ_OK) {
        status = ask(conn, prefix, &major, &build, err);
    }
    if (status == EVQ_OK) {
        status = evq_function_library_judge(conn, major, build, err);
    }
    if (status == EVQ_OK) {
        *ret_build = build;
    }
    return status;
}
