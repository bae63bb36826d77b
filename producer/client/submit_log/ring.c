#include "producer/client/submit_log/ring.h"

#include <stdatomic.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/submit_log/ring_file.h"

static size_t record_span(size_t payload_bytes)
{
    return (sizeof(struct evq_ring_record) + payload_bytes + EVQ_RING_ALIGN - 1) &
           ~(size_t)(EVQ_RING_ALIGN - 1);
}

static struct evq_ring_record *record_at(const struct evq_ring *ring, uint64_t position)
{
    return (struct evq_ring_record *)(void *)(ring->data + (position & (ring->data_bytes - 1)));
}

/* Payload bytes before and after the end of the data part. */
static size_t payload_split(const struct evq_ring *ring, uint64_t position, size_t bytes,
                            size_t *ret_offset)
{
    size_t offset = (position + sizeof(struct evq_ring_record)) & (uint64_t)(ring->data_bytes - 1);
    size_t room = ring->data_bytes - offset;

    *ret_offset = offset;
    return bytes < room ? bytes : room;
}

static uint64_t record_checksum(const struct evq_ring *ring, uint64_t position, const void *payload,
                                size_t bytes)
{
    return XXH3_64bits_withSeed(payload, bytes, position ^ ring->nonce ^ ((uint64_t)bytes << 48));
}

enum evq_status evq_ring_push(struct evq_ring *ring, const void *payload, size_t bytes)
{
    if (bytes == 0 || bytes > EVQ_RING_PAYLOAD_BYTES_MAX) {
        return EVQ_E_LIMIT;
    }
    struct evq_ring_header *header = ring->header;
    size_t span = record_span(bytes);
    uint64_t position = atomic_load_explicit(&header->tail, memory_order_relaxed);

    do {
        uint64_t head = atomic_load_explicit(&header->head, memory_order_acquire);
        // If head is beyond position, records were pushed and released since the tail was read.
        // In this case the swap below fails, and the tail is read again.
        if (head <= position && position + span - head > ring->data_bytes) {
            return EVQ_E_FULL;
        }
    } while (!atomic_compare_exchange_weak_explicit(&header->tail, &position, position + span,
                                                    memory_order_relaxed, memory_order_relaxed));

    struct evq_ring_record *record = record_at(ring, position);
    size_t offset = 0;
    size_t first = payload_split(ring, position, bytes, &offset);
    record->bytes = (uint32_t)bytes;
    record->reserved = 0;
    record->checksum = record_checksum(ring, position, payload, bytes);
    record->position = position;
    memcpy(ring->data + offset, payload, first);
    memcpy(ring->data, (const uint8_t *)payload + first, bytes - first);
    atomic_store_explicit(&record->commit, position ^ ring->nonce, memory_order_release);
    return EVQ_OK;
}

/* Checks the record, whose commit word is right, and copies it out. */
static bool record_copy(const struct evq_ring *ring, uint64_t position, void *out,
                        size_t *ret_bytes)
{
    const struct evq_ring_record *record = record_at(ring, position);
    size_t bytes = record->bytes;
    size_t offset = 0;
    // A record of an earlier owner cannot reach beyond the end of what that owner left.
    const uint64_t end = position < ring->left ? ring->left : evq_ring_tail(ring);

    if (record->position != position || bytes == 0 || bytes > EVQ_RING_PAYLOAD_BYTES_MAX ||
        position + record_span(bytes) > end) {
        return false;
    }
    size_t first = payload_split(ring, position, bytes, &offset);
    memcpy(out, ring->data + offset, first);
    memcpy((uint8_t *)out + first, ring->data, bytes - first);
    if (record_checksum(ring, position, out, bytes) != record->checksum) {
        return false;
    }
    *ret_bytes = bytes;
    return true;
}

static bool record_committed(const struct evq_ring *ring, uint64_t position)
{
    return atomic_load_explicit(&record_at(ring, position)->commit, memory_order_acquire) ==
           (position ^ ring->nonce);
}

enum evq_status evq_ring_take(struct evq_ring *ring, uint64_t *cursor, void *out, size_t *ret_bytes)
{
    uint64_t tail = evq_ring_tail(ring);

    while (*cursor < tail) {
        bool committed = record_committed(ring, *cursor);
        if (committed && record_copy(ring, *cursor, out, ret_bytes)) {
            *cursor += record_span(*ret_bytes);
            return EVQ_OK;
        }
        if (*cursor >= ring->inherited && !committed) {
            return EVQ_E_NOT_FOUND; // A living thread is still writing it.
        }
        // A dead owner left it torn, or it is damaged: continue at the next whole record.
        if (committed) {
            ring->corrupt++;
            ring->inherited = tail; // Its length may be wrong, so the next record must be searched.
        }
        *cursor += EVQ_RING_ALIGN;
    }
    return EVQ_E_NOT_FOUND;
}

bool evq_ring_ready(const struct evq_ring *ring, uint64_t cursor)
{
    return cursor < evq_ring_tail(ring) &&
           (cursor < ring->inherited || record_committed(ring, cursor));
}

void evq_ring_release(struct evq_ring *ring, uint64_t position)
{
    atomic_store_explicit(&ring->header->head, position, memory_order_release);
}

uint64_t evq_ring_head(const struct evq_ring *ring)
{
    return atomic_load_explicit(&ring->header->head, memory_order_acquire);
}

uint64_t evq_ring_tail(const struct evq_ring *ring)
{
    return atomic_load(&ring->header->tail);
}

size_t evq_ring_bytes(const struct evq_ring *ring)
{
    return ring->data_bytes;
}

uint64_t evq_ring_corrupt(const struct evq_ring *ring)
{
    return ring->corrupt;
}

int evq_ring_fd(const struct evq_ring *ring)
{
    return ring->fd;
}

const char *evq_ring_path(const struct evq_ring *ring)
{
    return ring->path;
}
