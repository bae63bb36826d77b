#include "shared/queue/snapshot.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/hex.h"

#define REQUEST_WORDS "evalq-snapshot 1 "
#define HEX_DIGITS    "0123456789abcdef"
#define OFFSET_DIGITS 15 // Digits of EVQ_SNAPSHOT_BYTES_MAX.

static const char *const words[] = {
    [EVQ_SNAPSHOT_OK] = "ok ", [EVQ_SNAPSHOT_GONE] = "gone", [EVQ_SNAPSHOT_BUSY] = "busy"};

static bool hex_of(const char *text, size_t chars)
{
    return strlen(text) == chars && strspn(text, HEX_DIGITS) == chars;
}

enum evq_status evq_snapshot_check(const struct evq_snapshot *snapshot, struct evq_error *err)
{
    char host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    uint16_t port = 0;

    if (snapshot->boot == NULL || snapshot->place == NULL || snapshot->token == NULL ||
        snapshot->checksum == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "snapshot has a field that is NULL");
    }
    if (strlen(snapshot->boot) > EVQ_SNAPSHOT_BOOT_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "snapshot.boot has more than %d bytes",
                             EVQ_SNAPSHOT_BOOT_BYTES_MAX);
    }
    if (snapshot->token[0] != '\0' && !hex_of(snapshot->token, EVQ_SNAPSHOT_TOKEN_CHARS)) {
        return evq_error_set(err, EVQ_E_INVALID, "snapshot.token is not %d lower-case hex digits",
                             EVQ_SNAPSHOT_TOKEN_CHARS);
    }
    if (snapshot->checksum[0] != '\0' && !hex_of(snapshot->checksum, EVQ_SNAPSHOT_CHECKSUM_CHARS)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "snapshot.checksum is not %d lower-case hex digits",
                             EVQ_SNAPSHOT_CHECKSUM_CHARS);
    }
    if (snapshot->bytes < 0 || snapshot->bytes > EVQ_SNAPSHOT_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "snapshot.bytes is not 0 to 2^48");
    }
    if (snapshot->place[0] != '\0' &&
        evq_snapshot_place_parse(snapshot->place, host, &port, err) != EVQ_OK) {
        return EVQ_E_INVALID;
    }
    return EVQ_OK;
}

/* Copies printable bytes without blanks. */
static bool boot_take(const char *text, char out[EVQ_SNAPSHOT_BOOT_BYTES_MAX + 1])
{
    size_t bytes = 0;

    while (text[bytes] > ' ' && text[bytes] < 0x7f) {
        bytes++;
    }
    if (bytes == 0 || bytes > EVQ_SNAPSHOT_BOOT_BYTES_MAX) {
        return false;
    }
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return true;
}

void evq_snapshot_boot(char out[EVQ_SNAPSHOT_BOOT_BYTES_MAX + 1])
{
    char line[128] = "";
    const char *named = getenv("EVALQ_BOOT_ID");

    out[0] = '\0';
    if (named != NULL && boot_take(named, out)) {
        return;
    }
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        if (fgets(line, sizeof(line), file) == NULL || !boot_take(line, out)) {
            out[0] = '\0';
        }
        (void)fclose(file); // Read only.
    }
}

enum evq_status evq_snapshot_place_format(const char *host, uint16_t port,
                                          char out[EVQ_SNAPSHOT_PLACE_BYTES_MAX + 1],
                                          struct evq_error *err)
{
    const bool bracket = strchr(host, ':') != NULL;
    char back[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    uint16_t ignored = 0;

    if (snprintf(out, EVQ_SNAPSHOT_PLACE_BYTES_MAX + 1, "%s%s%s:%u", bracket ? "[" : "", host,
                 bracket ? "]" : "", (unsigned)port) > EVQ_SNAPSHOT_PLACE_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_LIMIT, "the host '%.60s...' is too long", host);
    }
    return evq_snapshot_place_parse(out, back, &ignored, err);
}

static bool host_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '-' || c == '_' || c == ':' || c == '%';
}

enum evq_status evq_snapshot_place_parse(const char *place,
                                         char ret_host[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1],
                                         uint16_t *ret_port, struct evq_error *err)
{
    const bool bracket = place[0] == '[';
    const char *host = place + (bracket ? 1 : 0);
    const char *end = bracket ? strchr(host, ']') : strrchr(host, ':');
    const char *digits = end != NULL && bracket ? end + 1 : end;
    bool good =
        end != NULL && end > host && end - host <= EVQ_SNAPSHOT_HOST_BYTES_MAX && digits[0] == ':';
    unsigned long port = 0;

    for (const char *at = host; good && at < end; at++) {
        good = host_byte(*at) && (bracket || *at != ':');
    }
    if (good) {
        const size_t count = strspn(digits + 1, "0123456789");
        good = count >= 1 && count <= 5 && digits[1 + count] == '\0';
        port = good ? strtoul(digits + 1, NULL, 10) : 0;
    }
    if (!good || port < 1 || port > UINT16_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "snapshot.place is not HOST:PORT");
    }
    memcpy(ret_host, host, (size_t)(end - host));
    ret_host[end - host] = '\0';
    *ret_port = (uint16_t)port;
    return EVQ_OK;
}

