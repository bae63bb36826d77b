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
#include "worker/tokenizer/unicode.h"

#define EVQ_TEMPLATE_PARTS_MAX    33 // Most tokens and texts of a template.
#define EVQ_TEMPLATE_FIRST        (-1)
#define EVQ_TEMPLATE_SECOND       (-2)
#define EVQ_TEXT_STEPS_MAX        16   // Most normalizers, and most pre-tokenizers.
#define EVQ_WORD_CHARACTERS_MAX   1000 // The largest word_characters_max.
#define EVQ_WORD_PREFIX_BYTES_MAX 64

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

struct evq_template { // What a text or a pair of texts becomes.
    struct {
        int32_t id;   // A token, or EVQ_TEMPLATE_FIRST or EVQ_TEMPLATE_SECOND for a text.
        int32_t type; // The type id of its tokens.
    } parts[EVQ_TEMPLATE_PARTS_MAX];
    size_t count;
};

enum evq_normalizer {
    EVQ_NORMALIZER_NFC,
    EVQ_NORMALIZER_NFD,
    EVQ_NORMALIZER_MAP, // This and the next ones are the steps of enum evq_unicode_step.
    EVQ_NORMALIZER_PREPEND_UNDER = EVQ_NORMALIZER_MAP + EVQ_UNICODE_LOWERCASE + 1,
    EVQ_NORMALIZER_SPACES_TO_UNDER
};

enum evq_prepend { EVQ_PREPEND_NEVER, EVQ_PREPEND_FIRST, EVQ_PREPEND_ALWAYS };

struct evq_text_steps { // What is done to the text between added tokens before it is merged.
    enum evq_normalizer normalizers[EVQ_TEXT_STEPS_MAX]; // They are applied in this order.
    size_t normalizer_count;
    // ByteLevel's add_prefix_space: puts a space before the text unless it begins with one.
    bool space_before;
    bool metaspace; // Spaces become U+2581, and one is put before the text, unless there is one:
    enum evq_prepend metaspace_prepend; // never, at the beginning of the whole text, or always.
    // Each divides the pieces of the one before it. None: the text is one piece.
    enum evq_pretokenizer_kind scans[EVQ_TEXT_STEPS_MAX];
    size_t scan_count;
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
    bool byte_level;                      // Symbols are bytes; otherwise characters.
    struct evq_tokenizer_text continuing; // WordPiece: begins tokens inside a word ("##").
    uint64_t word_characters_max;  // WordPiece: a longer word is unknown. 0: the model is BPE.
    struct evq_tokenizer_text unk; // text NULL: there is none.
    bool fuse_unk, byte_fallback, ignore_merges;
    bool cuts_left;                   // Texts that are too long lose their first tokens.
    struct evq_template single, pair; // count 0: there is no template.
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

/* Makes the error "'PATH' <text>", and how to do without, with EVQ_E_UNSUPPORTED. */
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
