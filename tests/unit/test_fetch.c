/*
 * Snapshots from one process's memory to another's: the producer's server and the worker's fetch,
 * against each other and each against peers that misbehave. Loopback only.
 */
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

#include "producer/snapshot_peer.h"
#include "producer/snapshot_server.h"
#include "shared/checkpoint/hex.h"
#include "shared/clock.h"
#include "tests/fixture/check.h"
#include "worker/fetch.h"

#define FILE_BYTES ((size_t)5 << 20)
#define DEADLINE   20000

static const struct evq_fetch_limits short_limits = {
    .connect_ms = 2000, .silence_ms = 300, .busy_ms = 300, .cuts_max = 3};

struct scene {
    char directory[64];
    char path[128];
    uint8_t *data;
    struct evq_snapshot_server *server;
    struct evq_snapshot_offer offer;
    const char *place;
    struct evq_job *job;
};

static void file_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));
    uint64_t seed = evq_clock_random();
    struct evq_error err = {.message = ""};

    print_message("seed %llu\n", (unsigned long long)seed);
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

static int teardown(void **state)
{
    struct scene *scene = *state;

    evq_snapshot_server_close(scene->server);
    evq_job_free(scene->job);
    evq_scratch_remove(scene->directory);
    free(scene->data);
    free(scene);
    return 0;
}

static enum evq_status fetch(struct scene *scene, const struct evq_fetch_limits *limits,
                             struct evq_fetched *fetched, struct evq_error *err)
{
    char scratch[96];

    (void)snprintf(scratch, sizeof(scratch), "%s/scratch", scene->directory);
    assert_status_err(evq_scratch_open(scratch, err), EVQ_OK, err);
    *fetched = (struct evq_fetched){.directory_fd = -1};
    err->message[0] = '\0';
    return evq_fetch_open(scene->job, scratch, limits, NULL, fetched, err);
}

static void assert_fetched(const struct scene *scene, const struct evq_fetched *fetched)
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
static void assert_refused(struct scene *scene, enum evq_status status, const char *words)
{
    struct evq_error err;
    struct evq_fetched fetched;

    assert_status_err(fetch(scene, &short_limits, &fetched, &err), status, &err);
    assert_holds(err.message, words);
    assert_null(strstr(err.message, scene->offer.token));
    assert_string_equal(fetched.directory, "");
}

static int connect_to(const char *place)
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
static size_t answer_of(const struct scene *scene, const char *line, char *out, size_t out_bytes)
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

enum deed {
    CUT,     // Ends after half of what is still asked for, the first `cuts` times.
    GARBAGE, // Speaks another language.
    SILENT,  // Answers, then nothing more.
    DROPS,   // A byte now and then.
    LARGER,  // Has more than was announced.
    ENDLESS, // Says what was announced and sends on and on.
    FLIPPED, // One bit is another.
    MUTE     // Never answers.
};

struct villain {
    struct scene *scene;
    enum deed deed;
    int cuts;
    int listen_fd;
    pthread_t thread;
    char place[64];
    atomic_int connections;
    atomic_bool stop;
};

static void villain_send(int fd, const void *data, size_t bytes)
{
    for (size_t sent = 0; sent < bytes;) {
        const ssize_t got = send(fd, (const char *)data + sent, bytes - sent, MSG_NOSIGNAL);
        if (got <= 0) {
            return;
        }
        sent += (size_t)got;
    }
}

/* Waits until the other side has closed. */
static void villain_linger(int fd)
{
    char byte;

    while (recv(fd, &byte, 1, 0) > 0) {
    }
}