void evq_snapshot_token(char out[EVQ_SNAPSHOT_TOKEN_CHARS + 1])
{
    evq_hex_128(evq_clock_random(), evq_clock_random(), out);
}

size_t evq_snapshot_request_format(const struct evq_snapshot_request *request,
                                   char out[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1])
{
    return (size_t)snprintf(out, EVQ_SNAPSHOT_LINE_BYTES_MAX + 1, REQUEST_WORDS "%s %lld\n",
                            request->token, (long long)request->offset);
}

size_t evq_snapshot_reply_format(const struct evq_snapshot_reply *reply,
                                 char out[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1])
{
    if (reply->word != EVQ_SNAPSHOT_OK) {
        return (size_t)snprintf(out, EVQ_SNAPSHOT_LINE_BYTES_MAX + 1, "%s\n", words[reply->word]);
    }
    return (size_t)snprintf(out, EVQ_SNAPSHOT_LINE_BYTES_MAX + 1, "%s%lld\n", words[reply->word],
                            (long long)reply->bytes);
}

/* Copies a line without its newline; *ret_used includes it. */
static enum evq_status line_take(const char *data, size_t bytes,
                                 char out[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1], size_t *ret_used,
                                 struct evq_error *err)
{
    const size_t most = bytes < EVQ_SNAPSHOT_LINE_BYTES_MAX ? bytes : EVQ_SNAPSHOT_LINE_BYTES_MAX;
    const char *end = most > 0 ? memchr(data, '\n', most) : NULL;

    if (end == NULL && bytes < EVQ_SNAPSHOT_LINE_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "a line has not ended yet");
    }
    if (end == NULL || memchr(data, '\0', (size_t)(end - data)) != NULL) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a line is longer than %d bytes, or no text",
                             EVQ_SNAPSHOT_LINE_BYTES_MAX);
    }
    memcpy(out, data, (size_t)(end - data));
    out[end - data] = '\0';
    *ret_used = (size_t)(end - data) + 1;
    return EVQ_OK;
}

/* Reads plain digits to the end of text, at most EVQ_SNAPSHOT_BYTES_MAX; -1: anything else. */
static int64_t number_take(const char *text)
{
    const size_t count = strspn(text, "0123456789");

    if (count == 0 || count > OFFSET_DIGITS || text[count] != '\0' ||
        (text[0] == '0' && count > 1)) {
        return -1;
    }
    const int64_t number = strtoll(text, NULL, 10);
    return number <= EVQ_SNAPSHOT_BYTES_MAX ? number : -1;
}

enum evq_status evq_snapshot_request_parse(const char *data, size_t bytes,
                                           struct evq_snapshot_request *ret_request,
                                           struct evq_error *err)
{
    static const size_t head_bytes = sizeof(REQUEST_WORDS) - 1;
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    struct evq_snapshot_request request;
    size_t used = 0;

    const enum evq_status status = line_take(data, bytes, line, &used, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *token = line + head_bytes;
    if (used != bytes || strncmp(line, REQUEST_WORDS, head_bytes) != 0 ||
        strspn(token, HEX_DIGITS) != EVQ_SNAPSHOT_TOKEN_CHARS ||
        token[EVQ_SNAPSHOT_TOKEN_CHARS] != ' ') {
        return evq_error_set(err, EVQ_E_CORRUPT, "not a request for a snapshot");
    }
    memcpy(request.token, token, EVQ_SNAPSHOT_TOKEN_CHARS);
    request.token[EVQ_SNAPSHOT_TOKEN_CHARS] = '\0';
    request.offset = number_take(token + EVQ_SNAPSHOT_TOKEN_CHARS + 1);
    if (request.offset < 0) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a request for a snapshot without an offset");
    }
    *ret_request = request;
    return EVQ_OK;
}

enum evq_status evq_snapshot_reply_parse(const char *data, size_t bytes,
                                         struct evq_snapshot_reply *ret_reply, size_t *ret_used,
                                         struct evq_error *err)
{
    char line[EVQ_SNAPSHOT_LINE_BYTES_MAX + 1];
    struct evq_snapshot_reply reply = {.word = EVQ_SNAPSHOT_OK};
    size_t used = 0;

    const enum evq_status status = line_take(data, bytes, line, &used, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (strcmp(line, words[EVQ_SNAPSHOT_GONE]) == 0) {
        reply.word = EVQ_SNAPSHOT_GONE;
    } else if (strcmp(line, words[EVQ_SNAPSHOT_BUSY]) == 0) {
        reply.word = EVQ_SNAPSHOT_BUSY;
    } else {
        const size_t head_bytes = strlen(words[EVQ_SNAPSHOT_OK]);
        const bool ok = strncmp(line, words[EVQ_SNAPSHOT_OK], head_bytes) == 0;
        reply.bytes = ok ? number_take(line + head_bytes) : -1;
        if (reply.bytes < 0) {
            return evq_error_set(err, EVQ_E_CORRUPT, "not an answer of a snapshot's producer");
        }
    }
    *ret_reply = reply;
    *ret_used = used;
    return EVQ_OK;
}
