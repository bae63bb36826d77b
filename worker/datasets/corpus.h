/*
 * The data of a task that scores tokens: documents, or contexts with the texts that may follow
 * them, as token ids in one array. It is made from text by a tokenizer, or read from a file of
 * tokens. Read-only once open.
 */
#ifndef EVQ_WORKER_DATASETS_CORPUS_H
#define EVQ_WORKER_DATASETS_CORPUS_H

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
    // An item is a context with several possible continuations; a passage is one of them.
    EVQ_CORPUS_CHOICES,
    EVQ_CORPUS_LABELS // An item is a text and its label; it has one passage.
};

struct evq_passage {
    int64_t first;   // Position of its first token.
    int64_t context; // Number of its tokens that are only context.
    int64_t count;   // Number of its tokens, including the context.
    // Sizes of the document as it is in the file, or of the choice without its delimiter. 0: the
    // passage was read from a file of tokens.
    int64_t words, characters, bytes;
    // Number of tokens at the end of a document that lm-evaluation-harness does not score; they
    // come from the template. (`context` counts those at the beginning.) It is not part of the
    // digest, because older workers have the same digest for the same data.
    int64_t after;
};

struct evq_item {
    int64_t first; // Index of its first passage.
    int32_t passages;
    int32_t gold; // CHOICES: which of its passages is right; LABELS: the class; otherwise 0.
};

#define EVQ_CORPUS_PATHS 4

struct evq_corpus {
    struct evq_arena *arena; // Owns this struct and the names.
    const char *key;         // Identifies what was opened.
    const char *name;        // Name of its file, for messages.
    // The files of text or tokens, labels, the mask of tokens and their types; or "".
    const char *paths[EVQ_CORPUS_PATHS];
    struct stat files[EVQ_CORPUS_PATHS];
    struct evq_tokens tokens;
    struct evq_tokens types; // One for each token; empty: all are 0.
    struct evq_passage *passages;
    size_t passage_count, passage_room;
    struct evq_item *items; // NULL for documents.
    size_t item_count, item_room;
    bool counted;    // Words, characters and bytes of the passages are known.
    int32_t prefix;  // The token before a passage without context; -1: none.
    int32_t most;    // The largest token id; -1: there is none.
    char digest[33]; // XXH3-128 of tokens, types, passages and items.
};

struct evq_corpus_source { // What to read. Relative paths start at directory.
    const struct evq_task_config *task;
    enum evq_corpus_kind kind;
    const char *directory;
    const struct evq_tokenizer *tokenizer; // NULL: only tokens can be read.
    const struct evq_progress *progress;   // Progress in bytes of the file; NULL: nobody listens.
};

/*
 * Opens what the task's `data` options name; docs/suites.md lists them. EVQ_E_INVALID,
 * EVQ_E_CORRUPT, EVQ_E_LIMIT, EVQ_E_NOT_FOUND, EVQ_E_IO, EVQ_E_NOMEM: the message names file, line
 * and fault. EVQ_E_STOPPED: the listener said so.
 */
enum evq_status evq_corpus_open(const struct evq_corpus_source *source,
                                struct evq_corpus **ret_corpus,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_corpus_free(struct evq_corpus *corpus); // Accepts NULL.

/* Checks the `data` options without opening a file. EVQ_E_INVALID. */
enum evq_status evq_corpus_check(const struct evq_task_config *task, enum evq_corpus_kind kind,
                                 struct evq_error *err) EVQ_CHECK_RESULT;

/* Whether the options name text, so that a tokenizer is needed. */
bool evq_corpus_needs_tokenizer(const struct evq_task_config *task);

/* Whether opening the same source again would give the same corpus: the options and the tokenizer
 * are equal, and the files were not touched. */
bool evq_corpus_current(const struct evq_corpus *corpus, const struct evq_corpus_source *source);
size_t evq_corpus_bytes(const struct evq_corpus *corpus);

#endif
