/*
 * Snapshots from one process's memory to another's: the worker's fetch against the producer's
 * server and against peers that misbehave. Loopback only.
 */
#include "fetch_fixture.h"

enum deed {
    CUT,     // Ends after half of what is still asked for, the first `cuts` times.
    GARBAGE, // Speaks another language.
    SILENT,  // Answers, then nothing more.
    DROPS,   // A byte now and then.
    LARGER,  // Has more than was announced.
    ENDLESS, // Says what was announced and sends on and on.
    FLIPPED, // One bit is another.
    MUTE,    // Never answers.
    HASTY    // Has a few bytes, and sends more of them in one go with its answer.
};

#define HASTY_BYTES 16
#define DROPS_MAX   150 // Ten times as long as is waited for them.

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
    if (villain->deed == HASTY) {
        reply.bytes = HASTY_BYTES;
        const size_t head = evq_snapshot_reply_format(&reply, line);
        memcpy(line + head, from, 2 * HASTY_BYTES);
        villain_send(fd, line, head + 2 * HASTY_BYTES);
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
        for (size_t i = 0; i < DROPS_MAX && !atomic_load(&villain->stop); i++) {
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
    assert_status_err(fetch(scene, &patient_limits, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    assert_int_equal(fetched.cuts, 2);
    evq_fetch_close(&fetched);
    assert_int_equal(villain_stop(&villain), 3);

    villain_start(&villain, scene, CUT);
    villain.cuts = 3; // Before the first connection: half, three quarters, seven eighths.
    assert_refused(scene, &patient_limits, EVQ_E_RETRY,
                   "broke off 3 times, at last after 4587520 bytes");
    assert_int_equal(villain_stop(&villain), 3);
}

static void fetch_gives_up_what_is_not_the_producer(void **state)
{
    struct scene *scene = *state;
    struct villain villain;

    villain_start(&villain, scene, GARBAGE);
    assert_refused(scene, &patient_limits, EVQ_E_GONE, "another program answers at ");
    assert_int_equal(villain_stop(&villain), 1);
    assert_refused(scene, &patient_limits, EVQ_E_GONE, "has ended"); // Now nobody listens there.
}

static void fetch_gives_up_a_peer_that_is_too_slow(void **state)
{
    static const enum deed slow[] = {SILENT, DROPS, MUTE};
    struct scene *scene = *state;

    for (size_t i = 0; i < sizeof(slow) / sizeof(slow[0]); i++) {
        struct villain villain;
        villain_start(&villain, scene, slow[i]);
        assert_refused(scene, &short_limits, EVQ_E_RETRY, "nothing came for");
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
    assert_refused(scene, &patient_limits, EVQ_E_CHANGED,
                   "sends 10485760 bytes of weights, but announced 5242880");
    (void)villain_stop(&villain);
    villain_start(&villain, scene, ENDLESS);
    assert_status_err(fetch(scene, &patient_limits, &fetched, &err), EVQ_OK, &err);
    assert_fetched(scene, &fetched);
    evq_fetch_close(&fetched);
    (void)villain_stop(&villain);

    char checksum[EVQ_SNAPSHOT_CHECKSUM_CHARS + 1];
    const XXH128_hash_t hash = XXH3_128bits(scene->data, HASTY_BYTES);
    evq_hex_128(hash.high64, hash.low64, checksum);
    scene->job->snapshot.bytes = HASTY_BYTES;
    scene->job->snapshot.checksum = checksum;
    villain_start(&villain, scene, HASTY);
    assert_status_err(fetch(scene, &patient_limits, &fetched, &err), EVQ_OK, &err);
    evq_fetch_close(&fetched);
    (void)villain_stop(&villain);

    scene->job->snapshot.place = scene->place;
    scene->job->snapshot.bytes = EVQ_SNAPSHOT_BYTES_MAX;
    assert_refused(scene, &patient_limits, EVQ_E_RETRY,
                   "not enough space for 281474976710656 bytes");
}

static void fetch_refuses_other_bytes_than_announced(void **state)
{
    struct scene *scene = *state;
    struct villain villain;

    villain_start(&villain, scene, FLIPPED);
    assert_refused(scene, &patient_limits, EVQ_E_RETRY, "have checksum");
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

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(fetch_brings_the_bytes_of_the_file),
        TEST(fetch_goes_on_where_it_was_cut_up_to_a_limit),
        TEST(fetch_gives_up_what_is_not_the_producer),
        TEST(fetch_gives_up_a_peer_that_is_too_slow),
        TEST(fetch_takes_no_byte_more_than_announced),
        TEST(fetch_refuses_other_bytes_than_announced),
        TEST(fetch_ends_when_its_job_is_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
