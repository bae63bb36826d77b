/*
 * A file of tokens, read as what it says it is, as uint16 and as uint32: ids within range, as many
 * as the file has room for, or a sentence.
 */
// fuzz: engine
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/datasets/token_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char path[64];

static void check(bool good)
{
    if (!good) {
        abort();
    }
}

static void stop(void)
{
    (void)unlink(path);
}

static void put(const uint8_t *data, size_t bytes)
{
    if (path[0] == '\0') {
        (void)snprintf(path, sizeof(path), "/dev/shm/evq-fuzz-token-file-%d", (int)getpid());
        check(atexit(stop) == 0);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const dtypes[] = {"", "u16", "u32"};

    put(data, bytes);
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
