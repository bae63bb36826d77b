/* Builds the tables of a BPE model from the vocabulary and the merges of its files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "worker/tokenizer/bpe.h"
#include "worker/tokenizer/utf8.h"

#define UNDER "\xe2\x96\x81"

struct names {                                 // The vocabulary as it is written: from token to id.
    const struct evq_vocabulary_entry **slots; // NULL: empty.
    size_t mask;
};

/* A power of two that leaves at least a third of the slots empty. */
static size_t slots_for(size_t count)
{
    size_t slots = 16;

    while (slots < count + count / 2 + 1) {
        slots *= 2;
    }
    return slots;
}

static const struct evq_vocabulary_entry **name_slot(const struct names *names, const char *text,
                                                     size_t bytes)
{
    size_t at = (size_t)XXH3_64bits(text, bytes) & names->mask;

    while (names->slots[at] != NULL) {
        const struct evq_tokenizer_text token = names->slots[at]->token;
        if (token.bytes == bytes && memcmp(token.text, text, bytes) == 0) {
            break;
        }
        at = (at + 1) & names->mask;
    }
    return &names->slots[at];
}

static int32_t name_id(const struct names *names, const char *text, size_t bytes)
{
    const struct evq_vocabulary_entry *entry = *name_slot(names, text, bytes);

    return entry != NULL ? entry->id : -1;
}

static enum evq_status read_names(const struct evq_tokenizer_json *definition, struct evq_bpe *bpe,
                                  struct names *names, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char shown[260];

    for (size_t i = 0; i < definition->entry_count; i++) {
        bpe->id_max =
            definition->entries[i].id > bpe->id_max ? definition->entries[i].id : bpe->id_max;
    }
    const size_t slots = slots_for(definition->entry_count);
    names->mask = slots - 1;
    names->slots = calloc(slots, sizeof(const struct evq_vocabulary_entry *));
    uint8_t *seen = calloc((size_t)bpe->id_max + 1, 1);
    if (names->slots == NULL || seen == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "'%s': %zu tokens", definition->path,
                               definition->entry_count);
    }
    for (size_t i = 0; status == EVQ_OK && i < definition->entry_count; i++) {
        const struct evq_vocabulary_entry *entry = &definition->entries[i];
        const struct evq_vocabulary_entry **slot =
            name_slot(names, entry->token.text, entry->token.bytes);
        if (*slot != NULL || seen[entry->id] != 0) {
            status = evq_tokenizer_json_bad(
                definition, err, "its vocabulary has %s twice: '%s' with id %d",
                *slot != NULL ? "a token" : "an id",
                evq_tokenizer_text_shown(entry->token, shown, sizeof(shown)), (int)entry->id);
            break;
        }
        *slot = entry;
        seen[entry->id] = 1;
    }
    free(seen);
    return status;
}

/* The byte that ByteLevel writes as this character, or -1. Printable characters of Latin-1 stand
 * for themselves, and the other bytes are numbered from U+0100 on. */
static int byte_of(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) ||
        (code >= 0xae && code <= 0xff)) {
        return (int)code;
    }
    if (code < 0x100 || code > 0x143) {
        return -1;
    }
    const int place = (int)code - 0x100;
    return place <= 0x20 ? place : place <= 0x42 ? place - 0x21 + 0x7f : 0xad;
}

/* Writes the token's bytes as they are in a piece to out; false: no piece can contain it. */
static bool piece_form(const struct evq_bpe *bpe, struct evq_tokenizer_text token, char *out,
                       size_t *ret_bytes)
{
    size_t written = 0;
    size_t length = 0;

    if (!bpe->byte_level) {
        memcpy(out, token.text, token.bytes);
        *ret_bytes = token.bytes;
        return true;
    }
    for (size_t i = 0; i < token.bytes; i += length) {
        const int byte = byte_of(evq_utf8_code((const unsigned char *)token.text + i, &length));
        if (byte < 0) {
            return false;
        }
        out[written++] = (char)byte;
    }
    *ret_bytes = written;
    return true;
}

static enum evq_status build_words(const struct evq_tokenizer_json *definition, struct evq_bpe *bpe,
                                   struct evq_error *err)
{
    size_t total = 0;

