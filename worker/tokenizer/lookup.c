/* Finds the id of a token by its text. It is apart from tokenizer.c, because special_tokens.c,
 * which tokenizer.c calls, needs it too. */
#include <string.h>

#include "worker/tokenizer/tokenizer_internal.h"

static int32_t find_added(const struct evq_added_tokens *added, const char *text, size_t bytes)
{
    for (size_t i = 0; i < added->count; i++) {
        const struct evq_tokenizer_text written = added->tokens[i].written;
        if (written.bytes == bytes && memcmp(written.text, text, bytes) == 0) {
            return added->tokens[i].id;
        }
    }
    return -1;
}

int32_t evq_tokenizer_find(const struct evq_tokenizer *tokenizer, const char *text, size_t bytes)
{
    int32_t id = find_added(&tokenizer->raw, text, bytes);

    id = id >= 0 ? id : find_added(&tokenizer->normalized, text, bytes);
    return id >= 0 ? id : evq_bpe_find(&tokenizer->bpe, text, bytes);
}
