/* The parts of the gateway without sockets: addresses, routes, rates, tokens; and the document of
 * its API. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "producer/gateway/api/routes.h"
#include "producer/gateway/http/admission.h"
#include "producer/gateway/http/listen.h"
#include "producer/gateway/openapi.h"
#include "tests/fixture/check.h"
#include "tests/fixture/program.h"
#include "tests/fixture/redis.h"

static struct evq_http_request request_of(const char *method)
{
    struct evq_http_request request = {.method = method,
                                       .path = "",
                                       .body = "",
                                       .host = "",
                                       .authorization = "",
                                       .last_event_id = "",
                                       .arena = evq_arena_new(0)};
    assert_non_null(request.arena);
    return request;
}

static void target_is_taken_apart_and_decoded(void **state)
{
    (void)state;
    struct evq_error err = {EVQ_OK, ""};
    struct evq_http_request request = request_of("GET");
    assert_status_err(
        evq_http_target(&request, "/v1/a%2Fb/%C3%A4?x=1+2&y=%26&x=3&&empty#tail", &err), EVQ_OK,
        &err);
    assert_string_equal(request.path, "/v1/a/b/\xc3\xa4");
    assert_int_equal(request.query_count, 4);
    assert_string_equal(evq_http_query(&request, "x", ""), "3"); // The last.
    assert_string_equal(request.query[0].value, "1 2");
    assert_string_equal(evq_http_query(&request, "y", ""), "&");
    assert_string_equal(evq_http_query(&request, "empty", "none"), "");
    assert_string_equal(evq_http_query(&request, "absent", "none"), "none");
    assert_true(evq_http_match(&request, "/v1/a%2Fb/%C3%A4?x", "/v1/{one}/{two}"));
    assert_string_equal(request.params[0], "a/b"); // One segment, as it was sent.
    assert_string_equal(request.params[1], "\xc3\xa4");
    assert_false(evq_http_match(&request, "/v1/a/", "/v1/{one}/{two}"));
    assert_false(evq_http_match(&request, "/v1/a/b/c", "/v1/{one}/{two}"));
    assert_false(evq_http_match(&request, "/v1", "/v1/{one}"));
    assert_true(evq_http_match(&request, "/", "/"));
    evq_arena_free(request.arena);
    static const char *const wrong[] = {
        "",    "x",     "*",       "/%",    "/%4",   "/%zz",       "/%00",  "/a/%0a", "/%ff",
        "/..", "/a/./", "/%2e%2e", "/\x7f", "/?%00", "/?a=%e2%82", "//%2E", "/a?b=%", "/?\xc0\x80"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        request = request_of("GET");
        if (evq_http_target(&request, wrong[i], &err) != EVQ_E_INVALID) {
            fail_msg("'%s' was taken", wrong[i]);
        }
        evq_arena_free(request.arena);
    }
}

static void rate_lets_a_burst_pass_then_so_many_a_second(void **state)
{
    (void)state;
    struct evq_rate *rate = evq_rate_new(10, 20);
    int64_t now = 1000000;
    int passed = 0;
    for (int i = 0; i < 100; i++) {
        passed += evq_rate_take(rate, "a", 1, now);
    }
    assert_int_equal(passed, 20);
    assert_true(evq_rate_take(rate, "b", 1, now)); // Another's measure.
    passed = 0;
    for (int i = 0; i < 1000; i++) {
        passed += evq_rate_take(rate, "a", 1, now + i);
    }
    assert_true(passed == 9 || passed == 10);
    // However many there are, one that keeps asking is not forgotten.
    passed = 0;
    for (int i = 0; i < 100000; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "c%d", i);
        (void)evq_rate_take(rate, name, 1, now + 1000);
        passed += evq_rate_take(rate, "a", 1, now + 1000);
    }
    assert_true(passed <= 11);
    assert_true(evq_rate_take(rate, "b", 21, now + 100000)); // Dearer than a burst: all of it,
    assert_false(evq_rate_take(rate, "b", 1, now + 100000));
    assert_false(evq_rate_take(rate, "b", 21, now + 101000)); // once one was quiet for long enough.
    assert_true(evq_rate_take(rate, "b", 21, now + 202000));
    assert_false(evq_rate_take(rate, "b", 1, now + 202000)); // Quiet for longer: no more than that.
    evq_rate_free(rate);
    rate = evq_rate_new(0, 0);
    for (int i = 0; i < 1000; i++) {
        assert_true(evq_rate_take(rate, "a", 1000, now));
    }
    evq_rate_free(rate);
}

static void listen_takes_numeric_addresses_alone(void **state)
{
    (void)state;
    struct evq_listen at;
    struct evq_error err = {EVQ_OK, ""};
    static const struct {
        const char *text;
        bool loopback;
    } good[] = {{"127.0.0.1:8000", true}, {"127.9.9.9:0", true}, {"[::1]:1", true},
                {"localhost:80", true},   {"0.0.0.0:80", false}, {"[::]:65535", false}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_status_err(evq_listen_parse(good[i].text, &at, &err), EVQ_OK, &err);
        assert_int_equal(at.loopback, good[i].loopback);
    }
    static const char *const wrong[] = {
        "",          ":",       ":80",    "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "::1:80",
        "[::1]",     "[::1:80", "a.b:80", "1.2.3:80",  "1.2.3.4:-1", "[]:80",       "[1.2.3.4]:80",
        "1.2.3.4:8 "};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (evq_listen_parse(wrong[i], &at, &err) != EVQ_E_INVALID) {
            fail_msg("'%s' was taken", wrong[i]);
        }
    }
}

static void tokens_are_told_apart_and_faults_named(void **state)
{
    (void)state;
    char dir[64];
    char path[128];
    struct evq_tokens *tokens = NULL;
    struct evq_error err = {EVQ_OK, ""};
    unsigned rights = 0;
    char name[EVQ_TOKEN_NAME_BYTES] = "";
    fixture_dir_make(dir);
    (void)snprintf(path, sizeof path, "%s/tokens", dir);
    fixture_file_write(dir, "tokens",
                       "a read 0123456789abcdef\r\n\tb  write\tfedcba9876543210  \n#c lmms x\n\n"
                       "d lmms 0123456789abcdeX");
    assert_int_equal(chmod(path, 0600), 0);
    assert_status_err(evq_tokens_open(path, &tokens, &err), EVQ_OK, &err);
    assert_true(evq_tokens_check(tokens, "Bearer 0123456789abcdef", &rights, name));
    assert_string_equal(name, "a");
    assert_int_equal(rights, EVQ_HTTP_READ);
    assert_true(evq_tokens_check(tokens, "bearer fedcba9876543210", &rights, name));
    assert_int_equal(rights, EVQ_HTTP_READ | EVQ_HTTP_WRITE | EVQ_HTTP_LMMS);
    assert_true(evq_tokens_check(tokens, "Bearer 0123456789abcdeX", &rights, name));
    assert_int_equal(rights, EVQ_HTTP_LMMS);
    static const char *const none[] = {"",
                                       "Bearer ",
                                       "Bearer 0123456789abcde",
                                       "Bearer 0123456789abcdef0",
                                       "Basic 0123456789abcdef",
                                       "0123456789abcdef",
                                       "Bearer x"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_false(evq_tokens_check(tokens, none[i], &rights, name));
    }
    for (int i = 0; i < 1000; i++) { // Digests that begin alike are of different tokens.
        char guess[64];
        (void)snprintf(guess, sizeof guess, "Bearer guess-0123456789-%d", i);
        assert_false(evq_tokens_check(tokens, guess, &rights, name));
    }
    evq_tokens_free(tokens);
    assert_int_equal(chmod(path, 0644), 0);
    assert_status(evq_tokens_open(path, &tokens, &err), EVQ_E_INVALID);
    assert_holds(err.message, "readable by every user");
    assert_int_equal(chmod(path, 0600), 0);
    static const char *const wrong[][2] = {
        {"a read\n", ":1: expected NAME ROLE TOKEN"},
        {"a read 0123456789abcdef more\n", ":1: expected NAME ROLE TOKEN"},
        {"\na/b read 0123456789abcdef\n", ":2: expected NAME ROLE TOKEN"},
        {"a admin 0123456789abcdef\n", "the role of 'a'"},
        {"a read 0123456789abcde\n", "the token of 'a'"},
        {"a read sha256:0123\n", "the token of 'a'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        fixture_file_write(dir, "tokens", wrong[i][0]);
        assert_status(evq_tokens_open(path, &tokens, &err), EVQ_E_INVALID);
        assert_holds(err.message, wrong[i][1]);
        assert_null(strstr(err.message, "0123")); // No token in a message.
    }
    fixture_dir_remove(dir);
}

/* The parameters of an operation, those of components looked up; how many are in the path. */
static size_t path_parameters(const json_t *document, const json_t *operation, const char *pattern)
{
    size_t count = 0;
    size_t index = 0;
    const json_t *parameter = NULL;
    json_array_foreach(json_object_get(operation, "parameters"), index, parameter)
    {
        const char *reference = json_string_value(json_object_get(parameter, "$ref"));
        if (reference != NULL) {
            parameter = json_object_get(
                json_object_get(json_object_get(document, "components"), "parameters"),
                strrchr(reference, '/') + 1);
        }
        assert_non_null(parameter);
        if (strcmp(json_string_value(json_object_get(parameter, "in")), "path") == 0) {
            char name[64];
            (void)snprintf(name, sizeof name, "{%s}",
                           json_string_value(json_object_get(parameter, "name")));
            assert_holds(pattern, name);
            count++;
        }
    }
    return count;
}

