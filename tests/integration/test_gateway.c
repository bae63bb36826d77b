/*
 * Tests evalq-gateway: it starts, answers authorized clients, and ends in order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/http.h"

#define BIN EVQ_TEST_BIN "/evalq-gateway"

static struct fixture_http_reply reply;

static int setup(void **state)
{
    *state = fixture_gateway_open(BIN, "--tokens", "tokens", NULL);
    return 0;
}

static int teardown(void **state)
{
    fixture_gateway_close(*state);
    return 0;
}

static int code_of(const struct fixture_gateway *gateway, const char *method, const char *target,
                   const char *token)
{
    fixture_http(gateway, method, target, token, NULL, &reply);
    return reply.code;
}

static void gateway_answers_and_drains(void **state)
{
    struct fixture_gateway *gateway = *state;
    json_t *health = fixture_http_json(gateway, 200, "GET", "/healthz", NULL, NULL);
    assert_string_equal(json_string_value(json_object_get(health, "status")), "ok");
    json_decref(health);
    json_t *ready = fixture_http_json(gateway, 200, "GET", "/readyz", NULL, NULL);
    assert_string_equal(json_string_value(json_object_get(ready, "queue")), "main");
    json_decref(ready);
    (void)fixture_submit(gateway->fx, "a/1/regular/quick");
    json_t *queue = fixture_http_json(gateway, 200, "GET", "/v1/queue", FIXTURE_TOKEN_READ, NULL);
    json_int_t queued =
        json_integer_value(json_object_get(json_object_get(queue, "states"), "queued"));
    assert_int_equal(queued, 1);
    json_decref(queue);
    assert_int_equal(fixture_gateway_stop(gateway), 0);
}

static void gateway_reports_unknown_routes(void **state)
{
    struct fixture_gateway *gateway = *state;
    assert_int_equal(code_of(gateway, "GET", "/nothing", NULL), 404);
    assert_holds(reply.body, "Not Found");
    assert_int_equal(code_of(gateway, "DELETE", "/healthz", NULL), 405);
    assert_holds(reply.head, "Allow: GET");
    assert_int_equal(code_of(gateway, "GET", "/healthz/", NULL), 307);
    assert_holds(reply.head, "Location: /healthz\r\n");
    assert_int_equal(code_of(gateway, "GET", "/%zz", NULL), 400);
    assert_int_equal(code_of(gateway, "GET", "/v1/../healthz", NULL), 400);
    assert_int_equal(code_of(gateway, "GET", "/%ff", NULL), 400);
    assert_int_equal(code_of(gateway, "GET", "/%68ealth%7a?x=%41", NULL), 200);
    const int fd = fixture_http_connect(gateway);
    static const char head[] = "HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    fixture_http_send(fd, head, sizeof head - 1);
    (void)fixture_http_read(fd, &reply);
    assert_int_equal(reply.code, 200);
    assert_int_equal(reply.body_bytes, 0);
    (void)close(fd);
}

/* With this header, a browser does not guess types, so it runs no file that has another type. */
static void gateway_sends_each_file_of_the_page_with_its_type(void **state)
{
    static const char *const kinds[][2] = {
        {"/", "\r\nContent-Type: text/html; charset=utf-8\r\n"},
        {"/page/page.js", "\r\nContent-Type: text/javascript; charset=utf-8\r\n"},
        {"/page/page.css", "\r\nContent-Type: text/css; charset=utf-8\r\n"},
        {"/page/icon.svg", "\r\nContent-Type: image/svg+xml\r\n"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        assert_int_equal(code_of(*state, "GET", kinds[i][0], NULL), 200);
        assert_holds(reply.head, kinds[i][1]);
    }
}

static void gateway_requires_a_token_where_one_is_needed(void **state)
{
    struct fixture_gateway *gateway = *state;
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", NULL), 401);
    assert_holds(reply.head, "WWW-Authenticate: Bearer");
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", "read-token-0123456780"), 401);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", "short"), 401);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_LMMS), 403);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ), 200);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_WRITE), 200);
}

