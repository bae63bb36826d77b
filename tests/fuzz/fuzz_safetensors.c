/*
 * A safetensors file, or (when it begins with '{') the index of two small shards. What opens must
 * read: every tensor's values, the digest, and the directory in order.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fuzz/check.h"

static int root_fd = -1;

static void put(const char *name, const void *data, size_t bytes)
{
    int fd = openat(root_fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    check(fd >= 0);
    check(write(fd, data, bytes) == (ssize_t)bytes);
    check(ftruncate(fd, (off_t)bytes) == 0);
    (void)close(fd);
}

static void start(void)
{
    static const char shard[] = "\x3a\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"I8\",\"shape\":[3],"
                                "\"data_offsets\":[0,3]}}          \1\2\3";
    char path[64];

    (void)snprintf(path, sizeof(path), "/dev/shm/evq-fuzz-%d", (int)getpid());
    check(mkdir(path, 0700) == 0);
    root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(root_fd >= 0);
    put("s1.safetensors", shard, sizeof(shard) - 1);
    put("s2.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
}

static void stop(void)
{
    char path[64];

    (void)unlinkat(root_fd, "s1.safetensors", 0);
    (void)unlinkat(root_fd, "s2.safetensors", 0);
    (void)unlinkat(root_fd, "x.safetensors", 0);
    (void)unlinkat(root_fd, "x.index.json", 0);
    (void)snprintf(path, sizeof(path), "/dev/shm/evq-fuzz-%d", (int)getpid());
    (void)rmdir(path);
}

static void read_tensor(const struct evq_checkpoint *checkpoint, const struct evq_tensor *tensor)
{
    size_t elements = 0;

    check(evq_tensor_elements(tensor, &elements));
    check(tensor->offset + tensor->bytes <= checkpoint->files[tensor->file].bytes);
    float *values = malloc(elements * sizeof(*values) + 1);
    check(values != NULL); // No more elements than the file has half-bytes.
    enum evq_status status = evq_checkpoint_read_f32(checkpoint, tensor, values, elements, NULL);
    check(status == EVQ_OK || status == EVQ_E_UNSUPPORTED);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *name = bytes > 0 && data[0] == '{' ? "x.index.json" : "x.safetensors";
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.message = ""};
    char digest[33];

    if (root_fd < 0) {
        start();
        (void)atexit(stop);
    }
    put(name, data, bytes);
    if (evq_checkpoint_open(root_fd, name, NULL, &checkpoint, &err) != EVQ_OK) {
        check(err.message[0] != '\0' && checkpoint == NULL);
        return 0;
    }
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct evq_tensor *tensor = &checkpoint->tensors[i];
        check(evq_checkpoint_find(checkpoint, tensor->name) == tensor);
        read_tensor(checkpoint, tensor);
    }
    check(evq_checkpoint_digest(checkpoint, digest, NULL) == EVQ_OK);
    evq_checkpoint_close(checkpoint);
    return 0;
}
