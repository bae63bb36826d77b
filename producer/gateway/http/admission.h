/*
 * Who may pass: address, rate, route, right. On the library's thread alone.
 */
#ifndef EVQ_GATEWAY_ADMISSION_H
#define EVQ_GATEWAY_ADMISSION_H

#include "producer/gateway/api/routes.h"
#include "producer/gateway/http/rate.h"
#include "producer/gateway/http/tokens.h"

struct evq_admission {
    struct evq_tokens *tokens;
    struct evq_rate *rate;
    bool has_tokens;          // A file of tokens was given: without one nobody may write.
    bool loopback;            // Without tokens, who is on this machine may read.
    bool lmms_open;           // Everybody may use LMMS-Eval's endpoints.
    const char *const *hosts; // Names of this gateway, besides addresses and localhost.
    size_t host_count;
};

/*
 * Reads target into request, and says who asks (request's user and rights) and for what. NULL:
 * refused, with the reply made: 400, 401, 403, 404, 405, 307, 415 or 429.
 */
const struct evq_route *evq_admission_pass(struct evq_admission *admission,
                                           struct evq_http_request *request, const char *target,
                                           struct evq_http_reply *reply);

#endif
