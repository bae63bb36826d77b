/* Reads GPT-2's own files: vocab.json, an object from token to id, and merges.txt, with one merge
 * per line in the order of ranks. */
#include <string.h>

#include "shared/checkpoint/json.h"
#include "worker/tokenizer/definition.h"

static enum evq_status read_vocabulary(struct evq_definition *definition, struct evq_error *err)
{
    struct evq_buffer *file = &definition->files[0];
    struct evq_json json;
    struct evq_json_token token;
    uint64_t id = 0;

    enum evq_status status = evq_definition_text_check(file, definition->path, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_json_init(&json, (char *)file->data, file->bytes);
    status = evq_json_next(&json, &token, err);
    if (status == EVQ_OK && token.kind != EVQ_JSON_OBJECT) {
        return evq_definition_bad(definition, err, "it is not an object of tokens and ids");
    }
    while (status == EVQ_OK && (status = evq_json_next(&json, &token, err)) == EVQ_OK &&
           token.kind == EVQ_JSON_KEY) {
        const struct evq_definition_text name = {token.text, token.bytes};
        status = evq_json_next(&json, &token, err);
        if (status == EVQ_OK && !evq_json_u64(&token, &id)) {
            char shown[260];
            return evq_definition_bad(definition, err, "token '%s' has no whole number as its id",
                                      evq_definition_shown(name, shown, sizeof(shown)));
        }
        if (status == EVQ_OK) {
            status = evq_definition_entry(definition, name, id, err);
        }
    }
    if (status == EVQ_OK) {
        status = evq_json_next(&json, &token, err); // Nothing may follow.
    }
    if (status == EVQ_E_CORRUPT) {
        // It returns the status that it was given.
        (void)evq_error_prefix(err, "'%s'", definition->path);
    }
    return status;
}

static enum evq_status read_merges(struct evq_definition *definition, struct evq_error *err)
{
    const struct evq_buffer *file = &definition->files[1];
    const char *at = (const char *)file->data;
    const char *end = at + file->bytes;

    enum evq_status status = evq_definition_text_check(file, "merges.txt", err);
    while (status == EVQ_OK && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop != NULL ? stop : end;
        struct evq_definition_text line = {at, (size_t)(stop - at)};
        if (line.bytes > 0 && line.text[line.bytes - 1] == '\r') {
            line.bytes--;
        }
        at = stop < end ? stop + 1 : end;
        const bool version = line.bytes >= 8 && memcmp(line.text, "#version", 8) == 0;
        if (!version && line.bytes > 0) {
            status = evq_definition_merge_line(definition, line, err);
        }
    }
    return status;
}

enum evq_status evq_definition_read_pair(struct evq_definition *definition, struct evq_error *err)
{
    definition->byte_level = true;
    definition->steps.scan = EVQ_PRETOKENIZER_GPT2;
    enum evq_status status = read_vocabulary(definition, err);
    return status == EVQ_OK ? read_merges(definition, err) : status;
}
