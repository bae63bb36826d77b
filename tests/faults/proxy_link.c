#include "tests/faults/proxy_link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 65536, STREAM_MAX = 64 << 20, PENDING_MAX = 4096, GARBAGE_MAX = 64 };

struct stream {
    char *data;
    size_t bytes;
    size_t room;
};

struct pending { // A request that Redis has and has not answered.
    int verb;
    enum proxy_fault fault;
    int64_t ms;
    uint64_t call;
    char *request; // Its bytes when the history wants them, else NULL.
    size_t request_bytes;
};

struct proxy_link {
    struct proxy_site *site;
    uint64_t number;
    uint64_t calls;
    int client;
    int server;
    struct stream asked;    // From the client, not looked at yet.
    struct stream forward;  // For Redis.
    struct stream answered; // From Redis, not looked at yet.
    struct stream back;     // For the client.
    struct pending pending[PENDING_MAX];
    size_t pending_first;
    size_t pending_count;
    int64_t hold_until_ms; // 0: requests are looked at.
    int64_t end_ms;        // 0: no end is set.
    bool blocked;          // Replies go nowhere.
    bool client_ended;
    bool server_told; // That no more requests come.
    bool ending;      // Closed when back is empty.
    bool drip;        // back goes a byte at a time.
    bool over;
};

int64_t proxy_now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A socket of where's family and its address. */
static int open_socket(const char *where, struct sockaddr_storage *address, socklen_t *bytes)
{
    struct sockaddr_un *local = (struct sockaddr_un *)address;
    struct sockaddr_in *net = (struct sockaddr_in *)address;

    memset(address, 0, sizeof *address);
    if (where[0] == '/') {
        local->sun_family = AF_UNIX;
        if (strlen(where) >= sizeof local->sun_path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(local->sun_path, where, strlen(where) + 1);
        *bytes = sizeof *local;
    } else {
        net->sin_family = AF_INET;
        net->sin_port = htons((uint16_t)strtoul(where, NULL, 10));
        net->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        *bytes = sizeof *net;
    }
    return socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

int proxy_listen(const char *where)
{
    struct sockaddr_storage address;
    socklen_t bytes = 0;
    const int on = 1;

    const int fd = open_socket(where, &address, &bytes);
    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); // Only for TCP.
    }
    if (where[0] == '/') {
        (void)unlink(where); // Of a proxy that was killed.
    }
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, bytes) != 0 || listen(fd, 512) != 0) {
        (void)fprintf(stderr, "fault_proxy: listen at '%s': %s\n", where, strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
        }
        return -1;
    }
    bytes = sizeof address;
    if (where[0] != '/' && getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        (void)printf("listening %d\n", ntohs(((struct sockaddr_in *)&address)->sin_port));
    } else {
        (void)printf("listening %s\n", where);
    }
    (void)fflush(stdout);
    return fd;
}

static void be_prompt(int fd)
{
    const int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); // Not for unix sockets.
    (void)fcntl(fd, F_SETFL, O_NONBLOCK);
}

struct proxy_link *proxy_link_accept(struct proxy_site *site, int listen_fd, uint64_t number)
{
    struct sockaddr_storage address;
    socklen_t bytes = 0;
    struct proxy_link *link = NULL;

    const int client = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);
    const int server = client >= 0 ? open_socket(site->to, &address, &bytes) : -1;
    if (server >= 0 && connect(server, (const struct sockaddr *)&address, bytes) == 0) {
        link = calloc(1, sizeof *link);
    }
    if (link == NULL) {
        if (client >= 0) {
            (void)close(client); // As a Redis that is away would.
        }
        if (server >= 0) {
            (void)close(server);
        }
        return NULL;
    }
    link->site = site;
    link->number = number;
    link->client = client;
    link->server = server;
    be_prompt(client);
    be_prompt(server);
    return link;
}

static struct pending *pending_at(struct proxy_link *link, size_t i)
{
    return &link->pending[(link->pending_first + i) % PENDING_MAX];
}

static struct proxy_word request_of(const struct pending *pending)
{
    return (struct proxy_word){pending->request, pending->request_bytes};
}

void proxy_link_free(struct proxy_link *link)
{
    for (size_t i = 0; i < link->pending_count; i++) {
        struct pending *pending = pending_at(link, i);
        if (pending->request != NULL) {
            proxy_history_answered(link->site->history, link->number, pending->call,
                                   proxy_rules_verb_name(link->site->rules, pending->verb),
                                   request_of(pending), (struct proxy_word){"", 0});
            free(pending->request);
        }
    }
    (void)close(link->client);
    (void)close(link->server);
    free(link->asked.data);
    free(link->forward.data);
    free(link->answered.data);
    free(link->back.data);
    free(link);
}

static bool reserve(struct stream *stream, size_t more)
{
    if (stream->room - stream->bytes >= more) {
        return true;
    }
    const size_t room = (stream->bytes + more) * 2;
    char *data = room <= STREAM_MAX ? realloc(stream->data, room) : NULL;
    if (data == NULL) {
        return false;
    }
    stream->data = data;
    stream->room = room;
    return true;
}

