#include "producer/cli/up/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define START_MS   15000  // Time until the socket answers.
#define LOADING_MS 600000 // Time to load its data.

enum evq_status evq_server_path(const char *directory, const char *name, char *out,
                                struct evq_error *err)
{
    int bytes = snprintf(out, EVQ_SERVER_PATH_MAX, "%s/%s", directory, name);
    if (bytes < 0 || bytes >= EVQ_SERVER_PATH_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%.100s...' is longer than %d bytes",
                             directory, EVQ_SERVER_PATH_MAX - 1);
    }
    return EVQ_OK;
}

/* Whether a socket file can be made at the path. Some file systems refuse socket files, and the
 * path has at most 107 bytes. */
static bool socket_fits(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(path);
    if (bytes >= sizeof address.sun_path) {
        return false;
    }
    memcpy(address.sun_path, path, bytes + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    (void)unlink(path);
    bool fits = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    (void)close(fd);
    (void)unlink(path);
    return fits;
}

static enum evq_status place_socket(struct evq_server *server, struct evq_error *err)
{
    char path[EVQ_SERVER_PATH_MAX];
    enum evq_status status = evq_server_path(server->directory, "redis.sock", path, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!socket_fits(path)) {
        char *directory = server->socket_directory;
        (void)snprintf(directory, sizeof server->socket_directory, "/tmp/evalq-%ld-XXXXXX",
                       (long)getuid());
        if (mkdtemp(directory) == NULL) {
            status = evq_error_set(err, EVQ_E_IO, "make the directory '%s': %s", directory,
                                   strerror(errno));
            directory[0] = '\0';
            return status;
        }
        (void)snprintf(path, sizeof path, "%s/redis.sock", directory);
    }
    (void)snprintf(server->socket, sizeof server->socket, "%.107s", path);
    (void)snprintf(server->url, sizeof server->url, "unix://%s", server->socket);
    return EVQ_OK;
}

static enum evq_status pick_port(int *ret_port, struct evq_error *err)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    enum evq_status status = EVQ_OK;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "find a free port on 127.0.0.1: %s", strerror(errno));
    } else {
        *ret_port = ntohs(address.sin_port);
    }
    evq_file_close(&fd);
    return status;
}

static enum evq_status read_password(const char *path, char out[65], struct evq_error *err)
{
    FILE *file = fopen(path, "re");
    char text[80];
    bool good = file != NULL && fgets(text, sizeof text, file) != NULL &&
                strspn(text, "0123456789abcdef") == 64;
    if (file != NULL) {
        (void)fclose(file);
    }
    if (good) {
        memcpy(out, text, 64);
        out[64] = '\0';
        return EVQ_OK;
    }
    for (size_t i = 0; i < 4; i++) {
        (void)snprintf(out + 16 * i, 17, "%016" PRIx64, evq_clock_random());
    }
    char line[80];
    (void)snprintf(line, sizeof line, "%s\n", out);
    enum evq_status status = evq_file_replace(path, line, strlen(line), 0600, err);
    explicit_bzero(line, sizeof line);
    explicit_bzero(text, sizeof text);
    return status;
}

/* Appends a value in the syntax of redis.conf: in quotes, with control bytes escaped. */
static void conf_quoted(struct evq_buffer *out, const char *name, const char *value)
{
    evq_buffer_printf(out, "%s \"", name);
    for (const char *at = value; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\') {
            evq_buffer_printf(out, "\\%c", *at);
        } else if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            evq_buffer_printf(out, "\\x%02x", (unsigned char)*at);
        } else {
            evq_buffer_append(out, at, 1);
        }
    }
    evq_buffer_text(out, "\"\n");
}

static enum evq_status write_conf(struct evq_server *server, struct evq_error *err)
{
    char password[65];
    char data[EVQ_SERVER_PATH_MAX];
    struct evq_buffer conf;

    evq_buffer_init(&conf, 65536);
    enum evq_status status = read_password(server->password_file, password, err);
    if (status == EVQ_OK) {
        status = evq_server_path(server->directory, "redis", data, err);
    }
    if (status == EVQ_OK && mkdir(data, 0700) != 0 && errno != EEXIST) {
        status = evq_error_set(err, EVQ_E_IO, "make the directory '%s': %s", data, strerror(errno));
    }
    if (status == EVQ_OK) {
        evq_buffer_printf(&conf,
                          "# Written by `evalq up` at every start.\n"
                          "bind 127.0.0.1\nport %d\nprotected-mode yes\nunixsocketperm 700\n"
                          "requirepass %s\nappendonly yes\nappendfsync always\nsave \"\"\n"
                          "maxmemory-policy noeviction\ndaemonize no\nlogfile \"\"\n",
                          server->port, password);
        conf_quoted(&conf, "unixsocket", server->socket);
        conf_quoted(&conf, "dir", data);
        const char *text = evq_buffer_string(&conf);
        status = text == NULL ? evq_error_set(err, EVQ_E_NOMEM, "redis.conf")
                              : evq_file_replace(server->conf, text, strlen(text), 0600, err);
    }
    explicit_bzero(password, sizeof password);
    if (conf.data != NULL) {
        explicit_bzero(conf.data, conf.bytes);
    }
    evq_buffer_free(&conf);
    return status;
}

