#include "producer/client/submit_log/ring_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/submit_log/ring_directory.h"
#include "shared/base/clock.h"
#include "shared/queue/job.h"

#define RING_SUFFIX   ".ring"
#define RESERVE_TRIES 100

static bool ring_path(char *out, size_t out_bytes, const char *directory, const char *queue,
                      const char *run, unsigned number)
{
    int written =
        number == 0
            ? snprintf(out, out_bytes, "%s/%s@%s" RING_SUFFIX, directory, queue, run)
            : snprintf(out, out_bytes, "%s/%s@%s@%u" RING_SUFFIX, directory, queue, run, number);
    return written > 0 && (size_t)written < out_bytes;
}

enum evq_status evq_ring_file_lock(const char *path, bool make, int *ret_fd, struct evq_error *err)
{
    for (int tries = 0; tries < 16; tries++) {
        struct stat by_fd;
        struct stat by_path;
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT : 0), 0600);
        if (fd < 0) {
            return evq_error_set(err, errno == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_INVALID,
                                 "open '%s': %s", path, strerror(errno));
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            int why = errno;
            close(fd);
            if (why == EWOULDBLOCK) {
                return EVQ_E_CONFLICT;
            }
            return evq_error_set(err, EVQ_E_INVALID,
                                 "cannot lock '%s': %s; choose a ring_directory on a local disk",
                                 path, strerror(why));
        }
        if (fstat(fd, &by_fd) == 0 && stat(path, &by_path) == 0 && by_fd.st_ino == by_path.st_ino &&
            by_fd.st_dev == by_path.st_dev) {
            *ret_fd = fd;
            return EVQ_OK;
        }
        close(fd); // Its last owner removed it meanwhile.
    }
    return EVQ_E_CONFLICT;
}

static uint64_t header_checksum(const struct evq_ring_header *header)
{
    return XXH3_64bits(header, offsetof(struct evq_ring_header, checksum));
}

bool evq_ring_header_valid(const struct evq_ring_header *header, uint64_t file_bytes)
{
    uint64_t data_bytes = header->data_bytes;
    uint64_t head = atomic_load(&header->head);
    uint64_t tail = atomic_load(&header->tail);

    return header->magic == EVQ_RING_MAGIC && header->version == EVQ_RING_VERSION &&
           header->header_bytes == EVQ_RING_HEADER_BYTES &&
           header->checksum == header_checksum(header) && data_bytes >= EVQ_RING_BYTES_MIN &&
           data_bytes <= EVQ_RING_BYTES_MAX && (data_bytes & (data_bytes - 1)) == 0 &&
           file_bytes == EVQ_RING_HEADER_BYTES + data_bytes && head <= tail &&
           tail - head <= data_bytes && head % EVQ_RING_ALIGN == 0 && tail % EVQ_RING_ALIGN == 0;
}

/* Maps the file, in which file_bytes are present and reserved. */
static enum evq_status ring_map(struct evq_ring *ring, size_t file_bytes, struct evq_error *err)
{
    void *map =
        mmap(NULL, file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd, 0);
    if (map == MAP_FAILED) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "cannot map '%s': %s; choose a ring_directory on a local disk",
                             ring->path, strerror(errno));
    }
    (void)madvise(map, file_bytes, MADV_DONTFORK); // A child could only do harm with it.
    ring->header = map;
    ring->data = (uint8_t *)map + EVQ_RING_HEADER_BYTES;
    ring->data_bytes = file_bytes - EVQ_RING_HEADER_BYTES;
    return EVQ_OK;
}

/* Allocates the blocks of the file. */
static enum evq_status ring_reserve(const struct evq_ring *ring, size_t bytes,
                                    struct evq_error *err)
{
    const struct timespec now = {0};
    sigset_t all;
    sigset_t before;
    sigset_t too_large;
    int failed = EINTR;

    // On tmpfs a signal ends fallocate() and undoes its work. A profiler's signals would end every
    // try, so signals are blocked. A debugger's signal cannot be blocked, but it comes only once.
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int tries = 0; failed == EINTR && tries < RESERVE_TRIES; tries++) {
        failed = posix_fallocate(ring->fd, 0, (off_t)bytes);
    }
    if (failed == EFBIG) { // SIGXFSZ of RLIMIT_FSIZE is pending and would end the trainer.
        sigemptyset(&too_large);
        sigaddset(&too_large, SIGXFSZ);
        (void)sigtimedwait(&too_large, NULL, &now); // There is no signal if it is ignored.
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0 ? EVQ_OK
                       : evq_error_set(err, EVQ_E_INVALID,
                                       "cannot reserve %zu bytes for '%s': %s; make room there, or "
                                       "name another ring_directory",
                                       bytes, ring->path, strerror(failed));
}

