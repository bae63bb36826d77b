/* Encodes a text: finds the added tokens, divides the text between them into pieces, and takes each
 * piece's tokens from the cache or merges them. */
#include <stdlib.h>
#include <string.h>

#include "shared/base/utf8.h"
#include "worker/tokenizer/tokenizer_internal.h"
#include "worker/tokenizer/utf8.h"

#define CACHE_SETS      16384 // Sets of two slots of 64 bytes each; 2 MiB per thread.
#define CACHE_BYTES_MAX 24    // Longest piece that is cached.
#define CACHE_IDS       9

struct slot {
    uint64_t key[3]; // Together with `bytes`, this is the piece itself.
    uint8_t bytes;   // 0: the slot is empty.
    uint8_t count;
    int32_t ids[CACHE_IDS];
};

struct evq_tokenizer_scratch {
    char digest[33]; // Digest of the tokenizer whose pieces are cached.
    struct slot *slots;
    struct evq_bpe_work work;
    struct evq_buffer repaired, normal[2], codes, prepared;
    const struct evq_progress *progress; // NULL: nobody listens.
};

struct encoding { // The state of one evq_tokenizer_encode() call.
    const struct evq_tokenizer *tokenizer;
    struct evq_tokenizer_scratch *scratch;
    struct evq_tokens *out;
    struct evq_error *err;
    size_t bytes; // Size of the text.
    size_t done;  // Position in the normalized text.
    size_t told;  // The position at which to report progress next.
};

struct evq_tokenizer_scratch *evq_tokenizer_scratch_new(void)
{
    struct evq_tokenizer_scratch *scratch = calloc(1, sizeof(*scratch));

    if (scratch == NULL) {
        return NULL;
    }
    scratch->slots = aligned_alloc(64, 2 * CACHE_SETS * sizeof(*scratch->slots));
    if (scratch->slots == NULL) {
        free(scratch);
        return NULL;
    }
    memset(scratch->slots, 0, 2 * CACHE_SETS * sizeof(*scratch->slots));
    evq_buffer_init(&scratch->repaired, SIZE_MAX);
    evq_buffer_init(&scratch->normal[0], SIZE_MAX);
    evq_buffer_init(&scratch->normal[1], SIZE_MAX);
    evq_buffer_init(&scratch->codes, SIZE_MAX);
    evq_buffer_init(&scratch->prepared, SIZE_MAX);
    return scratch;
}

void evq_tokenizer_scratch_free(struct evq_tokenizer_scratch *scratch)
{
    if (scratch == NULL) {
        return;
    }
    evq_buffer_free(&scratch->repaired);
    evq_buffer_free(&scratch->normal[0]);
    evq_buffer_free(&scratch->normal[1]);
    evq_buffer_free(&scratch->codes);
    evq_buffer_free(&scratch->prepared);
    evq_bpe_work_free(&scratch->work);
    free(scratch->slots);
    free(scratch);
}

void evq_tokenizer_scratch_watch(struct evq_tokenizer_scratch *scratch,
                                 const struct evq_progress *progress)
{
    scratch->progress = progress;
}

void evq_tokens_free(struct evq_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (struct evq_tokens){0};
}

static enum evq_status append(struct encoding *encoding, const int32_t *ids, size_t count)
{
    struct evq_tokens *out = encoding->out;

    if (out->capacity - out->count < count) {
        size_t capacity = 0;
        size_t bytes = 0;
        int32_t *grown = NULL;
        if (evq_size_add(out->capacity + out->capacity / 2 + 64, count, &capacity) &&
            evq_size_mul(capacity, sizeof(*ids), &bytes)) {
            grown = realloc(out->ids, bytes);
        }
        if (grown == NULL) {
            return evq_error_set(encoding->err, EVQ_E_NOMEM, "%zu tokens", capacity);
        }
        out->ids = grown;
        out->capacity = capacity;
    }
    for (size_t i = 0; i < count; i++) { // Mostly there are one or two.
        out->ids[out->count + i] = ids[i];
    }
    out->count += count;
    return EVQ_OK;
}

static inline uint64_t load(const char *text, size_t bytes)
{
    uint64_t word = 0;

    memcpy(&word, text, bytes);
    return word;
}

/* Packs a piece of at most CACHE_BYTES_MAX bytes into three words, which identify it together with
 * its length. The words overlap instead of reading behind the end. */
