#include "shared/checkpoint/torch/zip.h"

#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/checkpoint_builder.h"

#define END_BYTES       22u // End of central directory, without a comment.
#define LOCATOR_BYTES   20u
#define END64_BYTES     56u
#define CENTRAL_BYTES   46u
#define LOCAL_BYTES     30u
#define COMMENT_MAX     65535u
#define NAME_BYTES_MAX  1024u
#define DESCRIPTOR_MAX  24u // Signature, CRC and two 64-bit sizes.
#define FLAG_ENCRYPTED  0x0001u
#define FLAG_DESCRIPTOR 0x0008u
#define FLAGS_ALLOWED   (0x0006u | FLAG_DESCRIPTOR | 0x0800u) // Deflate's level; UTF-8 names.

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)get16(at) | (uint32_t)get16(at + 2) << 16;
}

static uint64_t get64(const uint8_t *at)
{
    return (uint64_t)get32(at) | (uint64_t)get32(at + 4) << 32;
}

struct end {
    uint64_t count;
    uint64_t bytes;  // Of the central directory.
    uint64_t offset; // Of the central directory.
    uint64_t at;     // Where the end records begin: the central directory must reach to here.
};

static enum evq_status read_at(const struct evq_zip_source *source, uint64_t at, void *out,
                               size_t bytes, struct evq_error *err)
{
    return evq_checkpoint_read_fd(source->fd, source->origin + at, out, bytes, err);
}

/* Whether an end record stands further forward: then something was put behind the archive. */
static enum evq_status no_end(const struct evq_zip_source *source, struct evq_error *err)
{
    size_t window =
        source->bytes < END_BYTES + COMMENT_MAX ? (size_t)source->bytes : END_BYTES + COMMENT_MAX;
    uint8_t *tail = malloc(window == 0 ? 1 : window);

    if (tail == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", window);
    }
    enum evq_status status = read_at(source, source->bytes - window, tail, window, err);
    bool found = false;
    for (size_t i = 0; status == EVQ_OK && !found && i + END_BYTES < window; i++) {
        found = memcmp(tail + i, "PK\5\6", 4) == 0;
    }
    free(tail);
    if (status != EVQ_OK) {
        return status;
    }
    if (found) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "zip: bytes or a comment follow the end of the archive");
    }
    return evq_error_set(err, EVQ_E_INCOMPLETE,
                         "zip: no end of central directory: still being written, or cut");
}

static enum evq_status read_end64(const struct evq_zip_source *source, uint64_t end_at,
                                  const uint8_t *end_record, struct end *end, struct evq_error *err)
{
    uint8_t locator[LOCATOR_BYTES];
    uint8_t record[END64_BYTES];

    if (end_at < LOCATOR_BYTES + END64_BYTES) {
        return EVQ_OK; // No room for one.
    }
    enum evq_status status = read_at(source, end_at - LOCATOR_BYTES, locator, sizeof(locator), err);
    if (status != EVQ_OK || memcmp(locator, "PK\6\7", 4) != 0) {
        return status;
    }
    if (get64(locator + 8) != end_at - LOCATOR_BYTES - END64_BYTES || get32(locator + 4) != 0 ||
        get32(locator + 16) > 1) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "zip: the zip64 locator does not point right before itself");
    }
    end->at = end_at - LOCATOR_BYTES - END64_BYTES;
    status = read_at(source, end->at, record, sizeof(record), err);
    if (status != EVQ_OK) {
        return status;
    }
    if (memcmp(record, "PK\6\6", 4) != 0 || get64(record + 4) != END64_BYTES - 12 ||
        get32(record + 16) != 0 || get32(record + 20) != 0 ||
        get64(record + 24) != get64(record + 32)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: malformed zip64 end record");
    }
    end->count = get64(record + 32);
    end->bytes = get64(record + 40);
    end->offset = get64(record + 48);
    // What the short record does say must agree.
    if ((get16(end_record + 10) != 0xffff && get16(end_record + 10) != end->count) ||
        (get32(end_record + 12) != 0xffffffff && get32(end_record + 12) != end->bytes) ||
        (get32(end_record + 16) != 0xffffffff && get32(end_record + 16) != end->offset)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: the end record and its zip64 form disagree");
    }
    return EVQ_OK;
}

static enum evq_status read_end(const struct evq_zip_source *source, struct end *end,
                                struct evq_error *err)
{
    uint8_t record[END_BYTES];

