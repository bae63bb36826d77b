/* GET / and /page/NAME: the files of the page, open to everybody. The data that the page shows need
 * a token. */
#include <string.h>

#include "producer/gateway/api/routes.h"
#include "producer/gateway/page.h"

/* The page loads nothing from other hosts, runs no inline scripts, and may not be framed. */
#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self'; "    \
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

static void serve_file(const char *name, struct evq_http_reply *reply)
{
    for (size_t i = 0; i < evq_page_file_count; i++) {
        const struct evq_page_file *file = &evq_page_files[i];
        if (strcmp(file->name, name) == 0) {
            reply->content_type = file->content_type;
            evq_buffer_append(&reply->body, file->data, file->bytes);
            evq_http_reply_header(reply, "Content-Security-Policy", POLICY);
            evq_http_reply_header(reply, "Referrer-Policy", "no-referrer");
            return;
        }
    }
    evq_http_reply_error(reply, 404, "not_found", "the page has no such file");
}

void evq_api_page(struct evq_api *api, struct evq_http_request *request,
                  struct evq_http_reply *reply)
{
    (void)api;
    serve_file(request->param_count > 0 ? request->params[0] : "index.html", reply);
}
