#include "shared/redis/conn.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/redis/conn_error.h"
#include "shared/redis/conn_handshake.h"
#include "shared/redis/conn_password.h"
#include "shared/redis/conn_resolve.h"
#include "shared/redis/conn_sentinel.h"
#include "shared/redis/conn_tls.h"
#include "shared/redis/conn_url.h"
#include "shared/redis/conn_wire.h"

enum { CONNECT_TIMEOUT_MS = 5000, CALL_TIMEOUT_MS = 10000, APPEND_BYTES_MAX = 65 << 20 };

enum { HOPS_MAX = 3 }; // How many cluster nodes may redirect one call.

struct evq_conn {
    struct evq_conn_url home; // The configured address.
    struct evq_conn_url url;  // Where to connect: home, or the node that MOVED named.
    char where[EVQ_CONN_WHERE_BYTES_MAX];
    char user[EVQ_CONN_USER_BYTES_MAX];
    char password[EVQ_CONN_PASSWORD_BYTES_MAX];
    char name[64];
    int64_t connect_timeout_ms;
    int64_t call_timeout_ms;

    struct evq_conn_tls_config tls;       // Owned copies.
    struct evq_conn_sentinels *sentinels; // NULL: the address is a server's own.
    struct evq_buffer out;                // Commands that are not sent yet.
    size_t pending;                       // Replies owed to the caller.
    size_t lost;                          // Replies among them that were lost with a socket.
    bool moved; // The last reply was MOVED: the command did not run, and url has changed.
    bool leave; // Close when nothing is pending, because this server cannot serve us.
    uint64_t number;

    atomic_bool interrupted;
    int interrupt_fd;
    pid_t pid;
    struct evq_conn_wire wire;
};

/* CLIENT SETNAME takes printable ASCII without spaces. */
static void copy_name(const char *name, char *out, size_t out_bytes)
{
    size_t i = 0;
    for (; name != NULL && name[i] != '\0' && i + 1 < out_bytes; i++) {
        out[i] = name[i] > ' ' && name[i] < 0x7f ? name[i] : '-';
    }
    out[i] = '\0';
}

static void tls_release(struct evq_conn_tls_config *tls)
{
    const char *const owned[] = {tls->ca, tls->cert, tls->key, tls->server_name};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        free((char *)(uintptr_t)owned[i]);
    }
}

/* Copies the TLS settings of a rediss:// address and checks them. */
static enum evq_status tls_take(struct evq_conn *conn, const struct evq_conn_tls_config *tls,
                                struct evq_error *err)
{
    const char *const from[] = {tls->ca, tls->cert, tls->key, tls->server_name};
    const char **const to[] = {&conn->tls.ca, &conn->tls.cert, &conn->tls.key,
                               &conn->tls.server_name};
    for (size_t i = 0; i < sizeof from / sizeof from[0]; i++) {
        *to[i] = strdup(from[i] != NULL ? from[i] : "");
        if (*to[i] == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for a connection");
        }
    }
    conn->wire.stream.tls = &conn->tls;
    return evq_conn_tls_check(&conn->tls, err);
}

static void sentinels_free(struct evq_conn_sentinels *sentinels)
{
    if (sentinels != NULL) {
        evq_conn_password_wipe(sentinels->password, sizeof sentinels->password);
        free(sentinels);
    }
}

static enum evq_status address_take(struct evq_conn *conn, const struct evq_conn_config *config,
                                    struct evq_error *err)
{
    const struct evq_conn_sentinel_config *own = &config->sentinel;
    const char *user = own->user != NULL ? own->user : "";

    if (!evq_conn_sentinel_is(config->url)) {
        return evq_conn_url_parse(config->url, &conn->home, err);
    }
    struct evq_conn_sentinels *sentinels = calloc(1, sizeof *sentinels);
    conn->sentinels = sentinels;
    if (sentinels == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a connection");
    }
    enum evq_status status = evq_conn_sentinel_parse(config->url, sentinels, &conn->home, err);
    if (status == EVQ_OK && strlen(user) >= sizeof sentinels->user) {
        status = evq_error_set(err, EVQ_E_INVALID, "the sentinels' user is longer than %zu bytes",
                               sizeof sentinels->user - 1);
    }
    if (status != EVQ_OK) {
        return status;
    }
    (void)snprintf(sentinels->user, sizeof sentinels->user, "%s", user);
    return own->password_file != NULL && *own->password_file != '\0'
               ? evq_conn_password_file(own->password_file, sentinels->password, err)
               : EVQ_OK;
}