static inline void key_of(const char *piece, size_t bytes, uint64_t key[3])
{
    key[1] = 0;
    key[2] = 0;
    if (bytes >= 8) {
        key[0] = load(piece, 8);
        key[1] = load(piece + bytes - 8, 8);
        if (bytes > 16) {
            key[2] = load(piece + 8, 8);
        }
    } else if (bytes >= 4) {
        key[0] = load(piece, 4) | load(piece + bytes - 4, 4) << 32;
    } else {
        key[0] = (uint64_t)(unsigned char)piece[0] |
                 (uint64_t)(unsigned char)piece[bytes / 2] << 8 |
                 (uint64_t)(unsigned char)piece[bytes - 1] << 16;
    }
}

static inline size_t set_of(const uint64_t key[3], size_t bytes)
{
    uint64_t hash = (key[0] ^ bytes) * 0x9e3779b97f4a7c15u;

    hash = (hash ^ hash >> 29 ^ key[1]) * 0xbf58476d1ce4e5b9u;
    hash = (hash ^ hash >> 31 ^ key[2]) * 0x94d049bb133111ebu;
    return (size_t)(hash >> 40) % CACHE_SETS;
}

static inline bool holds(const struct slot *slot, const uint64_t key[3], size_t bytes)
{
    return slot->bytes == bytes && slot->key[0] == key[0] && slot->key[1] == key[1] &&
           slot->key[2] == key[2];
}

/* Stores a piece in the first slot of its set. The piece that was there moves to the second slot,
 * and the one in the second is dropped. */
static void remember(struct slot *set, const uint64_t key[3], size_t bytes,
                     const struct evq_bpe_work *work)
{
    set[1] = set[0];
    memcpy(set->key, key, sizeof(set->key));
    set->bytes = (uint8_t)bytes;
    set->count = (uint8_t)work->count;
    memcpy(set->ids, work->ids, work->count * sizeof(*work->ids));
}

static enum evq_status add_piece(struct encoding *encoding, const char *piece, size_t bytes)
{
    struct evq_bpe_work *work = &encoding->scratch->work;
    struct slot *set = NULL;
    uint64_t key[3];

    if (bytes <= CACHE_BYTES_MAX) {
        key_of(piece, bytes, key);
        set = &encoding->scratch->slots[2 * set_of(key, bytes)];
        if (holds(&set[0], key, bytes)) {
            return append(encoding, set[0].ids, set[0].count);
        }
        if (holds(&set[1], key, bytes)) {
            return append(encoding, set[1].ids, set[1].count);
        }
    }
    const enum evq_status status =
        evq_bpe_encode(&encoding->tokenizer->bpe, piece, bytes, work, encoding->err);
    if (status != EVQ_OK) {
        return status;
    }
    if (set != NULL && work->count <= CACHE_IDS) {
        remember(set, key, bytes, work);
    }
    return append(encoding, work->ids, work->count);
}

/* Reports progress. Normalizing may have made the text longer. */
static enum evq_status tell(struct encoding *encoding)
{
    const struct evq_progress *progress = encoding->scratch->progress;
    const size_t done = encoding->done < encoding->bytes ? encoding->done : encoding->bytes;

    encoding->told = encoding->done + EVQ_TOKENIZER_TOLD_BYTES;
    return progress != NULL
               ? progress->tell(progress->context, (int64_t)done, (int64_t)encoding->bytes)
               : EVQ_OK;
}

static enum evq_status add_run(struct encoding *encoding, struct evq_tokenizer_text text)
{
    const enum evq_pretokenizer_kind scan = encoding->tokenizer->steps.scan;
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && text.bytes > 0) {
        const size_t bytes = evq_pretokenizer_next(scan, text.text, text.bytes);
        status = add_piece(encoding, text.text, bytes);
        text.text += bytes;
        text.bytes -= bytes;
        encoding->done += bytes;
        if (status == EVQ_OK && encoding->done >= encoding->told) {
            status = tell(encoding);
        }
    }
    return status;
}

