/*
 * Tests the fault proxy of tests/faults with a real Redis: each fault is the named one, happens
 * where its rule says, and is counted. The test asks Redis directly what it has done.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/fixture/program.h"
#include "tests/fixture/queue.h"

#define PROXY EVQ_TEST_BIN "/fault_proxy"

enum { RULES_MAX = 4 };

struct stand {
    struct fixture *fx;
    char path[96];    // The path of the proxy's socket.
    char history[96]; // "" means none.
    pid_t pid;
    int input;
    FILE *output;
};

static int setup(void **state)
{
    struct stand *stand = calloc(1, sizeof *stand);

    assert_non_null(stand);
    stand->fx = fixture_open(NULL);
    (void)snprintf(stand->path, sizeof stand->path, "%s/proxy", stand->fx->redis->dir);
    *state = stand;
    return 0;
}

static void become_proxy(const struct stand *stand, const int pipes[4], const char *const *rules)
{
    const char *words[16 + RULES_MAX] = {PROXY, "--listen", stand->path, "--to",
                                         stand->fx->redis->socket};
    size_t count = 5;

    words[count++] = "--seed";
    words[count++] = "7";
    if (stand->history[0] != '\0') {
        words[count++] = "--history";
        words[count++] = stand->history;
        words[count++] = "--name";
        words[count++] = "p";
    }
    for (size_t i = 0; rules[i] != NULL; i++) {
        words[count++] = rules[i];
    }
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)dup2(pipes[0], 0);
    (void)dup2(pipes[3], 1);
    for (int i = 0; i < 4; i++) {
        (void)close(pipes[i]);
    }
    (void)execv(PROXY, (char **)(uintptr_t)words);
    _exit(127);
}

/* Starts the proxy with these rules, which NULL ends. It listens when this returns. */
static void start(struct stand *stand, ...)
{
    const char *rules[RULES_MAX + 1] = {NULL};
    char line[160];
    int pipes[4];
    va_list list;

    va_start(list, stand);
    for (size_t i = 0; i < RULES_MAX && (rules[i] = va_arg(list, const char *)) != NULL; i++) {
    }
    va_end(list);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(pipe(pipes + 2), 0);
    stand->pid = fork();
    assert_true(stand->pid >= 0);
    if (stand->pid == 0) {
        become_proxy(stand, pipes, rules);
    }
    (void)close(pipes[0]);
    (void)close(pipes[3]);
    stand->input = pipes[1];
    stand->output = fdopen(pipes[2], "r");
    assert_non_null(fgets(line, sizeof line, stand->output));
    assert_holds(line, "listening ");
}

static void say(struct stand *stand, const char *line)
{
    assert_int_equal(dprintf(stand->input, "%s\n", line), (int)strlen(line) + 1);
}

/* Returns the proxy's count of a fault for a verb. */
static int happened(struct stand *stand, const char *fault, const char *verb)
{
    char line[160];
    char wanted[96];
    int found = 0;

    say(stand, "counts");
    (void)snprintf(wanted, sizeof wanted, "fault %s %s ", fault, verb);
    while (fgets(line, sizeof line, stand->output) != NULL && strcmp(line, "end\n") != 0) {
        if (strncmp(line, wanted, strlen(wanted)) == 0) {
            found = atoi(line + strlen(wanted));
        }
    }
    return found;
}

static int teardown(void **state)
{
    struct stand *stand = *state;
    int status = -1;

    if (stand->pid > 0) {
        (void)close(stand->input); // The proxy ends when its input ends.
        assert_int_equal(waitpid(stand->pid, &status, 0), stand->pid);
        assert_int_equal(status, 0);
        (void)fclose(stand->output);
    }
    fixture_close(stand->fx);
    free(stand);
    return 0;
}