static void villain_serve(struct villain *villain, int fd)
{
    struct evq_snapshot_request request = {.offset = 0};
    struct evq_snapshot_reply reply = {.word = EVQ_SNAPSHOT_OK, .bytes = FILE_BYTES};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];

    const ssize_t got = recv(fd, line, sizeof(line) - 1, 0);
    if (got <= 0 || evq_snapshot_request_parse(line, (size_t)got, &request, NULL) != EVQ_OK) {
        return;
    }
    const uint8_t *from = villain->scene->data + request.offset;
    const size_t left = FILE_BYTES - (size_t)request.offset;
    if (villain->deed == MUTE) {
        villain_linger(fd);
        return;
    }
    if (villain->deed == GARBAGE) {
        villain_send(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
        return;
    }
    reply.bytes = villain->deed == LARGER ? (int64_t)FILE_BYTES * 2 : (int64_t)FILE_BYTES;
    villain_send(fd, line, evq_snapshot_reply_format(&reply, line));
    switch (villain->deed) {
    case CUT:
        villain_send(fd, from,
                     atomic_load(&villain->connections) <= villain->cuts ? left / 2 : left);
        break;
    case SILENT:
        villain_linger(fd);
        break;
    case DROPS:
        for (size_t i = 0; i < left && !atomic_load(&villain->stop); i++) {
            if (send(fd, from + i, 1, MSG_NOSIGNAL) != 1) {
                break;
            }
            (void)usleep(20000);
        }
        break;
    case FLIPPED:
        villain_send(fd, from, left - 1);
        line[0] = (char)(from[left - 1] ^ 1);
        villain_send(fd, line, 1);
        break;
    default:
        villain_send(fd, from, left);
        villain_send(fd, from, left); // And once more.
        break;
    }
}

static void *villain_main(void *argument)
{
    struct villain *villain = argument;

    while (!atomic_load(&villain->stop)) {
        const int fd = accept4(villain->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            break;
        }
        atomic_fetch_add(&villain->connections, 1);
        villain_serve(villain, fd);
        (void)close(fd);
    }
    return NULL;
}

static void villain_start(struct villain *villain, struct scene *scene, enum deed deed)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);

    *villain = (struct villain){.scene = scene, .deed = deed, .cuts = 2};
    villain->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(villain->listen_fd >= 0);
    assert_int_equal(bind(villain->listen_fd, (const struct sockaddr *)&address, sizeof(address)),
                     0);
    assert_int_equal(listen(villain->listen_fd, 16), 0);
    assert_int_equal(getsockname(villain->listen_fd, (struct sockaddr *)&address, &bytes), 0);
    (void)snprintf(villain->place, sizeof(villain->place), "127.0.0.1:%u",
                   (unsigned)ntohs(address.sin_port));
    scene->job->snapshot.place = villain->place;
    assert_int_equal(pthread_create(&villain->thread, NULL, villain_main, villain), 0);
}

static int villain_stop(struct villain *villain)
{
    atomic_store(&villain->stop, true);
    (void)shutdown(villain->listen_fd, SHUT_RDWR);
    (void)pthread_join(villain->thread, NULL);
    (void)close(villain->listen_fd);
    return atomic_load(&villain->connections);
}

/* ---- the tests ---- */

