/*
 * Snapshots from one process's memory to another's: the producer's server, who is served, what is
 * refused, how many at once. Loopback only.
 */
#include "fetch_fixture.h"

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
    assert_refused(scene, &patient_limits, EVQ_E_GONE, "has removed these weights");

    for (size_t i = 0; i < EVQ_SNAPSHOT_TOKEN_CHARS; i++) { // Right but for one of its letters.
        memcpy(request.token, scene->offer.token, sizeof(request.token));
        request.token[i] = request.token[i] == '0' ? '1' : '0';
        (void)evq_snapshot_request_format(&request, line);
        assert_int_equal(answer_of(scene, line, got, sizeof(got)), 5);
        assert_memory_equal(got, "gone\n", 5);
    }
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
    assert_refused(scene, &patient_limits, EVQ_E_GONE, "has removed these weights");
    assert_int_equal(unlink(scene->path), 0);
    assert_refused(scene, &patient_limits, EVQ_E_GONE, "has removed these weights");
    assert_int_equal(symlink("/etc/passwd", scene->path), 0);
    assert_refused(scene, &patient_limits, EVQ_E_GONE, "has removed these weights");
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

/* Where every step is evaluated, as many wait as memory holds. */
static void server_serves_the_first_of_thousands(void **state)
{
    struct scene *scene = *state;
    struct evq_snapshot_offer offer;
    struct evq_fetched fetched;
    struct evq_error err;
    char path[160];

    for (int i = 0; i < 3000; i++) {
        (void)snprintf(path, sizeof(path), "%s/%d.safetensors", scene->directory, i);
        file_write(path, scene->data, 1);
        assert_status_err(evq_snapshot_server_offer(scene->server, path, &offer, &err), EVQ_OK,
                          &err);
    }
    assert_status_err(fetch(scene, &patient_limits, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    evq_fetch_close(&fetched);
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
    assert_refused(scene, &patient_limits, EVQ_E_RETRY, "is busy");
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
    assert_status_err(fetch(scene, &patient_limits, &fetched, &err), EVQ_OK, &err);
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
    const struct timeval limit = {.tv_sec = (EVQ_SNAPSHOT_PEER_REQUEST_MS + DEADLINE) / 1000};
    const int fd = connect_to(scene->place);
    char byte;

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
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
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(server_gives_nothing_without_the_token),
        TEST(server_answers_nothing_to_what_is_no_request),
        TEST(server_serves_no_file_that_took_the_place),
        TEST(server_keeps_the_token_of_a_file_it_knows),
        TEST(server_serves_the_first_of_thousands),
        TEST(server_bounds_its_connections),
        TEST(server_serves_who_asks_before_who_says_nothing),
        TEST(server_closes_who_says_nothing_in_time),
        TEST(server_refuses_and_cuts_when_it_is_closed),
        TEST(server_is_not_held_by_a_forked_child),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