static bool token_counts(struct fixture_gateway *gateway, const char *token)
{
    return code_of(gateway, "GET", "/v1/queue", token) == 200;
}

/* The tokens change to another file, to a wrong file, and to a digest instead of a token. */
static void gateway_reads_tokens_again_when_they_change(void **state)
{
    struct fixture_gateway *gateway = *state;
    // This is the SHA-256 of "another-token-0123456789", by sha256sum.
    fixture_file_write(gateway->dir, "tokens",
                       "new read "
                       "sha256:993b1be274d81438a4472fb044321f2c0966e4d6ecdd225f29d453ecc99c3a8f\n");
    FIXTURE_UNTIL(fixture_file_holds(gateway->dir, "gateway.err", "tokens_read count=1") > 0);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ), 401);
    assert_true(token_counts(gateway, "another-token-0123456789"));
    fixture_file_write(gateway->dir, "tokens", "new everything another-token-0123456789\n");
    FIXTURE_UNTIL(fixture_file_holds(gateway->dir, "gateway.err", "tokens_kept") > 0);
    assert_true(token_counts(gateway, "another-token-0123456789"));
    assert_int_equal(kill(gateway->pid, SIGHUP), 0);
    FIXTURE_UNTIL(fixture_file_holds(gateway->dir, "gateway.err", "tokens_kept") > 1);
    // The log contains no token.
    assert_int_equal(fixture_file_holds(gateway->dir, "gateway.err", "0123456789"), 0);
}

static void gateway_without_tokens_lets_this_machine_read(void **state)
{
    struct fixture_gateway *gateway = *state;
    assert_int_equal(fixture_gateway_stop(gateway), 0);
    fixture_gateway_start(gateway, NULL);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", NULL), 200);
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", "nobody-knows-this-one"), 200);
    // A page whose host name leads to this address sends that name.
    static const char rebound[] =
        "GET /v1/queue HTTP/1.1\r\nHost: evil.example.org\r\nConnection: close\r\n\r\n";
    const int fd = fixture_http_connect(gateway);
    fixture_http_send(fd, rebound, sizeof rebound - 1);
    assert_true(fixture_http_read(fd, &reply));
    assert_int_equal(reply.code, 403);
    (void)close(fd);
}

static void gateway_warns_when_it_is_open_to_all(void **state)
{
    struct fixture_gateway *gateway = *state;
    assert_int_equal(fixture_gateway_stop(gateway), 0);
    fixture_gateway_start(gateway, "--lmms-open", NULL);
    assert_int_equal(code_of(gateway, "GET", "/queue", NULL), 200);
    assert_true(fixture_file_holds(gateway->dir, "gateway.err",
                                   "warning=\"everybody who reaches the address can submit "
                                   "evaluations\" loopback=yes") > 0);
}

static void expect_refusal(struct fixture_gateway *gateway, int code, const char *words,
                           const char *option, const char *value)
{
    static struct fixture_output output;
    fixture_program_run(&gateway->program, &output, option, value, (char *)NULL);
    if (output.exit_code != code) {
        fail_msg("%s %s: exit code %d: %s", option, value, output.exit_code, output.err);
    }
    assert_holds(output.err, words);
    assert_string_equal(strchr(output.err, '\n'), "\n"); // The output is one line.
}