static int client(const struct stand *stand)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, stand->path, strlen(stand->path) + 1);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Sends the command INCR thing. */
static void incr(int fd, const char *thing)
{
    char text[128];
    const int bytes =
        snprintf(text, sizeof text, "*2\r\n$4\r\nINCR\r\n$%zu\r\n%s\r\n", strlen(thing), thing);

    assert_int_equal(send(fd, text, (size_t)bytes, MSG_NOSIGNAL), bytes);
}

/*
 * Reads until the peer closes the connection, or until the data contain `until`. Returns the data
 * and how it ended.
 */
struct heard {
    char text[512];
    size_t bytes;
    bool ended;
    int error; // The errno of the end; 0 means a regular end.
    size_t pieces;
};

static struct heard hear(int fd, const char *until)
{
    struct heard heard = {.bytes = 0};
    const int64_t end_ms = fixture_now_ms() + fixture_patience_ms();

    while (!heard.ended && (until == NULL || strstr(heard.text, until) == NULL)) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        fixture_tick(end_ms, "the proxy says something", __FILE__, __LINE__);
        if (poll(&ready, 1, 1000) <= 0) {
            continue;
        }
        const ssize_t got =
            recv(fd, heard.text + heard.bytes, sizeof heard.text - heard.bytes - 1, 0);
        heard.ended = got <= 0;
        heard.error = got < 0 ? errno : 0;
        heard.bytes += got > 0 ? (size_t)got : 0;
        heard.pieces += got > 0;
    }
    return heard;
}

static int64_t value(const struct stand *stand, const char *thing)
{
    return (int64_t)strtoll(fixture_call_text(stand->fx->raw, "GET", thing, NULL).text, NULL, 10);
}

static void proxy_forwards_calls_without_a_rule(void **state)
{
    struct stand *stand = *state;

    start(stand, "cut_reply:complete:p=1", NULL);
    const int fd = client(stand);
    incr(fd, "a");
    incr(fd, "a"); // Two commands are sent together; the replies are in order.
    assert_string_equal(hear(fd, ":2\r\n").text, ":1\r\n:2\r\n");
    (void)close(fd);
    assert_int_equal(happened(stand, "cut_reply", "complete"), 0);
}

static void proxy_cuts_the_reply_of_what_redis_has_done(void **state)
{
    struct stand *stand = *state;

    start(stand, "cut_reply:incr:k=2", NULL);
    const int fd = client(stand);
    incr(fd, "a");
    assert_string_equal(hear(fd, "\n").text, ":1\r\n");
    incr(fd, "a");
    const struct heard heard = hear(fd, NULL);
    assert_true(heard.ended);
    assert_int_equal(heard.bytes, 0);
    assert_int_equal(value(stand, "a"), 2); // Redis has executed it, but the client does not know.
    assert_int_equal(happened(stand, "cut_reply", "incr"), 1);
    (void)close(fd);
}

static void proxy_cuts_a_request_before_redis_has_it(void **state)
{
    struct stand *stand = *state;

    start(stand, "cut_request:incr:k=1", "reset:decr:k=1", NULL);
    const int fd = client(stand);
    incr(fd, "a");
    assert_true(hear(fd, NULL).ended);
    assert_int_equal(value(stand, "a"), 0);
    assert_int_equal(happened(stand, "cut_request", "incr"), 1);
    (void)close(fd);
}

static void proxy_cuts_a_reply_in_its_middle(void **state)
{
    struct stand *stand = *state;

    start(stand, "cut_middle:incr:k=1", NULL);
    const int fd = client(stand);
    incr(fd, "a");
    const struct heard heard = hear(fd, NULL);
    assert_string_equal(heard.text, ":1");
    assert_int_equal(value(stand, "a"), 1);
    assert_int_equal(happened(stand, "cut_middle", "incr"), 1);
    (void)close(fd);
}

