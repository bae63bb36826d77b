#include "worker/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>

#include "worker/tokenizer/unicode.h"

enum evq_status evq_added_tokens_put(struct evq_added_tokens *added,
                                     const struct evq_added_token *token, struct evq_error *err)
{
    if (added->count == added->room) {
        // There are few, so this cannot overflow.
        const size_t room = added->room == 0 ? 16 : 2 * added->room;
        struct evq_added_token *grown = realloc(added->tokens, room * sizeof(*grown));
        if (grown == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "%zu added tokens", room);
        }
        added->tokens = grown;
        added->room = room;
    }
    char *content = malloc(token->content.bytes + token->written.bytes);
    if (content == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "an added token");
    }
    char *written = content + token->content.bytes;
    memcpy(content, token->content.text, token->content.bytes);
    memcpy(written, token->written.text, token->written.bytes);
    added->tokens[added->count] = *token;
    added->tokens[added->count].content.text = content;
    added->tokens[added->count++].written.text = written;
    return EVQ_OK;
}

static int by_content(const void *left, const void *right)
{
    const struct evq_tokenizer_text a = ((const struct evq_added_token *)left)->content;
    const struct evq_tokenizer_text b = ((const struct evq_added_token *)right)->content;
    const int order = memcmp(a.text, b.text, a.bytes < b.bytes ? a.bytes : b.bytes);

    return order != 0 ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static enum evq_status twice(struct evq_tokenizer_text content, const char *path,
                             struct evq_error *err)
{
    char shown[260];

    return evq_error_set(err, EVQ_E_CORRUPT, "'%s': the added token '%s' comes twice", path,
                         evq_tokenizer_text_shown(content, shown, sizeof(shown)));
}

enum evq_status evq_added_tokens_check_apart(const struct evq_added_tokens *raw,
                                             const struct evq_added_tokens *normalized,
                                             const char *path, struct evq_error *err)
{
    for (size_t i = 0; raw->count > 0 && i < normalized->count; i++) {
        const struct evq_added_token key = {.content = normalized->tokens[i].written};
        if (bsearch(&key, raw->tokens, raw->count, sizeof(key), by_content) != NULL) {
            return twice(key.content, path, err);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_added_tokens_sort(struct evq_added_tokens *added, const char *path,
                                      struct evq_error *err)
{
    if (added->count > 0) {
        qsort(added->tokens, added->count, sizeof(*added->tokens), by_content);
    }
    for (size_t i = 0; i < added->count; i++) {
        const struct evq_tokenizer_text content = added->tokens[i].content;
        if (i > 0 && by_content(&added->tokens[i - 1], &added->tokens[i]) == 0) {
            return twice(content, path, err);
        }
        added->first[(unsigned char)content.text[0] + 1]++;
    }
    for (size_t i = 1; i < 257; i++) {
        added->first[i] += added->first[i - 1];
    }
    return EVQ_OK;
}

void evq_added_tokens_free(struct evq_added_tokens *added)
{
    for (size_t i = 0; i < added->count; i++) {
        // evq_added_tokens_put() made this copy, with `written` behind it.
        free((char *)(uintptr_t)added->tokens[i].content.text);
    }
    free(added->tokens);
    *added = (struct evq_added_tokens){0};
}

/* In [low, high), all tokens share their first `depth` bytes and are longer. Returns the first
 * whose next byte is at least `byte`; high: none. */
static size_t lower(const struct evq_added_tokens *added, size_t low, size_t high, size_t depth,
                    unsigned byte)
{
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if ((unsigned char)added->tokens[middle].content.text[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Finds the longest token that text begins with, or NULL. Tokens that share their first bytes are
 * neighbours, and each further byte narrows the range. */
static const struct evq_added_token *longest(const struct evq_added_tokens *added, const char *text,
                                             size_t bytes)
{
    const struct evq_added_token *best = NULL;
    const unsigned char first = (unsigned char)text[0];
    size_t low = added->first[first];
    size_t high = added->first[first + 1];

    for (size_t depth = 1; low < high; depth++) {
        if (added->tokens[low].content.bytes == depth) { // Shorter tokens sort first.
            best = &added->tokens[low++];
        }
        if (depth == bytes || low == high) {
            break;
        }
        const unsigned byte = (unsigned char)text[depth];
        const unsigned least = (unsigned char)added->tokens[low].content.text[depth];
        const unsigned most = (unsigned char)added->tokens[high - 1].content.text[depth];
        if (byte < least || byte > most) {
            break;
        }
        if (least < most) {
            low = lower(added, low, high, depth, byte);
            high = lower(added, low, high, depth, byte + 1);
        }
    }
    return best;
}

static bool in_word(const char *text, size_t from, size_t to, size_t bytes)
{
    const unsigned char *start = (const unsigned char *)text;
    size_t length = 0;

    return (from > 0 && (evq_unicode_of(evq_utf8_code_before(start, start + from, &length)) &
                         EVQ_UNICODE_WORD) != 0) ||
           (to < bytes && (evq_unicode_at(start + to, &length) & EVQ_UNICODE_WORD) != 0);
}

/* Widens the match over the white space that the token strips, but not into text that was taken
 * already. */
static void strip(const struct evq_added_token *token, const char *text, size_t bytes, size_t taken,
                  struct evq_added_tokens_match *match)
{
    const unsigned char *start = (const unsigned char *)text;
    size_t length = 0;

    if (token->lstrip) {
        while (match->from > taken &&
               (evq_unicode_of(evq_utf8_code_before(start, start + match->from, &length)) &
                EVQ_UNICODE_KIND) == EVQ_UNICODE_SPACE) {
            match->from -= length;
        }
        match->from = match->from > taken ? match->from : taken;
    }
    // What was taken beyond this token is white space that the one before it stripped.
    match->to = token->rstrip && match->to < taken ? taken : match->to;
    while (token->rstrip && match->to < bytes &&
           (evq_unicode_at(start + match->to, &length) & EVQ_UNICODE_KIND) == EVQ_UNICODE_SPACE) {
        match->to += length;
    }
}

bool evq_added_tokens_next(const struct evq_added_tokens *added, const char *text, size_t bytes,
                           size_t *at, size_t *taken, struct evq_added_tokens_match *ret_match)
{
    if (added->count == 0) {
        return false;
    }
    for (size_t i = *at; i < bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        if (added->first[byte] == added->first[byte + 1]) {
            continue;
        }
        const struct evq_added_token *token = longest(added, text + i, bytes - i);
        if (token == NULL) {
            continue;
        }
        const size_t end = i + token->content.bytes;
        if (token->single_word && in_word(text, i, end, bytes)) {
            i = end - 1; // The character is skipped as a whole.
            continue;
        }
        *ret_match = (struct evq_added_tokens_match){i, end, token->id};
        strip(token, text, bytes, *taken, ret_match);
        *at = end;
        *taken = ret_match->to;
        return true;
    }
    return false;
}