static void gateway_refuses_to_start_with_wrong_settings(void **state)
{
    struct fixture_gateway *gateway = *state;
    char path[256];
    char taken[64];
    expect_refusal(gateway, 8, "other machines can reach", "--listen", "0.0.0.0:0");
    expect_refusal(gateway, 8, "not a numeric address", "--listen", "example.org:80");
    expect_refusal(gateway, 8, "not an address such as", "--listen", "127.0.0.1");
    expect_refusal(gateway, 8, "not an address such as", "--listen", "127.0.0.1:65536");
    (void)snprintf(taken, sizeof taken, "127.0.0.1:%d", gateway->port);
    expect_refusal(gateway, 8, "Address already in use", "--listen", taken);
    expect_refusal(gateway, 8, "open the tokens 'nowhere'", "--tokens", "nowhere");
    fixture_file_write(gateway->dir, "open", "a read 0123456789abcdef\n");
    (void)snprintf(path, sizeof path, "%s/open", gateway->dir);
    assert_int_equal(chmod(path, 0644), 0);
    expect_refusal(gateway, 8, "readable by every user", "--tokens", "open");
    assert_int_equal(chmod(path, 0600), 0);
    fixture_file_write(gateway->dir, "open", "\n# x\na read 0123456789\n");
    expect_refusal(gateway, 8, "open:3: the token of 'a'", "--tokens", "open");
    expect_refusal(gateway, 5, "connect", "--url", "unix:///nowhere/at.all");
    expect_refusal(gateway, 2, "--lisen", "--lisen", "x");
    fixture_reset(gateway->fx);
    evq_reply_free(fixture_call(gateway->fx->raw, "FUNCTION", "FLUSH", NULL));
    expect_refusal(gateway, 7, "evalq admin install", "--listen", "127.0.0.1:0");
}

/*
 * Redis stops and returns. /healthz stays good, /readyz shows the outage, and nothing must be
 * restarted.
 */
static void gateway_survives_an_outage_of_redis(void **state)
{
    struct fixture_gateway *gateway = *state;
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ), 200);
    fixture_redis_kill(gateway->fx->redis);
    assert_int_equal(code_of(gateway, "GET", "/healthz", NULL), 200);
    assert_int_equal(code_of(gateway, "GET", "/readyz", NULL), 503);
    assert_holds(reply.head, "Retry-After: 1");
    assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ), 503);
    fixture_redis_restart(gateway->fx->redis);
    struct evq_queue_info info;
    // This is the gateway's own socket.
    assert_status(evq_queue_info(gateway->fx->queue, &info, NULL), EVQ_E_IO);
    fixture_reset(gateway->fx);
    // Each thread of the pool has lost its connection, but no request shows it.
    for (int i = 0; i < 8; i++) {
        assert_int_equal(code_of(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ), 200);
    }
}

/* Gives the line of `evalq admin acl` for a role to the running server. */
static void set_role(struct fixture_gateway *gateway, const char *role)
{
    static struct fixture_output output;
    struct fixture_program cli = gateway->program;
    char begin[64];
    const char *words[300] = {"ACL", "SETUSER"};
    size_t count = 2;
    struct evq_reply *answer = NULL;
    struct evq_error err = {EVQ_OK, ""};
    cli.path = EVQ_TEST_BIN "/evalq";
    fixture_program_run(&cli, &output, "admin", "acl", "--passwords", "passwords", (char *)NULL);
    assert_int_equal(output.exit_code, 0);
    (void)snprintf(begin, sizeof begin, "user %s ", role);
    char *line = strstr(output.out, begin);
    assert_non_null(line);
    line += 5;
    line[strcspn(line, "\n")] = '\0';
    for (char *save = NULL, *word = strtok_r(line, " ", &save); word != NULL && count < 300;
         word = strtok_r(NULL, " ", &save)) {
        words[count++] = word;
    }
    assert_status_err(evq_conn_call(gateway->fx->raw, count, words, NULL, 0, &answer, &err), EVQ_OK,
                      &err);
    evq_reply_free(answer);
}

