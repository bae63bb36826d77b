/*
 * beanstalkd for tests/bench/peers/speed.py: puts jobs of 300 bytes, or reserves and deletes them,
 * 16 in flight on one connection to 127.0.0.1. Prints the seconds it took.
 *
 *     beanstalk_noop PORT put|drain COUNT
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { FLIGHT = 16, BODY = 300 };

static void die(const char *what)
{
    (void)fprintf(stderr, "beanstalk_noop: %s\n", what);
    exit(1);
}

static FILE *dial(int port, int *ret_fd)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        die("cannot connect");
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *ret_fd = fd;
    return fdopen(fd, "r");
}

static void send_all(int fd, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
        if (sent <= 0) {
            die("cannot send");
        }
        data += sent;
        bytes -= (size_t)sent;
    }
}

static void expect(FILE *in, const char *word, char *line, size_t bytes)
{
    if (fgets(line, (int)bytes, in) == NULL || strncmp(line, word, strlen(word)) != 0) {
        die("an answer that was not expected");
    }
}

static void put(FILE *in, int fd, long count)
{
    static char out[FLIGHT * (BODY + 64)];
    char line[128];

    for (long at = 0; at < count; at += FLIGHT) {
        size_t bytes = 0;
        for (int i = 0; i < FLIGHT; i++) {
            bytes += (size_t)snprintf(out + bytes, sizeof out - bytes,
                                      "put 100 0 60 %d\r\n%0*d\r\n", BODY, BODY, 7);
        }
        send_all(fd, out, bytes);
        for (int i = 0; i < FLIGHT; i++) {
            expect(in, "INSERTED", line, sizeof line);
        }
    }
}

static void drain(FILE *in, int fd, long count)
{
    static char out[FLIGHT * 64];
    char line[512];

    for (long at = 0; at < count; at += FLIGHT) {
        size_t bytes = 0;
        for (int i = 0; i < FLIGHT; i++) {
            bytes +=
                (size_t)snprintf(out + bytes, sizeof out - bytes, "reserve-with-timeout 5\r\n");
        }
        send_all(fd, out, bytes);
        bytes = 0;
        for (int i = 0; i < FLIGHT; i++) {
            unsigned long long id;
            expect(in, "RESERVED", line, sizeof line);
            id = strtoull(line + strlen("RESERVED"), NULL, 10);
            if (fgets(line, sizeof line, in) == NULL) { // The body.
                die("no body");
            }
            bytes += (size_t)snprintf(out + bytes, sizeof out - bytes, "delete %llu\r\n", id);
        }
        send_all(fd, out, bytes);
        for (int i = 0; i < FLIGHT; i++) {
            expect(in, "DELETED", line, sizeof line);
        }
    }
}

int main(int argc, char **argv)
{
    struct timespec start, end;
    long count = argc == 4 ? atol(argv[3]) / FLIGHT * FLIGHT : 0;
    int fd = -1;

    if (count < FLIGHT) {
        (void)fprintf(stderr, "usage: beanstalk_noop PORT put|drain COUNT, 16 or more\n");
        return 2;
    }
    FILE *in = dial(atoi(argv[1]), &fd);
    clock_gettime(CLOCK_MONOTONIC, &start);
    (strcmp(argv[2], "put") == 0 ? put : drain)(in, fd, count);
    clock_gettime(CLOCK_MONOTONIC, &end);
    (void)printf("%.6f\n",
                 (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9);
    (void)fclose(in);
    return 0;
}
