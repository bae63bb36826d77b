/*
 * Weights that lie in their producer's memory and were never saved: what a message says of them
 * (struct evq_snapshot of job.h), and the one line each way with which a worker that does not share
 * that memory fetches them over TCP (docs/protocol.md, Snapshots). Any thread.
 *
 *     worker     evalq-snapshot 1 TOKEN OFFSET\n
 *     producer   ok BYTES\n and the bytes from OFFSET on; or gone\n; or busy\n
 */
#ifndef EVQ_SHARED_QUEUE_SNAPSHOT_H
#define EVQ_SHARED_QUEUE_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_SNAPSHOT_TOKEN_CHARS     32 // 128 random bits in lower-case hex.
#define EVQ_SNAPSHOT_CHECKSUM_CHARS  32 // XXH3-128 in lower-case hex.
#define EVQ_SNAPSHOT_BOOT_BYTES_MAX  64
#define EVQ_SNAPSHOT_HOST_BYTES_MAX  253
#define EVQ_SNAPSHOT_PLACE_BYTES_MAX 262 // "[HOST]:PORT"
#define EVQ_SNAPSHOT_BYTES_MAX       ((int64_t)1 << 48)
#define EVQ_SNAPSHOT_LINE_BYTES_MAX  80 // A line of either side with its newline.

struct evq_snapshot {     // All texts NUL-terminated, "" where it is not known.
    const char *boot;     // Identifies the memory: evq_snapshot_boot() of its producer.
    const char *place;    // "HOST:PORT" or "[ADDRESS]:PORT" where it is served; "": nowhere.
    const char *token;    // The password for fetching. A secret: never logged.
    int64_t bytes;        // Of the whole file.
    const char *checksum; // XXH3-128 of the whole file.
};

/* Checks each field: absent or well-formed. EVQ_E_INVALID names the field, never the token. */
enum evq_status evq_snapshot_check(const struct evq_snapshot *snapshot,
                                   struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Writes the name of the memory that this process shares with others: $EVALQ_BOOT_ID, else the
 * kernel's boot id; "" if neither is known. If the names are equal, a snapshot is first looked for
 * in /dev/shm.
 */
void evq_snapshot_boot(char out[EVQ_SNAPSHOT_BOOT_BYTES_MAX + 1]);

/* "HOST:PORT", an IPv6 address in brackets. EVQ_E_LIMIT, EVQ_E_INVALID. */
enum evq_status evq_snapshot_place_format(const char *host, uint16_t port,
                                          char out[EVQ_SNAPSHOT_PLACE_BYTES_MAX + 1],
                                          struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_snapshot_place_parse(const char *place,
                                         char ret_host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1],
                                         uint16_t *ret_port,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* A new token from getrandom(2). */
void evq_snapshot_token(char out[EVQ_SNAPSHOT_TOKEN_CHARS + 1]);

struct evq_snapshot_request {
    char token[EVQ_SNAPSHOT_TOKEN_CHARS + 1];
    int64_t offset; // 0 to EVQ_SNAPSHOT_BYTES_MAX.
};

enum evq_snapshot_word { EVQ_SNAPSHOT_OK, EVQ_SNAPSHOT_GONE, EVQ_SNAPSHOT_BUSY };

struct evq_snapshot_reply {
    enum evq_snapshot_word word;
    int64_t bytes; // Of the whole file; 0 unless ok.
};

/* Return the number of bytes with the newline, without a NUL. */
size_t evq_snapshot_request_format(const struct evq_snapshot_request *request,
                                   char out[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1]);
size_t evq_snapshot_reply_format(const struct evq_snapshot_reply *reply,
                                 char out[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1]);

/*
 * Read the line at the start of data. EVQ_E_INCOMPLETE: there is no newline yet. EVQ_E_CORRUPT: the
 * line is malformed. A request must be the only line. *ret_used: the length of the reply; the file
 * follows.
 */
enum evq_status evq_snapshot_request_parse(const char *data, size_t bytes,
                                           struct evq_snapshot_request *ret_request,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_snapshot_reply_parse(const char *data, size_t bytes,
                                         struct evq_snapshot_reply *ret_reply, size_t *ret_used,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

#endif