enum evq_status evq_conn_open(const struct evq_conn_config *config, struct evq_conn **ret_conn,
                              struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    const char *user = config->user != NULL ? config->user : "";

    struct evq_conn *conn = calloc(1, sizeof *conn);
    if (conn == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a connection");
    }
    conn->wire.stream.fd = -1;
    conn->interrupt_fd = -1;
    conn->pid = getpid();
    atomic_init(&conn->interrupted, false);
    evq_buffer_init(&conn->out, APPEND_BYTES_MAX);
    status = address_take(conn, config, err);
    if (status != EVQ_OK) {
        goto out;
    }
    if (strlen(user) >= sizeof conn->user) {
        status = evq_error_set(err, EVQ_E_INVALID, "the Redis user is longer than %zu bytes",
                               sizeof conn->user - 1);
        goto out;
    }
    (void)snprintf(conn->user, sizeof conn->user, "%s", *user != '\0' ? user : conn->home.user);
    status = evq_conn_password_read(config->password_file, config->keep_environment, conn->password,
                                    err);
    if (status != EVQ_OK) {
        goto out;
    }
    if (conn->home.tls) {
        status = tls_take(conn, &config->tls, err);
    }
    if (status != EVQ_OK) {
        goto out;
    }
    conn->url = conn->home;
    if (conn->sentinels != NULL) {
        evq_conn_sentinel_where(conn->sentinels, conn->where);
    } else {
        evq_conn_url_where(&conn->url, conn->where);
    }
    copy_name(config->name, conn->name, sizeof conn->name);
    conn->connect_timeout_ms =
        config->connect_timeout_ms > 0 ? config->connect_timeout_ms : CONNECT_TIMEOUT_MS;
    conn->call_timeout_ms = config->call_timeout_ms > 0 ? config->call_timeout_ms : CALL_TIMEOUT_MS;
    conn->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (conn->interrupt_fd < 0) {
        status = evq_error_set(err, EVQ_E_IO, "eventfd: %s", strerror(errno));
        goto out;
    }
    conn->wire.stream.interrupt_fd = conn->interrupt_fd;
    *ret_conn = conn;
    conn = NULL;
out:
    evq_conn_close(conn);
    return status;
}

/* Closes the socket. Replies that are still owed are lost. */
static void hang_up(struct evq_conn *conn)
{
    evq_conn_wire_close(&conn->wire);
    evq_buffer_clear(&conn->out);
    conn->lost += conn->pending;
    conn->pending = 0;
    conn->leave = false;
}

void evq_conn_close(struct evq_conn *conn)
{
    if (conn == NULL) {
        return;
    }
    hang_up(conn);
    evq_conn_resolve_drop(&conn->wire.stream.resolve);
    evq_buffer_free(&conn->out);
    evq_file_close(&conn->interrupt_fd);
    evq_conn_password_wipe(conn->password, sizeof conn->password);
    tls_release(&conn->tls);
    sentinels_free(conn->sentinels);
    free(conn);
}

void evq_conn_drop(struct evq_conn *conn)
{
    hang_up(conn);
    evq_conn_resolve_drop(&conn->wire.stream.resolve);
    if (conn->pid != getpid()) {
        // The eventfd is shared with the parent, so an interrupt here would stop the parent. If a
        // new one cannot be made (-1), an interrupt is noticed at the next call only.
        (void)close(conn->interrupt_fd);
        conn->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        conn->wire.stream.interrupt_fd = conn->interrupt_fd;
        atomic_store(&conn->interrupted, false);
        conn->pid = getpid();
    }
}

/* Turns an error reply into a status, and notes where the next call must go. */
static enum evq_status refuse(struct evq_conn *conn, const char *text, struct evq_error *err)
{
    struct evq_conn_error refusal = evq_conn_error_parse(text);

    conn->leave = conn->leave || refusal.reconnect;
    if (refusal.moved != NULL) {
        enum evq_status status = evq_conn_url_move(&conn->url, refusal.moved, err);
        conn->leave = true;
        conn->moved = status == EVQ_OK;
        if (status != EVQ_OK) {
            return evq_error_set(err, EVQ_E_IO, "%s: %s", conn->where, text);
        }
    }
    return evq_conn_error_describe(&refusal, conn->where, conn->user, err);
}

static enum evq_status greet(struct evq_conn *conn, int64_t deadline_ms, struct evq_error *err)
{
    char refusal_text[EVQ_CONN_REFUSAL_BYTES];
    const struct evq_conn_greeting greeting = {.user = conn->user,
                                               .password = conn->password,
                                               .db = conn->url.db,
                                               .name = conn->name,
                                               .primary = conn->sentinels != NULL};