/* The permissions of the role `gateway` are sufficient for everything that the gateway does. */
static void gateway_needs_no_more_than_its_role(void **state)
{
    struct fixture_gateway *gateway = *state;
    char path[256];
    char url[256];
    assert_int_equal(fixture_gateway_stop(gateway), 0);
    fixture_file_write(gateway->dir, "passwords", "gateway of-the-gateway\n");
    fixture_file_write(gateway->dir, "password", "of-the-gateway\n");
    static const char *const files[] = {"passwords", "password"};
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", gateway->dir, files[i]);
        assert_int_equal(chmod(path, 0600), 0);
    }
    set_role(gateway, "gateway");
    (void)snprintf(url, sizeof url, "unix://gateway@%s", gateway->fx->redis->socket);
    gateway->program.url = url;
    gateway->program.password = path;
    fixture_gateway_start(gateway, "--tokens", "tokens", NULL); // No results exist yet.
    fixture_finish(gateway->fx, "a/1/regular/quick", 0.5);
    static const char *const gets[] = {"/v1/queue",
                                       "/v1/workers",
                                       "/v1/jobs",
                                       "/v1/jobs/a/1/regular/quick",
                                       "/v1/jobs/a/1/regular/quick/log",
                                       "/v1/runs",
                                       "/v1/runs/a",
                                       "/v1/runs/a/results"};
    for (size_t i = 0; i < sizeof gets / sizeof gets[0]; i++) {
        json_decref(fixture_http_json(gateway, 200, "GET", gets[i], FIXTURE_TOKEN_READ, NULL));
    }
    static const char *const posts[][2] = {
        {"/v1/jobs", "{\"run\": \"b\", \"step\": 1, \"suites\": \"quick\", \"root\": \"r\", "
                     "\"path\": \"x\"}"},
        {"/v1/jobs/b/1/regular/quick/cancel", NULL},
        {"/v1/jobs/b/1/regular/quick/retry", NULL},
        {"/v1/pause", "{\"kind\": \"run\", \"name\": \"b\"}"},
        {"/v1/pause", "{\"kind\": \"run\", \"name\": \"b\", \"paused\": false}"}};
    for (size_t i = 0; i < sizeof posts / sizeof posts[0]; i++) {
        json_decref(
            fixture_http_json(gateway, 200, "POST", posts[i][0], FIXTURE_TOKEN_WRITE, posts[i][1]));
    }
    const int fd = fixture_http_connect(gateway);
    static const char listen[] = "GET /v1/events?after=0-1 HTTP/1.1\r\nHost: x\r\nAuthorization: "
                                 "Bearer " FIXTURE_TOKEN_READ "\r\n\r\n";
    fixture_http_send(fd, listen, sizeof listen - 1);
    char text[4096] = "";
    for (size_t used = 0; strstr(text, "event: ") == NULL;) {
        const ssize_t got = recv(fd, text + used, sizeof text - 1 - used, 0);
        assert_true(got > 0);
        used += (size_t)got;
    }
    (void)close(fd);
    assert_int_equal(fixture_file_holds(gateway->dir, "gateway.err", "events_interrupted"), 0);
    gateway->program.url = gateway->fx->redis->url;
    gateway->program.password = NULL;
}

/*
 * Returns the text after `word`, up to a blank, in a file of a directory; "" if it does not exist
 * yet.
 */
