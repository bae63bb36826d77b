/*
 * Tests a connection over TLS: with a real Redis and good and bad certificates, and with a faulty
 * TLS server. Nothing is trusted without verification, and each error says what to do.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "shared/base/clock.h"
#include "tests/fixture/certificate.h"
#include "tests/fixture/front.h"
#include "tests/fixture/redis.h"

struct secure {
    char dir[64];
    struct fixture_redis *redis;
    int port;
    char url[64]; // rediss://127.0.0.1:PORT
    char words[4][96];
    const char *protocols; // NULL: TLS 1.2 and 1.3.
};

static char path_text[8][96];

/* Returns the path DIR/NAME. The text stays valid for the next seven calls. */
static const char *in(const struct secure *secure, const char *name)
{
    static size_t at;
    char *out = path_text[at++ % 8];
    (void)snprintf(out, sizeof path_text[0], "%s/%s", secure->dir, name);
    return out;
}

/* Starts a Redis with the certificate DIR/NAME.pem. asks: it requires a client certificate. */
static void redis_start(struct secure *secure, const char *name, bool asks)
{
    char *port = secure->words[0]; // A restart needs these files again.
    char *cert = secure->words[1];
    char *key = secure->words[2];
    char *ca = secure->words[3];
    const size_t bytes = sizeof secure->words[0];

    secure->port = fixture_free_port();
    (void)snprintf(port, bytes, "%d", secure->port);
    (void)snprintf(cert, bytes, "%s/%s.pem", secure->dir, name);
    (void)snprintf(key, bytes, "%s/%s.key", secure->dir, name);
    (void)snprintf(ca, bytes, "%s/ca.pem", secure->dir);
    const char *const options[] = {"--tls-port",
                                   port,
                                   "--tls-cert-file",
                                   cert,
                                   "--tls-key-file",
                                   key,
                                   "--tls-ca-cert-file",
                                   ca,
                                   "--tls-auth-clients",
                                   asks ? "yes" : "no",
                                   "--tls-protocols",
                                   secure->protocols != NULL ? secure->protocols
                                                             : "TLSv1.2 TLSv1.3",
                                   NULL};
    const struct fixture_redis_config config = {.tcp = true, .options = options};
    fixture_redis_free(secure->redis);
    secure->redis = fixture_redis_start(&config);
    (void)snprintf(secure->url, sizeof secure->url, "rediss://127.0.0.1:%d", secure->port);
}

static int setup(void **state)
{
    struct secure *secure = calloc(1, sizeof *secure);
    if (secure == NULL) {
        return -1;
    }
    fixture_dir_make(secure->dir);
    fixture_certificate_set(secure->dir);
    *state = secure;
    return 0;
}

static int teardown(void **state)
{
    struct secure *secure = *state;
    fixture_redis_free(secure->redis);
    fixture_dir_remove(secure->dir);
    free(secure);
    return 0;
}

static struct evq_conn *open_url(const char *url, const struct evq_conn_tls_config *tls)
{
    const struct evq_conn_config config = {
        .url = url, .tls = *tls, .name = "n", .call_timeout_ms = 60000, .keep_environment = true};
    return fixture_conn_open(&config);
}

static enum evq_status echo(struct evq_conn *conn, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    const char *const words[] = {"ECHO", "hello"};
    const enum evq_status status = evq_conn_call(conn, 2, words, NULL, 0, &reply, err);
    evq_reply_free(reply);
    return status;
}

/* Tries to connect. text must be in the error message. */
static void refused(const char *url, const struct evq_conn_tls_config *tls, enum evq_status want,
                    const char *text)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_conn *conn = open_url(url, tls);
    assert_status_err(echo(conn, &err), want, &err);
    assert_holds(err.message, text);
    assert_holds(err.message, url);
    assert_int_equal(evq_conn_fd(conn), -1);
    evq_conn_close(conn);
}

static void accepted(const char *url, const struct evq_conn_tls_config *tls)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_conn *conn = open_url(url, tls);
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    evq_conn_close(conn);
}

