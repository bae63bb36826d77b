/*
 * A file of tokens, read as what it says it is, as uint16 and as uint32: ids within range, as many
 * as the file has room for, or a sentence.
 */
// fuzz: engine
#include "file.h"

#include "worker/datasets/token_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const dtypes[] = {"", "u16", "u32"};
    const char *path = fuzz_file(data, bytes);

    for (size_t d = 0; d < 3; d++) {
        const struct evq_token_file_source source = {path, dtypes[d], 100000, 0};
        struct evq_tokens tokens = {0};
        struct evq_error err = {.message = ""};
        if (evq_token_file_read(&source, &tokens, &err) != EVQ_OK) {
            check(err.message[0] != '\0' && tokens.count == 0);
        }
        check(tokens.count <= bytes); // A number takes a byte at least (npy of uint8).
        for (size_t i = 0; i < tokens.count; i++) {
            check(tokens.ids[i] >= 0);
        }
        evq_tokens_free(&tokens);
    }
    return 0;
}
