/*
 * Removes or shrinks the rings of dead processes. A process leaves its ring with unsent submits if
 * it dies, or if it ends while Redis is away or no root contains a checkpoint. Its run may never be
 * opened again.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/client/submit_log/ring_file.h"
#include "shared/base/clock.h"

#define PAGE_BYTES  4096
#define RING_SUFFIX ".ring"

/* Gives back the blocks between two offsets of the data, whole pages only. The next owner reserves
 * them again. */
static void hole_make(int fd, uint64_t begin, uint64_t end)
{
    begin = (begin + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    end = end / PAGE_BYTES * PAGE_BYTES;
    if (begin < end) {
        // If the file system cannot do it, the file keeps its size.
        (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                        (off_t)(EVQ_RING_HEADER_BYTES + begin), (off_t)(end - begin));
    }
}

/* Frees the disk space of all data that holds no record. */
static void ring_shrink(int fd, const struct evq_ring_header *header, const struct stat *info)
{
    const struct timespec times[2] = {info->st_atim, info->st_mtim};
    const uint64_t bytes = header->data_bytes;
    const uint64_t held = atomic_load(&header->tail) - atomic_load(&header->head);
    const uint64_t head = atomic_load(&header->head) % bytes;
    const uint64_t tail = atomic_load(&header->tail) % bytes;

    if ((uint64_t)info->st_blocks * 512 <= EVQ_RING_HEADER_BYTES + held + 4 * PAGE_BYTES) {
        return; // It was shrunk before.
    }
    if (held == 0) {
        hole_make(fd, 0, bytes); // Its spool holds something.
    } else if (head < tail) {
        hole_make(fd, 0, head);
        hole_make(fd, tail, bytes);
    } else {
        hole_make(fd, tail, head);
    }
    (void)futimens(fd, times); // Restores its age. If it fails, the file is removed later.
}

static int64_t age_ms(const struct stat *info)
{
    return evq_clock_unix_ms() - (int64_t)info->st_mtim.tv_sec * 1000;
}

/* Cleans up one ring, whose lock we hold. Returns whether a ring with records was removed. */
static bool ring_sweep(const char *path, int fd, int64_t keep_ms)
{
    struct evq_ring_header header;
    struct stat info;
    struct stat spool_info;
    char spool[PATH_MAX];

    (void)snprintf(spool, sizeof(spool), "%.*s.spool", (int)(strlen(path) - strlen(RING_SUFFIX)),
                   path);
    const bool spooled = stat(spool, &spool_info) == 0;
    if (fstat(fd, &info) != 0 ||
        (info.st_size > 0 && pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))) {
        return false;
    }
    if (info.st_size > 0 && !evq_ring_header_valid(&header, (uint64_t)info.st_size)) {
        return false; // Another version of evalq may know it.
    }
    const bool empty = info.st_size == 0 || atomic_load(&header.head) == atomic_load(&header.tail);
    const bool old = age_ms(&info) > keep_ms && (!spooled || age_ms(&spool_info) > keep_ms);
    if (!old && (!empty || spooled)) {
        if (info.st_size > 0) {
            ring_shrink(fd, &header, &info);
        }
        return false;
    }
    if (spooled) {
        (void)unlink(spool);
    }
    (void)unlink(path); // We hold the lock, so no other process owns it.
    return !empty || spooled;
}

size_t evq_ring_sweep(const char *directory, int64_t keep_ms)
{
    size_t given_up = 0;
    DIR *dir = opendir(directory);
    const struct dirent *entry = NULL;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char path[PATH_MAX];
        const size_t bytes = strlen(entry->d_name);
        int fd = -1;
        if (bytes <= strlen(RING_SUFFIX) ||
            strcmp(entry->d_name + bytes - strlen(RING_SUFFIX), RING_SUFFIX) != 0 ||
            strchr(entry->d_name, '@') == NULL ||
            snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name) >= (int)sizeof(path) ||
            evq_ring_file_lock(path, false, &fd, NULL) != EVQ_OK) {
            continue;
        }
        given_up += ring_sweep(path, fd, keep_ms);
        close(fd);
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return given_up;
}
