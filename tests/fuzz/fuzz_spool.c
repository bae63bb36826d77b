/*
 * The files that outlive a trainer: its spool and its ring, torn, damaged or foreign. The first
 * byte chooses; a header that is nearly right is mended, so that the records behind it are looked
 * at. Reading ends, stays within the file, and what is appended to it then is read again.
 */
// fuzz: producer
#include <fcntl.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/submit_log/ring_file.h"
#include "producer/client/submit_log/spool.h"
#include "shared/queue/job.h"
#include "tests/fuzz/check.h"

static char folder[64];

static const char *path_of(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void empty(void)
{
    static const char *const names[] = {"q@r.ring",      "q@r.ring.bad", "q@r.spool",
                                        "q@r.spool.bad", "q@r@1.ring",   "q@r@1.spool"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)unlink(path_of(names[i]));
    }
}

static void stop(void)
{
    empty();
    (void)rmdir(folder);
}

static void put(const char *name, const void *data, size_t bytes, off_t size)
{
    const int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    check(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes && ftruncate(fd, size) == 0);
    (void)close(fd);
}

static void try_spool(const uint8_t *data, size_t bytes)
{
    static const char ours[] = "what comes now";
    struct evq_spool *spool = NULL;
    struct evq_buffer record;
    uint64_t offset = 0;
    uint64_t records = 0;
    bool found = false;

    put("q@r.spool", data, bytes, (off_t)bytes);
    check(evq_spool_open(path_of("q@r.ring"), 1 << 20, &spool, NULL) == EVQ_OK);
    const uint64_t held = evq_spool_records(spool);
    check(held <= bytes / 24);
    check(evq_spool_append(spool, ours, sizeof(ours), NULL) == EVQ_OK);
    evq_buffer_init(&record, EVQ_JOB_BYTES_MAX);
    for (uint64_t last = 0; evq_spool_read(spool, &offset, &record, NULL) == EVQ_OK;
         last = offset) {
        check(offset > last && record.bytes > 0);
        found = record.bytes == sizeof(ours) && memcmp(record.data, ours, sizeof(ours)) == 0;
        records++;
    }
    check(found && records == held + 1); // The last one is ours.
    evq_spool_release(spool, offset, records);
    check(evq_spool_records(spool) == 0);
    evq_buffer_free(&record);
    evq_spool_close(spool);
}

/* What the header says of itself becomes true. */
static void header_mend(struct evq_ring_header *header)
{
    header->magic = EVQ_RING_MAGIC;
    header->version = EVQ_RING_VERSION;
    header->header_bytes = EVQ_RING_HEADER_BYTES;
    header->data_bytes = EVQ_RING_BYTES_MIN;
    header->checksum = XXH3_64bits(header, offsetof(struct evq_ring_header, checksum));
    // Positions only rise, from 0: none comes near the end of their range.
    const uint64_t head =
        atomic_load(&header->head) % (UINT64_C(1) << 62) & ~(uint64_t)(EVQ_RING_ALIGN - 1);
    const uint64_t held = atomic_load(&header->tail) % (EVQ_RING_BYTES_MIN + 1);
    atomic_store(&header->head, head);
    atomic_store(&header->tail, head + (held & ~(uint64_t)(EVQ_RING_ALIGN - 1)));
}

/* A record of a few bytes, whose checksum is right. */
static void checksum_mend(const struct evq_ring_header *header, const uint8_t *ring,
                          uint64_t position)
{
    struct evq_ring_record *record =
        (struct evq_ring_record *)(void *)(uintptr_t)(ring + position % EVQ_RING_BYTES_MIN);
    uint8_t payload[64];

    record->bytes = record->bytes % sizeof(payload) + 1;
    for (uint32_t i = 0; i < record->bytes; i++) {
        payload[i] = ring[(position + sizeof(*record) + i) % EVQ_RING_BYTES_MIN];
    }
    record->checksum = XXH3_64bits_withSeed(
        payload, record->bytes, position ^ header->nonce ^ (uint64_t)record->bytes << 48);
}

