/*
 * The line protocol of snapshots: what a worker may send to the producer's port, and (when it
 * begins with '<', which is dropped) what may answer a worker. What is read must be what it is
 * written as.
 */
#include <stdlib.h>
#include <string.h>

#include "shared/queue/snapshot.h"
#include "tests/fuzz/check.h"

static void request_check(const char *data, size_t bytes)
{
    struct evq_snapshot_request request = {.offset = -1};
    struct evq_error err = {.message = ""};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];

    const enum evq_status status = evq_snapshot_request_parse(data, bytes, &request, &err);
    if (status != EVQ_OK) {
        check(status == EVQ_E_CORRUPT || (status == EVQ_E_INCOMPLETE && bytes < sizeof(line) - 1));
        check(err.message[0] != '\0' && request.offset == -1);
        return;
    }
    check(evq_snapshot_request_format(&request, line) == bytes && memcmp(line, data, bytes) == 0);
}

static void reply_check(const char *data, size_t bytes)
{
    struct evq_snapshot_reply reply = {.bytes = -1};
    struct evq_error err = {.message = ""};
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    size_t used = 0;

    const enum evq_status status = evq_snapshot_reply_parse(data, bytes, &reply, &used, &err);
    if (status != EVQ_OK) {
        check(status == EVQ_E_CORRUPT || (status == EVQ_E_INCOMPLETE && bytes < sizeof(line) - 1));
        check(err.message[0] != '\0' && reply.bytes == -1);
        return;
    }
    check(used <= bytes && evq_snapshot_reply_format(&reply, line) == used);
    check(memcmp(line, data, used) == 0);
}

static void place_check(const char *data, size_t bytes)
{
    char place[EVQ_SNAPSHOT_PLACE_BYTES_MAX + 1];
    char again[EVQ_SNAPSHOT_PLACE_BYTES_MAX + 1];
    char host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    char twice[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    uint16_t port = 0;
    uint16_t port_twice = 0;

    if (bytes >= sizeof(place)) {
        return;
    }
    memcpy(place, data, bytes);
    place[bytes] = '\0';
    if (evq_snapshot_place_parse(place, host, &port, NULL) == EVQ_OK) {
        check(evq_snapshot_place_format(host, port, again, NULL) == EVQ_OK);
        check(evq_snapshot_place_parse(again, twice, &port_twice, NULL) == EVQ_OK);
        check(strcmp(host, twice) == 0 && port == port_twice);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *exact = malloc(bytes > 0 ? bytes : 1); // So that one byte too far is seen.

    check(exact != NULL);
    memcpy(exact, data, bytes);
    if (bytes > 0 && exact[0] == '<') {
        reply_check(exact + 1, bytes - 1);
    } else {
        request_check(exact, bytes);
        place_check(exact, bytes);
    }
    free(exact);
    return 0;
}
