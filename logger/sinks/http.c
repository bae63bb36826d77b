#include "logger/sinks/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "logger/sinks/public_address.h"
#include "shared/base/clock.h"

#define CONNECT_MS_MAX          10000
#define STOP_GRACE_MS           3000
#define REPLY_BYTES_MAX         (1u << 20)
#define RETRY_AFTER_SECONDS_MAX 3600

#define LIBRARY "libcurl.so.4"

/* The functions of libcurl that are used. The library is loaded only if a sink needs it. */
struct library {
    void *handle;
    CURLcode (*global_init)(long flags);
    CURL *(*init)(void);
    void (*cleanup)(CURL *curl);
    CURLcode (*setopt)(CURL *curl, CURLoption option, ...);
    CURLcode (*getinfo)(CURL *curl, CURLINFO info, ...);
    CURLcode (*perform)(CURL *curl);
    const char *(*strerror)(CURLcode code);
    struct curl_slist *(*append)(struct curl_slist *list, const char *text);
    void (*free_all)(struct curl_slist *list);
};

struct evq_http {
    struct library library;
    CURL *curl;
    char *who;
    bool public_only;
    const atomic_bool *stop;
    int64_t started_ms;             // Begin of the call, monotonic.
    int64_t not_before_ms;          // End of the pause that the server asked for, monotonic.
    char refused[INET6_ADDRSTRLEN]; // An address that is not public; "": none in this call.
    char message[CURL_ERROR_SIZE];
};

/* EVQ_E_IO: it is not installed, or lacks something. */
static enum evq_status library_load(struct library *library, const char *who, struct evq_error *err)
{
    const struct {
        const char *name;
        void
            *function; // Where the pointer goes: ISO C has no cast from object to function pointer.
    } functions[] = {
        {"curl_global_init", &library->global_init}, {"curl_easy_init", &library->init},
        {"curl_easy_cleanup", &library->cleanup},    {"curl_easy_setopt", &library->setopt},
        {"curl_easy_getinfo", &library->getinfo},    {"curl_easy_perform", &library->perform},
        {"curl_easy_strerror", &library->strerror},  {"curl_slist_append", &library->append},
        {"curl_slist_free_all", &library->free_all}};

    library->handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library->handle == NULL) {
        return evq_error_set(err, EVQ_E_IO, "%s: needs " LIBRARY " (Debian: libcurl4): %s", who,
                             dlerror());
    }
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *found = dlsym(library->handle, functions[i].name);
        if (found == NULL) {
            return evq_error_set(err, EVQ_E_IO, "%s: " LIBRARY " has no %s", who,
                                 functions[i].name);
        }
        memcpy(functions[i].function, &found, sizeof(found));
    }
    return EVQ_OK;
}

/* curl calls this to make a socket. address is the one to which it will connect. */
static curl_socket_t socket_open(void *context, curlsocktype purpose, struct curl_sockaddr *address)
{
    struct evq_http *http = context;

    (void)purpose; // It is always a connection.
    if (http->public_only && !evq_public_address_is(&address->addr)) {
        const void *bytes = NULL;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        memcpy(&v4, &address->addr, sizeof(v4));
        if (address->family == AF_INET) {
            bytes = &v4.sin_addr;
        } else if (address->family == AF_INET6 && address->addrlen >= sizeof(v6)) {
            memcpy(&v6, &address->addr, sizeof(v6));
            bytes = &v6.sin6_addr;
        }
        if (bytes == NULL ||
            inet_ntop(address->family, bytes, http->refused, sizeof(http->refused)) == NULL) {
            (void)snprintf(http->refused, sizeof(http->refused), "of no known family");
        }
        return CURL_SOCKET_BAD;
    }
    return socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
}

/* curl calls this during a call. A result other than 0 ends it: the logger must stop. */
static int progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct evq_http *http = context;

    (void)a;
    (void)b;
    (void)c;
    (void)d;
    return http->stop != NULL && atomic_load(http->stop) &&
           evq_clock_mono_ms() - http->started_ms > STOP_GRACE_MS;
}

static size_t body_take(char *data, size_t size, size_t count, void *context)
{
    struct evq_buffer *body = context;

    evq_buffer_append(body, data, size * count);
    return body->failed ? 0 : size * count;
}