static enum evq_status ring_make(struct evq_ring *ring, size_t data_bytes, struct evq_error *err)
{
    size_t file_bytes = EVQ_RING_HEADER_BYTES + data_bytes;
    int flags = 0;

    // Copy-on-write would need new disk space at every write. If there is none, a write into a
    // mapping ends in a signal.
    if (ioctl(ring->fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= FS_NOCOW_FL;
        (void)ioctl(ring->fd, FS_IOC_SETFLAGS, &flags); // Not every file system knows it.
    }
    enum evq_status status = ring_reserve(ring, file_bytes, err);
    if (status != EVQ_OK) {
        (void)unlink(ring->path); // Nothing is in it.
        return status;
    }
    status = ring_map(ring, file_bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    memset(ring->header, 0, file_bytes); // Touches each page now rather than in a submit.
    struct evq_ring_header *header = ring->header;
    header->version = EVQ_RING_VERSION;
    header->header_bytes = EVQ_RING_HEADER_BYTES;
    header->data_bytes = data_bytes;
    header->nonce = evq_clock_random();
    header->magic = EVQ_RING_MAGIC;
    header->checksum = header_checksum(header);
    return EVQ_OK;
}

static void ring_unmap(struct evq_ring *ring)
{
    if (ring->header != NULL) {
        (void)munmap(ring->header, EVQ_RING_HEADER_BYTES + ring->data_bytes);
        ring->header = NULL;
    }
}

/* Maps the locked file as a ring. reserve: the caller will write, so the blocks that a sweep gave
 * back are allocated again. EVQ_E_CORRUPT: it is not a ring, and was renamed. EVQ_E_NOT_FOUND: it
 * is empty. */
static enum evq_status ring_recover(struct evq_ring *ring, bool reserve, struct evq_error *err)
{
    struct stat info;

    if (fstat(ring->fd, &info) != 0) {
        return evq_error_set(err, EVQ_E_IO, "'%s': %s", ring->path, strerror(errno));
    }
    if (info.st_size == 0) {
        return EVQ_E_NOT_FOUND; // Its maker died before it wrote the header.
    }
    if (info.st_size >= EVQ_RING_HEADER_BYTES + EVQ_RING_BYTES_MIN &&
        (uint64_t)info.st_size <= (uint64_t)EVQ_RING_HEADER_BYTES + EVQ_RING_BYTES_MAX) {
        enum evq_status status = reserve ? ring_reserve(ring, (size_t)info.st_size, err) : EVQ_OK;
        if (status == EVQ_OK) {
            status = ring_map(ring, (size_t)info.st_size, err);
        }
        if (status != EVQ_OK) {
            return status;
        }
        if (evq_ring_header_valid(ring->header, (uint64_t)info.st_size)) {
            return EVQ_OK;
        }
        ring_unmap(ring);
    }
    char aside[PATH_MAX + 8];
    (void)snprintf(aside, sizeof(aside), "%s.bad", ring->path);
    (void)rename(ring->path, aside); // If it fails, the same is found the next time.
    return evq_error_set(err, EVQ_E_CORRUPT, "'%s' is no ring of this version; kept as *.bad",
                         ring->path);
}

static enum evq_status ring_try(const char *directory, const char *queue, const char *run,
                                unsigned number, size_t make_bytes, struct evq_ring **ret_ring,
                                struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_ring *ring = calloc(1, sizeof(*ring));

    if (ring == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "ring of run '%s'", run);
    }
    ring->fd = -1;
    if (!ring_path(ring->path, sizeof(ring->path), directory, queue, run, number)) {
        status =
            evq_error_set(err, EVQ_E_INVALID, "path of ring directory '%s' is too long", directory);
        goto out;
    }
    for (int tries = 0; tries < 2; tries++) {
        status = evq_ring_file_lock(ring->path, make_bytes != 0, &ring->fd, err);
        if (status != EVQ_OK) {
            goto out;
        }
        status = ring_recover(ring, make_bytes != 0, err);
        if (status != EVQ_E_CORRUPT || make_bytes == 0) {
            break;
        }
        close(ring->fd); // Set aside: begin a new file.
        ring->fd = -1;
    }
    if (status == EVQ_E_NOT_FOUND && make_bytes != 0) {
        status = ring_make(ring, make_bytes, err);
    }
    if (status != EVQ_OK) {
        goto out;
    }
    ring->nonce = ring->header->nonce;
    ring->inherited = evq_ring_tail(ring);
    ring->left = ring->inherited;
    *ret_ring = ring;
    ring = NULL; // The caller owns it now.
out:
    evq_ring_close(ring, false);
    return status;
}

enum evq_status evq_ring_open(const char *directory, const char *queue, const char *run,
                              size_t data_bytes, struct evq_ring **ret_ring, struct evq_error *err)
{
    size_t bytes = EVQ_RING_BYTES_MIN;

    if (data_bytes > EVQ_RING_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "ring_bytes is %zu, at most %u", data_bytes,
                             EVQ_RING_BYTES_MAX);
    }
    while (bytes < data_bytes) {
        bytes *= 2;
    }
    enum evq_status status = evq_ring_directory_make(directory, err);
    for (unsigned number = 0; status == EVQ_OK && number < EVQ_RING_FILES_MAX; number++) {
        enum evq_status tried = ring_try(directory, queue, run, number, bytes, ret_ring, err);
        if (tried != EVQ_E_CONFLICT) {
            return tried;
        }
    }
    if (status != EVQ_OK) {
        return status;
    }
    return evq_error_set(err, EVQ_E_LIMIT, "%d processes of run '%s' have rings in '%s'",
                         EVQ_RING_FILES_MAX, run, directory);
}

