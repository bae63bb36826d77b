/*
 * fault_proxy: stands between programs and Redis, on TCP or a unix socket, and lets requests meet
 * faults by rules and a seed (proxy_rules.h).
 *
 *     fault_proxy --listen PORT|PATH --to PORT|PATH [--seed N] [--history FILE --name NAME]
 *                 [RULE...]
 *
 * A PATH begins with "/" and is a unix socket; a PORT is one of 127.0.0.1, 0 a free one. Prints
 * "listening PORT|PATH". Then takes lines on standard input: "rule RULE", "clear", "counts" (prints
 * them, then "end"), "quit"; its end quits too, printing the counts. A request is known to be
 * carried out when its whole reply has come from Redis. What MONITOR and SUBSCRIBE say without
 * being asked is passed on as it comes.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/faults/proxy_link.h"

enum { LINKS_MAX = 1024 };

struct proxy {
    struct proxy_site site;
    struct proxy_link *links[LINKS_MAX];
    size_t link_count;
    uint64_t link_number;
    char input[512];
    size_t input_bytes;
    bool quit;
};

static int usage(void)
{
    (void)fprintf(stderr, "usage: fault_proxy --listen PORT|PATH --to PORT|PATH [--seed N] "
                          "[--history FILE --name NAME] [RULE...]\n");
    return 2;
}

static void counts(const struct proxy *proxy)
{
    proxy_rules_print(proxy->site.rules, stdout);
    (void)puts("end");
    (void)fflush(stdout);
}

static void command(struct proxy *proxy, const char *line)
{
    if (strncmp(line, "rule ", 5) == 0) {
        proxy->quit |= !proxy_rules_add(proxy->site.rules, line + 5);
    } else if (strcmp(line, "clear") == 0) {
        proxy_rules_clear(proxy->site.rules);
    } else if (strcmp(line, "counts") == 0) {
        counts(proxy);
    } else if (strcmp(line, "quit") == 0) {
        proxy->quit = true;
    } else if (*line != '\0') {
        (void)fprintf(stderr, "fault_proxy: '%s' is no command\n", line);
        proxy->quit = true;
    }
}

static void take_input(struct proxy *proxy)
{
    const size_t room = sizeof proxy->input - 1;
    char *end = NULL;

    if (proxy->input_bytes >= room) { // A line longer than there is room for.
        proxy->quit = true;
        return;
    }
    const ssize_t got =
        read(STDIN_FILENO, proxy->input + proxy->input_bytes, room - proxy->input_bytes);

    if (got <= 0) {
        proxy->quit = got == 0 || (errno != EINTR && errno != EAGAIN);
        return;
    }
    proxy->input_bytes += (size_t)got;
    proxy->input[proxy->input_bytes] = '\0';
    while (!proxy->quit && (end = strchr(proxy->input, '\n')) != NULL) {
        *end = '\0';
        command(proxy, proxy->input);
        proxy->input_bytes -= (size_t)(end + 1 - proxy->input);
        memmove(proxy->input, end + 1, proxy->input_bytes + 1);
    }
}

static void take_client(struct proxy *proxy, int listen_fd)
{
    struct proxy_link *link = proxy_link_accept(&proxy->site, listen_fd, ++proxy->link_number);

    if (link != NULL) {
        proxy->links[proxy->link_count++] = link;
    }
}

static int run(struct proxy *proxy, int listen_fd)
{
    struct pollfd polls[2 + 2 * LINKS_MAX];

    while (!proxy->quit) {
        int64_t wait_ms = -1;
        const int64_t now_ms = proxy_now_ms();
        polls[0] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
        polls[1] =
            (struct pollfd){.fd = proxy->link_count < LINKS_MAX ? listen_fd : -1, .events = POLLIN};
        for (size_t i = 0; i < proxy->link_count; i++) {
            proxy_link_polls(proxy->links[i], polls + 2 + 2 * i, now_ms, &wait_ms);
        }
        const size_t polled = proxy->link_count;
        if (poll(polls, 2 + 2 * polled, (int)wait_ms) < 0 && errno != EINTR) {
            perror("fault_proxy: poll");
            return 1;
        }
        for (size_t i = polled; i-- > 0;) {
            if (!proxy_link_step(proxy->links[i], polls + 2 + 2 * i)) {
                proxy_link_free(proxy->links[i]);
                proxy->links[i] = proxy->links[--proxy->link_count];
            }
        }
        if (polls[1].revents != 0) {
            take_client(proxy, listen_fd);
        }
        if (polls[0].revents != 0) {
            take_input(proxy);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct proxy proxy;
    const char *listen_at = NULL;
    const char *history = NULL;
    const char *name = "proxy";
    uint64_t seed = 1;
    int at = 1;

    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        if (strcmp(argv[at], "--listen") == 0) {
            listen_at = argv[at + 1];
        } else if (strcmp(argv[at], "--to") == 0) {
            proxy.site.to = argv[at + 1];
        } else if (strcmp(argv[at], "--seed") == 0) {
            seed = strtoull(argv[at + 1], NULL, 10);
        } else if (strcmp(argv[at], "--history") == 0) {
            history = argv[at + 1];
        } else if (strcmp(argv[at], "--name") == 0) {
            name = argv[at + 1];
        } else {
            return usage();
        }
    }
    if (listen_at == NULL || proxy.site.to == NULL) {
        return usage();
    }
    (void)signal(SIGPIPE, SIG_IGN);
    proxy.site.rules = proxy_rules_new(seed);
    for (; proxy.site.rules != NULL && at < argc; at++) {
        if (!proxy_rules_add(proxy.site.rules, argv[at])) {
            return 2;
        }
    }
    proxy.site.history = history != NULL ? proxy_history_open(history, name) : NULL;
    const int listen_fd = proxy_listen(listen_at);
    if (listen_fd < 0 || proxy.site.rules == NULL ||
        (history != NULL && proxy.site.history == NULL)) {
        return 1;
    }
    const int code = run(&proxy, listen_fd);
    counts(&proxy);
    for (size_t i = 0; i < proxy.link_count; i++) {
        proxy_link_free(proxy.links[i]);
    }
    (void)close(listen_fd);
    proxy_history_close(proxy.site.history);
    proxy_rules_free(proxy.site.rules);
    return code;
}
