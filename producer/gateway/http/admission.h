/*
 * Admission checks of a request, in this order: target, token, rate limit, route, the headers
 * Origin, Host and Content-Type, permission. Only the thread of libmicrohttpd uses it.
 */
#ifndef EVQ_PRODUCER_GATEWAY_HTTP_ADMISSION_H
#define EVQ_PRODUCER_GATEWAY_HTTP_ADMISSION_H

#include "producer/gateway/api/routes.h"
#include "producer/gateway/http/rate.h"
#include "producer/gateway/http/tokens.h"

struct evq_admission {
    struct evq_tokens *tokens;
    struct evq_rate *rate;
    bool has_tokens;          // A token file was given. If there is none, nobody can write.
    bool loopback;            // If there is no token file, local programs can read.
    bool lmms_open;           // Everybody can use LMMS-Eval's endpoints.
    const char *const *hosts; // Names of this gateway, in addition to addresses and localhost.
    size_t host_count;
};

/*
 * Parses target into request, sets the user and rights of request, and returns the route. NULL:
 * refused; the reply is 400, 401, 403, 404, 405, 307, 415 or 429.
 */
const struct evq_route *evq_admission_pass(struct evq_admission *admission,
                                           struct evq_http_request *request, const char *target,
                                           struct evq_http_reply *reply);

#endif
