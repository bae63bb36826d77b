#include "tests/bench/blocked.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bench/row.h"

enum { REPLY_BYTES = 4096, EVENTS = 256 };

struct waiter {
    int fd;
    int claims; // Made so far: makes request ids.
    bool claiming;
    size_t bytes;
    char reply[REPLY_BYTES];
};

struct blocked {
    int64_t opened_ns; // Part of request ids: a repeated one would get its first answer again.
    int count;
    int epoll;
    uint32_t class_number;
    struct waiter *waiters;
};

static void die(const char *what)
{
    (void)fprintf(stderr, "blocked workers: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void send_words(int fd, const char *const *words, int count)
{
    char out[1024];
    size_t bytes = (size_t)snprintf(out, sizeof out, "*%d\r\n", count);

    for (int i = 0; i < count; i++) {
        bytes += (size_t)snprintf(out + bytes, sizeof out - bytes, "$%zu\r\n%s\r\n",
                                  strlen(words[i]), words[i]);
    }
    if (send(fd, out, bytes, MSG_NOSIGNAL) != (ssize_t)bytes) {
        die("send");
    }
}

static void block(const struct blocked *blocked, struct waiter *waiter)
{
    char key[64];

    (void)snprintf(key, sizeof key, "evalq:{main}:wake:%u", blocked->class_number);
    const char *const words[] = {"BZPOPMIN", key, "0"};
    waiter->claiming = false;
    waiter->bytes = 0;
    send_words(waiter->fd, words, 3);
}

static void claim(const struct blocked *blocked, struct waiter *waiter)
{
    char worker[32], request[48], class_number[16];

    (void)snprintf(worker, sizeof worker, "w%d", (int)(waiter - blocked->waiters));
    (void)snprintf(request, sizeof request, "%lld-%d", (long long)blocked->opened_ns,
                   waiter->claims++);
    (void)snprintf(class_number, sizeof class_number, "%u", blocked->class_number);
    const char *const words[] = {
        "FCALL", "evalq_v1_claim", "1", "evalq:{main}:", worker, request, "3600000", "1",
        "1",     class_number};
    waiter->claiming = true;
    waiter->bytes = 0;
    send_words(waiter->fd, words, 10);
}

struct blocked *blocked_open(const char *socket_path, int count, uint32_t class_number)
{
    struct rlimit files = {.rlim_cur = (rlim_t)count + 200, .rlim_max = (rlim_t)count + 200};
    struct rlimit now;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct blocked *blocked = calloc(1, sizeof *blocked);

    if (getrlimit(RLIMIT_NOFILE, &now) != 0 ||
        (now.rlim_cur < files.rlim_cur && setrlimit(RLIMIT_NOFILE, &files) != 0)) {
        die("as many descriptors");
    }
    if (blocked == NULL || strlen(socket_path) >= sizeof address.sun_path) {
        die("open");
    }
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    blocked->opened_ns = bench_now_ns();
    blocked->count = count;
    blocked->class_number = class_number;
    blocked->waiters = calloc((size_t)count, sizeof *blocked->waiters);
    blocked->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (blocked->waiters == NULL || blocked->epoll < 0) {
        die("open");
    }
    for (int i = 0; i < count; i++) {
        struct waiter *waiter = &blocked->waiters[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = waiter};
        waiter->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (waiter->fd < 0 ||
            connect(waiter->fd, (struct sockaddr *)&address, sizeof address) != 0 ||
            epoll_ctl(blocked->epoll, EPOLL_CTL_ADD, waiter->fd, &event) != 0) {
            die("connect");
        }
        block(blocked, waiter);
    }
    return blocked;
}

void blocked_close(struct blocked *blocked)
{
    if (blocked != NULL) {
        for (int i = 0; i < blocked->count; i++) {
            (void)close(blocked->waiters[i].fd);
        }
        (void)close(blocked->epoll);
        free(blocked->waiters);
        free(blocked);
    }
}

/*
 * Passes over one reply of the protocol at *at, copying the text of its bulk strings and integers
 * number `first` and the one after it, counted from 0 in reading order, to out[0] and out[1].
 * false: it is not all there.
 */
static bool reply_read(const struct waiter *waiter, size_t *at, int *seen, int first,
                       char out[2][256])
{
    const char *line = waiter->reply + *at;
    const char *end = memchr(line, '\n', waiter->bytes - *at);
    long count;

    if (end == NULL) {
        return false;
    }
    *at = (size_t)(end + 1 - waiter->reply);
    count = strtol(line + 1, NULL, 10);
    if (line[0] == '*') {
        for (long i = 0; i < count; i++) {
            if (!reply_read(waiter, at, seen, first, out)) {
                return false;
            }
        }
        return true;
    }
    const char *text = line + 1;
    size_t bytes = (size_t)(end - 1 - text);
    if (line[0] == '-') {
        (void)fprintf(stderr, "blocked workers: Redis says %.*s\n", (int)bytes, text);
        exit(1);
    }
    if (line[0] == '$') {
        text = end + 1;
        bytes = count < 0 ? 0 : (size_t)count;
        *at += count < 0 ? 0 : bytes + 2;
        if (*at > waiter->bytes) {
            return false;
        }
    }
    int place = (*seen)++ - first;
    if (place >= 0 && place < 2 && bytes < 256) {
        memcpy(out[place], text, bytes);
        out[place][bytes] = '\0';
    }
    return true;
}

/* A whole reply is there: what the worker does next. Returns 1 for a claimed job, -1 for a claim
 * that found nothing, 0 for a wake. */
static int answer(struct blocked *blocked, struct waiter *waiter, struct blocked_claim *ret_claim,
                  char taken[2][256])
{
    if (!waiter->claiming) {
        claim(blocked, waiter);
        return 0;
    }
    bool job = taken[0][0] != '\0';
    if (job) {
        ret_claim->claimed_ns = bench_now_ns();
        (void)snprintf(ret_claim->id, sizeof ret_claim->id, "%.255s", taken[0]);
        (void)snprintf(ret_claim->token, sizeof ret_claim->token, "%.63s", taken[1]);
    }
    block(blocked, waiter);
    return job ? 1 : -1;
}

int blocked_claim(struct blocked *blocked, struct blocked_claim *claims, int jobs,
                  int64_t timeout_ms, int *ret_empty)
{
    int64_t deadline = bench_now_ns() + timeout_ms * 1000000;
    int claimed = 0;

    *ret_empty = 0;
    while (claimed < jobs && bench_now_ns() < deadline) {
        struct epoll_event events[EVENTS];
        int count =
            epoll_wait(blocked->epoll, events, EVENTS, timeout_ms < 100 ? (int)timeout_ms : 100);
        for (int i = 0; i < count && claimed < jobs; i++) {
            struct waiter *waiter = events[i].data.ptr;
            char taken[2][256] = {"", ""};
            size_t at = 0;
            int seen = 0;
            ssize_t got = recv(waiter->fd, waiter->reply + waiter->bytes,
                               sizeof waiter->reply - waiter->bytes, 0);
            if (got <= 0) {
                die("recv");
            }
            waiter->bytes += (size_t)got;
            if (reply_read(waiter, &at, &seen, 4, taken)) { // After jobs, now, version, due.
                int what = answer(blocked, waiter, &claims[claimed], taken);
                claimed += what > 0;
                *ret_empty += what < 0;
            }
        }
    }
    return claimed;
}
