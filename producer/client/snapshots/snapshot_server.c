#include "producer/client/snapshots/snapshot_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/fork.h"
#include "producer/client/snapshots/snapshot_peer.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/hex.h"

#define READ_BYTES (1 << 20)
#define ACCEPT_MS  1000 // The pause after accept() failed because no descriptor was free.

struct offer {
    char *path;
    dev_t device;
    ino_t inode;
    struct evq_snapshot_offer offer;
};

struct evq_snapshot_server {
    int listen_fd; // -1: not listening yet.
    int stop_fd;   // An eventfd. If it is readable, the thread must end.
    pthread_t thread;
    char place[EVQ_SNAPSHOT_PLACE_BYTES_MAX + 1];
    struct evq_snapshot_peer peers[EVQ_SNAPSHOT_SERVER_PEERS_MAX]; // The thread's own.
    int64_t accept_ms; // The thread's own. No connection is accepted before it, monotonic.

    pthread_mutex_t lock; // Guards the members below.
    struct offer offers[EVQ_SNAPSHOT_SERVER_OFFERS_MAX];
    size_t offer_count; // Number of all offers so far. The array has the newest.
};

enum evq_status evq_snapshot_server_open(struct evq_snapshot_server **ret_server,
                                         struct evq_error *err)
{
    struct evq_snapshot_server *server = calloc(1, sizeof(*server));

    if (server == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a server of snapshots");
    }
    server->listen_fd = server->stop_fd = -1;
    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        server->peers[i].fd = server->peers[i].file = -1;
    }
    pthread_mutex_init(&server->lock, NULL);
    *ret_server = server;
    return EVQ_OK;
}

void evq_snapshot_server_close(struct evq_snapshot_server *server)
{
    const uint64_t one = 1;

    if (server == NULL) {
        return;
    }
    if (server->listen_fd >= 0) {
        (void)!write(server->stop_fd, &one, sizeof(one)); // An eventfd at 0 always takes 1.
        (void)pthread_join(server->thread, NULL);         // Our own thread, joined once.
        evq_fork_forget(server->listen_fd);
        (void)shutdown(server->listen_fd, SHUT_RDWR); // Also if a forked child has it open.
        (void)close(server->listen_fd);
    }
    evq_file_close(&server->stop_fd);
    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_OFFERS_MAX; i++) {
        free(server->offers[i].path);
    }
    pthread_mutex_destroy(&server->lock);
    free(server);
}

/* ---- what is offered ---- */

static enum evq_status file_open(const char *path, int *ret_fd, struct stat *ret_info,
                                 struct evq_error *err)
{
    const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0) {
        return evq_error_set(err, errno == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO, "open '%s': %s",
                             path, strerror(errno));
    }
    if (fstat(fd, ret_info) != 0 || !S_ISREG(ret_info->st_mode) || ret_info->st_size <= 0 ||
        ret_info->st_size > EVQ_SNAPSHOT_BYTES_MAX) {
        (void)close(fd); // Read only.
        return evq_error_set(err, EVQ_E_INVALID, "'%s' is not a regular file with something in it",
                             path);
    }
    *ret_fd = fd;
    return EVQ_OK;
}

/* Computes the checksum. Reads instead of mapping, because a mapping of a file that is truncated
 * would raise SIGBUS in the trainer. */
static enum evq_status file_checksum(int fd, const char *path, int64_t bytes, char out[33],
                                     struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    XXH3_state_t *state = XXH3_createState();
    uint8_t *block = malloc(READ_BYTES);
    int64_t at = 0;

    if (state == NULL || block == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "the checksum of '%s'", path);
        goto out;
    }
    (void)XXH3_128bits_reset(state); // Fails for a NULL state only, and so does update.
    for (ssize_t got = 1; at < bytes && got > 0;) {
        got = pread(fd, block, READ_BYTES, (off_t)at);
        if (got < 0 && errno != EINTR) {
            status = evq_error_set(err, EVQ_E_IO, "read '%s': %s", path, strerror(errno));
            goto out;
        }
        if (got > 0) {
            (void)XXH3_128bits_update(state, block, (size_t)got);
            at += got;
        }
        got = got < 0 ? 1 : got; // Interrupted.
    }
    if (at != bytes) {
        status = evq_error_set(err, EVQ_E_CHANGED, "'%s' was cut while it was read", path);
        goto out;
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(state);
    evq_hex_128(hash.high64, hash.low64, out);
out:
    (void)XXH3_freeState(state); // Takes NULL.
    free(block);
    return status;
}

static bool offer_is(const struct offer *offer, const struct stat *info)
{
    return offer->path != NULL && offer->device == info->st_dev && offer->inode == info->st_ino &&
           offer->offer.bytes == (int64_t)info->st_size;
}

enum evq_status evq_snapshot_server_offer(struct evq_snapshot_server *server, const char *path,
                                          struct evq_snapshot_offer *ret_offer,
                                          struct evq_error *err)
{
    struct offer made = {.path = NULL};
    struct stat info;
    int fd = -1;