/* Every route is in the document with its right and its parameters, and nothing else is. */
static void document_says_what_the_routes_are(void **state)
{
    (void)state;
    static const char *const rights[] = {
        [EVQ_HTTP_READ] = "read", [EVQ_HTTP_WRITE] = "write", [EVQ_HTTP_LMMS] = "lmms"};
    json_error_t fault;
    json_t *document = json_loads(evq_openapi_text, JSON_REJECT_DUPLICATES, &fault);
    assert_non_null(document);
    const json_t *paths = json_object_get(document, "paths");
    size_t operations = 0;
    for (size_t i = 0; i < evq_route_count; i++) {
        const struct evq_route *route = &evq_routes[i];
        char method[16];
        size_t parameters = 0;
        for (size_t k = 0; k <= strlen(route->method) && k < sizeof method; k++) {
            method[k] = (char)(route->method[k] >= 'A' ? route->method[k] | 0x20 : '\0');
        }
        const json_t *operation = json_object_get(json_object_get(paths, route->pattern), method);
        if (operation == NULL) {
            fail_msg("openapi.json lacks %s %s", route->method, route->pattern);
        }
        for (const char *c = route->pattern; *c != '\0'; c++) {
            parameters += *c == '{';
        }
        assert_int_equal(path_parameters(document, operation, route->pattern), parameters);
        const json_t *right = json_object_get(operation, "x-evalq-right");
        if (route->right == EVQ_HTTP_OPEN) {
            assert_null(right);
            assert_int_equal(json_array_size(json_object_get(operation, "security")), 0);
            assert_non_null(json_object_get(operation, "security"));
        } else {
            assert_null(json_object_get(operation, "security")); // The document's own: a token.
            assert_string_equal(json_string_value(right), rights[route->right]);
        }
    }
    const char *path = NULL;
    json_t *item = NULL;
    json_object_foreach((json_t *)(uintptr_t)paths, path, item)
    {
        operations += json_object_size(item);
    }
    assert_int_equal(operations, evq_route_count);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(target_is_taken_apart_and_decoded),
        cmocka_unit_test(rate_lets_a_burst_pass_then_so_many_a_second),
        cmocka_unit_test(listen_takes_numeric_addresses_alone),
        cmocka_unit_test(tokens_are_told_apart_and_faults_named),
        cmocka_unit_test(document_says_what_the_routes_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
