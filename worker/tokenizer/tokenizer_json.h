/*
 * What tokenizer.json says, before anything is built from it. The texts are in the buffer `file`.
 * Not for sharing between threads.
 */
#ifndef EVQ_WORKER_TOKENIZER_TOKENIZER_JSON_H
#define EVQ_WORKER_TOKENIZER_TOKENIZER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/arena.h"
#include "shared/base/buffer.h"
#include "worker/tokenizer/pretokenizer.h"
#include "worker/tokenizer/tokenizer.h"

#define EVQ_TOKENIZER_TEMPLATE_MAX 16 // Most tokens before a text, and after it.

struct evq_tokenizer_text {
    const char *text;
    size_t bytes;
};

struct evq_vocabulary_entry { // An entry of the vocabulary.
    struct evq_tokenizer_text token;
    int32_t id;
};

struct evq_vocabulary_merge {
    struct evq_tokenizer_text left, right;
};

struct evq_added_token { // A token that is found in the text before it is divided.
    struct evq_tokenizer_text content;
    // The text as a person writes it; `content` may be normalized.
    struct evq_tokenizer_text written;
    int32_t id;
    bool single_word, lstrip, rstrip;
    bool normalized; // It is searched in the normalized text, in its own normalized form.
};

enum evq_prepend { EVQ_PREPEND_NEVER, EVQ_PREPEND_FIRST, EVQ_PREPEND_ALWAYS };

struct evq_text_steps { // What is done to the text between added tokens before it is merged.
    bool nfc;
    bool prepend_under;   // The normalizer puts U+2581 before the text,
    bool spaces_to_under; // and replaces spaces by U+2581.
    // ByteLevel's add_prefix_space: puts a space before the text unless it begins with one.
    bool space_before;
    bool metaspace; // Spaces become U+2581, and one is put before the text, unless there is one:
    enum evq_prepend metaspace_prepend; // never, at the beginning of the whole text, or always.
    bool digits_apart; // Each digit becomes a piece of its own, before the pattern is applied.
    enum evq_pretokenizer_kind scan; // Then the text is divided into pieces.
};

struct evq_tokenizer_json {
    const char *path;        // The file, escaped for messages.
    struct evq_arena *arena; // Small arrays and names.
    struct evq_buffer file;  // The content. Reading changes it.

    struct evq_vocabulary_entry *entries;
    size_t entry_count, entry_room;
    struct evq_vocabulary_merge *merges; // Ordered by rank.
    size_t merge_count, merge_room;
    struct evq_added_token *added;
    size_t added_count, added_room;

    struct evq_text_steps steps;
    bool byte_level;               // Symbols are bytes; otherwise characters.
    struct evq_tokenizer_text unk; // text NULL: there is none.
    bool fuse_unk, byte_fallback, ignore_merges;
    int32_t before[EVQ_TOKENIZER_TEMPLATE_MAX], after[EVQ_TOKENIZER_TEMPLATE_MAX];
    size_t before_count, after_count;
};

enum evq_status evq_tokenizer_json_init(struct evq_tokenizer_json *definition, const char *path,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
void evq_tokenizer_json_free(struct evq_tokenizer_json *definition); // Accepts a zeroed one.

/* Adds an entry or merge; the texts must stay. EVQ_E_LIMIT, EVQ_E_NOMEM, EVQ_E_INVALID (an id is
 * out of range). */
enum evq_status evq_tokenizer_json_add_entry(struct evq_tokenizer_json *definition,
                                             struct evq_tokenizer_text token, uint64_t id,
                                             struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_tokenizer_json_add_merge(struct evq_tokenizer_json *definition,
                                             struct evq_tokenizer_text left,
                                             struct evq_tokenizer_text right,
                                             struct evq_error *err) EVQ_CHECK_RESULT;
/* Splits "left right" at its only space. EVQ_E_CORRUPT names the merge by its rank. */
enum evq_status evq_tokenizer_json_add_merge_line(struct evq_tokenizer_json *definition,
                                                  struct evq_tokenizer_text line,
                                                  struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_tokenizer_json_add_token(struct evq_tokenizer_json *definition,
                                             const struct evq_added_token *added,
                                             struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads tokenizer.json, which definition->file contains. */
enum evq_status evq_tokenizer_json_read(struct evq_tokenizer_json *definition,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_CORRUPT, naming path: the file is empty or not UTF-8. */
enum evq_status evq_tokenizer_json_check_text(const struct evq_buffer *file, const char *path,
                                              struct evq_error *err) EVQ_CHECK_RESULT;

/* Makes the error "'PATH' <text>; give tokens instead of text" with EVQ_E_UNSUPPORTED. */
enum evq_status evq_tokenizer_json_refuse(const struct evq_tokenizer_json *definition,
                                          struct evq_error *err, const char *format, ...)
    EVQ_PRINTF(3, 4);
// The same with EVQ_E_CORRUPT.
enum evq_status evq_tokenizer_json_bad(const struct evq_tokenizer_json *definition,
                                       struct evq_error *err, const char *format, ...)
    EVQ_PRINTF(3, 4);

/* Writes text for messages, truncated to 60 bytes and escaped. out_bytes is at least 260. Returns
 * out. */
char *evq_tokenizer_text_shown(struct evq_tokenizer_text text, char *out, size_t out_bytes);
bool evq_tokenizer_text_is(struct evq_tokenizer_text text, const char *word);

#endif