static enum evq_status options_set(struct evq_http *http, const struct evq_http_config *config)
{
    const long connect_ms =
        config->timeout_ms < CONNECT_MS_MAX ? (long)config->timeout_ms : CONNECT_MS_MAX;
    const struct library *library = &http->library;
    bool good = true;

#define SET(option, value) good = library->setopt(http->curl, option, value) == CURLE_OK && good
    SET(CURLOPT_NOSIGNAL, 1L); // No alarm(), because the program has threads.
    SET(CURLOPT_ERRORBUFFER, http->message);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    SET(CURLOPT_TIMEOUT_MS, (long)config->timeout_ms);
    SET(CURLOPT_CONNECTTIMEOUT_MS, connect_ms);
    SET(CURLOPT_USERAGENT, "evalq/" EVQ_VERSION);
    SET(CURLOPT_WRITEFUNCTION, body_take);
    SET(CURLOPT_OPENSOCKETFUNCTION, socket_open);
    SET(CURLOPT_OPENSOCKETDATA, http);
    SET(CURLOPT_NOPROGRESS, 0L);
    SET(CURLOPT_XFERINFOFUNCTION, progress);
    SET(CURLOPT_XFERINFODATA, http);
    SET(CURLOPT_SSL_VERIFYPEER, config->insecure ? 0L : 1L);
    SET(CURLOPT_SSL_VERIFYHOST, config->insecure ? 0L : 2L);
    if (config->public_only) {
        SET(CURLOPT_PROXY,
            ""); // No proxy, also none of the environment: it would make the connection.
    }
    if (config->ca_file != NULL) {
        SET(CURLOPT_CAINFO, config->ca_file);
    }
    if (config->user != NULL) {
        SET(CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
        SET(CURLOPT_USERNAME, config->user);
        SET(CURLOPT_PASSWORD, config->password != NULL ? config->password : "");
    }
#undef SET
    return good ? EVQ_OK : EVQ_E_NOMEM;
}

enum evq_status evq_http_open(const struct evq_http_config *config, struct evq_http **ret_http,
                              struct evq_error *err)
{
    struct evq_http *http = calloc(1, sizeof(*http));

    if (http == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", config->who);
    }
    enum evq_status status = library_load(&http->library, config->who, err);
    // Repeated calls of global_init() count; from libcurl 7.84 on any thread may.
    if (status == EVQ_OK && http->library.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        http->who = strdup(config->who);
        http->curl = http->library.init();
        http->public_only = config->public_only;
        http->stop = config->stop;
    }
    if (status == EVQ_OK &&
        (http->who == NULL || http->curl == NULL || options_set(http, config) != EVQ_OK)) {
        status = evq_error_set(err, EVQ_E_NOMEM, "%s: libcurl could not be prepared", config->who);
    }
    if (status != EVQ_OK) {
        evq_http_close(http);
        return status;
    }
    *ret_http = http;
    return EVQ_OK;
}

void evq_http_close(struct evq_http *http)
{
    if (http == NULL) {
        return;
    }
    if (http->curl != NULL) {
        http->library.cleanup(http->curl);
    }
    // The library stays loaded: what it made once, such as OpenSSL's tables, outlives any handle.
    free(http->who);
    free(http);
}

/* "https://host:port" of a URL, for messages. */
static void place_of(const char *url, char *out, size_t out_bytes)
{
    const char *host = strstr(url, "://");

    host = host != NULL ? host + 3 : url;
    const size_t length = strcspn(host, "/?#");
    const char *at = memrchr(host, '@', length); // User and password stand before it.
    const char *from = at != NULL ? at + 1 : host;
    char raw[256];
    (void)snprintf(raw, sizeof(raw), "%.*s", (int)(length - (size_t)(from - host)), from);
    evq_error_escape(raw, strlen(raw), out, out_bytes);
}

static enum evq_status call_failed(const struct evq_http *http, CURLcode code, const char *place,
                                   struct evq_error *err)
{
    if (http->refused[0] != '\0') {
        return evq_error_set(err, EVQ_E_IO,
                             "%s: '%s' is at the address %s, which is not public: allow_private: "
                             "true allows it",
                             http->who, place, http->refused);
    }
    if (code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL) {
        return evq_error_set(err, EVQ_E_INVALID, "%s: expected a URL http://... or https://...",
                             http->who);
    }
    const char *why = http->message[0] != '\0' ? http->message : http->library.strerror(code);
    if (code == CURLE_WRITE_ERROR) {
        why = "no memory for its reply";
    } else if (code == CURLE_ABORTED_BY_CALLBACK) {
        why = "stopped while it waited";
    }
    return evq_error_set(err, code == CURLE_OPERATION_TIMEDOUT ? EVQ_E_TIMEOUT : EVQ_E_IO,
                         "%s: '%s': %s", http->who, place, why);
}

/* Reads the reply's code (0: none arrived) and the pause that the server asks for. */
static void reply_take(struct evq_http *http, struct evq_http_reply *reply)
{
    curl_off_t seconds = 0;

    (void)http->library.getinfo(http->curl, CURLINFO_RESPONSE_CODE, &reply->code); // Known by now.
    if ((reply->code == 429 || reply->code == 503) &&
        http->library.getinfo(http->curl, CURLINFO_RETRY_AFTER, &seconds) == CURLE_OK &&
        seconds > 0) {
        http->not_before_ms =
            evq_clock_mono_ms() +
            (seconds < RETRY_AFTER_SECONDS_MAX ? (int64_t)seconds : RETRY_AFTER_SECONDS_MAX) * 1000;
    }
}

enum evq_status evq_http_call(struct evq_http *http, const char *method, const char *url,
                              const char *const *headers, const char *body, size_t body_bytes,
                              struct evq_http_reply *reply, struct evq_error *err)
{
    const struct library *library = &http->library;
    struct curl_slist *list = NULL;
    enum evq_status status = EVQ_OK;
    char place[300];
    bool good = true;

