/*
 * How fast a snapshot comes from one process's memory into another's over loopback, checksummed on
 * both sides.
 *
 *     bench_fetch [MEBIBYTES] [ROUNDS]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "producer/client/snapshots/snapshot_server.h"
#include "shared/base/clock.h"
#include "worker/child/fetch.h"

static bool file_make(const char *path, size_t mebibytes)
{
    static uint8_t block[1 << 20];
    uint64_t seed = 1;
    FILE *file = fopen(path, "we");

    for (size_t i = 0; i < sizeof(block); i++) {
        block[i] = (uint8_t)evq_clock_jitter_ms(&seed, 1000, 99);
    }
    for (size_t i = 0; file != NULL && i < mebibytes; i++) {
        if (fwrite(block, 1, sizeof(block), file) != sizeof(block)) {
            (void)fclose(file);
            return false;
        }
    }
    return file != NULL && fclose(file) == 0;
}

int main(int argc, char **argv)
{
    const size_t mebibytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 500;
    const int rounds = argc > 2 ? atoi(argv[2]) : 5;
    const double gigabytes = (double)mebibytes * (1 << 20) / 1e9;
    char path[64];
    struct evq_error err = {.message = "cannot write to /dev/shm"};
    struct evq_snapshot_server *server = NULL;
    struct evq_snapshot_offer offer;
    const char *place = NULL;
    struct evq_job *job = evq_job_new();
    int code = 1;

    (void)snprintf(path, sizeof(path), "/dev/shm/evq-bench-%d.safetensors", (int)getpid());
    if (job == NULL || !file_make(path, mebibytes) ||
        evq_snapshot_server_open(&server, &err) != EVQ_OK) {
        goto out;
    }
    int64_t start_us = evq_clock_mono_us();
    if (evq_snapshot_server_offer(server, path, &offer, &err) != EVQ_OK ||
        evq_snapshot_server_listen(server, "127.0.0.1", &place, &err) != EVQ_OK) {
        goto out;
    }
    (void)printf("checksum by the producer: %.2f GB/s\n",
                 gigabytes / ((double)(evq_clock_mono_us() - start_us) / 1e6));
    job->path = path + sizeof("/dev/shm/") - 1;
    job->snapshot_given = true;
    job->snapshot = (struct evq_snapshot){.boot = "another",
                                          .place = place,
                                          .token = offer.token,
                                          .bytes = offer.bytes,
                                          .checksum = offer.checksum};
    for (int i = 0; i < rounds; i++) {
        struct evq_fetched fetched = {.directory_fd = -1};
        start_us = evq_clock_mono_us();
        if (evq_fetch_open(job, "/dev/shm", &evq_fetch_limits_default, NULL, &fetched, &err) !=
            EVQ_OK) {
            goto out;
        }
        const double seconds = (double)(evq_clock_mono_us() - start_us) / 1e6;
        (void)printf("fetch of %zu MiB: %.3f s, %.2f GB/s\n", mebibytes, seconds,
                     gigabytes / seconds);
        evq_fetch_close(&fetched);
    }
    code = 0;
out:
    if (code != 0) {
        (void)fprintf(stderr, "bench_fetch: %s\n", err.message);
    }
    evq_snapshot_server_close(server);
    evq_job_free(job);
    (void)unlink(path);
    return code;
}
