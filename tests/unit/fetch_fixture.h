/*
 * A producer that serves a file of its memory on loopback, and a worker that fetches it.
 */
#ifndef EVQ_TESTS_UNIT_FETCH_FIXTURE_H
#define EVQ_TESTS_UNIT_FETCH_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "producer/client/snapshots/snapshot_peer.h"
#include "producer/client/snapshots/snapshot_server.h"
#include "shared/base/clock.h"
#include "shared/base/hex.h"
#include "tests/fixture/check.h"
#include "tests/fixture/random.h"
#include "worker/child/fetch.h"

#define FILE_BYTES ((size_t)5 << 20)
#define DEADLINE   20000

/* For a peer that is slow on purpose, and for those that are slow because the machine is busy. */
static const struct evq_fetch_limits short_limits = {
    .connect_ms = 60000, .silence_ms = 300, .busy_ms = 300, .cuts_max = 3};
static const struct evq_fetch_limits patient_limits = {
    .connect_ms = 60000, .silence_ms = 60000, .busy_ms = 300, .cuts_max = 3};

struct scene {
    char directory[64];
    char path[128];
    uint8_t *data;
    struct evq_snapshot_server *server;
    struct evq_snapshot_offer offer;
    const char *place;
    struct evq_job *job;
};

static inline void file_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));
    uint64_t seed = fixture_seed();
    struct evq_error err = {.message = ""};

    assert_non_null(scene);
    (void)snprintf(scene->directory, sizeof(scene->directory), "/dev/shm/evq-fetch-XXXXXX");
    assert_non_null(mkdtemp(scene->directory));
    (void)snprintf(scene->path, sizeof(scene->path), "%s/7-regular.safetensors", scene->directory);
    scene->data = malloc(FILE_BYTES);
    assert_non_null(scene->data);
    for (size_t i = 0; i < FILE_BYTES; i++) {
        scene->data[i] = (uint8_t)evq_clock_jitter_ms(&seed, 1000, 99);
    }
    file_write(scene->path, scene->data, FILE_BYTES);
    assert_status_err(evq_snapshot_server_open(&scene->server, &err), EVQ_OK, &err);
    assert_status_err(evq_snapshot_server_offer(scene->server, scene->path, &scene->offer, &err),
                      EVQ_OK, &err);
    assert_status_err(evq_snapshot_server_listen(scene->server, "127.0.0.1", &scene->place, &err),
                      EVQ_OK, &err);
    scene->job = evq_job_new();
    assert_non_null(scene->job);
    scene->job->path = "snapshots-1/7-regular.safetensors";
    scene->job->snapshot_given = true;
    scene->job->snapshot = (struct evq_snapshot){.boot = "x",
                                                 .place = scene->place,
                                                 .token = scene->offer.token,
                                                 .bytes = scene->offer.bytes,
                                                 .checksum = scene->offer.checksum};
    *state = scene;
    return 0;
}

static inline int teardown(void **state)
{
    struct scene *scene = *state;

    evq_snapshot_server_close(scene->server);
    evq_job_free(scene->job);
    evq_scratch_remove(scene->directory);
    free(scene->data);
    free(scene);
    return 0;
}

static inline enum evq_status fetch(struct scene *scene, const struct evq_fetch_limits *limits,
                                    struct evq_fetched *fetched, struct evq_error *err)
{
    char scratch[96];

    (void)snprintf(scratch, sizeof(scratch), "%s/scratch", scene->directory);
    assert_status_err(evq_scratch_open(scratch, err), EVQ_OK, err);
    *fetched = (struct evq_fetched){.directory_fd = -1};
    err->message[0] = '\0';
    return evq_fetch_open(scene->job, scratch, limits, NULL, fetched, err);
}

static inline void assert_fetched(const struct scene *scene, const struct evq_fetched *fetched)
{
    uint8_t *found = malloc(FILE_BYTES + 1);
    const int fd = openat(fetched->directory_fd, "7-regular.safetensors", O_RDONLY | O_CLOEXEC);
    struct stat info;

    assert_non_null(found);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_size, FILE_BYTES);
    assert_int_equal(pread(fd, found, FILE_BYTES + 1, 0), FILE_BYTES);
    assert_memory_equal(found, scene->data, FILE_BYTES);
    (void)close(fd);
    free(found);
}

/* A fetch that must fail with status and words, and leave no file behind. */
static inline void assert_refused(struct scene *scene, const struct evq_fetch_limits *limits,
                                  enum evq_status status, const char *words)
{
    struct evq_error err;
    struct evq_fetched fetched;

    assert_status_err(fetch(scene, limits, &fetched, &err), status, &err);
    assert_holds(err.message, words);
    assert_null(strstr(err.message, scene->offer.token));
    assert_string_equal(fetched.directory, "");
}

static inline int connect_to(const char *place)
{
    char host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    struct sockaddr_in address = {.sin_family = AF_INET};
    uint16_t port = 0;

    assert_status(evq_snapshot_place_parse(place, host, &port, NULL), EVQ_OK);
    address.sin_port = htons(port);
    assert_int_equal(inet_pton(AF_INET, host, &address.sin_addr), 1);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) != 0) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* What the server answers before it closes. */
static inline size_t answer_of(const struct scene *scene, const char *line, char *out,
                               size_t out_bytes)
{
    const int fd = connect_to(scene->place);
    size_t have = 0;
    ssize_t got = 1;

    assert_true(fd >= 0);
    assert_int_equal(send(fd, line, strlen(line), MSG_NOSIGNAL), strlen(line));
    while (got > 0 && have < out_bytes) {
        got = recv(fd, out + have, out_bytes - have, 0);
        have += got > 0 ? (size_t)got : 0;
    }
    (void)close(fd);
    return have;
}

/* ---- a peer that misbehaves ---- */

#endif
