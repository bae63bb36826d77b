/*
 * The data of a task that scores tokens: documents, or contexts with what may follow them, as token
 * ids in one array. Made from text by a tokenizer or read from a file of tokens. Read-only once
 * open.
 */
#ifndef EVQ_WORKER_CORPUS_H
#define EVQ_WORKER_CORPUS_H

#include <stdbool.h>
#include <sys/stat.h>

#include "shared/base/arena.h"
#include "shared/config/config.h"
#include "worker/tokenizer/tokenizer.h"

#define EVQ_CORPUS_FILE_BYTES_MAX ((size_t)4 << 30)
#define EVQ_CORPUS_TOKENS_MAX     ((size_t)1 << 31)
#define EVQ_CORPUS_PASSAGES_MAX   ((size_t)1 << 28)
#define EVQ_CORPUS_CHOICES_MAX    256

enum evq_corpus_kind {
    EVQ_CORPUS_DOCUMENTS, // A passage is a document.
    EVQ_CORPUS_TARGETS,   // A passage is a context and the one text that follows it.
    EVQ_CORPUS_CHOICES    // An item is a context with several; a passage is one of them.
};

struct evq_passage {
    int64_t first;   // In tokens.
    int64_t context; // Of its tokens these only lead to the others.
    int64_t count;   // Of its tokens, context and all.
    // Of the document as it stands in the file, or of the choice without its delimiter; 0: read
    // from a file of tokens.
    int64_t words, characters, bytes;
    // Of a document's tokens, the last that lm-evaluation-harness leaves out (the first are
    // `context`): the template's. Not of the digest, which older workers have for the same data.
    int64_t after;
};

struct evq_item {
    int64_t first; // In passages.
    int32_t passages;
    int32_t gold; // Of its passages, the right one; 0 for targets.
};

struct evq_corpus {
    struct evq_arena *arena; // Owns this struct and the names.
    const char *key;         // What it was opened with.
    const char *name;        // Of its file, for messages.
    const char *paths[2];    // Text or tokens; labels or "".
    struct stat files[2];
    struct evq_tokens tokens;
    struct evq_passage *passages;
    size_t passage_count, passage_room;
    struct evq_item *items; // NULL for documents.
    size_t item_count, item_room;
    bool counted;    // Words, characters and bytes of the passages are known.
    int32_t prefix;  // What a passage without context is scored after; -1: nothing.
    int32_t most;    // The largest token id; -1: there is none.
    char digest[33]; // XXH3-128 over tokens, passages and items.
};

struct evq_corpus_source { // What is read. Relative paths start at directory.
    const struct evq_task_config *task;
    enum evq_corpus_kind kind;
    const char *directory;
    const struct evq_tokenizer *tokenizer; // NULL: tokens only.
    const struct evq_progress *progress;   // Of the file's bytes; NULL: nobody listens.
};

/*
 * Opens what the task's `data` options say; docs/suites.md lists them. EVQ_E_INVALID,
 * EVQ_E_CORRUPT, EVQ_E_LIMIT, EVQ_E_NOT_FOUND, EVQ_E_IO, EVQ_E_NOMEM: one sentence naming file,
 * line and fault. EVQ_E_STOPPED: who listens says so.
 */
enum evq_status evq_corpus_open(const struct evq_corpus_source *source,
                                struct evq_corpus **ret_corpus,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_corpus_free(struct evq_corpus *corpus); // Accepts NULL.

/* Whether the `data` options are right, without opening a file. EVQ_E_INVALID. */
enum evq_status evq_corpus_check(const struct evq_task_config *task, enum evq_corpus_kind kind,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether the options ask for text, so that a tokenizer is needed. */
bool evq_corpus_needs_tokenizer(const struct evq_task_config *task);

/* Whether opening the same again would give the same: same options and tokenizer, files untouched
 * since. */
bool evq_corpus_current(const struct evq_corpus *corpus, const struct evq_corpus_source *source);
size_t evq_corpus_bytes(const struct evq_corpus *corpus);

#endif
