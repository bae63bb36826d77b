/*
 * How fast a text becomes tokens on one thread: bench_tokenizer TOKENIZER TEXT [RUNS [DOCUMENT]].
 * Each run encodes the whole text, in documents of DOCUMENT bytes (default 65536), with what the
 * runs before left in the cache, and prints its seconds of
 * processor time and tokens.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "shared/base/file.h"
#include "worker/tokenizer/tokenizer.h"

static double seconds_now(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); // One thread: what a busy machine lends.
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void must(enum evq_status status, const struct evq_error *err)
{
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "bench_tokenizer: %s\n", err->message);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_tokens tokens = {0};
    struct evq_error err = {0};
    struct evq_buffer text;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: bench_tokenizer TOKENIZER TEXT [RUNS [DOCUMENT]]\n");
        return 2;
    }
    const int runs = argc > 3 ? atoi(argv[3]) : 5;
    const size_t document = argc > 4 ? strtoull(argv[4], NULL, 10) : 65536;
    double start = seconds_now();
    must(evq_tokenizer_open(AT_FDCWD, argv[1], &tokenizer, &err), &err);
    (void)fprintf(stderr, "opened in %.1f ms\n", (seconds_now() - start) * 1e3);
    evq_buffer_init(&text, (size_t)1 << 32);
    must(evq_file_read(AT_FDCWD, argv[2], 0, (size_t)1 << 32, &text, &err), &err);
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    must(scratch != NULL ? EVQ_OK : EVQ_E_NOMEM, &err);
    for (int run = 0; run < runs; run++) {
        size_t count = 0;
        start = seconds_now();
        for (size_t at = 0; at < text.bytes; at += document) {
            const size_t left = text.bytes - at;
            tokens.count = 0;
            must(evq_tokenizer_encode(tokenizer, scratch, (const char *)text.data + at,
                                      left < document ? left : document, false, &tokens, &err),
                 &err);
            count += tokens.count;
        }
        (void)printf("%.6f %zu\n", seconds_now() - start, count);
        (void)fflush(stdout); // Who alternates with us waits for the line.
    }
    evq_tokens_free(&tokens);
    evq_tokenizer_scratch_free(scratch);
    evq_tokenizer_free(tokenizer);
    evq_buffer_free(&text);
    return 0;
}