static void proxy_sends_garbage_instead_of_a_reply(void **state)
{
    struct stand *stand = *state;
    struct evq_conn *conn = NULL;
    struct evq_error err;
    struct evq_reply *got = NULL;
    char url[128];
    const char *words[] = {"INCR", "a"};

    start(stand, "garbage:incr:k=1", NULL);
    (void)snprintf(url, sizeof url, "unix://%s", stand->path);
    assert_status_err(evq_conn_open(&(struct evq_conn_config){.url = url}, &conn, &err), EVQ_OK,
                      &err);
    assert_status(evq_conn_call(conn, 2, words, NULL, 0, &got, &err), EVQ_E_IO);
    assert_status_err(evq_conn_call(conn, 2, words, NULL, 0, &got, &err), EVQ_OK, &err);
    assert_int_equal(got->integer, 2);
    evq_reply_free(got);
    evq_conn_close(conn);
    assert_int_equal(happened(stand, "garbage", "incr"), 1);
}

static void proxy_drips_a_reply_byte_by_byte(void **state)
{
    struct stand *stand = *state;

    start(stand, "drip:get:k=1", NULL);
    evq_reply_free(fixture_call(stand->fx->raw, "SET", "a", "0123456789", NULL));
    const int fd = client(stand);
    const char get[] = "*2\r\n$3\r\nGET\r\n$1\r\na\r\n";
    assert_int_equal(send(fd, get, sizeof get - 1, MSG_NOSIGNAL), (int)sizeof get - 1);
    assert_string_equal(hear(fd, "9\r\n").text, "$10\r\n0123456789\r\n");
    assert_int_equal(happened(stand, "drip", "get"), 1);
    (void)close(fd);
}

static void proxy_delays_a_request_and_continues(void **state)
{
    struct stand *stand = *state;

    start(stand, "stall:incr:k=1:ms=300", NULL);
    const int fd = client(stand);
    const int other = client(stand);
    const int64_t begun_ms = fixture_now_ms();
    incr(fd, "a");
    incr(fd, "a");
    FIXTURE_UNTIL(happened(stand, "stall", "incr") == 1);
    incr(other, "b"); // Other connections are not delayed.
    assert_string_equal(hear(other, "\n").text, ":1\r\n");
    assert_string_equal(hear(fd, ":2\r\n").text, ":1\r\n:2\r\n");
    assert_true(fixture_now_ms() - begun_ms >= 300);
    (void)close(fd);
    (void)close(other);
}

static void proxy_closes_half_and_blocks_one_way(void **state)
{
    struct stand *stand = *state;

    start(stand, "half_close:incr:k=1", "block:decr:k=1:ms=200", NULL);
    const int fd = client(stand);
    incr(fd, "a");
    assert_int_equal(hear(fd, NULL).bytes, 0); // The connection ends without an error.
    incr(fd, "a");                             // The other direction is still open.
    FIXTURE_UNTIL(value(stand, "a") == 2);
    (void)close(fd);
    const int blocked = client(stand);
    const char decr[] = "*2\r\n$4\r\nDECR\r\n$1\r\na\r\n";
    assert_int_equal(send(blocked, decr, sizeof decr - 1, MSG_NOSIGNAL), (int)sizeof decr - 1);
    incr(blocked, "b");
    FIXTURE_UNTIL(value(stand, "b") == 1);          // Data from the client arrive;
    assert_int_equal(hear(blocked, NULL).bytes, 0); // data to the client do not.
    assert_int_equal(happened(stand, "half_close", "incr"), 1);
    assert_int_equal(happened(stand, "block", "decr"), 1);
    (void)close(blocked);
}

static void proxy_resets_a_connection(void **state)
{
    struct stand *stand = *state;

    start(stand, "reset:incr:every=2", NULL);
    const int fd = client(stand);
    incr(fd, "a");
    assert_string_equal(hear(fd, "\n").text, ":1\r\n");
    incr(fd, "a");
    assert_true(hear(fd, NULL).ended);
    assert_int_equal(value(stand, "a"), 1);
    assert_int_equal(happened(stand, "reset", "incr"), 1);
    (void)close(fd);
}

