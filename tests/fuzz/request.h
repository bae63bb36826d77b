/*
 * What every handler of the gateway may rely on.
 */
#ifndef EVQ_TESTS_FUZZ_REQUEST_H
#define EVQ_TESTS_FUZZ_REQUEST_H

#include <string.h>

#include "producer/gateway/http/http.h"
#include "shared/base/buffer.h"
#include "shared/base/utf8.h"
#include "tests/fuzz/check.h"

static inline void check_clean(const char *text)
{
    for (size_t bytes = strlen(text), at = 0; at < bytes;) {
        const size_t one = evq_utf8_sequence(text + at, bytes - at);
        check(one > 0 && (unsigned char)text[at] >= 0x20 && text[at] != 0x7f);
        at += one;
    }
}

static inline void check_request(const struct evq_http_request *request)
{
    check_clean(request->path);
    for (size_t i = 0; i < request->query_count; i++) {
        check_clean(request->query[i].key);
        check_clean(request->query[i].value);
    }
}

#endif
