/*
 * Tests snapshots, which are checkpoints in the root shm: the fields in their messages, and who can
 * fetch their bytes, and when.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/client.h"

/* Like scene_make(), but out/ is the root shm. */
static int memory_make(void **state)
{
    const int made = scene_make(state);
    const struct scene *scene = *state;
    FILE *file = fopen(scene->config, "ae");

    assert_non_null(file);
    assert_true(fprintf(file, "  shm: %s/out\n", scene->directory) > 0);
    assert_int_equal(fclose(file), 0);
    return made;
}
#define MEMORY_TEST(name) cmocka_unit_test_setup_teardown(name, memory_make, scene_free)

static struct evalq_client *client_of(const struct scene *scene, const char *snapshot_host)
{
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;

    options.snapshot_host = snapshot_host;
    if (evalq_client_open(&options, &client) != EVALQ_OK) {
        fail_msg("open: %s", evalq_client_error(NULL));
    }
    return client;
}

static bool thread_runs(void)
{
    char path[300];
    char name[64];
    bool found = false;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");

    assert_non_null(tasks);
    while ((entry = readdir(tasks)) != NULL) {
        (void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        read_text(path, name, sizeof(name));
        found = found || strcmp(name, "evalq-snapshots\n") == 0;
    }
    (void)closedir(tasks);
    return found;
}

/* The kernel may list a joined thread for a moment longer. */
static void thread_ends(void)
{
    FIXTURE_UNTIL(!thread_runs());
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

static bool refused(const char *place)
{
    const int fd = connect_to(place);

    if (fd >= 0) {
        (void)close(fd);
    }
    return fd < 0;
}

/* Returns the whole answer to a request for the job's snapshot. */
static size_t fetched(const struct evq_snapshot *snapshot, char *out, size_t out_bytes)
{
    struct evq_snapshot_request request = {.offset = 0};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    const int fd = connect_to(snapshot->place);
    size_t have = 0;
    ssize_t got = 1;

    assert_true(fd >= 0);
    memcpy(request.token, snapshot->token, sizeof(request.token));
    const size_t bytes = evq_snapshot_request_format(&request, line);
    assert_int_equal(send(fd, line, bytes, MSG_NOSIGNAL), bytes);
    while (got > 0 && have < out_bytes) {
        got = recv(fd, out + have, out_bytes - have, 0);
        have += got > 0 ? (size_t)got : 0;
    }
    (void)close(fd);
    return have;
}

static void client_serves_what_lies_in_memory_until_it_is_closed(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char boot[EVQ_SNAPSHOT_BOOT_BYTES_MAX + 1];
    char path[160];
    char file[8192];
    char answer[8192];
    struct stat info;

    thread_ends(); // A server of an earlier test may still run.
    submit_step(scene, client, 7);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    const struct evq_snapshot *snapshot = &claim->job->snapshot;
    assert_string_equal(claim->job->root, "shm");
    assert_true(claim->job->snapshot_given);
    evq_snapshot_boot(boot);
    assert_string_equal(snapshot->boot, boot);
    // Redis has a unix socket, so only this machine can use it.
    assert_true(strncmp(snapshot->place, "127.0.0.1:", 10) == 0);
    (void)snprintf(path, sizeof(path), "%s/out/step-7.safetensors", scene->directory);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(snapshot->bytes, info.st_size);
    FILE *stream = fopen(path, "re");
    assert_non_null(stream);
    assert_int_equal(fread(file, 1, sizeof(file), stream), info.st_size);
    (void)fclose(stream);

    FIXTURE_UNTIL(thread_runs()); // The new thread sets its name itself.
    const size_t got = fetched(snapshot, answer, sizeof(answer));
    const char *end = memchr(answer, '\n', got);
    assert_non_null(end);
    assert_int_equal(got - (size_t)(end + 1 - answer), info.st_size);
    assert_memory_equal(end + 1, file, (size_t)info.st_size);

    evalq_client_close(client);
    FIXTURE_UNTIL(refused(snapshot->place)); // close() waits for at most one second.
    thread_ends();
    evq_claim_free(claim);
}

/* If the trainer deletes the snapshot, the client serves its pinned copy. */
static void client_serves_the_pinned_copy(void **state)
{
    struct scene *scene = *state;
    struct evalq_client *client = scene_client(scene);
    char path[160];
    char answer[8192];

    submit_step(scene, client, 8);
    assert_flushed(client);
    (void)snprintf(path, sizeof(path), "%s/out/step-8.safetensors", scene->directory);
    assert_int_equal(unlink(path), 0);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_true(claim->job->pin[0] != '\0');
    assert_true(fetched(&claim->job->snapshot, answer, sizeof(answer)) >
                (size_t)claim->job->snapshot.bytes);
    assert_memory_equal(answer, "ok ", 3);
    evq_claim_free(claim);
    evalq_client_close(client);
}

static void client_starts_no_server_for_checkpoints_on_disk(void **state)
{
    struct scene *scene = *state; // This scene has only the root "test".
    struct evalq_client *client = scene_client(scene);

    thread_ends(); // Of the tests before.
    submit_step(scene, client, 1);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_string_equal(claim->job->root, "test");
    assert_false(claim->job->snapshot_given);
    assert_false(thread_runs());
    evq_claim_free(claim);
    evalq_client_close(client);
}

static void client_advertises_the_host_it_is_told(void **state)
{
    struct scene *scene = *state;
    char answer[64];

    struct evalq_client *client = client_of(scene, "trainer.example");
    submit_step(scene, client, 1);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_true(strncmp(claim->job->snapshot.place, "trainer.example:", 16) == 0);
    struct evq_snapshot local = claim->job->snapshot;
    char place[64];
    (void)snprintf(place, sizeof(place), "127.0.0.1:%s", local.place + 16);
    // The place is a name, so the server listens on all addresses of this machine.
    local.place = place;
    assert_true(fetched(&local, answer, sizeof(answer)) > 0);
    evq_claim_free(claim);
    evalq_client_close(client);

    thread_ends();
    client = client_of(scene, "none");
    submit_step(scene, client, 2);
    assert_flushed(client);
    claim = fixture_claim(scene->fx);
    assert_string_equal(claim->job->snapshot.place, "");
    assert_string_equal(claim->job->snapshot.token, "");
    assert_true(claim->job->snapshot.boot[0] != '\0');
    assert_false(thread_runs());
    evq_claim_free(claim);
    evalq_client_close(client);
}

static void client_takes_the_host_from_its_environment(void **state)
{
    struct scene *scene = *state;

    assert_int_equal(setenv("EVALQ_SNAPSHOT_HOST", "fe80::1", 1), 0);
    assert_int_equal(setenv("EVALQ_BOOT_ID", "the-clone", 1), 0);
    struct evalq_client *client = scene_client(scene);
    submit_step(scene, client, 1);
    assert_flushed(client);
    unsetenv("EVALQ_SNAPSHOT_HOST");
    unsetenv("EVALQ_BOOT_ID");
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_true(strncmp(claim->job->snapshot.place, "[fe80::1]:", 10) == 0);
    assert_string_equal(claim->job->snapshot.boot, "the-clone");
    evq_claim_free(claim);
    evalq_client_close(client);
}

/*
 * A submit from the spool also has the server's address, because the client adds it when it sends
 * the submit.
 */
static void client_serves_what_was_submitted_while_redis_was_away(void **state)
{
    struct scene *scene = *state;
    char answer[8192];
    char spool[160];
    struct stat info;

    fixture_redis_kill(scene->fx->redis);
    struct evalq_client *client = scene_client(scene);
    submit_step(scene, client, 3);
    (void)snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    FIXTURE_UNTIL(stat(spool, &info) == 0 && info.st_size > 100);
    scene_reconnect(scene);
    assert_flushed(client);
    struct evq_claim *claim = fixture_claim(scene->fx);
    assert_true(claim->job->snapshot.place[0] != '\0');
    assert_true(fetched(&claim->job->snapshot, answer, sizeof(answer)) > 0);
    assert_memory_equal(answer, "ok ", 3);
    evq_claim_free(claim);
    evalq_client_close(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        MEMORY_TEST(client_serves_what_lies_in_memory_until_it_is_closed),
        MEMORY_TEST(client_serves_the_pinned_copy),
        SCENE_TEST(client_starts_no_server_for_checkpoints_on_disk),
        MEMORY_TEST(client_advertises_the_host_it_is_told),
        MEMORY_TEST(client_takes_the_host_from_its_environment),
        MEMORY_TEST(client_serves_what_was_submitted_while_redis_was_away),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