    place_of(url, place, sizeof(place));
    if (evq_clock_left_ms(http->not_before_ms) > 0) {
        return evq_error_set(err, EVQ_E_RETRY, "%s: '%s' asked for a pause; %d s of it are left",
                             http->who, place, evq_clock_left_ms(http->not_before_ms) / 1000 + 1);
    }
    for (size_t i = 0; headers != NULL && headers[i] != NULL && good; i++) {
        struct curl_slist *longer = library->append(list, headers[i]);
        good = longer != NULL;
        list = good ? longer : list;
    }
    evq_buffer_free(&reply->body);
    evq_buffer_init(&reply->body, REPLY_BYTES_MAX);
    good = good && library->setopt(http->curl, CURLOPT_URL, url) == CURLE_OK &&
           library->setopt(http->curl, CURLOPT_HTTPHEADER, list) == CURLE_OK &&
           library->setopt(http->curl, CURLOPT_WRITEDATA, &reply->body) == CURLE_OK;
    const char *other = strcmp(method, "PATCH") == 0 ? method : NULL;
    good = good && library->setopt(http->curl, CURLOPT_CUSTOMREQUEST, other) == CURLE_OK;
    if (body != NULL) {
        good = good && library->setopt(http->curl, CURLOPT_POST, 1L) == CURLE_OK &&
               library->setopt(http->curl, CURLOPT_POSTFIELDS, body) == CURLE_OK &&
               library->setopt(http->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_bytes) ==
                   CURLE_OK;
    } else {
        good = good && library->setopt(http->curl, CURLOPT_HTTPGET, 1L) == CURLE_OK;
    }
    if (!good) {
        status = evq_error_set(err, EVQ_E_NOMEM, "%s: a request to '%s'", http->who, place);
        goto out;
    }
    http->started_ms = evq_clock_mono_ms();
    http->refused[0] = '\0';
    http->message[0] = '\0';
    const CURLcode code = library->perform(http->curl);
    reply_take(http, reply);
    // The code has arrived, so the call succeeded, even if the body is too long, stalls or breaks
    // off.
    const bool forgotten = code == CURLE_WRITE_ERROR && !reply->body.full;
    if (code != CURLE_OK && (reply->code < 200 || forgotten)) {
        status = call_failed(http, code, place, err);
        goto out;
    }
    reply->body.full = reply->body.full || code != CURLE_OK;
out:
    (void)library->setopt(http->curl, CURLOPT_HTTPHEADER, NULL); // The list is freed next.
    library->free_all(list);
    return status;
}

enum evq_status evq_http_verdict(const struct evq_http_reply *reply, const char *who,
                                 const char *what, struct evq_error *err)
{
    const char *hint = "";
    char said[201];

    if (reply->code >= 200 && reply->code < 300) {
        return EVQ_OK;
    }
    const size_t bytes = reply->body.bytes < 160 ? reply->body.bytes : 160;
    evq_error_escape(bytes > 0 ? (const char *)reply->body.data : "", bytes, said, sizeof(said));
    if (reply->code == 401 || reply->code == 403) {
        hint = " (the credentials)";
    } else if (reply->code >= 300 && reply->code < 400) {
        hint = " (redirects are not followed)";
    }
    const bool never =
        reply->code == 400 || reply->code == 413 || reply->code == 414 || reply->code == 422;
    return evq_error_set(err, never ? EVQ_E_INVALID : EVQ_E_RETRY, "%s: %s answers %ld%s%s%s", who,
                         what, reply->code, hint, said[0] != '\0' ? ": " : "", said);
}

void evq_http_reply_free(struct evq_http_reply *reply)
{
    evq_buffer_free(&reply->body);
}
