/*
 * fault_trainer CONFIG URL RUN COUNT HISTORY DIRECTORY SUITE: writes checkpoints of steps 1 to
 * COUNT into DIRECTORY and submits each through the client library; goes on after those that its
 * history has as accepted. Ends when Redis has them all.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "producer/client/evalq.h"
#include "tests/faults/history.h"

enum { STEP_MS = 25 }; // So that it lives through some of what happens.

static void pause_ms(long ms)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* A safetensors file of eight bytes that are its step. */
static void save(const char *path, uint64_t step)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
    const char length[8] = {sizeof header - 1};
    char other[512];

    (void)snprintf(other, sizeof other, "%s.part", path);
    FILE *file = fopen(other, "we");
    if (file == NULL || fwrite(length, 1, 8, file) != 8 ||
        fprintf(file, "%s%08" PRIu64, header, step) < 0 || fclose(file) != 0 ||
        rename(other, path) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    struct evalq_client *client = NULL;
    struct history history;
    char path[500];
    char id[256];

    if (argc != 8) {
        (void)fprintf(stderr,
                      "usage: fault_trainer CONFIG URL RUN COUNT HISTORY DIRECTORY SUITE\n");
        return 2;
    }
    const uint64_t count = strtoull(argv[4], NULL, 10);
    const struct evalq_options options = {
        .config = argv[1], .url = argv[2], .run = argv[3], .ring_directory = argv[6]};
    history_open(&history, argv[5], "trainer");
    if (evalq_client_open(&options, &client) != EVALQ_OK) {
        (void)fprintf(stderr, "fault_trainer: %s\n", evalq_client_error(NULL));
        return 1;
    }
    for (uint64_t step = history_count(argv[5], " ok accept ") + 1; step <= count; step++) {
        (void)snprintf(path, sizeof path, "%s/%s-%" PRIu64, argv[6], argv[3], step);
        (void)snprintf(id, sizeof id, "%s/%" PRIu64 "/regular/%s", argv[3], step, argv[7]);
        save(path, step);
        const struct evalq_checkpoint saved = {
            .path = path, .step = (int64_t)step, .suites = argv[7]};
        const uint64_t call = history_call(&history);
        history_line(&history, call, "invoke", "accept", id, NULL, NULL);
        history_flush(&history);
        while (evalq_client_submit(client, &saved) != EVALQ_OK) {
            pause_ms(5); // Full, while Redis is away.
        }
        history_line(&history, call, "ok", "accept", id, NULL, NULL);
        history_flush(&history);
        pause_ms(STEP_MS);
    }
    while (evalq_client_flush(client, 1000) != EVALQ_OK) {
    }
    evalq_client_close(client);
    history_close(&history);
    return 0;
}
