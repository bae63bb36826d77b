#include "producer/cli/samples/sample_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json_memory.h"

#define SHOWN_BYTES 500

void evq_sample_text_print(const struct evq_terminal *terminal, const char *label, const char *text)
{
    const size_t bytes = text != NULL ? strlen(text) : 0;
    size_t shown = bytes > SHOWN_BYTES && !terminal->plain ? SHOWN_BYTES : bytes;

    if (text == NULL) {
        return;
    }
    while (shown < bytes && shown > 0 && ((unsigned char)text[shown] & 0xC0) == 0x80) {
        shown--; // No character is cut in two.
    }
    char *escaped = malloc(4 * shown + 1); // "\xNN" for each byte at most.
    if (escaped != NULL) {
        (void)printf("  %-7s %s", label, evq_error_escape(text, shown, escaped, 4 * shown + 1));
        if (shown < bytes) {
            (void)printf("... (%zu bytes)", bytes);
        }
        (void)fputc('\n', stdout);
    }
    free(escaped);
}

enum evq_status evq_sample_text_print_item(json_t *object, bool first, struct evq_error *err)
{
    char *text = evq_json_memory_dumps(object, JSON_COMPACT | JSON_ENSURE_ASCII);

    json_decref(object);
    if (text == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a sample as JSON");
    }
    (void)printf("%s\n    %s", first ? "" : ",", text);
    free(text);
    return EVQ_OK;
}