    if (source->bytes < END_BYTES) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "zip: %llu bytes: still being written, or cut",
                             (unsigned long long)source->bytes);
    }
    uint64_t at = source->bytes - END_BYTES;
    enum evq_status status = read_at(source, at, record, sizeof(record), err);
    if (status != EVQ_OK) {
        return status;
    }
    if (memcmp(record, "PK\5\6", 4) != 0 || get16(record + 20) != 0) {
        return no_end(source, err);
    }
    *end = (struct end){.count = get16(record + 10),
                        .bytes = get32(record + 12),
                        .offset = get32(record + 16),
                        .at = at};
    status = read_end64(source, at, record, end, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (get16(record + 4) != 0 || get16(record + 6) != 0 ||
        get16(record + 8) != get16(record + 10)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: an archive over several disks");
    }
    if (end->bytes > end->at || end->offset != end->at - end->bytes) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "zip: the central directory does not reach from byte %llu to the end record",
            (unsigned long long)end->offset);
    }
    if (end->count > end->bytes / CENTRAL_BYTES) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "zip: %llu entries do not fit a directory of %llu bytes",
                             (unsigned long long)end->count, (unsigned long long)end->bytes);
    }
    return EVQ_OK;
}

/* Takes the 64-bit values of the fields that are saturated, in the order the format fixes. */
static bool read_extra64(const uint8_t *extra, size_t bytes, struct evq_zip_entry *entry)
{
    bool wants_bytes = entry->bytes == 0xffffffff;
    bool wants_packed = entry->packed_bytes == 0xffffffff;
    bool wants_header = entry->header == 0xffffffff;
    bool found = false;

    while (bytes >= 4) {
        size_t field = get16(extra + 2);
        if (field > bytes - 4) {
            return false;
        }
        if (get16(extra) == 1 && !found) {
            const uint8_t *at = extra + 4;
            size_t wanted = 8u * ((size_t)wants_bytes + wants_packed + wants_header);
            if (field < wanted) {
                return false;
            }
            entry->bytes = wants_bytes ? get64(at) : entry->bytes;
            at += wants_bytes ? 8 : 0;
            entry->packed_bytes = wants_packed ? get64(at) : entry->packed_bytes;
            at += wants_packed ? 8 : 0;
            entry->header = wants_header ? get64(at) : entry->header;
            found = true;
        } else if (get16(extra) == 1) {
            return false;
        }
        extra += 4 + field;
        bytes -= 4 + field;
    }
    return bytes == 0 && (found || !(wants_bytes || wants_packed || wants_header));
}

static bool plain_name(const char *name, size_t bytes)
{
    if (bytes == 0 || bytes > NAME_BYTES_MAX || memchr(name, '\0', bytes) != NULL ||
        memchr(name, '\\', bytes) != NULL || name[0] == '/') {
        return false;
    }
    for (size_t at = 0; at < bytes;) {
        const char *slash = memchr(name + at, '/', bytes - at);
        size_t part = slash == NULL ? bytes - at : (size_t)(slash - name) - at;
        if (part == 2 && name[at] == '.' && name[at + 1] == '.') {
            return false;
        }
        at += part + 1;
    }
    return true;
}

/* One record of the central directory at *at; moves *at behind it. The name is moved back one byte,
 * for its NUL. */
static enum evq_status read_record(uint8_t **at, const uint8_t *end, struct evq_zip_entry *entry,
                                   struct evq_error *err)
{
    uint8_t *record = *at;

    if ((size_t)(end - record) < CENTRAL_BYTES || memcmp(record, "PK\1\2", 4) != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: malformed central directory");
    }
    size_t name_bytes = get16(record + 28);
    size_t extra_bytes = get16(record + 30);
    size_t comment_bytes = get16(record + 32);
    if ((size_t)(end - record) - CENTRAL_BYTES < name_bytes + extra_bytes + comment_bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "zip: a record reaches behind the central directory");
    }
    *entry = (struct evq_zip_entry){.flags = get16(record + 8),
                                    .method = get16(record + 10),
                                    .crc = get32(record + 16),
                                    .packed_bytes = get32(record + 20),
                                    .bytes = get32(record + 24),
                                    .header = get32(record + 42)};
    char *name = (char *)record + CENTRAL_BYTES;
    char shown[EVQ_SHOWN_BYTES];
    evq_error_escape(name, name_bytes, shown, sizeof(shown));
    if (!plain_name(name, name_bytes)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: '%s' is not a plain entry name", shown);
    }
    if (get16(record + 34) != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: entry '%s' is on another disk", shown);
    }
    if (!read_extra64(record + CENTRAL_BYTES + name_bytes, extra_bytes, entry)) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: entry '%s' has malformed extra fields",
                             shown);
    }
    if ((entry->flags & FLAG_ENCRYPTED) != 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "zip: entry '%s' is encrypted", shown);
    }
    if ((entry->flags & ~FLAGS_ALLOWED) != 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "zip: entry '%s' has flags 0x%04x", shown,
                             entry->flags);
    }
    if (entry->method == 0 && entry->bytes != entry->packed_bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: entry '%s' is stored, yet has two sizes",
                             shown);
    }
    memmove(name - 1, name, name_bytes);
    name[name_bytes - 1] = '\0';
    entry->name = name - 1;
    *at = record + CENTRAL_BYTES + name_bytes + extra_bytes + comment_bytes;
    return EVQ_OK;
}

