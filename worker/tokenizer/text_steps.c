/* What is done to the text between added tokens before it is merged. */
#include <string.h>

#include "worker/tokenizer/tokenizer_internal.h"

#define UNDER "\xe2\x96\x81"

static bool begins(struct evq_tokenizer_text text, const char *word)
{
    const size_t bytes = strlen(word);

    return text.bytes >= bytes && memcmp(text.text, word, bytes) == 0;
}

static void append_under(struct evq_tokenizer_text text, struct evq_buffer *out)
{
    char block[4096];
    size_t used = 0;

    for (size_t i = 0; i < text.bytes; i++) {
        if (sizeof(block) - used < 3) {
            evq_buffer_append(out, block, used);
            used = 0;
        }
        if (text.text[i] == ' ') {
            memcpy(block + used, UNDER, 3);
            used += 3;
        } else {
            block[used++] = text.text[i];
        }
    }
    evq_buffer_append(out, block, used);
}

static enum evq_status take(const struct evq_buffer *buffer, struct evq_tokenizer_text *ret_text,
                            struct evq_error *err)
{
    if (buffer->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes of text to divide into tokens",
                             ret_text->bytes);
    }
    *ret_text = (struct evq_tokenizer_text){(const char *)buffer->data, buffer->bytes};
    return EVQ_OK;
}

/* Appends text after one normalizer to out; false: the normalizer does not change it. */
static bool normalize(enum evq_normalizer normalizer, struct evq_tokenizer_text text,
                      struct evq_buffer *work, struct evq_buffer *out)
{
    unsigned form = EVQ_UNICODE_NFC;
    size_t same = 0;

    switch (normalizer) {
    case EVQ_NORMALIZER_NFD:
        form = EVQ_UNICODE_NFD;
        // Fall through.
    case EVQ_NORMALIZER_NFC:
        same = evq_unicode_form_same(form, text.text, text.bytes);
        if (same == text.bytes) {
            return false;
        }
        evq_buffer_append(out, text.text, same);
        evq_unicode_form(form, text.text + same, text.bytes - same, work, out);
        out->failed = out->failed || work->failed;
        return true;
    case EVQ_NORMALIZER_PREPEND_UNDER:
        evq_buffer_append(out, UNDER, 3);
        evq_buffer_append(out, text.text, text.bytes);
        return true;
    case EVQ_NORMALIZER_SPACES_TO_UNDER:
        append_under(text, out);
        return true;
    default:
        evq_unicode_map((enum evq_unicode_step)(normalizer - EVQ_NORMALIZER_MAP), text.text,
                        text.bytes, out);
        return true;
    }
}

enum evq_status evq_text_steps_normalize(const struct evq_text_steps *steps,
                                         struct evq_tokenizer_text text,
                                         struct evq_buffer buffers[2], struct evq_buffer *work,
                                         struct evq_tokenizer_text *ret_text, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t free_buffer = 0; // text is in the other one.

    for (size_t i = 0; status == EVQ_OK && text.bytes > 0 && i < steps->normalizer_count; i++) {
        evq_buffer_clear(&buffers[free_buffer]);
        if (normalize(steps->normalizers[i], text, work, &buffers[free_buffer])) {
            status = take(&buffers[free_buffer], &text, err);
            free_buffer = 1 - free_buffer;
        }
    }
    *ret_text = text;
    return status;
}

enum evq_status evq_text_steps_add_prefix(const struct evq_text_steps *steps,
                                          struct evq_tokenizer_text text, bool first,
                                          struct evq_buffer *buffer,
                                          struct evq_tokenizer_text *ret_text,
                                          struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (steps->metaspace) {
        const bool wanted = steps->metaspace_prepend == EVQ_PREPEND_ALWAYS ||
                            (steps->metaspace_prepend == EVQ_PREPEND_FIRST && first);
        const bool has = begins(text, UNDER) || begins(text, " ");
        evq_buffer_clear(buffer);
        evq_buffer_append(buffer, UNDER, wanted && !has ? 3 : 0);
        append_under(text, buffer);
        status = take(buffer, &text, err);
    } else if (steps->space_before && !begins(text, " ")) {
        evq_buffer_clear(buffer);
        evq_buffer_append(buffer, " ", 1);
        evq_buffer_append(buffer, text.text, text.bytes);
        status = take(buffer, &text, err);
    }
    *ret_text = text;
    return status;
}