static void word_after(const char *dir, const char *name, const char *word, char out[128])
{
    char path[256];
    char line[1024];
    out[0] = '\0';
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "re");
    while (file != NULL && out[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *at = strstr(line, word);
        if (at != NULL) {
            at += strlen(word);
            (void)snprintf(out, 128, "%.*s", (int)strcspn(at, " ,\n"), at);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

static bool is_told(const char *dir, char out[128])
{
    word_after(dir, "up.err", "page at http://127.0.0.1:", out);
    return out[0] != '\0';
}

static void up_starts_the_gateway_when_the_configuration_has_one(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct fixture_gateway other = {.port = 0};
    struct fixture_program up = {.path = EVQ_TEST_BIN "/evalq", .dir = gateway->dir};
    static struct fixture_output output;
    char port[128];
    char token[128];
    char config[256];
    fixture_file_write(gateway->dir, "evalq.yaml", "gateway: {listen: \"127.0.0.1:0\"}\n");
    const pid_t pid = fixture_program_start(&up, "up", "up", "--workers", "0", (char *)NULL);
    FIXTURE_UNTIL(is_told(gateway->dir, port));
    other.port = atoi(port);
    word_after(gateway->dir, ".evalq/gateway.tokens", "up write ", token);
    assert_int_equal(strlen(token), 48);
    json_decref(fixture_http_json(&other, 200, "GET", "/v1/queue", token, NULL));
    json_decref(fixture_http_json(&other, 401, "GET", "/v1/queue", FIXTURE_TOKEN_READ, NULL));
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
    // The address is in use. This is reported at once, and nothing is left running.
    (void)snprintf(config, sizeof config, "gateway: {listen: \"127.0.0.1:%d\"}\n", gateway->port);
    fixture_file_write(gateway->dir, "evalq.yaml", config);
    fixture_program_run(&up, &output, "up", "--workers", "0", (char *)NULL);
    assert_int_equal(output.exit_code, 8);
    assert_holds(output.err, "Address already in use");
}

static void up_serves_the_page_without_a_configuration(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct fixture_gateway other = {.port = 0};
    struct fixture_program up = {.path = EVQ_TEST_BIN "/evalq", .dir = gateway->dir};
    static struct fixture_output output;
    char port[128];
    char token[128];
    char address[256];
    fixture_program_run(&up, &output, "page", (char *)NULL);
    assert_int_equal(output.exit_code, 3);
    assert_holds(output.err, "no `evalq up` runs");
    pid_t pid = fixture_program_start(&up, "up", "up", "--workers", "0", (char *)NULL);
    FIXTURE_UNTIL(is_told(gateway->dir, port));
    other.port = atoi(port);
    word_after(gateway->dir, ".evalq/gateway.tokens", "up write ", token);
    (void)snprintf(address, sizeof address, "http://127.0.0.1:%d/#key=%s\n", other.port, token);
    fixture_program_run(&up, &output, "page", (char *)NULL);
    assert_int_equal(output.exit_code, 0);
    assert_string_equal(output.out, address);
    json_decref(fixture_http_json(&other, 200, "GET", "/v1/access", token, NULL));
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
    fixture_program_run(&up, &output, "page", (char *)NULL);
    assert_int_equal(output.exit_code, 3);
    // Each `evalq up` creates a new key, and --no-page serves no page.
    (void)snprintf(address, sizeof address, "%s", token);
    pid = fixture_program_start(&up, "up", "up", "--workers", "0", "--no-page", (char *)NULL);
    FIXTURE_UNTIL(fixture_file_holds(gateway->dir, ".evalq/url", "unix:") == 1);
    fixture_program_run(&up, &output, "page", (char *)NULL);
    assert_int_equal(output.exit_code, 3);
    assert_holds(output.err, "serves no page");
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
    pid = fixture_program_start(&up, "up", "up", "--workers", "0", (char *)NULL);
    FIXTURE_UNTIL(is_told(gateway->dir, port));
    other.port = atoi(port);
    word_after(gateway->dir, ".evalq/gateway.tokens", "up write ", token);
    assert_string_not_equal(token, address);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gateway_answers_and_drains, setup, teardown),
        cmocka_unit_test_setup_teardown(gateway_reports_unknown_routes, setup, teardown),
        cmocka_unit_test_setup_teardown(gateway_sends_each_file_of_the_page_with_its_type, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(gateway_requires_a_token_where_one_is_needed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(gateway_reads_tokens_again_when_they_change, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(gateway_without_tokens_lets_this_machine_read, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(gateway_refuses_to_start_with_wrong_settings, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(gateway_warns_when_it_is_open_to_all, setup, teardown),
        cmocka_unit_test_setup_teardown(gateway_survives_an_outage_of_redis, setup, teardown),
        cmocka_unit_test_setup_teardown(gateway_needs_no_more_than_its_role, setup, teardown),
        cmocka_unit_test_setup_teardown(up_serves_the_page_without_a_configuration, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(up_starts_the_gateway_when_the_configuration_has_one, setup,
                                        teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
