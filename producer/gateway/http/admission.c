#include "producer/gateway/http/admission.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "shared/base/clock.h"

#define WRONG_TOKEN_COST 20 // A wrong token counts as so many requests, which slows guessing down.

/*
 * Whether the Host header is an address, "localhost" or a name without dots. A foreign web page
 * whose name resolves to 127.0.0.1 makes the browser send that name.
 */
static bool host_is_here(const char *host)
{
    if (host[0] == '[' || host[0] == '\0') {
        return true;
    }
    const size_t bytes = strcspn(host, ":");
    const bool numeric = strspn(host, "0123456789.") == bytes;
    const bool local = bytes >= 10 && strncasecmp(host + bytes - 10, ".localhost", 10) == 0;
    return numeric || local || memchr(host, '.', bytes) == NULL;
}

/* Bytes of the name or address in "NAME:PORT" or "[ADDRESS]:PORT". */
static size_t name_bytes(const char *host)
{
    return host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
}

/* Whether the host is a numeric address, localhost, or one of gateway.hosts. */
static bool is_our_host(const struct evq_admission *admission, const char *host)
{
    const size_t bytes = name_bytes(host);

    if (host[0] == '[' || (bytes > 0 && strspn(host, "0123456789.") == bytes) ||
        (bytes == 9 && strncasecmp(host, "localhost", 9) == 0)) {
        return true;
    }
    for (size_t i = 0; i < admission->host_count; i++) {
        if (strlen(admission->hosts[i]) == bytes &&
            strncasecmp(admission->hosts[i], host, bytes) == 0) {
            return true;
        }
    }
    return false;
}

/*
 * A foreign web page must not change the queue through somebody's browser. The browser sends the
 * page's Origin, and a page whose name resolves to our address shows in Host. Programs send no
 * Origin, and a Host that is empty or ours.
 */
static bool comes_from_elsewhere(const struct evq_admission *admission,
                                 const struct evq_http_request *request,
                                 struct evq_http_reply *reply)
{
    const char *scheme_end = strstr(request->origin, "://");
    const char *origin_host = scheme_end != NULL ? scheme_end + 3 : "";

    if (request->host[0] != '\0' && !is_our_host(admission, request->host)) {
        evq_http_reply_error(reply, 403, "forbidden",
                             "the Host header names '%.100s', which is neither an address nor in "
                             "gateway.hosts",
                             request->host);
        return true;
    }
    if (request->origin[0] != '\0' && strcasecmp(origin_host, request->host) != 0) {
        evq_http_reply_error(reply, 403, "forbidden",
                             "the Origin header names another site than this gateway");
        return true;
    }
    return false;
}

static bool is_json(const char *content_type)
{
    static const char json[] = "application/json";
    const size_t bytes = sizeof json - 1;

    return strncasecmp(content_type, json, bytes) == 0 &&
           (content_type[bytes] == '\0' || content_type[bytes] == ';' ||
            content_type[bytes] == ' ');
}

/* Checks for every request that may change something, with or without a token. */
static bool may_change(const struct evq_admission *admission,
                       const struct evq_http_request *request, struct evq_http_reply *reply)
{
    if (strcmp(request->method, "GET") == 0) {
        return true;
    }
    if (comes_from_elsewhere(admission, request, reply)) {
        return false;
    }
    if (request->has_body && !is_json(request->content_type)) {
        evq_http_reply_error(reply, 415, "unsupported_media_type",
                             "a body needs the header Content-Type: application/json");
        return false;
    }
    return true;
}

/* Sets who asks. false: the token is not valid. */
static bool identify(struct evq_admission *admission, struct evq_http_request *request)
{
    char name[EVQ_TOKEN_NAME_BYTES] = "";
    unsigned rights = 0;

    request->rights = admission->lmms_open ? EVQ_HTTP_LMMS : 0;
    if (!admission->has_tokens && admission->loopback && host_is_here(request->host)) {
        request->rights |= EVQ_HTTP_READ;
    }
    if (request->authorization[0] == '\0') {
        return true;
    }
    if (!evq_tokens_check(admission->tokens, request->authorization, &rights, name)) {
        return false;
    }
    request->rights |= rights;
    (void)snprintf(request->user, sizeof request->user, "%s", name);
    return true;
}

/* Whether the request has the right that the route needs. */
static bool may(const struct evq_admission *admission, const struct evq_http_request *request,
                const struct evq_route *route, bool token_good, struct evq_http_reply *reply)
{
    if (route->right == EVQ_HTTP_OPEN || (request->rights & (unsigned)route->right) != 0) {
        return true;
    }
    if (!admission->has_tokens) {
        const char *advice =
            route->right == EVQ_HTTP_LMMS ? "--lmms-open or --tokens FILE" : "--tokens FILE";
        evq_http_reply_error(reply, 403, "forbidden",
                             "the gateway has no tokens, so nobody can use this: start it with %s",
                             advice);
    } else if (!token_good || request->user[0] == '\0') {
        evq_http_reply_error(reply, 401, "unauthorized",
                             token_good
                                 ? "this needs a token: send the header Authorization: Bearer TOKEN"
                                 : "this token is not in the gateway's token file");
        evq_http_reply_header(reply, "WWW-Authenticate", "Bearer");
    } else {
        evq_http_reply_error(reply, 403, "forbidden", "the token '%s' does not allow this",
                             request->user);
    }
    return false;
}

const struct evq_route *evq_admission_pass(struct evq_admission *admission,
                                           struct evq_http_request *request, const char *target,
                                           struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    const int64_t now = evq_clock_mono_ms();
    const enum evq_status status = evq_http_target(request, target, &err);
    const bool token_good = identify(admission, request);
    const char *client = request->user[0] != '\0' ? request->user : request->peer;

    if (!evq_rate_take(admission->rate, client, token_good ? 1 : WRONG_TOKEN_COST, now)) {
        evq_http_reply_error(
            reply, 429, "too_many_requests",
            "this client sends more requests than the gateway allows: wait a second");
        evq_http_reply_header(reply, "Retry-After", "1");
        return NULL;
    }
    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
        return NULL;
    }
    reply->detail_alone = strncmp(request->path, "/v1/", 4) != 0; // For paths that do not exist.
    const struct evq_route *route = evq_route_find(request, target, reply);
    reply->detail_alone = route != NULL && route->right == EVQ_HTTP_LMMS;
    if (route == NULL || !may_change(admission, request, reply) ||
        !may(admission, request, route, token_good, reply)) {
        return NULL;
    }
    return route;
}
