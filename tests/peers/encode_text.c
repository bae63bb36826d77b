/*
 * Tokens of a text, for tests that compare them: encode_text TOKENIZER [--special] < TEXT writes
 * them as int32 to standard output. With --documents standard input is documents, each a uint32
 * of its bytes before it, and so is the output, counting tokens. With --pairs=MOST as well, each
 * two documents are a pair of at most that many tokens, whose type ids follow them. With --ends it
 * prints the BOS and EOS tokens and the size of the vocabulary instead.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/tokenizer/tokenizer_internal.h"

struct input {
    char *data;
    size_t bytes, room;
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "encode_text: %s\n", what);
    exit(1);
}

static struct input read_all(void)
{
    struct input input = {0};

    for (;;) {
        if (input.bytes == input.room) {
            input.room = input.room == 0 ? 1 << 20 : 2 * input.room;
            input.data = realloc(input.data, input.room);
            if (input.data == NULL) {
                fail("out of memory");
            }
        }
        const size_t got = fread(input.data + input.bytes, 1, input.room - input.bytes, stdin);
        if (got == 0) {
            return input;
        }
        input.bytes += got;
    }
}

static void put(const void *data, size_t bytes)
{
    if (bytes > 0 && fwrite(data, bytes, 1, stdout) != 1) {
        fail("cannot write");
    }
}

/* Reads the next document, which has a uint32 of its bytes before it. */
static struct evq_tokenizer_text next_document(const struct input *input, size_t *at)
{
    struct evq_tokenizer_text text = {NULL, 0};
    uint32_t bytes = 0;

    if (input->bytes - *at < sizeof(bytes)) {
        fail("a document is cut");
    }
    memcpy(&bytes, input->data + *at, sizeof(bytes));
    text = (struct evq_tokenizer_text){input->data + *at + sizeof(bytes), bytes};
    *at += sizeof(bytes) + bytes;
    return text;
}

static void encode_pairs(const struct evq_tokenizer *tokenizer,
                         struct evq_tokenizer_scratch *scratch, const struct input *input,
                         size_t most)
{
    struct evq_tokens ids = {0};
    struct evq_tokens types = {0};
    struct evq_error err = {0};

    for (size_t at = 0; at < input->bytes;) {
        struct evq_tokenizer_text texts[2];
        texts[0] = next_document(input, &at);
        texts[1] = next_document(input, &at);
        ids.count = types.count = 0;
        if (evq_tokenizer_encode_pair(tokenizer, scratch, texts, most, &ids, &types, &err) !=
            EVQ_OK) {
            fail(err.message);
        }
        const uint32_t count = (uint32_t)ids.count;
        put(&count, sizeof(count));
        put(ids.ids, ids.count * sizeof(*ids.ids));
        put(types.ids, types.count * sizeof(*types.ids));
    }
    evq_tokens_free(&ids);
    evq_tokens_free(&types);
}

int main(int argc, char **argv)
{
    struct evq_tokenizer *tokenizer = NULL;
    struct evq_tokens tokens = {0};
    struct evq_error err = {0};
    bool special = false;
    bool documents = false;
    bool ends = false;
    size_t pairs = 0;

    for (int i = 2; i < argc; i++) {
        special = special || strcmp(argv[i], "--special") == 0;
        documents = documents || strcmp(argv[i], "--documents") == 0;
        pairs = strncmp(argv[i], "--pairs=", 8) == 0 ? strtoul(argv[i] + 8, NULL, 10) : pairs;
        ends = ends || strcmp(argv[i], "--ends") == 0;
    }
    if (argc < 2) {
        fail("usage: encode_text TOKENIZER [--special] [--documents] | [--ends]");
    }
    if (evq_tokenizer_open(AT_FDCWD, argv[1], &tokenizer, &err) != EVQ_OK) {
        fail(err.message);
    }
    if (ends) {
        (void)printf("%d %d %d\n", (int)tokenizer->bos, (int)tokenizer->eos,
                     (int)tokenizer->vocabulary);
        evq_tokenizer_free(tokenizer);
        return 0;
    }
    struct evq_tokenizer_scratch *scratch = evq_tokenizer_scratch_new();
    struct input input = read_all();
    if (scratch == NULL) {
        fail("out of memory");
    }
    if (pairs > 0) {
        encode_pairs(tokenizer, scratch, &input, pairs);
        input.bytes = 0;
    }
    for (size_t at = 0; at < input.bytes || (at == 0 && !documents);) {
        uint32_t bytes = 0;
        if (documents) {
            memcpy(&bytes, input.data + at, sizeof(bytes));
            at += sizeof(bytes);
        }
        const size_t taken = documents ? bytes : input.bytes;
        tokens.count = 0;
        if (evq_tokenizer_encode(tokenizer, scratch, input.data + at, taken, special, &tokens,
                                 &err) != EVQ_OK) {
            fail(err.message);
        }
        const uint32_t count = (uint32_t)tokens.count;
        put(&count, documents ? sizeof(count) : 0);
        put(tokens.ids, tokens.count * sizeof(*tokens.ids));
        at += taken;
        if (!documents) {
            break;
        }
    }
    evq_tokens_free(&tokens);
    evq_tokenizer_scratch_free(scratch);
    evq_tokenizer_free(tokenizer);
    free(input.data);
    return 0;
}
