/*
 * Sinks that cannot be opened: rows of tests/bad/sinks.txt, each one entry of logger.sinks as it
 * stands in evalq.yaml. Refused by the file's reader, by what the kind knows, or by the sink
 * itself; $DIR is the logger's directory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "logger/sinks/sink.h"
#include "tests/fixture/bad.h"
#include "tests/fixture/folder.h"

static bool open_refused(const struct evq_config *config, const struct fixture_folder *folder,
                         const struct fixture_bad *row)
{
    const struct evq_sink_config *sink = &config->logger.sinks[0];
    const struct evq_sink_context context = {
        .config = config, .sink = sink, .directory = folder->path};
    struct evq_error err = {EVQ_OK, ""};
    void *state = NULL;
    enum evq_status status = evq_sink_check(sink, &err);

    if (status == EVQ_OK) {
        status = evq_sink_find(sink->kind)->open(&context, &state, &err);
        if (status == EVQ_OK) {
            evq_sink_find(sink->kind)->close(state);
            return fixture_bad_wrong(row, "it was opened");
        }
    }
    return (status == EVQ_E_INVALID &&
            fixture_bad_holds(err.message, folder->path, "$DIR", row->fields[0])) ||
           fixture_bad_wrong(row, err.message);
}

static bool refused(void *context, const struct fixture_bad *row)
{
    const struct fixture_folder *folder = context;
    struct evq_config *config = NULL;
    struct evq_error err = {EVQ_OK, ""};
    char sink[2048] = "";
    char text[2200];

    for (const char *at = row->fields[1]; *at != '\0';) { // With $DIR put in.
        const size_t used = strlen(sink);
        const bool folder_here = strncmp(at, "$DIR", 4) == 0;
        (void)snprintf(sink + used, sizeof(sink) - used, "%.*s", folder_here ? 100 : 1,
                       folder_here ? folder->path : at);
        at += folder_here ? 4 : 1;
    }
    const int bytes = snprintf(text, sizeof(text), "logger: {sinks: [%s]}\n", sink);
    if (evq_config_parse(text, (size_t)bytes, "f.yaml", &config, &err) != EVQ_OK) {
        return fixture_bad_holds(err.message, folder->path, "$DIR", row->fields[0]) ||
               fixture_bad_wrong(row, err.message);
    }
    const bool good = open_refused(config, folder, row);
    evq_config_free(config);
    return good;
}

static void sinks_that_cannot_be_opened_say_why(void **state)
{
    const struct fixture_folder *folder = *state;
    char path[256];

    fixture_folder_write(folder, "open", "secret", 6);
    fixture_folder_write(folder, "empty", "", 0);
    (void)snprintf(path, sizeof(path), "%s/open", folder->path);
    assert_int_equal(chmod(path, 0644), 0);
    (void)snprintf(path, sizeof(path), "%s/empty", folder->path);
    assert_int_equal(chmod(path, 0600), 0);
    fixture_bad_each("sinks.txt", 2, "sinks", refused, *state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(
        sinks_that_cannot_be_opened_say_why, fixture_folder_setup, fixture_folder_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
