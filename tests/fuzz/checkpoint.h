/*
 * What the harnesses of the checkpoint readers share: a folder in memory, and reading all that
 * opens. One thread; abort() is the finding.
 */
#ifndef EVQ_TESTS_FUZZ_CHECKPOINT_H
#define EVQ_TESTS_FUZZ_CHECKPOINT_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fuzz/check.h"

#define FUZZ_ELEMENTS_MAX ((size_t)16 << 20) // An expanded view may be larger: legal, but slow.

static inline void fuzz_folder_path(char path[64])
{
    (void)snprintf(path, 64, "/dev/shm/evq-fuzz-%d", (int)getpid());
}

static inline void fuzz_folder_remove(void)
{
    static const char *const names[] = {"x.pt", "d/.metadata", "d/__0_0.distcp", "d/p"};
    char path[64];

    fuzz_folder_path(path);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char full[128];
        (void)snprintf(full, sizeof(full), "%s/%s", path, names[i]);
        (void)unlink(full); // Not every harness makes every one.
    }
    char inner[128];
    (void)snprintf(inner, sizeof(inner), "%s/d", path);
    (void)rmdir(inner);
    (void)rmdir(path);
}

/* The same descriptor each time; the folder goes when the program ends. */
static inline int fuzz_folder(void)
{
    static int fd = -1;
    char path[64];

    if (fd < 0) {
        fuzz_folder_path(path);
        check(mkdir(path, 0700) == 0);
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        check(fd >= 0);
        (void)atexit(fuzz_folder_remove);
    }
    return fd;
}

static inline void fuzz_write(int folder_fd, const char *name, const void *data, size_t bytes)
{
    int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

    check(fd >= 0);
    check(pwrite(fd, data, bytes, 0) == (ssize_t)bytes);
    check(ftruncate(fd, (off_t)bytes) == 0);
    (void)close(fd);
}

static inline void fuzz_read_tensor(const struct evq_checkpoint *checkpoint,
                                    const struct evq_tensor *tensor)
{
    size_t elements = 0;

    check(evq_tensor_elements(tensor, &elements));
    if (elements > FUZZ_ELEMENTS_MAX) {
        return;
    }
    float *values = malloc(elements * sizeof(*values) + 1);
    check(values != NULL);
    enum evq_status status = evq_checkpoint_read_f32(checkpoint, tensor, values, elements, NULL);
    check(status == EVQ_OK || status == EVQ_E_UNSUPPORTED);
    free(values);
}

/* Opens path; what opens reads, and is complete; what does not says why. */
static inline void fuzz_read_all(int folder_fd, const char *path)
{
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.message = ""};

    if (evq_checkpoint_open(folder_fd, path, NULL, &checkpoint, &err) != EVQ_OK) {
        check(err.message[0] != '\0' && checkpoint == NULL);
        return;
    }
    for (size_t i = 0; i < checkpoint->tensor_count; i++) {
        fuzz_read_tensor(checkpoint, &checkpoint->tensors[i]);
    }
    check(evq_checkpoint_check_complete(folder_fd, path, NULL) == EVQ_OK);
    evq_checkpoint_close(checkpoint);
}

#endif