static bool sizes_differ(uint32_t local, uint64_t central, bool later)
{
    return local != central && local != 0xffffffff && !(later && local == 0);
}

/* Compares the local header with the central record and finds where the content begins. */
static enum evq_status read_local(const struct evq_zip_source *source, uint64_t data_end,
                                  struct evq_zip_entry *entry, struct evq_error *err)
{
    uint8_t local[LOCAL_BYTES + NAME_BYTES_MAX];
    char shown[EVQ_SHOWN_BYTES];
    size_t name_bytes = strlen(entry->name);

    evq_error_escape(entry->name, name_bytes, shown, sizeof(shown));
    if (data_end < LOCAL_BYTES + name_bytes ||
        entry->header > data_end - LOCAL_BYTES - name_bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "zip: entry '%s' begins behind the data", shown);
    }
    enum evq_status status = read_at(source, entry->header, local, LOCAL_BYTES + name_bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    bool later = (get16(local + 6) & FLAG_DESCRIPTOR) != 0; // Sizes and CRC follow the content.
    if (memcmp(local, "PK\3\4", 4) != 0 || get16(local + 26) != name_bytes ||
        memcmp(local + LOCAL_BYTES, entry->name, name_bytes) != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "zip: entry '%s' has another name in its local header", shown);
    }
    if (get16(local + 6) != entry->flags || get16(local + 8) != entry->method ||
        sizes_differ(get32(local + 18), entry->packed_bytes, later) ||
        sizes_differ(get32(local + 22), entry->bytes, later) ||
        (get32(local + 14) != entry->crc && !(later && get32(local + 14) == 0))) {
        return evq_error_set(
            err, EVQ_E_CORRUPT,
            "zip: entry '%s' has other flags, method, size or CRC in its local header", shown);
    }
    uint64_t head = LOCAL_BYTES + name_bytes + get16(local + 28);
    if (head > data_end - entry->header || entry->packed_bytes > data_end - entry->header - head) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "zip: entry '%s' reaches into the central directory", shown);
    }
    entry->offset = entry->header + head;
    return EVQ_OK;
}

static int by_header(const void *a, const void *b)
{
    const struct evq_zip_entry *left = a;
    const struct evq_zip_entry *right = b;

    return left->header < right->header ? -1 : left->header > right->header;
}

static int by_name(const void *a, const void *b)
{
    const struct evq_zip_entry *left = a;
    const struct evq_zip_entry *right = b;

    return strcmp(left->name, right->name);
}

/* Sorted by place: every byte before data_end must belong to exactly one entry. */
static enum evq_status check_places(const struct evq_zip *zip, uint64_t data_end,
                                    struct evq_error *err)
{
    uint64_t at = 0;
    uint64_t slack = 0; // A data descriptor may follow.

    for (size_t i = 0; i <= zip->count; i++) {
        uint64_t begin = i < zip->count ? zip->entries[i].header : data_end;
        if (begin < at || begin - at > slack) {
            return evq_error_set(err, EVQ_E_CORRUPT, "zip: %s before '%.160s' (bytes %llu to %llu)",
                                 begin < at ? "entries overlap" : "bytes that belong to no entry",
                                 i < zip->count ? zip->entries[i].name : "the central directory",
                                 (unsigned long long)at, (unsigned long long)begin);
        }
        if (i < zip->count) {
            at = zip->entries[i].offset + zip->entries[i].packed_bytes;
            slack = (zip->entries[i].flags & FLAG_DESCRIPTOR) != 0 ? DESCRIPTOR_MAX : 0;
        }
    }
    return EVQ_OK;
}

static enum evq_status check_names(const struct evq_zip *zip, struct evq_error *err)
{
    for (size_t i = 1; i < zip->count; i++) {
        if (strcmp(zip->entries[i - 1].name, zip->entries[i].name) == 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "zip: two entries named '%.160s'",
                                 zip->entries[i].name);
        }
    }
    return EVQ_OK;
}

static enum evq_status read_entries(const struct evq_zip_source *source, const struct end *end,
                                    struct evq_zip *zip, struct evq_error *err)
{
    uint8_t *at = zip->central;
    enum evq_status status = read_at(source, end->offset, zip->central, (size_t)end->bytes, err);

