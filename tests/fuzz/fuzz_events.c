/*
 * An event file of an earlier logger, as a crash or a foreign hand may have left it. The bytes are
 * given as they are and, where the first one is odd, framed anew so that the checksums hold and the
 * fields are looked at. A run that was read takes a point more, is sorted, and reads back the same.
 */
// fuzz: logger
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dirent.h>

#include "logger/tensorboard/tfevent.h"
#include "logger/tensorboard/tfrun.h"
#include "tests/fuzz/check.h"

static char folder[64];

static void empty(void)
{
    DIR *handle = opendir(folder);
    char path[512];

    for (struct dirent *entry; handle != NULL && (entry = readdir(handle)) != NULL;) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        (void)unlink(path);
    }
    if (handle != NULL) {
        (void)closedir(handle);
    }
}

static void stop(void)
{
    empty();
    (void)rmdir(folder);
}

/* Records whose lengths and checksums are right: each is a length byte and so many bytes. */
static void frame(const uint8_t *data, size_t bytes, struct evq_buffer *out)
{
    for (size_t at = 0; at < bytes;) {
        const uint64_t wanted = data[at++];
        const uint64_t length = wanted < bytes - at ? wanted : bytes - at;
        uint32_t crc = evq_tfevent_crc32c(&length, sizeof(length));
        crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
        evq_buffer_append(out, &length, sizeof(length));
        evq_buffer_append(out, &crc, sizeof(crc));
        evq_buffer_append(out, data + at, length);
        crc = evq_tfevent_crc32c(data + at, length);
        crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
        evq_buffer_append(out, &crc, sizeof(crc));
        at += length;
    }
}

static void put(const char *name, const void *data, size_t bytes)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    (void)close(fd);
}

/* Ascending steps and tags; returns how many points there are. */
static size_t count(struct evq_point_buffer_set *set)
{
    struct evq_error err = {EVQ_OK, ""};
    size_t all = 0;

    for (size_t i = 0; i < set->count; i++) {
        const struct evq_point_buffer *series = &set->series[i];
        const struct evq_point *points = NULL;
        size_t seen = 0;
        size_t slice_points = 1;
        int64_t last = 0;
        check(i == 0 || strcmp(set->series[i - 1].tag, series->tag) < 0);
        for (size_t slice = 0; slice_points > 0; slice++) {
            check(evq_point_buffer_slice(set, series, slice, &points, &slice_points, &err) ==
                  EVQ_OK);
            for (size_t j = 0; j < slice_points; j++, seen++) {
                check(seen == 0 || last < points[j].step);
                last = points[j].step;
            }
        }
        check(seen == series->count);
        all += seen;
    }
    return all;
}

static void run_check(void)
{
    struct evq_tfrun *run = NULL;
    struct evq_error err = {EVQ_OK, ""};
    const struct evq_point point = {1, 1e9, 0.5f};

    if (evq_tfrun_open(folder, &run, &err) != EVQ_OK) {
        check(err.message[0] != '\0');
        return;
    }
    check(evq_tfrun_put(run, "own", &point, &err) == EVQ_OK);
    const size_t points = count(evq_tfrun_series(run));
    check(evq_tfrun_compact(run, &err) == EVQ_OK);
    evq_tfrun_close(run);
    run = NULL;
    check(evq_tfrun_open(folder, &run, &err) == EVQ_OK);
    check(count(evq_tfrun_series(run)) == points);
    evq_tfrun_close(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_buffer framed;

    if (folder[0] == '\0') {
        (void)snprintf(folder, sizeof(folder), "/dev/shm/evq-fuzz-%d", (int)getpid());
        check(mkdir(folder, 0700) == 0);
        (void)atexit(stop);
    }
    empty();
    evq_buffer_init(&framed, 0);
    if (bytes > 0 && data[0] % 2 == 1) {
        frame(data + 1, bytes - 1, &framed);
        put("events.out.tfevents.1000000000.h.1.0.evalq", framed.data, framed.bytes);
    } else {
        put("events.out.tfevents.1000000000.h.1.0.evalq", data, bytes);
    }
    evq_buffer_free(&framed);
    run_check();
    return 0;
}
