/*
 * The directory of a zip archive as torch.save writes it: stored entries, nothing hidden between
 * them. One thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_ZIP_H
#define EVQ_SHARED_CHECKPOINT_TORCH_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_zip_entry {
    const char *name;
    uint64_t bytes;        // Of the content.
    uint64_t packed_bytes; // As it lies in the file.
    uint64_t header;       // Where its local header begins.
    uint64_t offset;       // Where its content begins.
    uint32_t crc;
    uint16_t method; // 0: stored. Others are listed only.
    uint16_t flags;
};

/* An archive may be a part of its file. Places in it are counted from its own beginning. */
struct evq_zip_source {
    int fd;
    uint64_t origin; // Where it begins in the file.
    uint64_t bytes;
};

struct evq_zip {
    struct evq_zip_entry *entries; // Sorted by name; names are unique and plain.
    size_t count;
    uint8_t *central; // Names point into it.
};

/*
 * Reads the central directory and compares it with every local header. EVQ_E_INCOMPLETE: no end of
 * central directory yet. EVQ_E_CORRUPT: entries that overlap, leave gaps, differ from their
 * headers, are named twice.
 */
enum evq_status evq_zip_read(const struct evq_zip_source *source, uint64_t directory_bytes_max,
                             struct evq_zip **ret_zip, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_zip_free(struct evq_zip *zip); // Accepts NULL.

/* NULL: none. */
const struct evq_zip_entry *evq_zip_find(const struct evq_zip *zip, const char *name);

/* The content of a stored entry, its CRC checked; the caller frees it. */
enum evq_status evq_zip_load(const struct evq_zip_source *source, const struct evq_zip_entry *entry,
                             uint64_t bytes_max, uint8_t **ret_data,
                             struct evq_error *err) EVQ_CHECK_RESULT;

#endif