enum evq_status evq_server_choose_port(struct evq_server *server, struct evq_error *err)
{
    enum evq_status status = pick_port(&server->port, err);
    return status == EVQ_OK ? write_conf(server, err) : status;
}

/* Finds redis-server, or valkey-server if only that is installed. Both read the same file. */
static enum evq_status find_program(struct evq_server *server, struct evq_error *err)
{
    static const char *const names[] = {"redis-server", "valkey-server"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        enum evq_status status =
            evq_service_program(names[i], server->program, sizeof server->program, err);
        if (status != EVQ_E_NOT_FOUND) {
            return status;
        }
    }
    return evq_error_set(err, EVQ_E_NOT_FOUND,
                         "neither 'redis-server' nor 'valkey-server' is beside evalq or in $PATH: "
                         "install one, for example with pip install 'evalq[server]'");
}

enum evq_status evq_server_prepare(struct evq_server *server, const char *directory,
                                   struct evq_error *err)
{
    static const char names[3][16] = {"redis.conf", "password", "redis.log"};
    char *const paths[3] = {server->conf, server->password_file, server->log};
    enum evq_status status = EVQ_OK;

    (void)snprintf(server->directory, sizeof server->directory, "%s", directory);
    for (size_t i = 0; status == EVQ_OK && i < 3; i++) {
        status = evq_server_path(directory, names[i], paths[i], err);
    }
    if (status == EVQ_OK) {
        status = find_program(server, err);
    }
    if (status == EVQ_OK) {
        status = place_socket(server, err);
    }
    if (status == EVQ_OK) {
        status = evq_server_choose_port(server, err);
    }
    server->service = (struct evq_service){
        .name = "redis",
        // Redis 7.2 and newer do not start if the locale is not installed; ssh can pass such a
        // name. `env` cannot be used, because it takes a path with '=' for a variable.
        .argv = {"/bin/sh", "-c", "export LC_ALL=C; exec \"$@\"", "redis", server->program,
                 server->conf, NULL},
        .log_path = server->log,
        .output_fd = -1,
        .keep_fd = -1,
    };
    return status;
}

/* The last line of the log that is not empty, for an error message. */
static void log_tail(const char *path, char *out, size_t out_bytes)
{
    char text[2048];
    out[0] = '\0';
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    while (fgets(text, sizeof text, file) != NULL) {
        text[strcspn(text, "\n")] = '\0';
        if (text[0] != '\0') {
            size_t bytes = strnlen(text, out_bytes - 1);
            memcpy(out, text, bytes);
            out[bytes] = '\0';
        }
    }
    (void)fclose(file);
}

enum evq_status evq_server_await(struct evq_server *server, struct evq_conn *conn,
                                 struct evq_error *err)
{
    static const char *const ping[] = {"PING"};
    int64_t begin = evq_clock_mono_ms();
    for (;;) {
        struct evq_reply *reply = NULL;
        enum evq_status status =
            evq_conn_call(conn, 1, ping, NULL, evq_clock_mono_ms() + 1000, &reply, err);
        evq_reply_free(reply);
        if (status == EVQ_OK || status == EVQ_E_AUTH || status == EVQ_E_NOMEM) {
            return status;
        }
        int wait_status = 0;
        if (waitpid(server->service.pid, &wait_status, WNOHANG) == server->service.pid) {
            char last[256];
            char end[64];
            (void)evq_service_reaped(&server->service, server->service.pid, wait_status);
            log_tail(server->log, last, sizeof last);
            evq_service_end_text(wait_status, end, sizeof end);
            return evq_error_set(err, EVQ_E_IO, "redis-server %s: %.180s (log: %.180s)", end, last,
                                 server->log);
        }
        int64_t limit = status == EVQ_E_RETRY ? LOADING_MS : START_MS;
        if (evq_clock_mono_ms() - begin > limit) {
            return evq_error_prefix(err, "redis-server does not answer after %d s",
                                    (int)(limit / 1000));
        }
        (void)usleep(5000); // Nothing signals that the socket file exists.
    }
}

enum evq_status evq_server_announce(const struct evq_server *server, struct evq_error *err)
{
    char path[EVQ_SERVER_PATH_MAX];
    char line[160];
    enum evq_status status = evq_server_path(server->directory, "url", path, err);
    (void)snprintf(line, sizeof line, "%s\n", server->url);
    return status == EVQ_OK ? evq_file_replace(path, line, strlen(line), 0600, err) : status;
}

void evq_server_unannounce(const char *directory)
{
    static const char *const names[] = {"url", "page"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[EVQ_SERVER_PATH_MAX];
        if (evq_server_path(directory, names[i], path, NULL) == EVQ_OK) {
            (void)unlink(path); // It may not be there.
        }
    }
}

void evq_server_withdraw(const struct evq_server *server)
{
    evq_server_unannounce(server->directory);
    if (server->socket[0] != '\0') {
        (void)unlink(server->socket);
    }
    if (server->socket_directory[0] != '\0') {
        (void)rmdir(server->socket_directory);
    }
}
