#include "shared/remote/address.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define SCHEMES "s3, gs, az, abfs, hf, http, https, sftp"

static size_t scheme_bytes(const char *text)
{
    size_t bytes = 0;

    while (isalnum((unsigned char)text[bytes]) ||
           (text[bytes] != '\0' && strchr("+-.", text[bytes]) != NULL)) {
        bytes++;
    }
    return bytes;
}

bool evq_address_is(const char *text)
{
    const size_t bytes = scheme_bytes(text);

    return bytes > 0 && strncmp(text + bytes, "://", 3) == 0;
}

static bool scheme_known(const char *text, size_t bytes)
{
    for (const char *at = SCHEMES; *at != '\0'; at += strspn(at, ", ")) {
        const size_t length = strcspn(at, ",");
        if (length == bytes && strncmp(at, text, bytes) == 0) {
            return true;
        }
        at += length;
    }
    return false;
}

static enum evq_status parts_check(const char *text, const char *rest, struct evq_error *err)
{
    const size_t host = strcspn(rest, "/");
    const char *at = memchr(rest, '@', host);
    const int scheme = (int)(rest - text);

    if (at != NULL && memchr(rest, ':', (size_t)(at - rest)) != NULL) {
        return evq_error_set(
            err, EVQ_E_INVALID,
            "the address '%.*s...' has a password: give credentials to the store's "
            "own environment variables (docs/remote.md)",
            scheme, text);
    }
    if (strpbrk(rest, "?#") != NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the address '%.*s...' has a query ('?' or '#'), which may be a "
                             "secret: give the plain address (docs/remote.md)",
                             scheme, text);
    }
    if (host == 0 || (host == 1 && rest[0] == '.')) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the address '%.200s' names no bucket or host, expected %.*sNAME/PATH",
                             text, scheme, text);
    }
    for (const char *byte = rest; *byte != '\0'; byte++) {
        if ((unsigned char)*byte < 0x20 || *byte == 0x7f) {
            return evq_error_set(err, EVQ_E_INVALID, "the address '%.200s' has a control byte",
                                 text);
        }
    }
    return EVQ_OK;
}

enum evq_status evq_address_normalize(const char *text, char *out, size_t out_bytes,
                                      struct evq_error *err)
{
    const size_t scheme = scheme_bytes(text);
    const char *rest = text + scheme + strlen("://");

    if (!evq_address_is(text) || !scheme_known(text, scheme)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the address '%.*s://...' has an unknown scheme, expected " SCHEMES,
                             (int)(scheme < 32 ? scheme : 32), text);
    }
    enum evq_status status = parts_check(text, rest, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (strlen(text) >= out_bytes) {
        return evq_error_set(err, EVQ_E_LIMIT, "the address has %zu bytes, at most %zu",
                             strlen(text), out_bytes - 1);
    }
    size_t used = scheme + strlen("://");
    memcpy(out, text, used);
    for (const char *part = rest; *part != '\0'; part += strspn(part, "/")) {
        const size_t bytes = strcspn(part, "/");
        if (bytes == 2 && strncmp(part, "..", 2) == 0) {
            return evq_error_set(err, EVQ_E_INVALID, "the address '%.200s' has the component '..'",
                                 text);
        }
        if (bytes != 1 || part[0] != '.') {
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%.*s",
                                     part == rest ? "" : "/", (int)bytes, part);
        }
        part += bytes;
    }
    out[used] = '\0';
    return EVQ_OK;
}
