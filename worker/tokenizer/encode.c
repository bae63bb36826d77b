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
    size_t bytes; // Size of the text that is being encoded.
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
    const struct evq_tokenizer *tokenizer = encoding->tokenizer;
    const enum evq_status status =
        tokenizer->wordpiece.characters_max > 0
            ? evq_wordpiece_encode(&tokenizer->wordpiece, &tokenizer->bpe, piece, bytes, work,
                                   encoding->err)
            : evq_bpe_encode(&tokenizer->bpe, piece, bytes, work, encoding->err);
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

/* Divides text by the pre-tokenizers from number `step` on, and adds the pieces. */
static enum evq_status add_part(struct encoding *encoding, struct evq_tokenizer_text text,
                                size_t step)
{
    const struct evq_text_steps *steps = &encoding->tokenizer->steps;
    const bool last = step + 1 >= steps->scan_count;
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && text.bytes > 0) {
        const size_t bytes = steps->scan_count == 0
                                 ? text.bytes
                                 : evq_pretokenizer_next(steps->scans[step], text.text, text.bytes);
        if (last) {
            status = add_piece(encoding, text.text, bytes);
            encoding->done += bytes;
        } else {
            status = add_part(encoding, (struct evq_tokenizer_text){text.text, bytes}, step + 1);
        }
        text.text += bytes;
        text.bytes -= bytes;
        if (status == EVQ_OK && encoding->done >= encoding->told) {
            status = tell(encoding);
        }
    }
    return status;
}

static enum evq_status add_stretch(struct encoding *encoding, struct evq_tokenizer_text text,
                                   bool first)
{
    if (text.bytes == 0) {
        return EVQ_OK;
    }
    const enum evq_status status =
        evq_text_steps_add_prefix(&encoding->tokenizer->steps, text, first,
                                  &encoding->scratch->prepared, &text, encoding->err);
    return status == EVQ_OK ? add_part(encoding, text, 0) : status;
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

/* Appends the tokens of text itself. */
static enum evq_status add_text(struct encoding *encoding, struct evq_tokenizer_text text)
{
    struct evq_tokenizer_scratch *scratch = encoding->scratch;

    encoding->bytes = text.bytes;
    encoding->done = 0;
    encoding->told = EVQ_TOKENIZER_TOLD_BYTES;
    if (evq_utf8_valid(text.text, text.bytes) < text.bytes) {
        evq_buffer_clear(&scratch->repaired);
        evq_utf8_repair(text.text, text.bytes, &scratch->repaired);
        if (scratch->repaired.failed) {
            return evq_error_set(encoding->err, EVQ_E_NOMEM, "%zu bytes of text", text.bytes);
        }
        text = (struct evq_tokenizer_text){(const char *)scratch->repaired.data,
                                           scratch->repaired.bytes};
    }
    return divide(encoding, &encoding->tokenizer->raw, text, true, add_raw);
}

enum evq_status evq_tokenizer_encode(const struct evq_tokenizer *tokenizer,
                                     struct evq_tokenizer_scratch *scratch, const char *text,
                                     size_t bytes, bool add_special, struct evq_tokens *out,
                                     struct evq_error *err)
{
    static const struct evq_template plain = {.parts = {{EVQ_TEMPLATE_FIRST, 0}}, .count = 1};
    const struct evq_template *template = add_special ? &tokenizer->single : &plain;
    struct encoding encoding = {.tokenizer = tokenizer, .scratch = scratch, .out = out, .err = err};
    const size_t count_before = out->count;
    enum evq_status status = EVQ_OK;

    own(scratch, tokenizer);
    for (size_t i = 0; status == EVQ_OK && i < template->count; i++) {
        const int32_t id = template->parts[i].id;
        status = id == EVQ_TEMPLATE_FIRST
                     ? add_text(&encoding, (struct evq_tokenizer_text){text, bytes})
                     : append(&encoding, &id, 1);
    }
    if (status != EVQ_OK) {
        out->count = count_before;
    }
    return status;
}

/* Lowers the token counts of two texts to `room` in total. The longer text is cut first, as with
 * the truncation "longest_first" of Transformers. */
static void cut_longest(size_t room, size_t *first, size_t *second)
{
    size_t *shorter = *first <= *second ? first : second;
    size_t *longer = *first <= *second ? second : first;

    if (*shorter + *longer <= room) {
        return;
    }
    // The shorter text is cut only if it is longer than half of the room.
    *shorter = *shorter <= room / 2 ? *shorter : room / 2;
    *longer = room - *shorter;
}

/* Appends the tokens of both texts to out, without the template. */
static enum evq_status add_texts(struct encoding *encoding,
                                 const struct evq_tokenizer_text texts[2], size_t counts[2])
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; status == EVQ_OK && i < 2; i++) {
        const size_t before = encoding->out->count;
        status = texts[i].text != NULL ? add_text(encoding, texts[i]) : EVQ_OK;
        counts[i] = encoding->out->count - before;
    }
    return status;
}

enum evq_status evq_tokenizer_encode_pair(const struct evq_tokenizer *tokenizer,
                                          struct evq_tokenizer_scratch *scratch,
                                          const struct evq_tokenizer_text texts[2],
                                          size_t tokens_max, struct evq_tokens *out,
                                          struct evq_tokens *types, struct evq_error *err)
{
    const struct evq_template *template =
        texts[1].text != NULL ? &tokenizer->pair : &tokenizer->single;
    const size_t texts_in_it = texts[1].text != NULL ? 2 : 1;
    struct evq_tokens whole = {0};
    struct encoding encoding = {
        .tokenizer = tokenizer, .scratch = scratch, .out = &whole, .err = err};
    const size_t before[2] = {out->count, types->count};
    size_t counts[2] = {0, 0};

    own(scratch, tokenizer);
    enum evq_status status = add_texts(&encoding, texts, counts);
    const int32_t *begins[2] = {whole.ids, whole.ids + counts[0]};
    const size_t lengths[2] = {counts[0], counts[1]};
    const size_t special = template->count - texts_in_it;
    if (status == EVQ_OK && special > tokens_max) {
        status = evq_error_set(err, EVQ_E_LIMIT,
                               "the template of '%s' has %zu tokens, expected at most %zu",
                               tokenizer->path, special, tokens_max);
    }
    if (status == EVQ_OK) {
        cut_longest(tokens_max - special, &counts[0], &counts[1]);
    }
    for (size_t i = 0; status == EVQ_OK && tokenizer->cuts_left && i < 2; i++) {
        begins[i] += lengths[i] - counts[i];
    }
    for (size_t i = 0; status == EVQ_OK && i < template->count; i++) {
        const int32_t id = template->parts[i].id;
        const size_t text = id == EVQ_TEMPLATE_SECOND;
        const size_t count = id >= 0 ? 1 : counts[text];
        encoding.out = out;
        status = append(&encoding, id >= 0 ? &id : begins[text], count);
        encoding.out = types;
        for (size_t j = 0; status == EVQ_OK && j < count; j++) {
            const int32_t type = tokenizer->typeless ? 0 : template->parts[i].type;
            status = append(&encoding, &type, 1);
        }
    }
    if (status != EVQ_OK) {
        out->count = before[0];
        types->count = before[1];
    }
    evq_tokens_free(&whole);
    return status;
}
