#include "worker/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "worker/tokenizer/utf8.h"

int32_t evq_bpe_find(const struct evq_bpe *bpe, const char *text, size_t bytes)
{
    size_t at = (size_t)XXH3_64bits(text, bytes) & bpe->word_mask;

    while (bpe->words[at].id >= 0) {
        const struct evq_bpe_word *word = &bpe->words[at];
        if (word->bytes == bytes && memcmp(word->text, text, bytes) == 0) {
            return word->id;
        }
        at = (at + 1) & bpe->word_mask;
    }
    return -1;
}

enum evq_status evq_bpe_work_reserve(struct evq_bpe_work *work, size_t symbols,
                                     struct evq_error *err)
{
    if (symbols <= work->room) {
        return EVQ_OK;
    }
    if (symbols > EVQ_TOKENIZER_PIECE_BYTES_MAX + 1) {
        return evq_error_set(
            err, EVQ_E_LIMIT,
            "%zu bytes of text without a place to divide them, expected at most %zu", symbols - 1,
            EVQ_TOKENIZER_PIECE_BYTES_MAX);
    }
    const size_t room = symbols < 256 ? 256 : symbols;
    int32_t *ids = realloc(work->ids, room * sizeof(*ids));
    if (ids == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes of text to divide into tokens", symbols);
    }
    work->ids = ids;
    work->room = room;
    return EVQ_OK;
}

struct unknown { // The run of unknown characters that waits to be written.
    bool waits;
};

static void add_unknown(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                        struct unknown *unknown)
{
    if (bpe->unk < 0) {
        return;
    }
    if (unknown->waits && !bpe->fuse_unk) {
        work->ids[work->count++] = bpe->unk;
    }
    unknown->waits = true;
}

static void add_known(const struct evq_bpe *bpe, struct evq_bpe_work *work, int32_t id,
                      struct unknown *unknown)
{
    if (unknown->waits) {
        work->ids[work->count++] = bpe->unk;
        unknown->waits = false;
    }
    work->ids[work->count++] = id;
}

/* Adds a character's bytes as "<0xNN>" tokens if there is one for each byte. As in Hugging Face
 * `tokenizers`, they do not end a run of unknown characters, which comes after them. */
static bool add_bytes(const struct evq_bpe *bpe, struct evq_bpe_work *work, const char *text,
                      size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (bpe->fallback_ids[(unsigned char)text[i]] < 0) {
            return false;
        }
    }
    for (size_t i = 0; i < bytes; i++) {
        work->ids[work->count++] = bpe->fallback_ids[(unsigned char)text[i]];
    }
    return true;
}

static void symbols_of_bytes(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                             const char *piece, size_t bytes, struct unknown *unknown)
{
    for (size_t i = 0; i < bytes; i++) {
        const int32_t id = bpe->byte_ids[(unsigned char)piece[i]];
        if (id >= 0) {
            add_known(bpe, work, id, unknown);
        } else {
            add_unknown(bpe, work, unknown);
        }
    }
}

static void symbols_of_characters(const struct evq_bpe *bpe, struct evq_bpe_work *work,
                                  const char *piece, size_t bytes, struct unknown *unknown)
{
    size_t length = 0;

    for (size_t i = 0; i < bytes; i += length) {
        // Only the length is needed.
        (void)evq_utf8_code((const unsigned char *)piece + i, &length);
        const int32_t id = length == 1 ? bpe->byte_ids[(unsigned char)piece[i]]
                                       : evq_bpe_find(bpe, piece + i, length);
        if (id >= 0) {
            add_known(bpe, work, id, unknown);
        } else if (!bpe->byte_fallback || !add_bytes(bpe, work, piece + i, length)) {
            add_unknown(bpe, work, unknown);
        }
    }
}

enum evq_status evq_bpe_encode(const struct evq_bpe *bpe, const char *piece, size_t bytes,
                               struct evq_bpe_work *work, struct evq_error *err)
{
    struct unknown unknown = {false};

    enum evq_status status = evq_bpe_work_reserve(work, bytes + 1, err);
    if (status != EVQ_OK) {
        return status;
    }
    work->count = 0;
    if (bpe->ignore_merges) {
        const int32_t whole = evq_bpe_find(bpe, piece, bytes);
        if (whole >= 0) {
            work->ids[work->count++] = whole;
            return EVQ_OK;
        }
    }
    if (bpe->byte_level) {
        symbols_of_bytes(bpe, work, piece, bytes, &unknown);
    } else {
        symbols_of_characters(bpe, work, piece, bytes, &unknown);
    }
    if (unknown.waits) {
        work->ids[work->count++] = bpe->unk;
    }
    return evq_bpe_merge(bpe, work, err);
}

void evq_bpe_free(struct evq_bpe *bpe)
{
    free(bpe->words);
    free(bpe->merges);
    free(bpe->texts);
    *bpe = (struct evq_bpe){0};
}
