#include "producer/client/submit_log/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/queue/job.h"

#define SPOOL_MAGIC   UINT64_C(0x314c4f4f50535145) // "EQSPOOL1"
#define RECORD_MAGIC  0x43525145u                  // "EQRC"
#define SPOOL_VERSION 1
#define RING_SUFFIX   ".ring"

struct spool_header {
    uint64_t magic;
    uint64_t version;
    uint64_t done; // Offset of the first record that is not done.
    uint64_t reserved;
};

struct record_head {
    uint32_t magic;
    uint32_t bytes;
    uint64_t checksum;
    uint64_t offset;
};

struct evq_spool {
    int fd; // -1: no file yet.
    uint64_t done;
    uint64_t end;
    uint64_t left; // End of an earlier owner's records. None of them reaches beyond it.
    uint64_t records;
    uint64_t bytes_max;
    char path[PATH_MAX];
    uint8_t record[EVQ_JOB_BYTES_MAX]; // The record read last. Checking needs no allocation.
};

static bool read_at(int fd, void *out, size_t bytes, uint64_t offset)
{
    return evq_file_read_at(fd, out, bytes, offset, "spool", NULL) == EVQ_OK;
}

static bool write_at(int fd, const void *data, size_t bytes, uint64_t offset)
{
    return evq_file_write_at(fd, data, bytes, offset, "spool", NULL) == EVQ_OK;
}

static bool header_write(struct evq_spool *spool)
{
    struct spool_header header = {
        .magic = SPOOL_MAGIC, .version = SPOOL_VERSION, .done = spool->done};
    return write_at(spool->fd, &header, sizeof(header), 0);
}

/* Reads the record at offset into spool->record. Returns its length; 0: no whole record. */
static size_t record_load(struct evq_spool *spool, uint64_t offset)
{
    const uint64_t end = offset < spool->left ? spool->left : spool->end;
    struct record_head head;

    if (offset + sizeof(head) > end || !read_at(spool->fd, &head, sizeof(head), offset) ||
        head.magic != RECORD_MAGIC || head.offset != offset || head.bytes == 0 ||
        head.bytes > EVQ_JOB_BYTES_MAX || offset + sizeof(head) + head.bytes > end) {
        return 0;
    }
    bool whole = read_at(spool->fd, spool->record, head.bytes, offset + sizeof(head)) &&
                 XXH3_64bits_withSeed(spool->record, head.bytes, offset) == head.checksum;
    return whole ? head.bytes : 0;
}

/* Returns the next offset that looks like a record's head, or the end of the spool. */
static uint64_t record_search(struct evq_spool *spool, uint64_t offset)
{
    const uint32_t magic = RECORD_MAGIC;
    uint8_t block[4096];

    while (offset + sizeof(struct record_head) <= spool->end) {
        uint64_t left = spool->end - offset;
        size_t bytes = left < sizeof(block) ? (size_t)left : sizeof(block);
        if (!read_at(spool->fd, block, bytes, offset)) {
            break;
        }
        const uint8_t *found = memmem(block, bytes, &magic, sizeof(magic));
        if (found != NULL) {
            return offset + (uint64_t)(found - block);
        }
        offset += bytes - (sizeof(magic) - 1);
    }
    return spool->end;
}

/* Finds the first whole record at or after *offset. Returns its length and sets *offset to its
 * begin; 0: there is none, and *offset is the end. */
static size_t record_find(struct evq_spool *spool, uint64_t *offset)
{
    while (spool->fd >= 0 && *offset < spool->end) {
        const size_t bytes = record_load(spool, *offset);
        if (bytes > 0) {
            return bytes;
        }
        *offset = record_search(spool, *offset + 1);
    }
    return 0;
}

enum evq_status evq_spool_read(struct evq_spool *spool, uint64_t *offset, struct evq_buffer *out,
                               struct evq_error *err)
{
    if (*offset == 0) {
        *offset = spool->done;
    }
    const size_t bytes = record_find(spool, offset);
    if (bytes == 0) {
        return EVQ_E_NOT_FOUND;
    }
    evq_buffer_clear(out);
    evq_buffer_append(out, spool->record, bytes);
    if (out->failed) {
        return evq_error_set(err, EVQ_E_NOMEM, "a spooled job of %zu bytes", bytes);
    }
    *offset += sizeof(struct record_head) + bytes;
    return EVQ_OK;
}

/* Opens an existing file. A file that is not a spool is renamed. */
static enum evq_status spool_recover(struct evq_spool *spool, struct evq_error *err)
{
    struct spool_header header;
    struct stat info;

    if (fstat(spool->fd, &info) != 0) {
        return evq_error_set(err, EVQ_E_IO, "'%s': %s", spool->path, strerror(errno));
    }
    if (!read_at(spool->fd, &header, sizeof(header), 0) || header.magic != SPOOL_MAGIC ||
        header.version != SPOOL_VERSION || header.done < sizeof(header)) {
        if (info.st_size > 0) {
            char aside[PATH_MAX + 8];
            (void)snprintf(aside, sizeof(aside), "%s.bad", spool->path);
            (void)rename(spool->path, aside);
        }
        close(spool->fd);
        spool->fd = -1;
        return EVQ_OK;
    }
    spool->end = spool->left = (uint64_t)info.st_size;
    spool->done = header.done < spool->end ? header.done : spool->end;