static enum evq_status add_stretch(struct encoding *encoding, struct evq_tokenizer_text text,
                                   bool first)
{
    const struct evq_text_steps *steps = &encoding->tokenizer->steps;
    enum evq_status status = EVQ_OK;

    if (text.bytes == 0) {
        return EVQ_OK;
    }
    status = evq_text_steps_add_prefix(steps, text, first, &encoding->scratch->prepared, &text,
                                       encoding->err);
    while (status == EVQ_OK && text.bytes > 0) {
        bool number = false;
        const size_t run = evq_text_steps_first_part(steps, text, &number);
        status = number ? add_piece(encoding, text.text, run)
                        : add_run(encoding, (struct evq_tokenizer_text){text.text, run});
        text.text += run;
        text.bytes -= run;
    }
    return status;
}

typedef enum evq_status (*stretch_function)(struct encoding *encoding,
                                            struct evq_tokenizer_text text, bool first);

/* Passes the text between the added tokens to `next`, and the added tokens to out. */
static enum evq_status divide(struct encoding *encoding, const struct evq_added_tokens *added,
                              struct evq_tokenizer_text text, bool first, stretch_function next)
{
    enum evq_status status = EVQ_OK;
    struct evq_added_tokens_match match;
    size_t at = 0;
    size_t taken = 0;
    size_t done = 0; // How much was passed on.

    while (status == EVQ_OK &&
           evq_added_tokens_next(added, text.text, text.bytes, &at, &taken, &match)) {
        if (done < match.from) {
            status =
                next(encoding, (struct evq_tokenizer_text){text.text + done, match.from - done},
                     first && done == 0);
        }
        // Otherwise an earlier token stripped all of it.
        if (status == EVQ_OK && match.from < match.to) {
            status = append(encoding, &match.id, 1);
        }
        done = match.to;
    }
    if (status == EVQ_OK && done < text.bytes) {
        status = next(encoding, (struct evq_tokenizer_text){text.text + done, text.bytes - done},
                      first && done == 0);
    }
    return status;
}

static enum evq_status add_raw(struct encoding *encoding, struct evq_tokenizer_text text,
                               bool first)
{
    struct evq_tokenizer_scratch *scratch = encoding->scratch;

    enum evq_status status = evq_text_steps_normalize(
        &encoding->tokenizer->steps, text, scratch->normal, &scratch->codes, &text, encoding->err);
    if (status != EVQ_OK) {
        return status;
    }
    return divide(encoding, &encoding->tokenizer->normalized, text, first, add_stretch);
}

/* Makes the cache belong to this tokenizer, because it holds the pieces of only one. */
static void own(struct evq_tokenizer_scratch *scratch, const struct evq_tokenizer *tokenizer)
{
    if (memcmp(scratch->digest, tokenizer->digest, sizeof(scratch->digest)) != 0) {
        memset(scratch->slots, 0, 2 * CACHE_SETS * sizeof(*scratch->slots));
        memcpy(scratch->digest, tokenizer->digest, sizeof(scratch->digest));
    }
}

enum evq_status evq_tokenizer_encode(const struct evq_tokenizer *tokenizer,
                                     struct evq_tokenizer_scratch *scratch, const char *text,
                                     size_t bytes, bool add_special, struct evq_tokens *out,
                                     struct evq_error *err)
{
    struct encoding encoding = {.tokenizer = tokenizer,
                                .scratch = scratch,
                                .out = out,
                                .err = err,
                                .bytes = bytes,
                                .told = EVQ_TOKENIZER_TOLD_BYTES};
    struct evq_tokenizer_text whole = {text, bytes};
    const size_t count_before = out->count;
    enum evq_status status = EVQ_OK;

    own(scratch, tokenizer);
    if (evq_utf8_valid(text, bytes) < bytes) {
        evq_buffer_clear(&scratch->repaired);
        evq_utf8_repair(text, bytes, &scratch->repaired);
        if (scratch->repaired.failed) {
            return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes of text", bytes);
        }
        whole = (struct evq_tokenizer_text){(const char *)scratch->repaired.data,
                                            scratch->repaired.bytes};
    }
    if (add_special) {
        status = append(&encoding, tokenizer->before, tokenizer->before_count);
    }
    if (status == EVQ_OK) {
        status = divide(&encoding, &tokenizer->raw, whole, true, add_raw);
    }
    if (status == EVQ_OK && add_special) {
        status = append(&encoding, tokenizer->after, tokenizer->after_count);
    }
    if (status != EVQ_OK) {
        out->count = count_before;
    }
    return status;
}
