/* Reads a file of tokens as one document. */
#include "worker/datasets/corpus_build.h"
#include "worker/datasets/token_file.h"

enum evq_status evq_corpus_read_tokens(struct evq_corpus_build *build, struct evq_error *err)
{
    const struct evq_token_file_source source = {
        .path = build->corpus->name,
        .dtype = evq_corpus_option(build->source->task, "dtype", ""),
        .tokens_max = EVQ_CORPUS_TOKENS_MAX,
        .limit = build->limit < (int64_t)EVQ_CORPUS_TOKENS_MAX ? (size_t)build->limit : 0};

    const enum evq_status status = evq_token_file_read(&source, &build->corpus->tokens, err);
    return status == EVQ_OK
               ? evq_corpus_add_passage(build, (struct evq_passage){.first = 0}, NULL, 0, err)
               : status;
}
