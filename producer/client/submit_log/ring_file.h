/*
 * The layout of a ring's file (ring.h describes it), and opening the file. Private to ring.c,
 * ring_file.c, ring_sweep.c and their test. Threads as ring.h.
 */
#ifndef EVQ_PRODUCER_CLIENT_SUBMIT_LOG_RING_FILE_H
#define EVQ_PRODUCER_CLIENT_SUBMIT_LOG_RING_FILE_H

#include <limits.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "producer/client/submit_log/ring.h"

#define EVQ_RING_MAGIC        UINT64_C(0x31474e4952515645) // "EVQRING1"
#define EVQ_RING_VERSION      1
#define EVQ_RING_HEADER_BYTES 4096
#define EVQ_RING_ALIGN        32

struct evq_ring_record {
    _Atomic uint64_t commit; // position ^ nonce, written last.
    uint32_t bytes;
    uint32_t reserved;
    uint64_t checksum;
    uint64_t position;
};
_Static_assert(sizeof(struct evq_ring_record) == EVQ_RING_ALIGN, "a head never wraps");

struct evq_ring_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t data_bytes;
    uint64_t nonce;    // Random, so that no payload can look like a commit word.
    uint64_t checksum; // Checksum of the fields above.
    alignas(64) _Atomic uint64_t tail;
    alignas(64) _Atomic uint64_t head;
};
_Static_assert(sizeof(struct evq_ring_header) <= EVQ_RING_HEADER_BYTES, "one page");

struct evq_ring {
    struct evq_ring_header *header;
    uint8_t *data;
    size_t data_bytes;
    uint64_t nonce;
    // Records before this position were left by an earlier owner and may be torn.
    uint64_t inherited;
    uint64_t left; // End of the records that an earlier owner left.
    uint64_t corrupt;
    int fd;
    char path[PATH_MAX];
};

/*
 * Opens path and locks it. make: makes the file if it does not exist. If the file is removed
 * between open and lock, opens it again. EVQ_E_CONFLICT: a living process has the lock.
 * EVQ_E_NOT_FOUND: the file does not exist, and make is false.
 */
enum evq_status evq_ring_file_lock(const char *path, bool make, int *ret_fd,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
bool evq_ring_header_valid(const struct evq_ring_header *header, uint64_t file_bytes);

#endif
