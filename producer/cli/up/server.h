/*
 * The private redis-server of `evalq up`: its files, socket, port, configuration and password. One
 * thread.
 */
#ifndef EVQ_PRODUCER_CLI_UP_SERVER_H
#define EVQ_PRODUCER_CLI_UP_SERVER_H

#include "producer/cli/up/service.h"
#include "shared/redis/conn.h"

#define EVQ_SERVER_PATH_MAX 4096

struct evq_server {
    char directory[EVQ_SERVER_PATH_MAX]; // Absolute: holds url, password, redis.conf, redis/, logs.
    char socket[108];                    // As long as sun_path.
    char socket_directory[64]; // "" : in directory; else a directory of its own in /tmp, removed at
                               // the end.
    char url[128];             // unix://...
    char conf[EVQ_SERVER_PATH_MAX];
    char password_file[EVQ_SERVER_PATH_MAX];
    char log[EVQ_SERVER_PATH_MAX];
    char program[EVQ_SERVER_PATH_MAX];
    int port; // On 127.0.0.1.
    struct evq_service service;
};

/* Makes the files that the server needs in directory, which is absolute and exists: password,
 * directory of the socket, configuration. */
enum evq_status evq_server_prepare(struct evq_server *server, const char *directory,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/* Chooses another free port and rewrites the configuration. */
enum evq_status evq_server_choose_port(struct evq_server *server,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
/* Waits until it answers on conn. EVQ_E_IO: it ended; the message is the end of its log.
 * EVQ_E_TIMEOUT. */
enum evq_status evq_server_await(struct evq_server *server, struct evq_conn *conn,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
/* Writes DIRECTORY/url, for clients to find. */
enum evq_status evq_server_announce(const struct evq_server *server,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Removes the addresses that `evalq up` announced: DIRECTORY/url and DIRECTORY/page. */
void evq_server_unannounce(const char *directory);
/* Calls evq_server_unannounce(), and removes the socket and its directory. */
void evq_server_withdraw(const struct evq_server *server);

/* Writes DIRECTORY/NAME into out, which has EVQ_SERVER_PATH_MAX bytes. */
enum evq_status evq_server_path(const char *directory, const char *name, char *out,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
