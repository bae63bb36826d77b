/*
 * A training process: trainer RUN RINGS FIRST COUNT DIRECTORY SUITE
 * [FLUSH_MS]. Submits
 * DIRECTORY/step-N.safetensors for N = FIRST, FIRST + 1, ... and prints "accepted STEP" of each
 * that the client took, waits a little until they are in Redis, closes, and prints "trained":
 * whatever becomes of evalq, its own work goes on, and its exit code is 0.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "producer/client/evalq.h"

static void say(const char *text)
{
    // Without stdio, whose buffers would themselves want memory.
    if (write(STDOUT_FILENO, text, strlen(text)) < 0) {
        _exit(1);
    }
}

int main(int argc, char **argv)
{
    struct evalq_client *client = NULL;
    char line[640];
    char path[512];

    if (argc < 7) {
        (void)fprintf(stderr,
                      "trainer: expected RUN RINGS FIRST COUNT DIRECTORY SUITE [FLUSH_MS]\n");
        return 2;
    }
    const struct evalq_options options = {.run = argv[1], .ring_directory = argv[2]};
    const int opened = evalq_client_open(&options, &client);
    if (opened != EVALQ_OK) {
        (void)snprintf(line, sizeof line, "without %d: %s\n", opened, evalq_client_error(NULL));
        say(line);
    }
    const long first = strtol(argv[3], NULL, 10);
    const long count = strtol(argv[4], NULL, 10);
    for (long step = first; step < first + count; step++) {
        (void)snprintf(path, sizeof path, "%s/step-%ld.safetensors", argv[5], step);
        const struct evalq_checkpoint saved = {.path = path, .step = step, .suites = argv[6]};
        if (evalq_client_submit(client, &saved) == EVALQ_OK) {
            (void)snprintf(line, sizeof line, "accepted %ld\n", step);
            say(line);
        }
    }
    (void)evalq_client_flush(
        client, argc > 7 ? atoi(argv[7]) : 5000); // What is not sent by then stays in the ring.
    evalq_client_close(client);
    say("trained\n");
    return 0;
}