static void fetch_brings_the_bytes_of_the_file(void **state)
{
    struct scene *scene = *state;
    struct evq_fetched fetched;
    struct evq_error err;

    assert_status_err(fetch(scene, &evq_fetch_limits_default, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    assert_int_equal(fetched.cuts, 0);
    char directory[EVQ_SCRATCH_PATH_BYTES];
    (void)snprintf(directory, sizeof(directory), "%s", fetched.directory);
    assert_int_equal(access(directory, F_OK), 0);
    evq_fetch_close(&fetched);
    assert_int_not_equal(access(directory, F_OK), 0);
}

static void fetch_goes_on_where_it_was_cut_up_to_a_limit(void **state)
{
    struct scene *scene = *state;
    struct evq_fetched fetched;
    struct villain villain;
    struct evq_error err;

    villain_start(&villain, scene, CUT);
    assert_status_err(fetch(scene, &short_limits, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    assert_int_equal(fetched.cuts, 2);
    evq_fetch_close(&fetched);
    assert_int_equal(villain_stop(&villain), 3);

    villain_start(&villain, scene, CUT);
    villain.cuts = 3; // Before the first connection: half, three quarters, seven eighths.
    assert_refused(scene, EVQ_E_RETRY, "cut 3 times at 4587520 bytes");
    assert_int_equal(villain_stop(&villain), 3);
}

static void fetch_gives_up_what_is_not_the_producer(void **state)
{
    struct scene *scene = *state;
    struct villain villain;

    villain_start(&villain, scene, GARBAGE);
    assert_refused(scene, EVQ_E_GONE, "is not its producer");
    assert_int_equal(villain_stop(&villain), 1);
    assert_refused(scene, EVQ_E_GONE, "is no more"); // Now nobody listens there.
}

static void fetch_gives_up_a_peer_that_is_too_slow(void **state)
{
    static const enum deed slow[] = {SILENT, DROPS, MUTE};
    struct scene *scene = *state;

    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
        struct villain villain;
        villain_start(&villain, scene, slow[i]);
        assert_refused(scene, EVQ_E_RETRY, "cut 3 times");
        assert_int_equal(villain_stop(&villain), 3);
    }
}

static void fetch_takes_no_byte_more_than_announced(void **state)
{
    struct scene *scene = *state;
    struct evq_fetched fetched;
    struct villain villain;
    struct evq_error err;

    villain_start(&villain, scene, LARGER);
    assert_refused(scene, EVQ_E_CHANGED, "has 10485760 bytes, announced 5242880");
    (void)villain_stop(&villain);
    villain_start(&villain, scene, ENDLESS);
    assert_status_err(fetch(scene, &short_limits, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    evq_fetch_close(&fetched);
    (void)villain_stop(&villain);

    scene->job->snapshot.place = scene->place;
    scene->job->snapshot.bytes = EVQ_SNAPSHOT_BYTES_MAX;
    assert_refused(scene, EVQ_E_RETRY, "no room for 281474976710656 bytes");
}

static void fetch_refuses_other_bytes_than_announced(void **state)
{
    struct scene *scene = *state;
    struct villain villain;

    villain_start(&villain, scene, FLIPPED);
    assert_refused(scene, EVQ_E_RETRY, "have checksum");
    (void)villain_stop(&villain);
}

static enum evq_status stop_at_once(void *context, int64_t done, int64_t total, const char *status)
{
    (void)done, (void)total;
    assert_holds(status, "fetching the weights");
    ++*(int *)context;
    return EVQ_E_STOPPED;
}

static void fetch_ends_when_its_job_is_cancelled(void **state)
{
    struct scene *scene = *state;
    int asked = 0;
    const struct evq_eval_report report = {.context = &asked, .progress = stop_at_once};
    struct evq_fetched fetched = {.directory_fd = -1};
    struct villain villain;
    struct evq_error err;

    villain_start(&villain, scene, SILENT);
    assert_status_err(evq_fetch_open(scene->job, scene->directory, &evq_fetch_limits_default,
                                     &report, &fetched, &err),
                      EVQ_E_STOPPED, &err);
    assert_int_equal(asked, 1);
    (void)villain_stop(&villain);
}

static void server_gives_nothing_without_the_token(void **state)
{
    struct scene *scene = *state;
    struct evq_snapshot_request request = {.offset = 0};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    char got[64];

    evq_snapshot_token(request.token);
    (void)evq_snapshot_request_format(&request, line);
    assert_int_equal(answer_of(scene, line, got, sizeof(got)), 5);
    assert_memory_equal(got, "gone\n", 5);
    scene->job->snapshot.token = request.token;
    assert_refused(scene, EVQ_E_GONE, "has dropped it");

    memcpy(request.token, scene->offer.token, sizeof(request.token)); // Right, but beyond the end.
    request.offset = (int64_t)FILE_BYTES + 1;
    (void)evq_snapshot_request_format(&request, line);
    assert_int_equal(answer_of(scene, line, got, sizeof(got)), 5);
    assert_memory_equal(got, "gone\n", 5);
}

static void server_answers_nothing_to_what_is_no_request(void **state)
{
    static const char *const lines[] = {
        "GET / HTTP/1.1\r\n\r\n",
        "evalq-snapshot 1 \n",
        "evalq-snapshot 2 00000000000000000000000000000000 0\n",
        "evalq-snapshot 1 0000000000000000000000000000000 0\n",
        "evalq-snapshot 1 00000000000000000000000000000000 -1\n",
        "evalq-snapshot 1 00000000000000000000000000000000 01\n",
        "evalq-snapshot 1 00000000000000000000000000000000 0\nmore",
        "evalq-snapshot 1 00000000000000000000000000000000 9999999999999999999999999999999999999\n",
    };
    struct scene *scene = *state;
    char got[64];

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        assert_int_equal(answer_of(scene, lines[i], got, sizeof(got)), 0);
    }
}

static void server_serves_no_file_that_took_the_place(void **state)
{
    struct scene *scene = *state;
    char other[160];

    (void)snprintf(other, sizeof(other), "%s.new", scene->path);
    file_write(other, scene->data, FILE_BYTES);
    assert_int_equal(rename(other, scene->path), 0);
    assert_refused(scene, EVQ_E_GONE, "has dropped it");
    assert_int_equal(unlink(scene->path), 0);
    assert_refused(scene, EVQ_E_GONE, "has dropped it");
    assert_int_equal(symlink("/etc/passwd", scene->path), 0);
    assert_refused(scene, EVQ_E_GONE, "has dropped it");
}

static void server_keeps_the_token_of_a_file_it_knows(void **state)
{
    struct scene *scene = *state;
    struct evq_snapshot_offer again;
    struct evq_error err;

    assert_status_err(evq_snapshot_server_offer(scene->server, scene->path, &again, &err), EVQ_OK,
                      &err);
    assert_string_equal(again.token, scene->offer.token);
    XXH128_hash_t hash = XXH3_128bits(scene->data, FILE_BYTES);
    char checksum[33];
    evq_hex_128(hash.high64, hash.low64, checksum);
    assert_string_equal(again.checksum, checksum);
    assert_status(evq_snapshot_server_offer(scene->server, scene->directory, &again, &err),
                  EVQ_E_INVALID);
    assert_status(evq_snapshot_server_offer(scene->server, "/dev/null", &again, &err),
                  EVQ_E_INVALID);
    assert_status(evq_snapshot_server_offer(scene->server, "/dev/shm/not-there", &again, &err),
                  EVQ_E_NOT_FOUND);
}

/* Whoever knows a token and takes nothing: the place stays taken. */
static int ask_and_take_one_byte(const struct scene *scene)
{
    struct evq_snapshot_request request = {.offset = 0};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    const int room = 4096; // The file does not fit on its way.
    char byte;

    memcpy(request.token, scene->offer.token, sizeof(request.token));
    const size_t bytes = evq_snapshot_request_format(&request, line);
    const int fd = connect_to(scene->place);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
    assert_int_equal(send(fd, line, bytes, MSG_NOSIGNAL), bytes);
    assert_int_equal(recv(fd, &byte, 1, 0), 1);
    return fd;
}

static void server_bounds_its_connections(void **state)
{
    struct scene *scene = *state;
    int fds[EVQ_SNAPSHOT_SERVER_PEERS_MAX];
    struct evq_fetched fetched;
    struct evq_error err;

    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        fds[i] = ask_and_take_one_byte(scene);
    }
    assert_refused(scene, EVQ_E_RETRY, "is busy");
    for (size_t i = 0; i < EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        (void)close(fds[i]);
    }
    assert_status_err(fetch(scene, &evq_fetch_limits_default, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    evq_fetch_close(&fetched);
}

/* Without a token nobody keeps out who has one, however many connections it holds. */
static void server_serves_who_asks_before_who_says_nothing(void **state)
{
    struct scene *scene = *state;
    int fds[3 * EVQ_SNAPSHOT_SERVER_PEERS_MAX];
    struct evq_fetched fetched;
    struct evq_error err;
    char byte;

    for (size_t i = 0; i < 3 * EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        fds[i] = connect_to(scene->place);
        assert_true(fds[i] >= 0);
    }
    assert_status_err(fetch(scene, &short_limits, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    evq_fetch_close(&fetched);
    assert_int_equal(recv(fds[0], &byte, 1, 0), 0); // Closed without a word.
    for (size_t i = 0; i < 3 * EVQ_SNAPSHOT_SERVER_PEERS_MAX; i++) {
        (void)close(fds[i]);
    }
}

static void server_closes_who_says_nothing_in_time(void **state)
{
    struct scene *scene = *state;
    const int64_t start_ms = evq_clock_mono_ms();
    const int fd = connect_to(scene->place);
    char byte;

    assert_true(fd >= 0);
    assert_int_equal(send(fd, "evalq", 5, MSG_NOSIGNAL), 5); // Half a request is none.
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    const int64_t took_ms = evq_clock_mono_ms() - start_ms;
    assert_in_range(took_ms, EVQ_SNAPSHOT_PEER_REQUEST_MS - 100,
                    EVQ_SNAPSHOT_PEER_REQUEST_MS + DEADLINE);
    (void)close(fd);
}

static void server_refuses_and_cuts_when_it_is_closed(void **state)
{
    struct scene *scene = *state;
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    char byte;
    struct evq_snapshot_request request = {.offset = 0};

    memcpy(request.token, scene->offer.token, sizeof(request.token));
    const size_t bytes = evq_snapshot_request_format(&request, line);
    const int fd = connect_to(scene->place);
    assert_true(fd >= 0);
    assert_int_equal(send(fd, line, bytes, MSG_NOSIGNAL), bytes);
    assert_int_equal(recv(fd, &byte, 1, 0), 1); // It has begun.
    char place[64];
    (void)snprintf(place, sizeof(place), "%s", scene->place);
    const pid_t pid = fork(); // As a data loader's process: it must not keep the port alive.
    if (pid == 0) {
        (void)pause();
        _exit(0);
    }
    evq_snapshot_server_close(scene->server);
    scene->server = NULL;
    size_t rest = 1;
    for (ssize_t got = 1; got > 0; rest += got > 0 ? (size_t)got : 0) {
        got = recv(fd, scene->data, FILE_BYTES, 0);
    }
    assert_true(rest < FILE_BYTES);
    assert_int_equal(connect_to(place), -1);
    (void)close(fd);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

static void server_is_not_held_by_a_forked_child(void **state)
{
    int listening = 0;
    socklen_t bytes = sizeof(listening);
    int status = -1;

    (void)state;
    const pid_t pid = fork();
    if (pid == 0) {
        for (int fd = 3; fd < 64; fd++) {
            listening = 0;
            if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) == 0 &&
                listening != 0) {
                _exit(1);
            }
        }
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(fetch_brings_the_bytes_of_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(fetch_goes_on_where_it_was_cut_up_to_a_limit, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(fetch_gives_up_what_is_not_the_producer, setup, teardown),
        cmocka_unit_test_setup_teardown(fetch_gives_up_a_peer_that_is_too_slow, setup, teardown),
        cmocka_unit_test_setup_teardown(fetch_takes_no_byte_more_than_announced, setup, teardown),
        cmocka_unit_test_setup_teardown(fetch_refuses_other_bytes_than_announced, setup, teardown),
        cmocka_unit_test_setup_teardown(fetch_ends_when_its_job_is_cancelled, setup, teardown),
        cmocka_unit_test_setup_teardown(server_gives_nothing_without_the_token, setup, teardown),
        cmocka_unit_test_setup_teardown(server_answers_nothing_to_what_is_no_request, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(server_serves_no_file_that_took_the_place, setup, teardown),
        cmocka_unit_test_setup_teardown(server_keeps_the_token_of_a_file_it_knows, setup, teardown),
        cmocka_unit_test_setup_teardown(server_bounds_its_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(server_serves_who_asks_before_who_says_nothing, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(server_closes_who_says_nothing_in_time, setup, teardown),
        cmocka_unit_test_setup_teardown(server_refuses_and_cuts_when_it_is_closed, setup, teardown),
        cmocka_unit_test_setup_teardown(server_is_not_held_by_a_forked_child, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
