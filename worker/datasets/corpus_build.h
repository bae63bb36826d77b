/*
 * What the readers of text, prompt items and tokens share while a corpus grows. One thread.
 */
#ifndef EVQ_WORKER_DATASETS_CORPUS_BUILD_H
#define EVQ_WORKER_DATASETS_CORPUS_BUILD_H

#include "shared/base/buffer.h"
#include "worker/datasets/corpus.h"

struct evq_corpus_build {
    struct evq_corpus *corpus;
    const struct evq_corpus_source *source;
    struct evq_tokenizer_scratch *scratch;
    struct evq_tokens context; // Context tokens of the present pair.
    struct evq_buffer joined;
    int64_t limit;            // Most documents or items.
    struct evq_progress text; // Progress within the text that is encoded.
    int64_t file_bytes;       // Bytes of the file,
    int64_t file_done;        // bytes before the text that is encoded,
    int64_t file_told;        // and bytes that were reported.
};

/* Reads an option of `data`; fallback may be NULL. */
const char *evq_corpus_option(const struct evq_task_config *task, const char *key,
                              const char *fallback);

/* From now on, encoding with build->scratch reports its progress to the listener of the source. */
void evq_corpus_watch(struct evq_corpus_build *build);

/* Call it when a document or item begins, with the number of bytes of the file that are left.
 * Reports the progress. EVQ_E_STOPPED. */
enum evq_status evq_corpus_report_left(struct evq_corpus_build *build,
                                       size_t bytes) EVQ_CHECK_RESULT;

/* Appends a document. Words and bytes are counted in `original`. */
enum evq_status evq_corpus_add_document(struct evq_corpus_build *build, const char *text,
                                        size_t bytes, const char *original, size_t original_bytes,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Appends a context and its continuation, tokenized as in lm-evaluation-harness: whitespace at the
 * end of the context moves to the continuation, both are encoded together, and the tokens beyond
 * the length of the context's own tokens are the continuation. Characters, words and bytes are
 * counted in `counted`. EVQ_E_INVALID: nothing is left to score.
 */
enum evq_status evq_corpus_add_pair(struct evq_corpus_build *build, const char *context,
                                    size_t context_bytes, const char *continuation,
                                    size_t continuation_bytes, const char *counted,
                                    size_t counted_bytes, struct evq_error *err) EVQ_CHECK_RESULT;

/* Appends tokens, which evq_corpus_add_passage() makes a passage. EVQ_E_NOMEM. */
enum evq_status evq_corpus_append_tokens(struct evq_corpus *corpus, const int32_t *ids,
                                         size_t count, struct evq_error *err) EVQ_CHECK_RESULT;
/* The same for corpus->types. */
enum evq_status evq_corpus_append_types(struct evq_corpus *corpus, const int32_t *types,
                                        size_t count, struct evq_error *err) EVQ_CHECK_RESULT;

/* Closes a passage of the tokens from passage.first on. counted NULL: there is no text.
 * EVQ_E_LIMIT, EVQ_E_NOMEM. */
enum evq_status evq_corpus_add_passage(struct evq_corpus_build *build, struct evq_passage passage,
                                       const char *counted, size_t counted_bytes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Closes an item of the last `passages` passages. */
enum evq_status evq_corpus_add_item(struct evq_corpus_build *build, int32_t passages, int32_t gold,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

/* The readers, one for each kind of file. For format text, or jsonl with a field: */
enum evq_status evq_documents_read(struct evq_corpus_build *build,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
/* Checks the options of evq_documents_read(). EVQ_E_INVALID. */
enum evq_status evq_documents_check(const struct evq_task_config *task,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_prompt_items_read(struct evq_corpus_build *build,
                                      struct evq_error *err) EVQ_CHECK_RESULT; // For format jsonl.
/* The readers of texts with labels, for formats jsonl and tokens, and the checks of their options.
 */
enum evq_status evq_labelled_text_read(struct evq_corpus_build *build,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_labelled_text_check(const struct evq_task_config *task,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_labelled_tokens_read(struct evq_corpus_build *build,
                                         struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_labelled_tokens_check(const struct evq_task_config *task,
                                          struct evq_error *err) EVQ_CHECK_RESULT;
// For format tokens.
enum evq_status evq_corpus_read_tokens(struct evq_corpus_build *build,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Checks the options of evq_prompt_items_read(). EVQ_E_INVALID. */
enum evq_status evq_prompt_items_check(const struct evq_task_config *task,
                                       enum evq_corpus_kind kind,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads a whole file. EVQ_E_NOT_FOUND, EVQ_E_INVALID (it is empty), EVQ_E_LIMIT, EVQ_E_IO,
 * EVQ_E_NOMEM. */
enum evq_status evq_corpus_read_file(const char *path, struct evq_buffer *out,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

#endif
