/*
 * Bytes that are no message, no result, no note, or no msgpack at all: rows of
 * tests/bad/records.txt. Each is refused with its status and a sentence, and leaves nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "tests/fixture/bad.h"

static enum evq_status read_message(const uint8_t *data, size_t bytes, struct evq_error *err)
{
    struct evq_job *job = NULL;
    const enum evq_status status = evq_codec_job_decode(data, bytes, &job, err);

    assert_int_equal(status == EVQ_OK, job != NULL);
    evq_job_free(job);
    return status;
}

static enum evq_status read_result(const uint8_t *data, size_t bytes, struct evq_error *err)
{
    struct evq_result *result = NULL;
    const enum evq_status status = evq_codec_result_decode(data, bytes, &result, err);

    assert_int_equal(status == EVQ_OK, result != NULL);
    evq_result_free(result);
    return status;
}

static enum evq_status read_note(const uint8_t *data, size_t bytes, struct evq_error *err)
{
    struct evq_note *note = NULL;
    const enum evq_status status = evq_codec_note_decode(data, bytes, &note, err);

    assert_int_equal(status == EVQ_OK, note != NULL);
    evq_codec_note_free(note);
    return status;
}

static enum evq_status scan(const uint8_t *data, size_t bytes, struct evq_error *err)
{
    return evq_codec_scan(data, bytes, 65536, err);
}

static const struct {
    const char *prefix; // Of a row's name.
    enum evq_status (*read)(const uint8_t *data, size_t bytes, struct evq_error *err);
} kinds[] = {{"message: ", read_message},
             {"result: ", read_result},
             {"note: ", read_note},
             {"scan: ", scan}};

static bool refused(void *context, const struct fixture_bad *row)
{
    struct evq_error err = {EVQ_OK, ""};
    const size_t bytes = row->bytes[2];
    uint8_t *exact = malloc(bytes > 0 ? bytes : 1); // So that a sanitizer sees one byte too far.
    char got[600];
    size_t kind = 0;

    (void)context;
    assert_non_null(exact);
    memcpy(exact, row->fields[2], bytes);
    while (strncmp(row->name, kinds[kind].prefix, strlen(kinds[kind].prefix)) != 0) {
        kind++;
        assert_true(kind < sizeof(kinds) / sizeof(kinds[0]));
    }
    const enum evq_status status = kinds[kind].read(exact, bytes, &err);
    free(exact);
    if (status == EVQ_OK) {
        return fixture_bad_wrong(row, "it was read");
    }
    (void)snprintf(got, sizeof(got), "%s %s", evq_status_name(status), err.message);
    return (strcmp(evq_status_name(status), row->fields[0]) == 0 && err.status == status &&
            strstr(err.message, row->fields[1]) != NULL) ||
           fixture_bad_wrong(row, got);
}

static void codec_refuses_records_that_are_none(void **state)
{
    (void)state;
    fixture_bad_each("records.txt", 3, "records", refused, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(codec_refuses_records_that_are_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
