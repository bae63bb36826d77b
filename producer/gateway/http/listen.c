#include "producer/gateway/http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

#define BACKLOG 512

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)address;
        return (ntohl(four->sin_addr.s_addr) >> 24) == 127;
    }
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
    return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) != 0;
}

enum evq_status evq_listen_parse(const char *text, struct evq_listen *ret_listen,
                                 struct evq_error *err)
{
    char host[64] = "";
    const char *colon = strrchr(text, ':');
    const bool bracketed = text[0] == '[' && colon != NULL && colon > text && colon[-1] == ']';
    size_t bytes = colon != NULL ? (size_t)(colon - text) : 0;
    const char *port = colon != NULL ? colon + 1 : "";
    const size_t digits = strspn(port, "0123456789");
    const long number =
        digits > 0 && digits <= 5 && port[digits] == '\0' ? strtol(port, NULL, 10) : -1;

    memset(ret_listen, 0, sizeof *ret_listen);
    if (bracketed) {
        text++;
        bytes -= 2;
    }
    if (bytes > 0 && bytes < sizeof host) {
        memcpy(host, text, bytes);
        host[bytes] = '\0';
    }
    if (strcmp(host, "localhost") == 0) {
        (void)snprintf(host, sizeof host, "127.0.0.1");
    }
    struct sockaddr_in *four = (struct sockaddr_in *)&ret_listen->address;
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)&ret_listen->address;
    if (number < 0 || number > 65535) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "'%.80s' is not an address such as 127.0.0.1:8000 or [::1]:8000",
                             bracketed ? text - 1 : text);
    }
    if (!bracketed && inet_pton(AF_INET, host, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons((uint16_t)number);
        ret_listen->address_bytes = sizeof *four;
    } else if (bracketed && inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
        six->sin6_family = AF_INET6;
        six->sin6_port = htons((uint16_t)number);
        ret_listen->address_bytes = sizeof *six;
    } else {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "'%.60s' is not a numeric address: give one such as 127.0.0.1, 0.0.0.0 "
            "or [::1]",
            host);
    }
    ret_listen->loopback = is_loopback(&ret_listen->address);
    return EVQ_OK;
}

void evq_listen_peer(const struct sockaddr *address, char *out, size_t out_bytes)
{
    const void *bytes = NULL;
    if (address != NULL && address->sa_family == AF_INET) {
        bytes = &((const struct sockaddr_in *)(const void *)address)->sin_addr;
    } else if (address != NULL && address->sa_family == AF_INET6) {
        bytes = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    }
    if (bytes == NULL || inet_ntop(address->sa_family, bytes, out, (socklen_t)out_bytes) == NULL) {
        (void)snprintf(out, out_bytes, "?");
    }
}

enum evq_status evq_listen_open(const struct evq_listen *listen_at, int *ret_fd, char text[80],
                                struct evq_error *err)
{
    struct sockaddr_storage bound = listen_at->address;
    socklen_t bound_bytes = sizeof bound;
    char host[INET6_ADDRSTRLEN] = "";
    const int one = 1;

    int fd = socket(listen_at->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    evq_listen_peer((const struct sockaddr *)&bound, host, sizeof host);
    const bool six = bound.ss_family == AF_INET6;
    const uint16_t wanted = ntohs(six ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                      : ((struct sockaddr_in *)&bound)->sin_port);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(fd, (const struct sockaddr *)&listen_at->address, listen_at->address_bytes) != 0 ||
        listen(fd, BACKLOG) != 0 || getsockname(fd, (struct sockaddr *)&bound, &bound_bytes) != 0) {
        const int why = errno;
        evq_file_close(&fd);
        return evq_error_set(err, EVQ_E_IO, "listen on %s port %u: %s%s", host, (unsigned)wanted,
                             strerror(why),
                             why == EADDRINUSE ? "; stop the program that listens there, or choose "
                                                 "another port (--listen, gateway.listen)"
                                               : "");
    }
    const uint16_t port = ntohs(six ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                    : ((struct sockaddr_in *)&bound)->sin_port);
    (void)snprintf(text, 80, six ? "http://[%s]:%u" : "http://%s:%u", host, (unsigned)port);
    *ret_fd = fd;
    return EVQ_OK;
}