/* nonce (8 bytes), head (8), how much is held (2), then what lies in the ring from its head on;
 * each run of 32 bytes that begins with 'R' is a record whose commit word and position are right,
 * and with 'C' its checksum too. */
static size_t ring_fill(uint8_t *file, const uint8_t *data, size_t bytes)
{
    struct evq_ring_header *header = (struct evq_ring_header *)(void *)file;
    uint8_t *ring = file + EVQ_RING_HEADER_BYTES;
    uint64_t words[2] = {0, 0};
    uint16_t held = 0;

    if (bytes < 18) {
        return 0;
    }
    memcpy(words, data, 16);
    memcpy(&held, data + 16, 2);
    header->nonce = words[0];
    atomic_store(&header->head, words[1]);
    atomic_store(&header->tail, held);
    header_mend(header);
    const uint64_t head = atomic_load(&header->head);
    for (size_t at = 18; at < bytes; at += EVQ_RING_ALIGN) {
        const uint64_t position = head + (at - 18);
        const size_t some = bytes - at < EVQ_RING_ALIGN ? bytes - at : EVQ_RING_ALIGN;
        uint8_t *place = ring + position % EVQ_RING_BYTES_MIN;
        memcpy(place, data + at, some);
        if (some == EVQ_RING_ALIGN && (data[at] == 'R' || data[at] == 'C')) {
            struct evq_ring_record *record = (struct evq_ring_record *)(void *)place;
            record->position = position;
            atomic_store(&record->commit, position ^ header->nonce);
        }
    }
    for (size_t at = 18; at + EVQ_RING_ALIGN <= bytes; at += EVQ_RING_ALIGN) {
        if (data[at] == 'C') {
            checksum_mend(header, ring, head + (at - 18));
        }
    }
    return bytes;
}

static void try_ring(const uint8_t *data, size_t bytes)
{
    alignas(64) static uint8_t file[EVQ_RING_HEADER_BYTES + EVQ_RING_BYTES_MIN];
    static uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    struct evq_ring *ring = NULL;
    struct evq_error err = {EVQ_OK, ""};
    size_t got = 0;
    bool found = false;

    memset(file, 0, sizeof(file));
    if (ring_fill(file, data, bytes) == 0) {
        memcpy(file, data, bytes);
    }
    put("q@r.ring", file, sizeof(file), sizeof(file));
    if (evq_ring_open(folder, "q", "r", EVQ_RING_BYTES_MIN, &ring, &err) != EVQ_OK) {
        check(err.message[0] != '\0');
        return;
    }
    const uint64_t head = evq_ring_head(ring);
    const uint64_t tail = evq_ring_tail(ring);
    check(tail - head <= evq_ring_bytes(ring));
    const bool room = evq_ring_push(ring, "ours", 4) == EVQ_OK;
    uint64_t cursor = head;
    for (uint64_t last = cursor; evq_ring_take(ring, &cursor, payload, &got) == EVQ_OK;
         last = cursor) {
        check(cursor > last && got <= sizeof(payload));
        found = got == 4 && memcmp(payload, "ours", 4) == 0;
    }
    check((found || !room) && cursor <= evq_ring_tail(ring)); // The input may end as ours does.
    check(room || evq_ring_tail(ring) == tail);
    evq_ring_close(ring, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    if (folder[0] == '\0') {
        (void)snprintf(folder, sizeof(folder), "/dev/shm/evq-fuzz-%d", (int)getpid());
        check(mkdir(folder, 0700) == 0);
        (void)atexit(stop);
    }
    empty();
    if (data[0] % 2 == 0) {
        try_spool(data + 1, bytes - 1);
    } else {
        try_ring(data + 1, bytes - 1);
    }
    return 0;
}
