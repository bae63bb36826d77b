/* Splits and decodes paths and queries. This is done only here, so that handlers use exactly what
 * admission checked. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/http/http.h"
#include "shared/base/utf8.h"

#define TARGET_BYTES_MAX 8192

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    const char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

/* Whether bytes of text are UTF-8 without control bytes. */
static bool is_clean(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const size_t one = evq_utf8_sequence(text + at, bytes - at);
        if (one == 0 || (unsigned char)text[at] < 0x20 || text[at] == 0x7f) {
            return false;
        }
        at += one;
    }
    return true;
}

/* bytes of text without their %XX, in the arena. plus: a "+" is a blank, as forms write it. */
static enum evq_status decode(struct evq_arena *arena, const char *text, size_t bytes, bool plus,
                              const char **ret, struct evq_error *err)
{
    char *out = evq_arena_alloc(arena, bytes + 1);
    size_t used = 0;
    if (out == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the request");
    }
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (c == '%') {
            const int high = bytes - i > 2 ? hex_digit(text[i + 1]) : -1;
            const int low = bytes - i > 2 ? hex_digit(text[i + 2]) : -1;
            if (high < 0 || low < 0) {
                return evq_error_set(err, EVQ_E_INVALID,
                                     "a %% in the address is not followed by two hex digits");
            }
            c = (char)(high * 16 + low);
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        out[used++] = c;
    }
    if (!is_clean(out, used)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the address holds bytes that are not printable UTF-8");
    }
    *ret = out;
    return EVQ_OK;
}

static enum evq_status read_query(struct evq_http_request *request, const char *text,
                                  struct evq_error *err)
{
    while (*text != '\0') {
        const size_t bytes = strcspn(text, "&");
        const char *equals = memchr(text, '=', bytes);
        const size_t name = equals != NULL ? (size_t)(equals - text) : bytes;
        if (bytes > 0) {
            if (request->query_count == EVQ_HTTP_QUERY_MAX) {
                return evq_error_set(err, EVQ_E_INVALID, "more than %d query parameters",
                                     EVQ_HTTP_QUERY_MAX);
            }
            struct evq_pair *pair = &request->query[request->query_count];
            enum evq_status status = decode(request->arena, text, name, true, &pair->key, err);
            if (status == EVQ_OK) {
                const char *value = equals != NULL ? equals + 1 : "";
                const size_t value_bytes = equals != NULL ? bytes - name - 1 : 0;
                status = decode(request->arena, value, value_bytes, true, &pair->value, err);
            }
            if (status != EVQ_OK) {
                return status;
            }
            request->query_count++;
        }
        text += bytes + (text[bytes] == '&');
    }
    return EVQ_OK;
}

enum evq_status evq_http_target(struct evq_http_request *request, const char *target,
                                struct evq_error *err)
{
    const size_t path_bytes = strcspn(target, "?#");
    const char *segment = NULL;

    request->path = "";
    request->query_count = 0;
    if (target[0] != '/') {
        return evq_error_set(err, EVQ_E_INVALID, "the address does not begin with '/'");
    }
    if (strnlen(target, TARGET_BYTES_MAX + 1) > TARGET_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "the address is longer than %d bytes",
                             TARGET_BYTES_MAX);
    }
    for (size_t at = 1; at < path_bytes;) {
        const size_t bytes = strcspn(target + at, "/?#");
        enum evq_status status = decode(request->arena, target + at, bytes, false, &segment, err);
        if (status != EVQ_OK) {
            return status;
        }
        if (strcmp(segment, ".") == 0 || strcmp(segment, "..") == 0) {
            return evq_error_set(err, EVQ_E_INVALID, "the path holds the segment '%s'", segment);
        }
        at += bytes + 1;
    }
    enum evq_status status = decode(request->arena, target, path_bytes, false, &request->path, err);
    if (status == EVQ_OK && target[path_bytes] == '?') {
        const char *query = evq_arena_strndup(request->arena, target + path_bytes + 1,
                                              strcspn(target + path_bytes + 1, "#"));
        status = query != NULL ? read_query(request, query, err)
                               : evq_error_set(err, EVQ_E_NOMEM, "no memory for the request");
    }
    return status;
}

/* One segment against one of the pattern; both end at their next "/" or end. */
static bool match_segment(struct evq_http_request *request, const char *text, size_t bytes,
                          const char *pattern, size_t pattern_bytes)
{
    const char *decoded = NULL;
    if (decode(request->arena, text, bytes, false, &decoded, NULL) != EVQ_OK) {
        return false;
    }
    if (pattern_bytes > 1 && pattern[0] == '{') {
        if (decoded[0] == '\0' || request->param_count == EVQ_HTTP_PARAMS_MAX) {
            return false;
        }
        request->params[request->param_count++] = decoded;
        return true;
    }
    return strlen(decoded) == pattern_bytes && memcmp(decoded, pattern, pattern_bytes) == 0;
}

bool evq_http_match(struct evq_http_request *request, const char *target, const char *pattern)
{
    request->param_count = 0;
    if (target[0] != '/' || pattern[0] != '/') {
        return false;
    }
    for (;;) {
        const size_t bytes = strcspn(target + 1, "/?#");
        const size_t pattern_bytes = strcspn(pattern + 1, "/");
        if (!match_segment(request, target + 1, bytes, pattern + 1, pattern_bytes)) {
            return false;
        }
        target += 1 + bytes;
        pattern += 1 + pattern_bytes;
        if (*pattern == '\0' || *target != '/') {
            return *pattern == '\0' && *target != '/';
        }
    }
}

bool evq_http_run_valid(const char *run, struct evq_http_reply *reply)
{
    const bool valid = evq_job_name_valid(run, EVQ_JOB_RUN_BYTES_MAX);
    if (!valid) {
        evq_http_reply_error(reply, 400, "invalid",
                             "the run is not 1 to %d of the bytes [A-Za-z0-9._-]",
                             EVQ_JOB_RUN_BYTES_MAX);
    }
    return valid;
}

const char *evq_http_query(const struct evq_http_request *request, const char *name,
                           const char *fallback)
{
    const char *value = fallback;
    for (size_t i = 0; i < request->query_count; i++) {
        if (strcmp(request->query[i].key, name) == 0) {
            value = request->query[i].value;
        }
    }
    return value;
}

void *evq_http_memory(struct evq_http_request *request, size_t bytes)
{
    if (request->memory == NULL) {
        request->memory = calloc(1, bytes);
    }
    return request->memory;
}

bool evq_http_query_integer(const struct evq_http_request *request, struct evq_http_reply *reply,
                            const char *name, int64_t min, int64_t max, int64_t *ret)
{
    const char *text = evq_http_query(request, name, NULL);
    char *end = NULL;
    if (text == NULL) {
        return true;
    }
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (text[0] == '\0' || text[0] == ' ' || *end != '\0' || errno != 0 || value < min ||
        value > max) {
        evq_http_reply_error(reply, 400, "invalid",
                             "%s is '%.60s', expected a whole number of %" PRId64 " to %" PRId64,
                             name, text, min, max);
        return false;
    }
    *ret = value;
    return true;
}