    for (size_t i = 0; i < definition->entry_count; i++) {
        // They are parts of one file, so this cannot overflow.
        total += definition->entries[i].token.bytes;
    }
    const size_t slots = slots_for(definition->entry_count);
    bpe->word_mask = slots - 1;
    bpe->words = malloc(slots * sizeof(*bpe->words));
    bpe->texts = malloc(total + 1);
    if (bpe->words == NULL || bpe->texts == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s': %zu tokens", definition->path,
                             definition->entry_count);
    }
    for (size_t i = 0; i < slots; i++) {
        bpe->words[i].id = -1;
    }
    for (size_t i = 0; i < 256; i++) {
        bpe->byte_ids[i] = -1;
    }
    char *text = bpe->texts;
    for (size_t i = 0; i < definition->entry_count; i++) {
        const struct evq_vocabulary_entry *entry = &definition->entries[i];
        size_t bytes = 0;
        if (!piece_form(bpe, entry->token, text, &bytes) || bytes == 0) {
            continue;
        }
        size_t at = (size_t)XXH3_64bits(text, bytes) & bpe->word_mask;
        while (bpe->words[at].id >= 0) {
            at = (at + 1) & bpe->word_mask;
        }
        bpe->words[at] = (struct evq_bpe_word){text, (uint32_t)bytes, entry->id};
        if (bytes == 1) {
            bpe->byte_ids[(unsigned char)text[0]] = entry->id;
        }
        text += bytes;
    }
    return EVQ_OK;
}

static enum evq_status build_fallback(const struct evq_tokenizer_json *definition,
                                      struct evq_bpe *bpe, const struct names *names,
                                      struct evq_error *err)
{
    char name[8];
    char shown[260];

    for (unsigned byte = 0; byte < 256; byte++) {
        (void)snprintf(name, sizeof(name), "<0x%02X>", byte);
        bpe->fallback_ids[byte] = name_id(names, name, strlen(name));
        if (bpe->byte_level && bpe->byte_fallback && bpe->byte_ids[byte] < 0) {
            return evq_tokenizer_json_refuse(
                definition, err, "is byte-level, falls back to bytes and lacks the byte 0x%02x",
                byte);
        }
    }
    bpe->unk = -1;
    if (definition->unk.text == NULL) {
        return EVQ_OK;
    }
    bpe->unk = name_id(names, definition->unk.text, definition->unk.bytes);
    if (bpe->unk < 0) {
        return evq_tokenizer_json_bad(
            definition, err, "unk_token '%s' is not in its vocabulary",
            evq_tokenizer_text_shown(definition->unk, shown, sizeof(shown)));
    }
    return EVQ_OK;
}

static bool begins_with_under(struct evq_tokenizer_text text)
{
    return text.bytes >= 3 && memcmp(text.text, UNDER, 3) == 0;
}

static bool ends_with_under(struct evq_tokenizer_text text)
{
    return text.bytes >= 3 && memcmp(text.text + text.bytes - 3, UNDER, 3) == 0;
}

static void put_merge(struct evq_bpe *bpe, uint64_t pair, uint64_t result)
{
    size_t at = (size_t)(pair * 0x9e3779b97f4a7c15u >> 32) & bpe->merge_mask;

    while (bpe->merges[at].pair != UINT64_MAX && bpe->merges[at].pair != pair) {
        at = (at + 1) & bpe->merge_mask;
    }
    // If a pair is listed twice, the later rank counts.
    bpe->merges[at] = (struct evq_bpe_merge){pair, result};
}

static enum evq_status add_merge(const struct evq_tokenizer_json *definition, struct evq_bpe *bpe,
                                 const struct names *names, size_t rank, struct evq_buffer *joined,
                                 struct evq_error *err)
{
    const struct evq_vocabulary_merge *merge = &definition->merges[rank];
    char left[260];
    char right[260];

    evq_buffer_clear(joined);
    evq_buffer_append(joined, merge->left.text, merge->left.bytes);
    evq_buffer_append(joined, merge->right.text, merge->right.bytes);
    if (joined->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s': merge %zu", definition->path, rank);
    }
    const int32_t left_id = name_id(names, merge->left.text, merge->left.bytes);
    const int32_t right_id = name_id(names, merge->right.text, merge->right.bytes);
    const int32_t id = name_id(names, (const char *)joined->data, joined->bytes);
    if (left_id < 0 || right_id < 0 || id < 0) {
        return evq_tokenizer_json_bad(
            definition, err, "merge %zu joins '%s' and '%s', and its vocabulary lacks %s", rank,
            evq_tokenizer_text_shown(merge->left, left, sizeof(left)),
            evq_tokenizer_text_shown(merge->right, right, sizeof(right)),
            left_id < 0    ? "the first"
            : right_id < 0 ? "the second"
                           : "what they make");
    }
    if (begins_with_under(merge->right) && !ends_with_under(merge->left)) {
        bpe->divides_at_under = false;
    }
    put_merge(bpe, (uint64_t)(uint32_t)left_id << 32 | (uint32_t)right_id,
              (uint64_t)rank << 32 | (uint32_t)id);
    return EVQ_OK;
}

