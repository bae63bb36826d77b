/*
 * A file of torch.save. The CRC of data.pkl is put right first, so that a changed pickle is read
 * too. What opens must read: every tensor's values in 64 MB, and be complete.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "shared/checkpoint/checkpoint.h"
#include "shared/checkpoint/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int root_fd = -1;

static void check(bool good)
{
    if (!good) {
        abort();
    }
}

static int put(const void *data, size_t bytes)
{
    int fd = openat(root_fd, "x.pt", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    check(fd >= 0);
    check(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    check(ftruncate(fd, (off_t)bytes) == 0);
    return fd;
}

static void start(void)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "/dev/shm/evq-fuzz-%d", (int)getpid());
    check(mkdir(path, 0700) == 0);
    root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(root_fd >= 0);
}

static void stop(void)
{
    char path[64];

    (void)unlinkat(root_fd, "x.pt", 0);
    (void)snprintf(path, sizeof(path), "/dev/shm/evq-fuzz-%d", (int)getpid());
    (void)rmdir(path);
}

/* Replaces the recorded CRC of each pickle wherever it stands by the true one. */
static void mend(int fd, uint8_t *data, size_t bytes)
{
    struct evq_zip *zip = NULL;

    if (evq_zip_read(fd, bytes, 1000000, &zip, NULL) != EVQ_OK) {
        return;
    }
    for (size_t i = 0; i < zip->count; i++) {
        const struct evq_zip_entry *entry = &zip->entries[i];
        const char *end = strrchr(entry->name, '/');
        if (end == NULL || strcmp(end, "/data.pkl") != 0) {
            continue;
        }
        uint32_t crc = (uint32_t)crc32(0, data + entry->offset, (uInt)entry->bytes);
        for (size_t at = 0; at + 4 <= bytes; at++) {
            bool inside = at + 4 > entry->offset && at < entry->offset + entry->bytes;
            if (!inside && memcmp(data + at, &entry->crc, 4) == 0) {
                memcpy(data + at, &crc, 4);
            }
        }
    }
    evq_zip_free(zip);
}

static void read_tensor(const struct evq_checkpoint *checkpoint, const struct evq_tensor *tensor)
{
    size_t elements = 0;

    check(evq_tensor_elements(tensor, &elements));
    check(tensor->offset + tensor->bytes <= checkpoint->files[tensor->file].bytes);
    if (elements > (size_t)16 << 20) {
        return; // An expanded view: legal, but slow.
    }
    float *values = malloc(elements * sizeof(*values) + 1);
    check(values != NULL);
    enum evq_status status = evq_checkpoint_read_f32(checkpoint, tensor, values, elements, NULL);
    check(status == EVQ_OK || status == EVQ_E_UNSUPPORTED);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.message = ""};

    if (root_fd < 0) {
        start();
        (void)atexit(stop);
    }
    uint8_t *copy = malloc(bytes + 1);
    check(copy != NULL);
    memcpy(copy, data, bytes);
    int fd = put(copy, bytes);
    mend(fd, copy, bytes);
    check(pwrite(fd, copy, bytes, 0) == (ssize_t)bytes);
    (void)close(fd);
    free(copy);
    if (evq_checkpoint_open(root_fd, "x.pt", NULL, &checkpoint, &err) != EVQ_OK) {
        check(err.message[0] != '\0' && checkpoint == NULL);
        return 0;
    }
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        read_tensor(checkpoint, &checkpoint->tensors[i]);
    }
    check(evq_checkpoint_complete(root_fd, "x.pt", NULL) == EVQ_OK);
    evq_checkpoint_close(checkpoint);
    return 0;
}
