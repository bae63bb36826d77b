/*
 * A tokenizer.json up to the first NUL byte, then a text for it. What opens must encode any text:
 * ids within the vocabulary, the same with what the cache has learnt, the same for a text that is
 * broken UTF-8 as for the text that it stands for.
 */
// fuzz: engine
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/utf8.h"
#include "tests/fuzz/check.h"
#include "worker/tokenizer/tokenizer_internal.h"
#include "worker/tokenizer/utf8.h"

static int root_fd = -1;
static struct evq_tokenizer_scratch *scratch;

static void folder(char path[64])
{
    (void)snprintf(path, 64, "/dev/shm/evq-fuzz-tokenizer-%d", (int)getpid());
}

static void stop(void)
{
    char path[64];

    (void)unlinkat(root_fd, "tokenizer.json", 0);
    folder(path);
    (void)rmdir(path);
    evq_tokenizer_scratch_free(scratch);
}

static void start(void)
{
    char path[64];

    folder(path);
    check(mkdir(path, 0700) == 0);
    root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    scratch = evq_tokenizer_scratch_new();
    check(root_fd >= 0 && scratch != NULL);
    check(atexit(stop) == 0);
}

static void put(const uint8_t *data, size_t bytes)
{
    int fd = openat(root_fd, "tokenizer.json", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    check(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    (void)close(fd);
}

static void same(const struct evq_tokens *a, const struct evq_tokens *b)
{
    check(a->count == b->count);
    check(a->count == 0 || memcmp(a->ids, b->ids, a->count * sizeof(*a->ids)) == 0);
}

/* The text and its first half as a pair, with and without enough place. */
static void encode_pair(const struct evq_tokenizer *tokenizer, const char *text, size_t bytes)
{
    const struct evq_tokenizer_text texts[2] = {{text, bytes}, {text, bytes / 2}};
    struct evq_tokens ids = {0};
    struct evq_tokens types = {0};

    for (size_t most = 40; most <= 4000000; most *= 100000) {
        const size_t before = ids.count;
        check(evq_tokenizer_encode_pair(tokenizer, scratch, texts, most, &ids, &types, NULL) ==
              EVQ_OK);
        check(ids.count - before <= most && types.count == ids.count);
    }
    evq_tokens_free(&ids);
    evq_tokens_free(&types);
}

static void encode(const struct evq_tokenizer *tokenizer, const char *text, size_t bytes)
{
    struct evq_tokens first = {0};
    struct evq_tokens again = {0};
    struct evq_tokens repaired = {0};
    struct evq_buffer whole;

    check(evq_tokenizer_encode(tokenizer, scratch, text, bytes, true, &first, NULL) == EVQ_OK);
    check(evq_tokenizer_encode(tokenizer, scratch, text, bytes, true, &again, NULL) == EVQ_OK);
    same(&first, &again);
    for (size_t i = 0; i < first.count; i++) {
        check(first.ids[i] >= 0 && first.ids[i] < tokenizer->vocabulary);
    }
    evq_buffer_init(&whole, 0);
    evq_utf8_repair(text, bytes, &whole);
    check(evq_utf8_valid((const char *)whole.data, whole.bytes) == whole.bytes);
    check(evq_tokenizer_encode(tokenizer, scratch, (const char *)whole.data, whole.bytes, true,
                               &repaired, NULL) == EVQ_OK);
    same(&first, &repaired);
    encode_pair(tokenizer, text, bytes);
    evq_buffer_free(&whole);
    evq_tokens_free(&first);
    evq_tokens_free(&again);
    evq_tokens_free(&repaired);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_error err = {.message = ""};

    if (root_fd < 0) {
        start();
    }
    const uint8_t *end = memchr(data, 0, bytes);
    const size_t file = end != NULL ? (size_t)(end - data) : bytes;
    put(data, file);
    if (evq_tokenizer_open(root_fd, "", &tokenizer, &err) != EVQ_OK) {
        check(err.message[0] != '\0' && tokenizer == NULL);
        return 0;
    }
    const size_t from = file < bytes ? file + 1 : bytes;
    encode(tokenizer, (const char *)data + from, bytes - from);
    evq_tokenizer_free(tokenizer);
    return 0;
}