/* Whether some character gives no token. Then the symbols on both sides become neighbours, and may
 * merge. */
static bool drops_characters(const struct evq_bpe *bpe)
{
    bool bytes = bpe->byte_fallback;

    for (size_t i = 0; i < 256; i++) {
        bytes = bytes && bpe->fallback_ids[i] >= 0;
    }
    return bpe->unk < 0 && !bytes;
}

static enum evq_status build_merges(const struct evq_tokenizer_json *definition,
                                    struct evq_bpe *bpe, const struct names *names,
                                    struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_buffer joined;

    // Most look-ups find nothing, so the table is half empty.
    const size_t slots = slots_for(2 * definition->merge_count);
    bpe->merge_mask = slots - 1;
    bpe->merges = malloc(slots * sizeof(*bpe->merges));
    if (bpe->merges == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "'%s': %zu merges", definition->path,
                             definition->merge_count);
    }
    for (size_t i = 0; i < slots; i++) {
        bpe->merges[i].pair = UINT64_MAX;
    }
    bpe->divides_at_under =
        name_id(names, UNDER, 3) >= 0 && !bpe->ignore_merges && !drops_characters(bpe);
    evq_buffer_init(&joined, EVQ_TOKENIZER_FILE_BYTES_MAX);
    for (size_t i = 0; status == EVQ_OK && i < definition->merge_count; i++) {
        status = add_merge(definition, bpe, names, i, &joined, err);
    }
    evq_buffer_free(&joined);
    return status;
}

/* Checks the ids of added tokens. Hugging Face `tokenizers` uses the id of the vocabulary, or the
 * next free one, whatever the file says. So the file must agree. */
static enum evq_status check_added(const struct evq_tokenizer_json *definition,
                                   const struct names *names, struct evq_error *err)
{
    size_t next = definition->entry_count;
    char shown[260];

    for (size_t i = 0; i < definition->added_count; i++) {
        const struct evq_added_token *added = &definition->added[i];
        if (added->content.bytes == 0) {
            continue; // Such a token is never found.
        }
        int32_t id = name_id(names, added->content.text, added->content.bytes);
        if (id < 0) {
            id = (int32_t)next++; // Both counts are limited.
        }
        if (id != added->id) {
            return evq_tokenizer_json_refuse(
                definition, err, "gives the added token '%s' the id %d, expected %d by its place",
                evq_tokenizer_text_shown(added->content, shown, sizeof(shown)), (int)added->id,
                (int)id);
        }
    }
    return EVQ_OK;
}

static enum evq_status check_template(const struct evq_tokenizer_json *definition,
                                      const struct evq_template *template, struct evq_error *err)
{
    int32_t end = 0;

    for (size_t i = 0; i < definition->entry_count; i++) {
        end = definition->entries[i].id >= end ? definition->entries[i].id + 1 : end;
    }
    for (size_t i = 0; i < definition->added_count; i++) {
        end = definition->added[i].id >= end ? definition->added[i].id + 1 : end;
    }
    for (size_t i = 0; i < template->count; i++) {
        if (template->parts[i].id >= end) {
            return evq_tokenizer_json_bad(definition, err,
                                          "the template has the id %d, expected below %d",
                                          (int)template->parts[i].id, (int)end);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_bpe_build(const struct evq_tokenizer_json *definition, struct evq_bpe *bpe,
                              struct evq_error *err)
{
    struct names names = {0};

    bpe->byte_level = definition->byte_level;
    bpe->byte_fallback = definition->byte_fallback;
    bpe->fuse_unk = definition->fuse_unk;
    bpe->ignore_merges = definition->ignore_merges;
    enum evq_status status = read_names(definition, bpe, &names, err);
    if (status == EVQ_OK) {
        status = build_words(definition, bpe, err);
    }
    if (status == EVQ_OK) {
        status = build_fallback(definition, bpe, &names, err);
    }
    if (status == EVQ_OK) {
        status = build_merges(definition, bpe, &names, err);
    }
    if (status == EVQ_OK) {
        status = check_added(definition, &names, err);
    }
    if (status == EVQ_OK) {
        status = check_template(definition, &definition->single, err);
    }
    if (status == EVQ_OK) {
        status = check_template(definition, &definition->pair, err);
    }
    free(names.slots);
    return status;
}