enum evq_status evq_ring_adopt(const char *directory, const char *queue, const char *run,
                               struct evq_ring **ret_rings, size_t rings_max, size_t *ret_count,
                               struct evq_error *err)
{
    *ret_count = 0;
    for (unsigned number = 0; number < EVQ_RING_FILES_MAX && *ret_count < rings_max; number++) {
        struct evq_ring *ring = NULL;
        enum evq_status status = ring_try(directory, queue, run, number, 0, &ring, err);
        if (status == EVQ_OK) {
            ret_rings[(*ret_count)++] = ring;
        } else if (status == EVQ_E_NOMEM) {
            return status;
        } // The file has an owner, does not exist, or was renamed.
    }
    return EVQ_OK;
}

void evq_ring_touch(struct evq_ring *ring)
{
    (void)futimens(ring->fd, NULL); // If it fails, the file is as old as its last write.
}

void evq_ring_close(struct evq_ring *ring, bool remove)
{
    if (ring == NULL) {
        return;
    }
    bool empty = ring->header != NULL && evq_ring_head(ring) == evq_ring_tail(ring);
    ring_unmap(ring);
    if (ring->fd >= 0) {
        if (remove && empty) {
            (void)unlink(ring->path); // We hold the lock, so no other process owns it.
        }
        close(ring->fd);
    }
    free(ring);
}

/* Splits a file name "QUEUE@RUN[@N].ring" into its parts. */
static bool name_parse(const char *name, char *queue, size_t queue_bytes, char *run,
                       size_t run_bytes)
{
    size_t bytes = strlen(name);
    const char *at = strchr(name, '@');

    if (at == NULL || bytes < sizeof(RING_SUFFIX) ||
        strcmp(name + bytes - strlen(RING_SUFFIX), RING_SUFFIX) != 0) {
        return false;
    }
    const char *end = name + bytes - strlen(RING_SUFFIX);
    const char *second = memchr(at + 1, '@', (size_t)(end - at - 1));
    const char *run_end = second != NULL ? second : end;
    if (at == name || (size_t)(at - name) >= queue_bytes || run_end <= at + 1 ||
        (size_t)(run_end - at - 1) >= run_bytes) {
        return false;
    }
    memcpy(queue, name, (size_t)(at - name));
    queue[at - name] = '\0';
    memcpy(run, at + 1, (size_t)(run_end - at - 1));
    run[run_end - at - 1] = '\0';
    return true;
}

enum evq_status evq_ring_list(const char *directory, evq_ring_fn on_run, void *context,
                              struct evq_error *err)
{
    DIR *dir = opendir(directory);
    if (dir == NULL) {
        return errno == ENOENT
                   ? EVQ_OK
                   : evq_error_set(err, EVQ_E_IO, "open '%s': %s", directory, strerror(errno));
    }
    char queue[EVQ_JOB_RUN_BYTES_MAX + 1];
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    struct dirent *entry = NULL;

    while ((entry = readdir(dir)) != NULL) {
        if (!name_parse(entry->d_name, queue, sizeof(queue), run, sizeof(run))) {
            continue;
        }
        // A run is reported once: by its ring with the lowest number.
        bool first = true;
        const char *mine = strrchr(entry->d_name, '@');
        unsigned number =
            mine != strchr(entry->d_name, '@') ? (unsigned)strtoul(mine + 1, NULL, 10) : 0;
        for (unsigned lower = 0; lower < number && lower < EVQ_RING_FILES_MAX && first; lower++) {
            char path[PATH_MAX];
            first = !ring_path(path, sizeof(path), directory, queue, run, lower) ||
                    access(path, F_OK) != 0;
        }
        if (first) {
            on_run(context, queue, run);
        }
    }
    closedir(dir);
    return EVQ_OK;
}