    uint64_t offset = spool->done;
    size_t bytes = 0;
    while ((bytes = record_find(spool, &offset)) > 0) {
        spool->records++;
        offset += sizeof(struct record_head) + bytes;
    }
    return EVQ_OK;
}

enum evq_status evq_spool_open(const char *ring_path, int64_t bytes_max,
                               struct evq_spool **ret_spool, struct evq_error *err)
{
    struct evq_spool *spool = calloc(1, sizeof(*spool));
    size_t stem = strlen(ring_path) - strlen(RING_SUFFIX);

    if (spool == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "spool of '%s'", ring_path);
    }
    (void)snprintf(spool->path, sizeof(spool->path), "%.*s.spool", (int)stem, ring_path);
    spool->bytes_max = (uint64_t)bytes_max;
    spool->done = sizeof(struct spool_header);
    spool->end = sizeof(struct spool_header);
    spool->fd = open(spool->path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (spool->fd >= 0) {
        enum evq_status status = spool_recover(spool, err);
        if (status != EVQ_OK) {
            evq_spool_close(spool);
            return status;
        }
    }
    *ret_spool = spool;
    return EVQ_OK;
}

void evq_spool_close(struct evq_spool *spool)
{
    if (spool == NULL) {
        return;
    }
    if (spool->fd >= 0) {
        if (spool->records == 0) {
            (void)unlink(spool->path);
        }
        close(spool->fd);
    }
    free(spool);
}

static enum evq_status spool_make(struct evq_spool *spool, struct evq_error *err)
{
    spool->fd = open(spool->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (spool->fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", spool->path, strerror(errno));
    }
    spool->done = sizeof(struct spool_header);
    spool->end = sizeof(struct spool_header);
    if (!header_write(spool)) {
        enum evq_status status =
            evq_error_set(err, EVQ_E_IO, "write '%s': %s", spool->path, strerror(errno));
        close(spool->fd);
        spool->fd = -1;
        return status;
    }
    return EVQ_OK;
}

enum evq_status evq_spool_append(struct evq_spool *spool, const void *data, size_t bytes,
                                 struct evq_error *err)
{
    struct record_head head = {.magic = RECORD_MAGIC, .bytes = (uint32_t)bytes};

    if (spool == NULL) {
        return evq_error_set(err, EVQ_E_IO, "there is no spool");
    }
    if (bytes == 0 || bytes > EVQ_JOB_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "a spooled job has %zu bytes, at most %d", bytes,
                             EVQ_JOB_BYTES_MAX);
    }
    if (spool->end + sizeof(head) + bytes > spool->bytes_max) {
        return evq_error_set(err, EVQ_E_FULL, "'%s' holds %llu bytes, at most %llu", spool->path,
                             (unsigned long long)spool->end, (unsigned long long)spool->bytes_max);
    }
    if (spool->fd < 0) {
        enum evq_status status = spool_make(spool, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    head.offset = spool->end;
    head.checksum = XXH3_64bits_withSeed(data, bytes, head.offset);
    if (!write_at(spool->fd, &head, sizeof(head), spool->end) ||
        !write_at(spool->fd, data, bytes, spool->end + sizeof(head))) {
        enum evq_status status =
            evq_error_set(err, EVQ_E_IO, "write '%s': %s", spool->path, strerror(errno));
        (void)!ftruncate(spool->fd, (off_t)spool->end); // If it fails, the checksum shows it.
        return status;
    }
    spool->end += sizeof(head) + bytes;
    spool->records++;
    return EVQ_OK;
}

enum evq_status evq_spool_sync(struct evq_spool *spool, struct evq_error *err)
{
    if (spool != NULL && spool->fd >= 0 && fdatasync(spool->fd) != 0) {
        return evq_error_set(err, EVQ_E_IO, "sync '%s': %s", spool->path, strerror(errno));
    }
    return EVQ_OK;
}

void evq_spool_release(struct evq_spool *spool, uint64_t offset, uint64_t records)
{
    spool->records -= records < spool->records ? records : spool->records;
    spool->done = offset < spool->end ? offset : spool->end;
    if (spool->fd < 0) {
        return;
    }
    if (spool->records == 0 || spool->done == spool->end) {
        spool->records = 0;
        spool->done = sizeof(struct spool_header);
        spool->end = sizeof(struct spool_header);
        spool->left = 0;
        (void)header_write(spool); // If it fails, the jobs are sent again, as duplicates.
        (void)!ftruncate(spool->fd, (off_t)spool->end);
        return;
    }
    (void)header_write(spool);
}

uint64_t evq_spool_records(const struct evq_spool *spool)
{
    return spool != NULL ? spool->records : 0;
}
