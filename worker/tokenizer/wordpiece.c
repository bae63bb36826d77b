#include "worker/tokenizer/wordpiece.h"

#include <stdlib.h>
#include <string.h>

#include "worker/tokenizer/unicode.h"

enum evq_status evq_wordpiece_build(const struct evq_tokenizer_json *definition,
                                    struct evq_wordpiece *wordpiece, struct evq_error *err)
{
    for (size_t i = 0; i < definition->entry_count; i++) {
        const size_t bytes = definition->entries[i].token.bytes;
        wordpiece->token_bytes_max =
            bytes > wordpiece->token_bytes_max ? bytes : wordpiece->token_bytes_max;
    }
    wordpiece->prefix_bytes = definition->continuing.bytes;
    wordpiece->prefix = malloc(wordpiece->prefix_bytes + 1);
    if (wordpiece->prefix == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s'", definition->path);
    }
    memcpy(wordpiece->prefix, definition->continuing.text, wordpiece->prefix_bytes);
    wordpiece->characters_max = (size_t)definition->word_characters_max;
    return EVQ_OK;
}

void evq_wordpiece_free(struct evq_wordpiece *wordpiece)
{
    free(wordpiece->prefix);
    *wordpiece = (struct evq_wordpiece){0};
}

static size_t characters(const char *word, size_t bytes)
{
    size_t count = 0;

    for (size_t i = 0; i < bytes; i++) {
        count += ((unsigned char)word[i] & 0xc0) != 0x80;
    }
    return count;
}

/* Finds the longest token that `rest` begins with. Returns its id, or -1. start: `rest` is the
 * whole word, so the token has no prefix. name: room for a token. *ret_bytes: how much of `rest`
 * the token takes. */
static int32_t longest(const struct evq_wordpiece *wordpiece, const struct evq_bpe *vocabulary,
                       const char *rest, size_t bytes, bool start, char *name, size_t *ret_bytes)
{
    const size_t prefix = start ? 0 : wordpiece->prefix_bytes;

    if (prefix >= wordpiece->token_bytes_max) {
        return -1;
    }
    if (bytes > wordpiece->token_bytes_max - prefix) {
        bytes = wordpiece->token_bytes_max - prefix;
    }
    memcpy(name, wordpiece->prefix, prefix);
    memcpy(name + prefix, rest, bytes);
    while (bytes > 0) {
        const int32_t id = evq_bpe_find(vocabulary, name, prefix + bytes);
        if (id >= 0) {
            *ret_bytes = bytes;
            return id;
        }
        bytes--;
    }
    return -1;
}

enum evq_status evq_wordpiece_encode(const struct evq_wordpiece *wordpiece,
                                     const struct evq_bpe *vocabulary, const char *word,
                                     size_t bytes, struct evq_bpe_work *work, struct evq_error *err)
{
    char name[4 * EVQ_WORD_CHARACTERS_MAX + EVQ_WORD_PREFIX_BYTES_MAX];
    size_t length = 0;

    enum evq_status status = evq_bpe_work_reserve(work, EVQ_WORD_CHARACTERS_MAX, err);
    if (status != EVQ_OK) {
        return status;
    }
    work->count = 0;
    if ((evq_unicode_at((const unsigned char *)word, &length) & EVQ_UNICODE_KIND) ==
        EVQ_UNICODE_SPACE) {
        return EVQ_OK;
    }
    bool known = characters(word, bytes) <= wordpiece->characters_max;
    for (size_t i = 0; known && i < bytes; i += length) {
        const int32_t id =
            longest(wordpiece, vocabulary, word + i, bytes - i, i == 0, name, &length);
        known = id >= 0;
        work->ids[work->count++] = id;
    }
    if (!known) {
        work->ids[0] = vocabulary->unk;
        work->count = 1;
    }
    return EVQ_OK;
}
