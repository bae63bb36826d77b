#include "producer/cli/samples/junit.h"

#include <string.h>

#include "shared/base/file.h"

/* Appends text as XML. Control characters become \xNN first, because XML has no form for them. */
static void put(struct evq_buffer *out, const char *text)
{
    char escaped[4096];

    (void)evq_error_escape(text, strlen(text), escaped, sizeof escaped);
    for (const char *at = escaped; *at != '\0'; at++) {
        const char *entity = *at == '&'    ? "&amp;"
                             : *at == '<'  ? "&lt;"
                             : *at == '>'  ? "&gt;"
                             : *at == '"'  ? "&quot;"
                             : *at == '\'' ? "&apos;"
                                           : NULL;
        if (entity != NULL) {
            evq_buffer_text(out, entity);
        } else {
            evq_buffer_append(out, at, 1);
        }
    }
}

enum evq_status evq_junit_write(const char *path, const char *class_name, const char *name,
                                enum evq_junit_outcome outcome, const char *message,
                                struct evq_error *err)
{
    struct evq_buffer out;
    enum evq_status status;

    evq_buffer_init(&out, 0);
    evq_buffer_printf(&out,
                      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"evalq gate\" "
                      "tests=\"1\" failures=\"%d\" errors=\"%d\">\n  <testcase classname=\"",
                      outcome == EVQ_JUNIT_FAILED, outcome == EVQ_JUNIT_ERROR);
    put(&out, class_name);
    evq_buffer_text(&out, "\" name=\"");
    put(&out, name);
    if (outcome == EVQ_JUNIT_PASSED) {
        evq_buffer_text(&out, "\">\n    <system-out>");
        put(&out, message);
        evq_buffer_text(&out, "</system-out>\n  </testcase>\n</testsuite>\n");
    } else {
        const char *tag = outcome == EVQ_JUNIT_FAILED ? "failure" : "error";
        evq_buffer_printf(&out, "\">\n    <%s message=\"", tag);
        put(&out, message);
        evq_buffer_text(&out, "\"/>\n  </testcase>\n</testsuite>\n");
    }
    status = out.failed ? evq_error_set(err, EVQ_E_NOMEM, "no memory for the report '%s'", path)
                        : evq_file_replace(path, out.data, out.bytes, 0644, err);
    evq_buffer_free(&out);
    return status;
}
