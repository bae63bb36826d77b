/*
 * A connection to Redis by TCP or unix socket. Every call has a deadline and tries to reconnect
 * once; the caller backs off between tries with evq_conn_wait(). Not for sharing between threads;
 * only evq_conn_interrupt() may be called from any thread or a signal handler. Of hiredis, only the
 * formatter and the reply reader are used (conn_reader.c), over our own socket, so that 0.14 and
 * 1.x behave alike; TLS is one of its transports (conn_tls.h). Host names are resolved in another
 * thread, so that the deadline holds there too (conn_resolve.h). Limits: a reply of 64 MiB, 2^20
 * items an array, 7 arrays deep; more is EVQ_E_IO. Commands are RESP2.
 */
#ifndef EVQ_SHARED_REDIS_CONN_H
#define EVQ_SHARED_REDIS_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_conn;

/* TLS settings of rediss:// addresses; NULL and "" mean the default. */
struct evq_conn_tls_config {
    const char *ca;          // Authorities, PEM: a file, or a directory as `openssl rehash` makes
                             // it; else the system's.
    const char *cert;        // Our own certificate with its chain, PEM; else none.
    const char *key;         // Its key, PEM without a passphrase; else in cert's file.
    const char *server_name; // What the server's certificate must be for; else the address's host.
};

/* Settings of redis+sentinel:// addresses; NULL and "": none. */
struct evq_conn_sentinel_config {
    const char *user;
    const char *password_file;
};

struct evq_conn_config {
    const char *url; // redis[s]://[USER@]HOST[:PORT][/DB], unix://[USER@]PATH[?db=N] or
                     // redis[s]+sentinel://[USER@]HOST[:PORT],.../NAME[/DB]; a password in it is
                     // refused.
    struct evq_conn_tls_config tls;
    struct evq_conn_sentinel_config sentinel;
    const char *user; // NULL, "": from the URL, else "default".
    // NULL, "": $EVALQ_REDIS_PASSWORD, else the file $EVALQ_REDIS_PASSWORD_FILE names, else none.
    // The first line, without its newline.
    const char *password_file;
    const char *name; // CLIENT SETNAME; NULL, "": none.
    // False: $EVALQ_REDIS_PASSWORD is unset after it was read (conn_password.h). A library inside
    // another process sets it.
    bool keep_environment;
    int32_t connect_timeout_ms; // 0: 5000.
    int32_t call_timeout_ms;    // 0: 10000.
};

enum evq_reply_type {
    EVQ_REPLY_NIL,
    EVQ_REPLY_STRING,
    EVQ_REPLY_INTEGER,
    EVQ_REPLY_ARRAY,
    EVQ_REPLY_STATUS
};

/* A reply tree, owned by the caller, who frees its root alone with evq_reply_free(). Errors are
 * never replies. */
struct evq_reply {
    enum evq_reply_type type;
    int64_t integer;
    const char *text; // STRING, STATUS: NUL-terminated after `bytes`.
    size_t bytes;
    struct evq_reply **items;
    size_t item_count;
};

/* Checks and copies config and reads the password. Connects at the first call. EVQ_E_INVALID,
 * EVQ_E_UNSUPPORTED (rediss:// without OpenSSL), EVQ_E_IO, EVQ_E_NOMEM. */
enum evq_status evq_conn_open(const struct evq_conn_config *config, struct evq_conn **ret_conn,
                              struct evq_error *err) EVQ_CHECK_RESULT;
void evq_conn_close(struct evq_conn *conn); // Accepts NULL.