    enum evq_status status = file_open(path, &fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    // Only this thread writes the offers, so it reads them without the lock.
    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_OFFERS_MAX; i++) {
        const struct offer *offer = &server->offers[i];
        if (offer_is(offer, &info) && strcmp(offer->path, path) == 0) {
            *ret_offer = offer->offer;
            goto out;
        }
    }
    made = (struct offer){.path = strdup(path),
                          .device = info.st_dev,
                          .inode = info.st_ino,
                          .offer = {.bytes = (int64_t)info.st_size}};
    if (made.path == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "the offer of '%s'", path);
        goto out;
    }
    status = file_checksum(fd, path, made.offer.bytes, made.offer.checksum, err);
    if (status != EVQ_OK) {
        goto out;
    }
    evq_snapshot_token(made.offer.token);
    *ret_offer = made.offer;
    pthread_mutex_lock(&server->lock);
    struct offer *slot = &server->offers[server->offer_count++ % EVQ_SNAPSHOT_SERVER_OFFERS_MAX];
    free(slot->path);
    *slot = made;
    pthread_mutex_unlock(&server->lock);
    made.path = NULL;
out:
    free(made.path);
    (void)close(fd); // Read only.
    return status;
}

/* Compares tokens in constant time. */
static bool token_equal(const char *a, const char *b)
{
    unsigned char difference = 0;

    for (size_t i = 0; i < EVQ_SNAPSHOT_TOKEN_CHARS; i++) {
        difference |= (unsigned char)(a[i] ^ b[i]);
    }
    return difference == 0;
}

/* Opens the file of a token, if it is still the file that was offered. An evq_snapshot_find_fn. */
static int offer_find(void *context, const struct evq_snapshot_request *request, int64_t *ret_bytes)
{
    struct evq_snapshot_server *server = context;
    const struct offer *found = NULL;
    char path[PATH_MAX] = "";
    struct stat info;
    int fd = -1;

    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_OFFERS_MAX; i++) {
        const struct offer *offer = &server->offers[i];
        if (offer->path != NULL && token_equal(offer->offer.token, request->token)) {
            found = offer;
        }
    }
    if (found != NULL && strlen(found->path) < sizeof(path) &&
        file_open(found->path, &fd, &info, NULL) == EVQ_OK && !offer_is(found, &info)) {
        (void)close(fd); // Another file took its name.
        fd = -1;
    }
    pthread_mutex_unlock(&server->lock);
    *ret_bytes = fd >= 0 ? (int64_t)info.st_size : 0;
    return fd;
}

/* ---- the thread ---- */

/* Returns a free entry. If there is none, takes the one that has been silent longest, so that idle
 * connections cannot keep workers out. NULL: all connections have sent a request. */
static struct evq_snapshot_peer *peer_place(struct evq_snapshot_server *server)
{
    struct evq_snapshot_peer *place = NULL;

    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        struct evq_snapshot_peer *peer = &server->peers[i];
        if (peer->fd < 0) {
            return peer;
        }
        if (evq_snapshot_peer_silent(peer) &&
            (place == NULL || peer->deadline_ms < place->deadline_ms)) {
            place = peer;
        }
    }
    if (place != NULL) {
        evq_snapshot_peer_end(place);
    }
    return place;
}

static void peer_accept(struct evq_snapshot_server *server)
{
    const struct evq_snapshot_reply reply = {.word = EVQ_SNAPSHOT_BUSY};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];

    const int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            server->accept_ms = evq_clock_mono_ms() + ACCEPT_MS; // Transfers continue.
        }
        return;
    }
    struct evq_snapshot_peer *peer = peer_place(server);
    if (peer != NULL) {
        evq_snapshot_peer_begin(peer, fd);
        return;
    }
    const size_t bytes = evq_snapshot_reply_format(&reply, line);
    (void)!send(fd, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL); // If lost, the peer asks again.
    (void)close(fd);
}

/* Fills the array and waits until a descriptor is ready or a deadline is reached. */
static void server_wait(const struct evq_snapshot_server *server,
                        struct pollfd items[2 + EVQ_SNAPSHOT_SERVER_PEERS_MAX])
{
    const bool accepts = evq_clock_mono_ms() >= server->accept_ms;
    int64_t due_ms = accepts ? INT64_MAX : server->accept_ms;

    items[0] = (struct pollfd){.fd = server->stop_fd, .events = POLLIN};
    items[1] = (struct pollfd){.fd = accepts ? server->listen_fd : -1, .events = POLLIN};
    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        const struct evq_snapshot_peer *peer = &server->peers[i];
        items[2 + i] = (struct pollfd){.fd = peer->fd, .events = evq_snapshot_peer_events(peer)};
        due_ms = peer->fd >= 0 && peer->deadline_ms < due_ms ? peer->deadline_ms : due_ms;
    }
    (void)poll(items, 2 + EVQ_SNAPSHOT_SERVER_PEERS_MAX,
               due_ms == INT64_MAX ? -1 : evq_clock_left_ms(due_ms));
}