    for (uint64_t i = 0; i < end->count && status == EVQ_OK; i++) {
        status = read_record(&at, zip->central + end->bytes, &zip->entries[i], err);
        zip->count = status == EVQ_OK ? (size_t)i + 1 : zip->count;
    }
    if (status == EVQ_OK && at != zip->central + end->bytes) {
        status = evq_error_set(err, EVQ_E_CORRUPT,
                               "zip: the central directory holds more than its %llu entries",
                               (unsigned long long)end->count);
    }
    for (size_t i = 0; i < zip->count && status == EVQ_OK; i++) {
        status = read_local(source, end->offset, &zip->entries[i], err);
    }
    if (status == EVQ_OK && zip->count > 0) {
        qsort(zip->entries, zip->count, sizeof(*zip->entries), by_header);
    }
    if (status == EVQ_OK) {
        status = check_places(zip, end->offset, err);
    }
    if (status == EVQ_OK && zip->count > 0) {
        qsort(zip->entries, zip->count, sizeof(*zip->entries), by_name);
        status = check_names(zip, err);
    }
    return status;
}

enum evq_status evq_zip_read(const struct evq_zip_source *source, uint64_t directory_bytes_max,
                             struct evq_zip **ret_zip, struct evq_error *err)
{
    struct end end = {.count = 0};
    enum evq_status status = read_end(source, &end, err);

    if (status != EVQ_OK) {
        return status;
    }
    if (end.bytes > directory_bytes_max) {
        return evq_error_set(
            err, EVQ_E_LIMIT, "zip: a central directory of %llu bytes, allowed %llu",
            (unsigned long long)end.bytes, (unsigned long long)directory_bytes_max);
    }
    struct evq_zip *zip = calloc(1, sizeof(*zip));
    if (zip != NULL) {
        zip->entries =
            calloc((size_t)end.count + 1, sizeof(*zip->entries)); // Bounded by end.bytes.
        zip->central = malloc((size_t)end.bytes + 1);
    }
    if (zip == NULL || zip->entries == NULL || zip->central == NULL) {
        status =
            evq_error_set(err, EVQ_E_NOMEM, "zip: %llu entries", (unsigned long long)end.count);
    } else {
        status = read_entries(source, &end, zip, err);
    }
    if (status != EVQ_OK) {
        evq_zip_free(zip);
        return status;
    }
    *ret_zip = zip;
    return EVQ_OK;
}

void evq_zip_free(struct evq_zip *zip)
{
    if (zip != NULL) {
        free(zip->entries);
        free(zip->central);
        free(zip);
    }
}

static int entry_named(const void *key, const void *item)
{
    const struct evq_zip_entry *entry = item;

    return strcmp(key, entry->name);
}

const struct evq_zip_entry *evq_zip_find(const struct evq_zip *zip, const char *name)
{
    if (zip->count == 0) {
        return NULL;
    }
    return bsearch(name, zip->entries, zip->count, sizeof(*zip->entries), entry_named);
}

static uint32_t crc32_of(const uint8_t *data, size_t bytes)
{
    uint32_t table[256];
    uint32_t crc = 0xffffffff;

    for (uint32_t i = 0; i < 256; i++) {
        uint32_t value = i;
        for (int bit = 0; bit < 8; bit++) {
            value = (value & 1) != 0 ? value >> 1 ^ 0xedb88320 : value >> 1;
        }
        table[i] = value;
    }
    for (size_t i = 0; i < bytes; i++) {
        crc = table[(crc ^ data[i]) & 0xff] ^ crc >> 8;
    }
    return ~crc;
}

enum evq_status evq_zip_load(const struct evq_zip_source *source, const struct evq_zip_entry *entry,
                             uint64_t bytes_max, uint8_t **ret_data, struct evq_error *err)
{

    if (entry->method != 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "zip: entry '%.160s' is compressed (method %u), expected stored",
                             entry->name, entry->method);
    }
    if (entry->bytes > bytes_max) {
        return evq_error_set(err, EVQ_E_LIMIT, "zip: entry '%.160s' holds %llu bytes, allowed %llu",
                             entry->name, (unsigned long long)entry->bytes,
                             (unsigned long long)bytes_max);
    }
    uint8_t *data = malloc((size_t)entry->bytes + 1);
    if (data == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "zip: %llu bytes", (unsigned long long)entry->bytes);
    }
    enum evq_status status = read_at(source, entry->offset, data, (size_t)entry->bytes, err);
    if (status == EVQ_OK && crc32_of(data, (size_t)entry->bytes) != entry->crc) {
        status = evq_error_set(err, EVQ_E_CORRUPT, "zip: entry '%.160s' does not match its CRC",
                               entry->name);
    }
    if (status != EVQ_OK) {
        free(data);
        return status;
    }
    *ret_data = data;
    return EVQ_OK;
}