static void tls_trusts_a_file_a_directory_and_the_environment(void **state)
{
    struct secure *secure = *state;
    char url[64];
    redis_start(secure, "server", false);
    accepted(secure->url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")});
    (void)snprintf(url, sizeof url, "rediss://localhost:%d", secure->port);
    accepted(url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")});
    // The file has the hash of the authority's name, as `openssl rehash` creates it.
    FILE *file = fopen(in(secure, "ca.pem"), "re");
    X509 *ca = PEM_read_X509(file, NULL, NULL, NULL);
    (void)fclose(file);
    char name[32];
    (void)snprintf(name, sizeof name, "%08lx.0",
                   X509_NAME_hash_ex(X509_get_subject_name(ca), NULL, NULL, NULL));
    X509_free(ca);
    assert_int_equal(symlink("ca.pem", in(secure, name)), 0);
    accepted(secure->url, &(struct evq_conn_tls_config){.ca = secure->dir});
    assert_int_equal(setenv("SSL_CERT_FILE", in(secure, "ca.pem"), 1), 0);
    accepted(secure->url, &(struct evq_conn_tls_config){0});
    assert_int_equal(unsetenv("SSL_CERT_FILE"), 0);
    refused(secure->url, &(struct evq_conn_tls_config){0}, EVQ_E_AUTH,
            "signed by none of the system's authorities: name its authority's certificate in "
            "redis.tls.ca");
}

static void tls_carries_much_in_both_directions(void **state)
{
    struct secure *secure = *state;
    enum { VALUE_BYTES = 3000001, COMMANDS = 12 };
    struct evq_error err;
    redis_start(secure, "server", false);
    struct evq_conn *conn =
        open_url(secure->url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")});
    char *value = malloc(VALUE_BYTES);
    for (size_t i = 0; i < VALUE_BYTES; i++) {
        value[i] = (char)(i * 31 + i / 7);
    }
    // Replies arrive while the next commands are still being sent.
    const char *const words[] = {"ECHO", value};
    const size_t bytes[] = {4, VALUE_BYTES};
    for (size_t i = 0; i < COMMANDS; i++) {
        assert_status_err(evq_conn_append(conn, 2, words, bytes, &err), EVQ_OK, &err);
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        struct evq_reply *reply = NULL;
        assert_status_err(evq_conn_read(conn, 0, &reply, &err), EVQ_OK, &err);
        assert_int_equal(reply->bytes, VALUE_BYTES);
        assert_memory_equal(reply->text, value, VALUE_BYTES);
        evq_reply_free(reply);
    }
    free(value);
    evq_conn_close(conn);
}

/* An attacker in the middle could present each of these certificates. */
static void tls_refuses_certificates_that_prove_nothing(void **state)
{
    struct secure *secure = *state;
    const struct {
        struct fixture_certificate certificate;
        const char *text;
    } cases[] = {
        // The certificate has no common name.
        {{.name = "own", .hosts = "IP:127.0.0.1"}, "is signed by none of /tmp/"},
        {{.name = "false", .issuer = "other", .hosts = "IP:127.0.0.1"}, "is signed by none of"},
        {{.name = "no-authority", .issuer = "server", .hosts = "IP:127.0.0.1"}, "certificate"},
        {{.name = "old", .issuer = "ca", .hosts = "IP:127.0.0.1", .until_s = -3600},
         "the server's certificate, or one that it rests on, has expired"},
        {{.name = "early", .issuer = "ca", .hosts = "IP:127.0.0.1", .from_s = 3600},
         "the server's certificate is not valid yet: is the clock right?"},
        {{.name = "elsewhere", .issuer = "ca", .hosts = "DNS:localhost,IP:127.0.0.2"},
         "the server's certificate is not for '127.0.0.1': use a host that is in it, or name one "
         "of those in redis.tls.server_name"},
        {{.name = "127.0.0.1", .issuer = "ca"}, "is not for '127.0.0.1'"},
        {{.name = "name", .issuer = "ca", .hosts = "DNS:127.0.0.1"}, "is not for '127.0.0.1'"},
    };
    fixture_certificate_make(secure->dir,
                             &(struct fixture_certificate){.name = "other", .authority = true});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fixture_certificate_make(secure->dir, &cases[i].certificate);
        redis_start(secure, cases[i].certificate.name, false);
        refused(secure->url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")}, EVQ_E_AUTH,
                cases[i].text);
        // The client has sent nothing after the handshake.
        struct evq_conn *conn = fixture_redis_conn(secure->redis);
        struct evq_reply *reply = fixture_call(conn, "INFO", "commandstats", NULL);
        assert_null(strstr(reply->text, "cmdstat_echo"));
        evq_reply_free(reply);
        evq_conn_close(conn);
    }
}

static void tls_verifies_the_name_that_is_configured(void **state)
{
    struct secure *secure = *state;
    fixture_certificate_make(
        secure->dir, &(struct fixture_certificate){.name = "named",
                                                   .issuer = "ca",
                                                   .hosts = "DNS:queue.example,DNS:*.deep.x"});
    redis_start(secure, "named", false);
    struct evq_conn_tls_config tls = {.ca = in(secure, "ca.pem")};
    refused(secure->url, &tls, EVQ_E_AUTH, "is not for '127.0.0.1'");
    tls.server_name = "queue.example";
    accepted(secure->url, &tls);
    tls.server_name = "a.deep.x";
    accepted(secure->url, &tls);
    tls.server_name = "example";
    refused(secure->url, &tls, EVQ_E_AUTH, "is not for 'example'");
}

static void tls_and_plain_tell_each_other_apart(void **state)
{
    struct secure *secure = *state;
    struct evq_error err;
    char url[64];
    const struct evq_conn_tls_config tls = {.ca = in(secure, "ca.pem")};
    redis_start(secure, "server", false);
    (void)snprintf(url, sizeof url, "redis://127.0.0.1:%d", secure->port);
    refused(url, &tls, EVQ_E_IO, "a Redis that expects TLS needs rediss://");
    (void)snprintf(url, sizeof url, "rediss://127.0.0.1:%d", secure->redis->port);
    // Redis takes the handshake for half a command and waits for the rest,
    const struct evq_conn_config config = {
        .url = url, .tls = tls, .connect_timeout_ms = 400, .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    assert_status_err(echo(conn, &err), EVQ_E_TIMEOUT, &err);
    assert_holds(err.message, "use redis:// where the server is a Redis without TLS");
    // until the server ends the connection.
    evq_conn_close(conn);
}

/* If the peer answers in plain text, one byte is enough to notice it. */
static void *shout(void *argument)
{
    const int fd = accept(*(int *)argument, NULL, NULL);
    const char text[] = "-ERR Protocol error: too big inline request\r\n";
    (void)!write(fd, text, sizeof text - 1);
    char data[4096];
    while (recv(fd, data, sizeof data, 0) > 0) {
    }
    (void)close(fd);
    return NULL;
}

static int listener(int *ret_port)
{
    struct sockaddr_in address;
    socklen_t bytes = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    *ret_port = ntohs(address.sin_port);
    return fd;
}

static void tls_says_that_the_server_speaks_none(void **state)
{
    struct secure *secure = *state;
    int port = 0;
    char url[64];
    pthread_t thread;
    int fd = listener(&port);
    (void)snprintf(url, sizeof url, "rediss://127.0.0.1:%d", port);
    assert_int_equal(pthread_create(&thread, NULL, shout, &fd), 0);
    refused(url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")}, EVQ_E_IO,
            "what answers speaks no TLS: use redis://");
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)close(fd);
}

static void *interrupt(void *conn)
{
    evq_conn_interrupt(conn);
    return NULL;
}

/* The peer listens and never sends anything. */
static void tls_handshake_ends_at_its_deadline_and_at_an_interrupt(void **state)
{
    struct secure *secure = *state;
    struct evq_error err;
    pthread_t thread;
    int port = 0;
    char url[64];
    const int fd = listener(&port);
    (void)snprintf(url, sizeof url, "rediss://127.0.0.1:%d", port);
    const struct evq_conn_config config = {.url = url,
                                           .tls = {.ca = in(secure, "ca.pem")},
                                           .connect_timeout_ms = 150,
                                           .call_timeout_ms = 60000,
                                           .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config);
    const int64_t began_ms = evq_clock_mono_ms();
    assert_status_err(echo(conn, &err), EVQ_E_TIMEOUT, &err);
    assert_true(evq_clock_mono_ms() - began_ms < 30000);
    evq_conn_close(conn);
    conn = open_url(url, &config.tls);
    assert_int_equal(pthread_create(&thread, NULL, interrupt, conn), 0);
    assert_status_err(echo(conn, &err), EVQ_E_STOPPED, &err);
    assert_int_equal(pthread_join(thread, NULL), 0);
    evq_conn_close(conn);
    (void)close(fd);
}

static void tls_shows_a_certificate_where_the_server_asks(void **state)
{
    struct secure *secure = *state;
    struct evq_conn_tls_config tls = {.ca = in(secure, "ca.pem")};
    const struct fixture_certificate others[] = {
        {.name = "other", .authority = true},
        {.name = "stranger", .issuer = "other"},
        {.name = "old", .issuer = "ca", .until_s = -3600},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        fixture_certificate_make(secure->dir, &others[i]);
    }
    redis_start(secure, "server", true);
    // The server closes the connection before or after the first command is written.
    for (int i = 0; i < 20; i++) {
        refused(secure->url, &tls, EVQ_E_AUTH,
                "the server asks for a client's certificate: name one in redis.tls.cert, its key "
                "in redis.tls.key");
    }
    tls.cert = in(secure, "stranger.pem");
    tls.key = in(secure, "stranger.key");
    refused(secure->url, &tls, EVQ_E_AUTH, "the server refuses the client's certificate");
    tls.cert = in(secure, "old.pem");
    tls.key = in(secure, "old.key");
    refused(secure->url, &tls, EVQ_E_AUTH, "the server refuses the client's certificate");
    tls.cert = in(secure, "client.pem");
    tls.key = in(secure, "client.key");
    accepted(secure->url, &tls);
    // With this version, the handshake itself fails, without a reason.
    secure->protocols = "TLSv1.2";
    redis_start(secure, "server", true);
    accepted(secure->url, &tls);
    tls.cert = "";
    tls.key = "";
    refused(secure->url, &tls, EVQ_E_AUTH, "it may ask for a client's certificate (redis.tls.cert");
}

static void open_refused(const char *url, const struct evq_conn_tls_config *tls, const char *text)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_conn *conn = NULL;
    const struct evq_conn_config config = {.url = url, .tls = *tls, .keep_environment = true};
    assert_status_err(evq_conn_open(&config, &conn, &err), EVQ_E_INVALID, &err);
    assert_null(conn);
    assert_holds(err.message, text);
}

static void tls_wrong_files_are_refused_at_start(void **state)
{
    struct secure *secure = *state;
    const char *url = "rediss://127.0.0.1:1";
    fixture_certificate_make(
        secure->dir,
        &(struct fixture_certificate){.name = "closed", .issuer = "ca", .passphrase = "hunter2"});
    FILE *file = fopen(in(secure, "text.pem"), "we");
    assert_true(fputs("no certificate\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    const char *cert = in(secure, "client.pem");
    open_refused(url, &(struct evq_conn_tls_config){.ca = "/nowhere/ca.pem"},
                 "open redis.tls.ca '/nowhere/ca.pem': No such file");
    open_refused(url, &(struct evq_conn_tls_config){.ca = in(secure, "text.pem")},
                 "text.pem' holds no PEM certificate");
    open_refused(url, &(struct evq_conn_tls_config){.cert = "/nowhere/c"},
                 "open redis.tls.cert '/nowhere/c': No such file");
    open_refused(url, &(struct evq_conn_tls_config){.cert = cert, .key = "/nowhere/k"},
                 "open redis.tls.key '/nowhere/k': No such file");
    open_refused(url, &(struct evq_conn_tls_config){.key = in(secure, "client.key")},
                 "redis.tls.key is given without redis.tls.cert");
    open_refused(url, &(struct evq_conn_tls_config){.cert = cert},
                 "is not the PEM key, without a passphrase, of the certificate");
    open_refused(url, &(struct evq_conn_tls_config){.cert = cert, .key = in(secure, "server.key")},
                 "server.key' is not the PEM key");
    open_refused(url,
                 &(struct evq_conn_tls_config){.cert = in(secure, "closed.pem"),
                                               .key = in(secure, "closed.key")},
                 "without a passphrase");
}

static void tls_reads_renewed_certificates_when_it_connects_again(void **state)
{
    struct secure *secure = *state;
    struct evq_error err;
    redis_start(secure, "server", true);
    struct evq_conn_tls_config tls = {.ca = in(secure, "ca.pem"),
                                      .cert = in(secure, "client.pem"),
                                      .key = in(secure, "client.key")};
    struct evq_conn *conn = open_url(secure->url, &tls);
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    fixture_certificate_set(secure->dir); // The new authority has the same names.
    fixture_redis_restart(secure->redis);
    assert_status_err(echo(conn, &err), EVQ_E_IO, &err); // The socket was closed.
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    // During a renewal, the files may not belong together, so the client waits.
    fixture_certificate_make(secure->dir,
                             &(struct fixture_certificate){.name = "next", .issuer = "ca"});
    assert_int_equal(rename(in(secure, "next.key"), in(secure, "client.key")), 0);
    evq_conn_drop(conn);
    assert_status_err(echo(conn, &err), EVQ_E_IO, &err);
    assert_holds(err.message, "is not the PEM key");
    assert_int_equal(rename(in(secure, "next.pem"), in(secure, "client.pem")), 0);
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    evq_conn_close(conn);
}

/* The child closes its copy and sends nothing on the parent's socket. */
static void tls_parent_continues_when_its_child_drops_the_connection(void **state)
{
    struct secure *secure = *state;
    struct evq_error err;
    redis_start(secure, "server", false);
    struct evq_conn *conn =
        open_url(secure->url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")});
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    const uint64_t number = evq_conn_generation(conn);
    const pid_t child = fork();
    if (child == 0) {
        evq_conn_drop(conn);
        _exit(echo(conn, &err) == EVQ_OK ? 0 : 1);
    }
    int ended = 0;
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    assert_int_equal(evq_conn_generation(conn), number);
    evq_conn_close(conn);
}

static struct evq_conn *through(struct secure *secure, const struct fixture_front_config *manners,
                                struct fixture_front **ret_front)
{
    char url[64];
    struct fixture_front_config config = *manners;
    if (secure->redis == NULL) {
        redis_start(secure, "server", false);
    }
    config.behind = secure->redis->port;
    config.dir = secure->dir;
    config.name = "server";
    *ret_front = fixture_front_start(&config);
    (void)snprintf(url, sizeof url, "rediss://127.0.0.1:%d", fixture_front_port(*ret_front));
    return open_url(url, &(struct evq_conn_tls_config){.ca = in(secure, "ca.pem")});
}

static void tls_1_1_is_refused(void **state)
{
    struct fixture_front *front = NULL;
    struct evq_error err;
    struct evq_conn *conn = through(
        *state,
        &(struct fixture_front_config){.newest = TLS1_1_VERSION, .suites = "ALL:@SECLEVEL=0"},
        &front);
    assert_status_err(echo(conn, &err), EVQ_E_IO, &err);
    assert_holds(err.message, "the server offers no TLS 1.2 or later");
    evq_conn_close(conn);
    fixture_front_end(front);
    conn = through(*state, &(struct fixture_front_config){.newest = TLS1_2_VERSION}, &front);
    assert_status_err(echo(conn, &err), EVQ_OK, &err);
    evq_conn_close(conn);
    fixture_front_end(front);
}

/*
 * The client rejects a renegotiation within a reply. The next call reconnects.
 */
static void tls_renegotiation_in_mid_reply_is_refused(void **state)
{
    struct fixture_front *front = NULL;
    struct evq_error err;
    struct evq_conn *conn = through(
        *state,
        &(struct fixture_front_config){.newest = TLS1_2_VERSION, .meddling = FRONT_RENEGOTIATES},
        &front);
    assert_status_err(echo(conn, &err), EVQ_E_IO, &err);
    assert_int_equal(evq_conn_fd(conn), -1);
    evq_conn_close(conn);
    fixture_front_end(front);
}

static void tls_continues_when_keys_change_within_a_reply(void **state)
{
    struct fixture_front *front = NULL;
    struct evq_error err;
    struct evq_conn *conn =
        through(*state, &(struct fixture_front_config){.meddling = FRONT_UPDATES_KEYS}, &front);
    for (int i = 0; i < 3; i++) {
        assert_status_err(echo(conn, &err), EVQ_OK, &err);
    }
    assert_int_equal(evq_conn_generation(conn), 1);
    evq_conn_close(conn);
    fixture_front_end(front);
}

/* A worker polls its socket together with others. A readable socket need not have a reply. */
static void tls_readable_is_not_arrived(void **state)
{
    struct fixture_front *front = NULL;
    struct evq_error err;
    struct evq_reply *reply = NULL;
    const char *word = "PING";
    struct secure *secure = *state;
    redis_start(secure, "server", false);
    const struct fixture_front_config manners = {.behind = secure->redis->port,
                                                 .dir = secure->dir,
                                                 .name = "server",
                                                 .meddling = FRONT_SAYS_NOTHING};
    char url[64];
    front = fixture_front_start(&manners);
    (void)snprintf(url, sizeof url, "rediss://127.0.0.1:%d", fixture_front_port(front));
    const struct evq_conn_config config = {
        .url = url, .tls = {.ca = in(secure, "ca.pem")}, .keep_environment = true};
    struct evq_conn *conn = fixture_conn_open(&config); // The server sends no greeting.
    assert_status_err(evq_conn_append(conn, 1, &word, NULL, &err), EVQ_OK, &err);
    assert_status_err(evq_conn_flush(conn, &err), EVQ_OK, &err);
    struct pollfd polled = {.fd = evq_conn_fd(conn), .events = POLLIN};
    assert_int_equal(poll(&polled, 1, 30000), 1); // The server sends session tickets and new keys.
    assert_false(evq_conn_readable(conn));
    while (poll(&polled, 1, 300) == 1) { // Wait until all of these have arrived.
        assert_false(evq_conn_readable(conn));
    }
    fixture_front_speak(front);
    FIXTURE_UNTIL(evq_conn_readable(conn));
    assert_status_err(evq_conn_read(conn, 0, &reply, &err), EVQ_OK, &err);
    assert_string_equal(reply->text, "PONG");
    evq_reply_free(reply);
    fixture_front_end(front);
    assert_status_err(evq_conn_append(conn, 1, &word, NULL, &err), EVQ_OK, &err);
    FIXTURE_UNTIL(evq_conn_readable(conn)); // The server ends the connection.
    assert_status_err(evq_conn_read(conn, 0, &reply, &err), EVQ_E_IO, &err);
    evq_conn_close(conn);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(tls_trusts_a_file_a_directory_and_the_environment),
        TEST(tls_carries_much_in_both_directions),
        TEST(tls_refuses_certificates_that_prove_nothing),
        TEST(tls_verifies_the_name_that_is_configured),
        TEST(tls_and_plain_tell_each_other_apart),
        TEST(tls_says_that_the_server_speaks_none),
        TEST(tls_handshake_ends_at_its_deadline_and_at_an_interrupt),
        TEST(tls_shows_a_certificate_where_the_server_asks),
        TEST(tls_wrong_files_are_refused_at_start),
        TEST(tls_reads_renewed_certificates_when_it_connects_again),
        TEST(tls_parent_continues_when_its_child_drops_the_connection),
        TEST(tls_1_1_is_refused),
        TEST(tls_renegotiation_in_mid_reply_is_refused),
        TEST(tls_continues_when_keys_change_within_a_reply),
        TEST(tls_readable_is_not_arrived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