static void *server_main(void *argument)
{
    struct evq_snapshot_server *server = argument;
    const struct sched_param no_priority = {.sched_priority = 0};
    struct pollfd items[2 + EVQ_SNAPSHOT_SERVER_PEERS_MAX];
    bool stopped = false;

    (void)prctl(PR_SET_NAME, "evalq-snapshots", 0, 0, 0); // For people; it works without.
    // Like the sender's thread, it must not take a core from a computing thread. If this fails, it
    // runs as any other thread.
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &no_priority);
    while (!stopped) {
        server_wait(server, items);
        stopped = items[0].revents != 0;
        for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
            struct evq_snapshot_peer *peer = &server->peers[i];
            const bool late = peer->fd >= 0 && evq_clock_mono_ms() >= peer->deadline_ms;
            if (late || stopped ||
                (items[2 + i].revents != 0 && !evq_snapshot_peer_step(peer, offer_find, server))) {
                evq_snapshot_peer_end(peer);
            }
        }
        if (items[1].revents != 0) {
            peer_accept(server);
        }
    }
    return NULL;
}

/* ---- where it listens ---- */

static uint16_t *address_port(struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
                                          : &((struct sockaddr_in *)address)->sin_port;
}

/* Parses host as an address with port 0. Returns false if it is a name. */
static bool address_parse(const char *host, struct sockaddr_storage *out, socklen_t *out_bytes)
{
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;

    memset(out, 0, sizeof(*out));
    if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        out->ss_family = AF_INET;
        *out_bytes = sizeof(*four);
        return true;
    }
    if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        out->ss_family = AF_INET6;
        *out_bytes = sizeof(*six);
        return true;
    }
    return false;
}

static int listen_at(const struct sockaddr_storage *address, socklen_t bytes)
{
    const int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && (bind(fd, (const struct sockaddr *)address, bytes) != 0 ||
                    listen(fd, EVQ_SNAPSHOT_SERVER_PEERS_MAX) != 0)) {
        const int failure = errno;
        (void)close(fd);
        errno = failure;
        return -1;
    }
    return fd;
}

/* Listens on the address of host if it is this machine's, otherwise on all addresses: with one
 * socket for IPv6 and IPv4 if there is IPv6. */
static int listen_for(const char *host)
{
    struct sockaddr_storage address;
    socklen_t bytes = 0;
    int fd = -1;

    if (address_parse(host, &address, &bytes)) {
        fd = listen_at(&address, bytes);
    }
    if (fd < 0 && address_parse("::", &address, &bytes)) {
        fd = listen_at(&address, bytes);
    }
    if (fd < 0 && address_parse("0.0.0.0", &address, &bytes)) {
        fd = listen_at(&address, bytes);
    }
    return fd;
}

static enum evq_status thread_start(struct evq_snapshot_server *server, struct evq_error *err)
{
    sigset_t all;
    sigset_t before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // Signals are the trainer's.
    const int failed = pthread_create(&server->thread, NULL, server_main, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0 ? EVQ_OK
                       : evq_error_set(err, EVQ_E_NOMEM, "start the server of snapshots: %s",
                                       strerror(failed));
}

enum evq_status evq_snapshot_server_listen(struct evq_snapshot_server *server, const char *host,
                                           const char **ret_place, struct evq_error *err)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);
    enum evq_status status = EVQ_OK;
    int fd = -1;

    if (server->listen_fd >= 0) {
        *ret_place = server->place;
        return EVQ_OK;
    }
    if (server->stop_fd < 0) {
        server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    fd = listen_for(host);
    if (fd < 0 || server->stop_fd < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        status =
            evq_error_set(err, EVQ_E_IO, "listen for workers at '%s': %s", host, strerror(errno));
        goto out;
    }
    status = evq_snapshot_place_format(host, ntohs(*address_port(&address)), server->place, err);
    if (status == EVQ_OK) {
        status = evq_fork_watch(fd, err);
    }
    if (status != EVQ_OK) {
        goto out;
    }
    server->listen_fd = fd;
    status = thread_start(server, err);
    if (status != EVQ_OK) {
        server->listen_fd = -1;
        evq_fork_forget(fd);
        goto out;
    }
    fd = -1;
    *ret_place = server->place;
out:
    evq_file_close(&fd);
    return status;
}

bool evq_snapshot_server_local(int fd, char out[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1])
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof(address);

    if (fd < 0 || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0) {
        return false;
    }
    const void *number = address.ss_family == AF_INET6
                             ? (const void *)&((struct sockaddr_in6 *)&address)->sin6_addr
                             : (const void *)&((struct sockaddr_in *)&address)->sin_addr;
    return (address.ss_family == AF_INET || address.ss_family == AF_INET6) &&
           inet_ntop(address.ss_family, number, out, EVQ_SNAPSHOT_HOST_BYTES_MAX + 1) != NULL;
}
