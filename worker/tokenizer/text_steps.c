/* What is done to the text between added tokens before it is merged. */
#include <string.h>

#include "worker/tokenizer/tokenizer_internal.h"
#include "worker/tokenizer/unicode.h"

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

enum evq_status evq_text_steps_normalize(const struct evq_text_steps *steps,
                                         struct evq_tokenizer_text text,
                                         struct evq_buffer buffers[2], struct evq_buffer *work,
                                         struct evq_tokenizer_text *ret_text, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (steps->nfc) {
        const size_t same = evq_unicode_nfc_same(text.text, text.bytes);
        if (same < text.bytes) {
            evq_buffer_clear(&buffers[0]);
            evq_buffer_append(&buffers[0], text.text, same);
            evq_unicode_nfc(text.text + same, text.bytes - same, work, &buffers[0]);
            buffers[0].failed = buffers[0].failed || work->failed;
            status = take(&buffers[0], &text, err);
        }
    }
    if (status == EVQ_OK && text.bytes > 0 && (steps->prepend_under || steps->spaces_to_under)) {
        evq_buffer_clear(&buffers[1]);
        evq_buffer_append(&buffers[1], UNDER, steps->prepend_under ? 3 : 0);
        if (steps->spaces_to_under) {
            append_under(text, &buffers[1]);
        } else {
            evq_buffer_append(&buffers[1], text.text, text.bytes);
        }
        status = take(&buffers[1], &text, err);
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

size_t evq_text_steps_first_part(const struct evq_text_steps *steps, struct evq_tokenizer_text text,
                                 bool *ret_number)
{
    size_t length = 0;
    size_t i = 0;

    *ret_number = false;
    if (!steps->digits_apart) {
        return text.bytes;
    }
    while (i < text.bytes && !*ret_number) {
        const unsigned flags = evq_unicode_at((const unsigned char *)text.text + i, &length);
        *ret_number = (flags & EVQ_UNICODE_KIND) == EVQ_UNICODE_NUMBER && i == 0;
        if ((flags & EVQ_UNICODE_KIND) == EVQ_UNICODE_NUMBER && i > 0) {
            break;
        }
        i += length;
    }
    return i;
}