    enum evq_status status =
        evq_conn_handshake(&conn->wire, &greeting, deadline_ms, refusal_text, err);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "%s", conn->where);
    } else if (*refusal_text != '\0') {
        status = refuse(conn, refusal_text, err);
    }
    return status;
}

/* Decides where to connect. Sentinels are asked each time and get half of the time. */
static enum evq_status locate(struct evq_conn *conn, int64_t deadline_ms, struct evq_error *err)
{
    const int64_t now_ms = evq_clock_mono_ms();
    enum evq_status status = EVQ_OK;

    if (conn->sentinels != NULL) {
        conn->url = conn->home;
        evq_conn_sentinel_where(conn->sentinels, conn->where);
        status = evq_conn_sentinel_find(conn->sentinels, &conn->wire.stream,
                                        now_ms + (deadline_ms - now_ms) / 2, &conn->url, err);
    }
    if (status == EVQ_OK) {
        evq_conn_url_where(&conn->url, conn->where);
    } else {
        (void)evq_error_prefix(err, "%s", conn->where);
    }
    return status;
}

static enum evq_status connect_now(struct evq_conn *conn, int64_t deadline_ms,
                                   struct evq_error *err)
{
    int64_t until_ms = evq_clock_mono_ms() + conn->connect_timeout_ms;

    if (until_ms > deadline_ms) {
        until_ms = deadline_ms;
    }
    enum evq_status status = locate(conn, until_ms, err);
    if (status != EVQ_OK) {
        return status;
    }
    status = evq_conn_wire_open(&conn->wire, &conn->url, until_ms, err);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "%s", conn->where);
    } else {
        status = greet(conn, until_ms, err);
    }
    if (status == EVQ_OK) {
        conn->number++;
        return EVQ_OK;
    }
    if (status == EVQ_E_IO || status == EVQ_E_TIMEOUT) {
        conn->url = conn->home; // A node that MOVED named may be gone for good.
    }
    if (conn->sentinels != NULL && evq_conn_retryable(status)) {
        // A sentinel that is cut off from the others goes on naming the old primary.
        conn->sentinels->first = (conn->sentinels->first + 1) % conn->sentinels->count;
    }
    return status;
}