static void proxy_takes_rules_while_it_runs(void **state)
{
    struct stand *stand = *state;

    start(stand, NULL);
    say(stand, "rule cut_reply:incr:k=1");
    assert_int_equal(happened(stand, "cut_reply", "incr"), 0);
    const int fd = client(stand);
    incr(fd, "a");
    assert_true(hear(fd, NULL).ended);
    assert_int_equal(happened(stand, "cut_reply", "incr"), 1);
    say(stand, "clear");
    (void)close(fd);
    const int other = client(stand);
    incr(other, "a");
    assert_string_equal(hear(other, "\n").text, ":2\r\n");
    (void)close(other);
}

/* The wire's history: what was asked, what Redis answered though nobody heard it, who was refused.
 */
static void proxy_writes_the_history_of_the_queue(void **state)
{
    struct stand *stand = *state;
    struct evq_conn *conn = NULL;
    struct evq_queue *queue = NULL;
    struct evq_error err;
    char url[128];

    (void)snprintf(stand->history, sizeof stand->history, "%s/wire", stand->fx->redis->dir);
    start(stand, "cut_reply:complete:k=1", NULL);
    (void)snprintf(url, sizeof url, "unix://%s", stand->path);
    assert_status(evq_conn_open(&(struct evq_conn_config){.url = url}, &conn, &err), EVQ_OK);
    assert_status(evq_queue_open(conn, NULL, &queue, &err), EVQ_OK);
    struct evq_queue *beside = stand->fx->queue;
    stand->fx->queue = queue;
    (void)fixture_submit(stand->fx, "run/1/regular/quick");
    struct evq_claim *claim = fixture_claim(stand->fx);
    fixture_publish(stand->fx, claim, "t", 0.5);
    stand->fx->queue = beside;
    assert_status(evq_queue_complete(queue, claim->id, "1.wrong", &err), EVQ_E_IO);
    assert_status(evq_queue_complete(queue, claim->id, "1.wrong", &err), EVQ_E_LEASE_LOST);
    assert_status(evq_queue_complete(queue, claim->id, claim->token, &err), EVQ_OK);
    const char *dir = stand->fx->redis->dir;
    assert_int_equal(fixture_file_holds(dir, "wire", " invoke submit run/1/regular/quick - -"), 1);
    assert_int_equal(fixture_file_holds(dir, "wire", " ok submit run/1/regular/quick - queued"), 1);
    assert_int_equal(fixture_file_holds(dir, "wire", " ok claim run/1/regular/quick 1."), 1);
    assert_int_equal(fixture_file_holds(dir, "wire", " t=ok"), 1);
    assert_int_equal(
        fixture_file_holds(dir, "wire", " fail complete run/1/regular/quick 1.wrong stale"), 2);
    assert_int_equal(fixture_file_holds(dir, "wire", " ok complete run/1/regular/quick 1."), 1);
    evq_claim_free(claim);
    evq_queue_close(queue);
    evq_conn_close(conn);
}

int main(void)
{
#define PROXY_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        PROXY_TEST(proxy_forwards_calls_without_a_rule),
        PROXY_TEST(proxy_cuts_the_reply_of_what_redis_has_done),
        PROXY_TEST(proxy_cuts_a_request_before_redis_has_it),
        PROXY_TEST(proxy_cuts_a_reply_in_its_middle),
        PROXY_TEST(proxy_sends_garbage_instead_of_a_reply),
        PROXY_TEST(proxy_drips_a_reply_byte_by_byte),
        PROXY_TEST(proxy_delays_a_request_and_continues),
        PROXY_TEST(proxy_closes_half_and_blocks_one_way),
        PROXY_TEST(proxy_resets_a_connection),
        PROXY_TEST(proxy_takes_rules_while_it_runs),
        PROXY_TEST(proxy_writes_the_history_of_the_queue),
    };

    return cmocka_run_group_tests_name("fault_proxy", tests, NULL, NULL);
}
