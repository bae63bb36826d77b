/*
 * What a suite's multiple-choice task scores, for tests that compare it: item_tokens CONFIG SUITE
 * TOKENIZER prints a line for every choice of every item: the tokens of the context, '|', those of
 * the choice, '|', whether it is the right one.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/datasets/corpus.h"

static void fail(const char *what)
{
    (void)fprintf(stderr, "item_tokens: %s\n", what);
    exit(1);
}

static void print(const struct evq_corpus *corpus)
{
    for (size_t i = 0; i < corpus->item_count; i++) {
        const struct evq_item *item = &corpus->items[i];
        for (int32_t c = 0; c < item->passages; c++) {
            const struct evq_passage *passage = &corpus->passages[item->first + c];
            const int32_t *ids = corpus->tokens.ids + passage->first;
            for (int64_t t = 0; t < passage->count; t++) {
                (void)printf("%s%d ", t == passage->context ? "| " : "", (int)ids[t]);
            }
            (void)printf("| %d\n", c == item->gold);
        }
    }
}

int main(int argc, char **argv)
{
    struct evq_config *config = NULL;
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_corpus *corpus = NULL;
    struct evq_error err = {0};

    if (argc != 4) {
        fail("usage: item_tokens CONFIG SUITE TOKENIZER");
    }
    const struct evq_config_source file = {.file = argv[1]};
    if (evq_config_load(&file, &config, &err) != EVQ_OK ||
        evq_tokenizer_open(AT_FDCWD, argv[3], &tokenizer, &err) != EVQ_OK) {
        fail(err.message);
    }
    const struct evq_suite *suite = evq_config_suite(config, argv[2]);
    char *slash = strrchr(argv[1], '/');
    if (suite == NULL || suite->task_count != 1 || slash == NULL) {
        fail("expected a path of a configuration, and a suite of one task");
    }
    *slash = '\0'; // Relative paths start at the configuration's folder.
    const struct evq_corpus_source source = {.task = &suite->tasks[0],
                                             .kind = EVQ_CORPUS_CHOICES,
                                             .directory = argv[1],
                                             .tokenizer = tokenizer};
    if (evq_corpus_open(&source, &corpus, &err) != EVQ_OK) {
        fail(err.message);
    }
    print(corpus);
    evq_corpus_free(corpus);
    evq_tokenizer_free(tokenizer);
    evq_config_free(config);
    return 0;
}