static bool append(struct stream *stream, const char *data, size_t bytes)
{
    if (bytes == 0 || !reserve(stream, bytes)) {
        return bytes == 0;
    }
    memcpy(stream->data + stream->bytes, data, bytes);
    stream->bytes += bytes;
    return true;
}

static void consume(struct stream *stream, size_t bytes)
{
    stream->bytes -= bytes;
    memmove(stream->data, stream->data + bytes, stream->bytes);
}

/* False: the peer has ended or failed. */
static bool take(int fd, struct stream *stream)
{
    if (!reserve(stream, CHUNK)) {
        return false;
    }
    const ssize_t got = recv(fd, stream->data + stream->bytes, CHUNK, 0);
    if (got > 0) {
        stream->bytes += (size_t)got;
    }
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool give(int fd, struct stream *stream, size_t bytes_max)
{
    if (stream->bytes == 0) {
        return true;
    }
    const size_t bytes = stream->bytes < bytes_max ? stream->bytes : bytes_max;
    const ssize_t sent = send(fd, stream->data, bytes, MSG_NOSIGNAL);
    if (sent > 0) {
        consume(stream, (size_t)sent);
    }
    return sent >= 0 || errno == EAGAIN || errno == EINTR;
}

static void reset(struct proxy_link *link)
{
    const struct linger hard = {.l_onoff = 1, .l_linger = 0};

    (void)setsockopt(link->client, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    link->over = true;
}

/* The request is forwarded and waits for its reply. */
static void send_on(struct proxy_link *link, struct pending pending, size_t bytes)
{
    const char *verb = proxy_rules_verb_name(link->site->rules, pending.verb);
    const struct proxy_word request = {link->asked.data, bytes};

    if (proxy_history_wants(link->site->history, verb)) {
        proxy_history_asked(link->site->history, link->number, pending.call, verb, request);
        pending.request = malloc(bytes);
        if (pending.request != NULL) {
            memcpy(pending.request, request.at, bytes);
            pending.request_bytes = bytes;
        }
    }
    link->over |= !append(&link->forward, link->asked.data, bytes);
    consume(&link->asked, bytes);
    *pending_at(link, link->pending_count++) = pending;
}

/* One request, of so many bytes. */
static void meet(struct proxy_link *link, size_t bytes)
{
    struct proxy_rules *rules = link->site->rules;
    struct proxy_word words[2];
    struct pending pending = {.call = ++link->calls};

    const size_t count = proxy_resp_words(link->asked.data, bytes, words, 2);
    pending.verb = proxy_rules_verb(rules, words, count < 2 ? count : 2);
    pending.fault = proxy_rules_meet(rules, pending.verb, &pending.ms);
    switch (pending.fault) {
    case PROXY_RESET:
        proxy_rules_happened(rules, pending.fault, pending.verb);
        reset(link);
        return;
    case PROXY_CUT_REQUEST:
        proxy_rules_happened(rules, pending.fault, pending.verb);
        link->over = true;
        return;
    case PROXY_STALL:
        proxy_rules_happened(rules, pending.fault, pending.verb);
        link->hold_until_ms = proxy_now_ms() + pending.ms;
        break;
    case PROXY_HALF_CLOSE:
        proxy_rules_happened(rules, pending.fault, pending.verb);
        (void)shutdown(link->client, SHUT_WR);
        link->blocked = true;
        break;
    default:
        break;
    }
    if (link->hold_until_ms == 0) {
        send_on(link, pending, bytes);
    }
}

static void look_at_requests(struct proxy_link *link, int64_t now_ms)
{
    if (link->hold_until_ms > now_ms) {
        return;
    }
    if (link->hold_until_ms > 0) { // What was held is the first of asked; it met its fault.
        const struct proxy_word none = {"", 0};
        struct proxy_word words[2] = {none, none};
        const ssize_t bytes = proxy_resp_value(link->asked.data, link->asked.bytes);
        const size_t count = proxy_resp_words(link->asked.data, (size_t)bytes, words, 2);
        link->hold_until_ms = 0;
        send_on(link,
                (struct pending){
                    .call = link->calls,
                    .verb = proxy_rules_verb(link->site->rules, words, count < 2 ? count : 2)},
                (size_t)bytes);
    }
    while (!link->over && link->hold_until_ms == 0 && link->asked.bytes > 0 &&
           link->pending_count < PENDING_MAX) {
        const ssize_t bytes = proxy_resp_value(link->asked.data, link->asked.bytes);
        if (bytes == 0) {
            return;
        }
        if (bytes < 0) {
            (void)fprintf(stderr, "fault_proxy: a client spoke no RESP\n");
            link->over = true;
            return;
        }
        meet(link, (size_t)bytes);
    }
}

static void garble(struct proxy_link *link)
{
    char bytes[GARBAGE_MAX];
    const uint64_t random = proxy_rules_random(link->site->rules);
    const size_t count = 1 + random % GARBAGE_MAX;

    for (size_t i = 0; i < count; i++) {
        bytes[i] = (char)(proxy_rules_random(link->site->rules) & 0xff);
    }
    bytes[0] = "\xff\n@abcXYZ"[random % 9]; // Never the beginning of a reply.
    link->over |= !append(&link->back, bytes, count);
}

/* The reply to the oldest request, the first bytes of answered. */
static void reply(struct proxy_link *link, size_t bytes)
{
    struct pending pending = *pending_at(link, 0);
    struct proxy_rules *rules = link->site->rules;
    size_t pass = bytes;

    link->pending_first = (link->pending_first + 1) % PENDING_MAX;
    link->pending_count--;
    if (pending.request != NULL) {
        proxy_history_answered(link->site->history, link->number, pending.call,
                               proxy_rules_verb_name(rules, pending.verb), request_of(&pending),
                               (struct proxy_word){link->answered.data, bytes});
        free(pending.request);
    }
    if (link->blocked || link->ending) {
        return;
    }
    if (pending.fault == PROXY_CUT_REPLY || pending.fault == PROXY_GARBAGE) {
        pass = 0;
    } else if (pending.fault == PROXY_CUT_MIDDLE) {
        pass = bytes / 2;
    } else if (pending.fault == PROXY_BLOCK) {
        pass = 0;
        link->blocked = true;
        link->end_ms = proxy_now_ms() + pending.ms;
    }
    if (pending.fault >= PROXY_CUT_REPLY) {
        proxy_rules_happened(rules, pending.fault, pending.verb);
    }
    if (pending.fault == PROXY_GARBAGE) {
        garble(link);
    }
    link->ending |= pending.fault == PROXY_CUT_REPLY || pending.fault == PROXY_CUT_MIDDLE ||
                    pending.fault == PROXY_GARBAGE;
    link->drip |= pending.fault == PROXY_DRIP;
    link->over |= !append(&link->back, link->answered.data, pass);
}

static void look_at_replies(struct proxy_link *link)
{
    while (!link->over && link->answered.bytes > 0) {
        const ssize_t bytes = proxy_resp_value(link->answered.data, link->answered.bytes);
        if (bytes == 0) {
            return;
        }
        if (bytes < 0) {
            (void)fprintf(stderr, "fault_proxy: the server spoke no RESP\n");
            link->over = true;
            return;
        }
        if (link->pending_count == 0 || link->answered.data[0] == '>') {
            link->over |= !append(&link->back, link->answered.data, (size_t)bytes);
        } else {
            reply(link, (size_t)bytes);
        }
        consume(&link->answered, (size_t)bytes);
    }
}

void proxy_link_polls(const struct proxy_link *link, struct pollfd polls[2], int64_t now_ms,
                      int64_t *wait_ms)
{
    const int64_t times[] = {link->hold_until_ms, link->end_ms};
    const bool full = link->pending_count == PENDING_MAX || link->hold_until_ms > 0;

    polls[0] = (struct pollfd){.fd = link->client};
    polls[1] = (struct pollfd){.fd = link->server, .events = POLLIN};
    if (!link->client_ended && !full) {
        polls[0].events |= POLLIN;
    }
    if (link->back.bytes > 0) {
        polls[0].events |= POLLOUT;
    }
    if (link->client_ended && link->back.bytes == 0) {
        polls[0].fd = -1; // Its hang-up is known.
    }
    if (link->forward.bytes > 0) {
        polls[1].events |= POLLOUT;
    }
    for (size_t i = 0; i < 2; i++) {
        const int64_t left = times[i] > now_ms ? times[i] - now_ms : 0;
        if (times[i] > 0 && (*wait_ms < 0 || left < *wait_ms)) {
            *wait_ms = left;
        }
    }
}

bool proxy_link_step(struct proxy_link *link, const struct pollfd polls[2])
{
    const int64_t now_ms = proxy_now_ms();

    if ((polls[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !link->client_ended &&
        (polls[0].events & POLLIN) != 0) {
        link->client_ended = !take(link->client, &link->asked);
    } else if ((polls[0].revents & (POLLHUP | POLLERR)) != 0) {
        link->client_ended = true;
    }
    if ((polls[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
        !take(link->server, &link->answered)) {
        link->ending = true; // Redis is gone: what it said is still passed on.
    }
    look_at_requests(link, now_ms);
    look_at_replies(link);
    if (link->drip && link->back.bytes == 0) {
        link->drip = false;
    }
    if (!give(link->server, &link->forward, SIZE_MAX)) {
        link->ending = true;
    }
    if (!give(link->client, &link->back, link->drip ? 1 : SIZE_MAX)) {
        link->back.bytes = 0; // The client is gone; what it asked for is still done.
        link->client_ended = true;
    }
    if (link->client_ended && !link->server_told && link->forward.bytes == 0 &&
        link->hold_until_ms == 0) {
        (void)shutdown(link->server, SHUT_WR);
        link->server_told = true;
    }
    const bool ended = link->ending && link->back.bytes == 0;
    return !link->over && !ended && !(link->end_ms > 0 && now_ms >= link->end_ms);
}
