/*
 * Tests wrong requests to the gateway, in its own dialect and in LMMS-Eval's, and data that are not
 * a request. Each gets its status code and a sentence. The rows are in tests/bad/requests.txt.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "tests/fixture/bad.h"
#include "tests/fixture/http.h"

#define BIN EVQ_TEST_BIN "/evalq-gateway"

enum { CODE, PART, TOKEN, LINE, HEADERS, BODY, FIELDS };

static struct fixture_http_reply reply;

static int setup(void **state)
{
    char path[128];
    struct fixture_gateway *gateway =
        fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "0", NULL);

    (void)snprintf(path, sizeof path, "%s/ckpt", gateway->dir);
    (void)mkdir(path, 0755); // It may exist already.
    fixture_file_write(gateway->dir, "ckpt/words.txt", "words\n");
    *state = gateway;
    return 0;
}

static int teardown(void **state)
{
    fixture_gateway_close(*state);
    return 0;
}

static const char *token_of(char letter)
{
    switch (letter) {
    case 'r':
        return FIXTURE_TOKEN_READ;
    case 'w':
        return FIXTURE_TOKEN_WRITE;
    case 'l':
        return FIXTURE_TOKEN_LMMS;
    case 'x':
        return "no-such-token-0123456789";
    default:
        return NULL;
    }
}

/* Builds the request. Parts that the row leaves out are as in a normal client. */
static void request_write(const struct fixture_bad *row, struct evq_buffer *out)
{
    const char *line = row->fields[LINE];
    const char *headers = strcmp(row->fields[HEADERS], "-") != 0 ? row->fields[HEADERS] : "";
    const bool has_body = strcmp(row->fields[BODY], "-") != 0;
    const char *blank = strchr(line, ' ');
    const char *token = token_of(row->fields[TOKEN][0]);

    evq_buffer_text(out, line);
    evq_buffer_text(out,
                    blank != NULL && strchr(blank + 1, ' ') == NULL ? " HTTP/1.1\r\n" : "\r\n");
    if (strstr(headers, "Host:") == NULL) {
        evq_buffer_text(out, "Host: localhost\r\n");
    }
    if (token != NULL) {
        evq_buffer_printf(out, "Authorization: Bearer %s\r\n", token);
    }
    if (headers[0] != '\0') {
        evq_buffer_printf(out, "%s\r\n", headers);
    }
    if (has_body && strstr(headers, "Transfer-Encoding") == NULL) {
        evq_buffer_printf(out, "Content-Length: %zu\r\n", row->bytes[BODY]);
    }
    if (has_body && strstr(headers, "Content-Type") == NULL) {
        evq_buffer_text(out, "Content-Type: application/json\r\n");
    }
    evq_buffer_text(out, "Connection: close\r\n\r\n");
    if (has_body) {
        evq_buffer_append(out, row->fields[BODY], row->bytes[BODY]);
    }
}

static bool refused(void *context, const struct fixture_bad *row)
{
    struct fixture_gateway *gateway = context;
    struct evq_buffer text;
    char got[1200];

    evq_buffer_init(&text, 0);
    request_write(row, &text);
    const int fd = fixture_http_connect(gateway);
    fixture_http_send(fd, text.data, text.bytes);
    evq_buffer_free(&text);
    if (!fixture_http_read(fd, &reply)) {
        (void)close(fd);
        return fixture_bad_wrong(row, "no reply");
    }
    (void)close(fd);
    (void)snprintf(got, sizeof got, "%d %.1000s", reply.code, reply.body);
    return (reply.code == atoi(row->fields[CODE]) &&
            strstr(reply.body, row->fields[PART]) != NULL) ||
           fixture_bad_wrong(row, got);
}

static void wrong_requests_get_their_reason(void **state)
{
    const struct fixture_gateway *gateway = *state;

    fixture_bad_each("requests.txt", FIELDS, "requests", refused, *state);
    fixture_http(gateway, "GET", "/v1/queue", FIXTURE_TOKEN_READ, NULL, &reply);
    assert_int_equal(reply.code, 200); // The gateway still serves, and nothing was submitted.
    assert_holds(reply.body, "\"submitted\":0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_requests_get_their_reason, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
