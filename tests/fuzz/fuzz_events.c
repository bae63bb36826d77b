/*
 * An event file of an earlier logger, as a crash or a foreign program left it. If the first byte is
 * odd, the others are framed anew, so that the checksums hold and the fields are decoded. The run
 * then takes one more point, and its file is sorted.
 */
// fuzz: logger
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dirent.h>

#include "logger/tensorboard/event_file.h"
#include "logger/tensorboard/event_reader.h"
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

/* Opens the run's file and adds a point. The file on disk then has ascending steps in each curve;
 * returns how many records it has. */
static size_t run_check(void)
{
    const struct evq_point point = {1, 1e9, 0.5f};
    struct evq_event_file *file = NULL;
    struct evq_event_reader reader;
    struct evq_curves curves = {.count = 0};
    struct evq_error err = {EVQ_OK, ""};
    char path[PATH_MAX];
    char **names = NULL;
    size_t count = 0;
    size_t records = 0;
    bool found = true;

    if (evq_event_file_open(folder, &file, &err) != EVQ_OK) {
        check(err.message[0] != '\0');
        return 0;
    }
    check(evq_event_file_put(file, "own", &point, &err) == EVQ_OK);
    check(evq_event_file_flush(file, &err) == EVQ_OK);
    evq_event_file_close(file);
    check(evq_event_names(folder, &names, &count, &err) == EVQ_OK && count == 1);
    (void)snprintf(path, sizeof(path), "%s/%s", folder, names[0]);
    evq_event_names_free(names, count);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    check(fd >= 0);
    evq_event_reader_init(&reader, fd);
    for (; found; records++) {
        check(evq_event_reader_next(&reader, &found, &err) == EVQ_OK);
        struct evq_curve *curve = found ? evq_curves_get(&curves, reader.event.tag) : NULL;
        if (curve != NULL && curve->tag[0] != '\0') {
            check(!curve->has_points || reader.event.step > curve->last_step);
            curve->has_points = true;
            curve->last_step = reader.event.step;
        }
    }
    evq_event_reader_free(&reader);
    evq_curves_free(&curves);
    (void)close(fd);
    return records;
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
    const size_t records = run_check();
    check(records == 0 || run_check() == records); // The same point again changes nothing.
    return 0;
}