/*
 * Runs one command. Arguments are pointers and lengths (lengths NULL: C strings). Connects first if
 * needed, with one try. deadline_ms is monotonic; 0: now + call_timeout. The caller frees
 * *ret_reply. After EVQ_E_IO, EVQ_E_TIMEOUT or EVQ_E_STOPPED the command may have run, and the
 * socket is closed; the next call reconnects. EVQ_E_RETRY, EVQ_E_AUTH, EVQ_E_VERSION ("Function not
 * found", NOSCRIPT), EVQ_E_NOT_FOUND (NOGROUP), EVQ_E_INVALID (any other error reply) and the
 * status of a function's own EVQ_ word (EVQ_E_CONFLICT, ...) mean that it did not run. MOVED is
 * followed; in a pipeline it is EVQ_E_RETRY, and the next call goes to the new node. After READONLY
 * the next call reconnects, because the name or the sentinels may lead to the new primary. If the
 * deadline is already past, nothing is sent (EVQ_E_TIMEOUT).
 */
enum evq_status evq_conn_call(struct evq_conn *conn, size_t arg_count, const char *const *args,
                              const size_t *arg_bytes, int64_t deadline_ms,
                              struct evq_reply **ret_reply, struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Pipelining: append any number of commands (64 MiB at most), then read as many replies in order.
 * The first read sends. An error reply is the status of its command only. When the connection is
 * lost, each reply still owed is EVQ_E_IO. evq_conn_call() in between is EVQ_E_BUG, and so is
 * reading more replies than commands.
 */
enum evq_status evq_conn_append(struct evq_conn *conn, size_t arg_count, const char *const *args,
                                const size_t *arg_bytes, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_conn_read(struct evq_conn *conn, int64_t deadline_ms,
                              struct evq_reply **ret_reply, struct evq_error *err) EVQ_CHECK_RESULT;
/* Sends what was appended without waiting for replies, for a caller that polls evq_conn_fd().
 * Errors as evq_conn_read(), which then reports each lost reply. */
enum evq_status evq_conn_flush(struct evq_conn *conn, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_reply_free(struct evq_reply *reply); // Accepts NULL.

/* Makes a waiting call and every later one return EVQ_E_STOPPED. Async-signal-safe. */
void evq_conn_interrupt(struct evq_conn *conn);

/* Sleeps wait_ms, as between two tries (evq_clock_backoff_ms()); EVQ_E_STOPPED on
 * evq_conn_interrupt(). */
enum evq_status evq_conn_wait(struct evq_conn *conn, int64_t wait_ms,
                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether waiting and repeating may help: EVQ_E_IO, EVQ_E_TIMEOUT, EVQ_E_RETRY. */
bool evq_conn_retryable(enum evq_status status);
/*
 * Whether a status is about the server and not about the request: the retryable ones, EVQ_E_VERSION
 * and EVQ_E_AUTH (functions and permissions may come back), EVQ_E_STOPPED. A running program waits
 * for the server then.
 */
bool evq_conn_is_outage(enum evq_status status);

/* A deadline for evq_conn_call() of a command that may block for block_ms by itself: now + block_ms
 * + call_timeout. */
int64_t evq_conn_deadline_ms(const struct evq_conn *conn, int64_t block_ms);

/* Number of the socket. It rises with each new one: a caller that sees it change repeats what must
 * be repeated. 0: never connected. */
uint64_t evq_conn_generation(const struct evq_conn *conn);

/* Names the current failover if sentinels are used: another text after each failover, the same for
 * every connection. "" otherwise, and before the first connection. */
const char *evq_conn_failover(const struct evq_conn *conn);

/* The socket, for poll(). When it is readable, ask evq_conn_readable(). -1: closed. */
int evq_conn_fd(const struct evq_conn *conn);

/* Whether evq_conn_read() would return at once, with a reply or a lost connection. Ask when the
 * socket is readable, because the bytes may be half a reply or TLS's own. */
bool evq_conn_readable(struct evq_conn *conn);

/* Closes the socket. A child must call it first after fork(), so that it does not write to the
 * parent's socket. */
void evq_conn_drop(struct evq_conn *conn);

/* "redis[s]://host:port/db" or "unix://path" without user and password, for messages. With
 * sentinels: all of them, until they have named a primary. */
const char *evq_conn_where(const struct evq_conn *conn);

#endif