static enum evq_status start(struct evq_conn *conn, int64_t deadline_ms, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (atomic_load(&conn->interrupted)) {
        return evq_error_set(err, EVQ_E_STOPPED, "%s: asked to stop", conn->where);
    }
    if (evq_clock_left_ms(deadline_ms) == 0) {
        return evq_error_set(err, EVQ_E_TIMEOUT, "%s: the deadline passed", conn->where);
    }
    if (conn->wire.reader == NULL) {
        status = connect_now(conn, deadline_ms, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    if (conn->out.bytes > 0) {
        status = evq_conn_wire_send(&conn->wire, conn->out.data, conn->out.bytes, deadline_ms, err);
        if (status == EVQ_OK) {
            evq_buffer_clear(&conn->out);
        } else {
            (void)evq_error_prefix(err, "%s", conn->where);
        }
    }
    return status;
}

enum evq_status evq_conn_append(struct evq_conn *conn, size_t arg_count, const char *const *args,
                                const size_t *arg_bytes, struct evq_error *err)
{
    size_t before = conn->out.bytes;

    if (conn->pending == 0 && conn->wire.reader != NULL &&
        !evq_conn_reader_idle(conn->wire.reader)) {
        hang_up(conn); // A reply that nobody asked for would be taken for this command's reply.
    }
    enum evq_status status = evq_conn_reader_format(arg_count, args, arg_bytes, &conn->out, err);

    if (status != EVQ_OK) {
        if (conn->out.failed) { // Half a command must not be sent; earlier commands stay.
            conn->out.failed = false;
            conn->out.bytes = before;
        }
        return status;
    }
    conn->lost = 0;
    conn->pending++;
    return EVQ_OK;
}

enum evq_status evq_conn_read(struct evq_conn *conn, int64_t deadline_ms,
                              struct evq_reply **ret_reply, struct evq_error *err)
{
    char refusal_text[EVQ_CONN_REFUSAL_BYTES];
    struct evq_reply *reply = NULL;
    int64_t began_ms = evq_clock_mono_ms();

    if (conn->pending == 0 && conn->lost > 0) {
        conn->lost--;
        return evq_error_set(err, EVQ_E_IO, "%s: the connection was lost before the reply",
                             conn->where);
    }
    if (conn->pending == 0) {
        return evq_error_set(err, EVQ_E_BUG, "a reply is read that no command asked for");
    }
    if (deadline_ms == 0) {
        deadline_ms = began_ms + conn->call_timeout_ms;
    }
    enum evq_status status = start(conn, deadline_ms, err);
    if (status == EVQ_OK) {
        status = evq_conn_wire_receive(&conn->wire, deadline_ms, &reply, refusal_text, err);
        if (status == EVQ_E_TIMEOUT) {
            status = evq_error_set(err, EVQ_E_TIMEOUT, "%s: no reply within %lld ms", conn->where,
                                   (long long)(evq_clock_mono_ms() - began_ms));
        } else if (status != EVQ_OK) {
            (void)evq_error_prefix(err, "%s", conn->where);
        }
    }
    if (status != EVQ_OK) {
        hang_up(conn); // Later replies could no longer be matched to their commands.
        conn->lost -= conn->lost > 0 ? 1 : 0;
        return status;
    }
    conn->pending--;
    if (reply == NULL) {
        status = refuse(conn, refusal_text, err);
    } else {
        *ret_reply = reply;
    }
    if (conn->leave && conn->pending == 0) {
        hang_up(conn);
    }
    return status;
}

enum evq_status evq_conn_flush(struct evq_conn *conn, struct evq_error *err)
{
    enum evq_status status = start(conn, evq_clock_mono_ms() + conn->call_timeout_ms, err);
    if (status != EVQ_OK) {
        hang_up(conn);
    }
    return status;
}

enum evq_status evq_conn_call(struct evq_conn *conn, size_t arg_count, const char *const *args,
                              const size_t *arg_bytes, int64_t deadline_ms,
                              struct evq_reply **ret_reply, struct evq_error *err)
{
    if (conn->pending > 0) {
        return evq_error_set(err, EVQ_E_BUG, "a call with %zu pipelined replies still to be read",
                             conn->pending);
    }
    if (deadline_ms == 0) {
        deadline_ms = evq_clock_mono_ms() + conn->call_timeout_ms;
    }
    for (int hops = 0;; hops++) {
        conn->moved = false;
        enum evq_status status = evq_conn_append(conn, arg_count, args, arg_bytes, err);
        if (status == EVQ_OK) {
            status = evq_conn_read(conn, deadline_ms, ret_reply, err);
        }
        if (status != EVQ_E_RETRY || !conn->moved || hops == HOPS_MAX) {
            return status;
        }
    }
}

void evq_conn_interrupt(struct evq_conn *conn)
{
    const uint64_t one = 1;
    int before = errno;

    atomic_store(&conn->interrupted, true);
    // If the counter is full (EAGAIN), the eventfd is readable as well.
    (void)!write(conn->interrupt_fd, &one, sizeof one);
    errno = before;
}

enum evq_status evq_conn_wait(struct evq_conn *conn, int64_t wait_ms, struct evq_error *err)
{
    enum evq_status status =
        evq_conn_socket_wait(-1, conn->interrupt_fd, 0, evq_clock_mono_ms() + wait_ms, NULL, err);
    return status == EVQ_E_TIMEOUT ? EVQ_OK : status;
}

bool evq_conn_retryable(enum evq_status status)
{
    return status == EVQ_E_IO || status == EVQ_E_TIMEOUT || status == EVQ_E_RETRY;
}

bool evq_conn_is_outage(enum evq_status status)
{
    return evq_conn_retryable(status) || status == EVQ_E_VERSION || status == EVQ_E_AUTH ||
           status == EVQ_E_STOPPED;
}

int64_t evq_conn_deadline_ms(const struct evq_conn *conn, int64_t block_ms)
{
    return evq_clock_mono_ms() + conn->call_timeout_ms + block_ms;
}

uint64_t evq_conn_generation(const struct evq_conn *conn)
{
    return conn->number;
}

bool evq_conn_readable(struct evq_conn *conn)
{
    if (conn->wire.reader == NULL || evq_conn_reader_ready(conn->wire.reader)) {
        return true;
    }
    if (evq_conn_wire_take(&conn->wire, NULL) != EVQ_OK) {
        hang_up(conn);
        return true;
    }
    return evq_conn_reader_ready(conn->wire.reader);
}

const char *evq_conn_failover(const struct evq_conn *conn)
{
    return conn->sentinels != NULL ? conn->sentinels->failover : "";
}

int evq_conn_fd(const struct evq_conn *conn)
{
    return conn->wire.stream.fd;
}

const char *evq_conn_where(const struct evq_conn *conn)
{
    return conn->where;
}
