/*
 * What the files say a tokenizer is, before anything is built from it. Texts lie in buffers that
 * the definition owns. Not for sharing between threads.
 */
#ifndef EVQ_WORKER_TOKENIZER_DEFINITION_H
#define EVQ_WORKER_TOKENIZER_DEFINITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/arena.h"
#include "shared/base/buffer.h"
#include "worker/tokenizer/pretokenizer.h"
#include "worker/tokenizer/tokenizer.h"

#define EVQ_DEFINITION_TEMPLATE_MAX 16 // Tokens before a text, and after it.

struct evq_definition_text {
    const char *text;
    size_t bytes;
};

struct evq_definition_entry { // Of the vocabulary.
    struct evq_definition_text token;
    int32_t id;
};

struct evq_definition_merge {
    struct evq_definition_text left, right;
};

struct evq_definition_added { // Found in the text before it is divided.
    struct evq_definition_text content;
    struct evq_definition_text written; // As a person has it; content may be normalised.
    int32_t id;
    bool single_word, lstrip, rstrip;
    bool normalized; // Looked for after normalising, in its own normalised form.
};

enum evq_prepend { EVQ_PREPEND_NEVER, EVQ_PREPEND_FIRST, EVQ_PREPEND_ALWAYS };

struct evq_normalizer { // What happens to a stretch of text between added tokens before it is
                        // merged.
    bool nfc;
    bool prepend_under;   // Normalizing puts U+2581 before it,
    bool spaces_to_under; // and makes spaces that.
    bool space_before;    // ByteLevel's add_prefix_space: a space, unless there is one.
    bool metaspace;       // Spaces become U+2581, and one comes before unless there is one:
    enum evq_prepend metaspace_prepend; // nowhere, where the text begins, or everywhere.
    bool digits_apart;               // Each number character by itself, before the pattern counts.
    enum evq_pretokenizer_kind scan; // Then pieces.
};

struct evq_definition {
    const char *path;        // The file, for messages; escaped.
    struct evq_arena *arena; // Arrays of small count and names.
    struct evq_buffer files[3];

    struct evq_definition_entry *entries;
    size_t entry_count, entry_room;
    struct evq_definition_merge *merges; // By rank.
    size_t merge_count, merge_room;
    struct evq_definition_added *added;
    size_t added_count, added_room;

    struct evq_normalizer steps;
    bool byte_level;                // Symbols are bytes; else characters.
    struct evq_definition_text unk; // text NULL: none.
    bool fuse_unk, byte_fallback, ignore_merges;
    int32_t before[EVQ_DEFINITION_TEMPLATE_MAX], after[EVQ_DEFINITION_TEMPLATE_MAX];
    size_t before_count, after_count;
};

enum evq_status evq_definition_init(struct evq_definition *definition, const char *path,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_definition_free(struct evq_definition *definition); // Of zeros: nothing.

/* EVQ_E_LIMIT, EVQ_E_NOMEM, EVQ_E_INVALID (an id that is out of range). The texts must stay. */
enum evq_status evq_definition_entry(struct evq_definition *definition,
                                     struct evq_definition_text token, uint64_t id,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_definition_merge(struct evq_definition *definition,
                                     struct evq_definition_text left,
                                     struct evq_definition_text right,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
/* Splits "left right" at its one space. EVQ_E_CORRUPT names the merge by its rank. */
enum evq_status evq_definition_merge_line(struct evq_definition *definition,
                                          struct evq_definition_text line,
                                          struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_definition_added(struct evq_definition *definition,
                                     const struct evq_definition_added *added,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* tokenizer.json and vocab.json, merges.txt: files[0], files[1], already read, are changed. */
enum evq_status evq_definition_read_json(struct evq_definition *definition,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_definition_read_pair(struct evq_definition *definition,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_CORRUPT, naming path: it is empty or no UTF-8. */
enum evq_status evq_definition_text_check(const struct evq_buffer *file, const char *path,
                                          struct evq_error *err) EVQ_CHECK_RESULT;

/* "'PATH' <text>; give tokens instead of text": EVQ_E_UNSUPPORTED. */
enum evq_status evq_definition_refuse(const struct evq_definition *definition,
                                      struct evq_error *err, const char *format, ...)
    EVQ_PRINTF(3, 4);
enum evq_status evq_definition_bad(const struct evq_definition *definition, struct evq_error *err,
                                   const char *format, ...) EVQ_PRINTF(3, 4); // EVQ_E_CORRUPT.

/* text cut to 60 bytes and escaped, for messages. out_bytes at least 260. Returns out. */
char *evq_definition_shown(struct evq_definition_text text, char *out, size_t out_bytes);
bool evq_definition_is(struct evq_definition_text text, const char *word);

#endif
