#include "producer/gateway/samples/samples_request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_DEFAULT      50
#define LIMIT_MAX          500
#define TEXT_BYTES_DEFAULT 4096
#define TEXT_BYTES_MAX     ((int64_t)EVQ_SAMPLES_LINE_BYTES_MAX)

const struct evq_samples_limits evq_samples_request_limits = {.bytes = (size_t)128 << 20,
                                                              .items = 1000000};

/* A query parameter that is a name. NULL: it is missing or empty. false: it is no name. */
static bool read_name(const struct evq_http_request *request, struct evq_http_reply *reply,
                      const char *name, const char **ret)
{
    const char *value = evq_http_query(request, name, "");

    if (value[0] == '\0') {
        *ret = NULL;
        return true;
    }
    if (!evq_job_name_valid(value, EVQ_JOB_NAME_BYTES_MAX)) {
        evq_http_reply_error(reply, 400, "invalid",
                             "%s is '%.80s', expected a name of the bytes [A-Za-z0-9._-]", name,
                             value);
        return false;
    }
    *ret = value;
    return true;
}

bool evq_samples_request_choice(const struct evq_api *api, const struct evq_http_request *request,
                                struct evq_http_reply *reply, struct evq_sample_choice *ret)
{
    struct evq_sample_choice out = {.directory = api->config->samples.directory};

    if (!read_name(request, reply, "variant", &out.variant) ||
        !read_name(request, reply, "suite", &out.suite) ||
        !read_name(request, reply, "task", &out.task)) {
        return false;
    }
    out.variant = out.variant != NULL ? out.variant : "regular";
    *ret = out;
    return true;
}

static bool read_place(struct evq_http_reply *reply, const char *text, struct evq_sample_place *ret)
{
    struct evq_error err = {EVQ_OK, ""};
    const enum evq_status status = evq_samples_find_place(text, ret, &err);

    if (status != EVQ_OK) {
        evq_http_reply_fail(reply, status, &err);
    }
    return status == EVQ_OK;
}

bool evq_samples_request_place(const struct evq_http_request *request, struct evq_http_reply *reply,
                               struct evq_sample_place *ret)
{
    const char *text =
        evq_arena_printf(request->arena, "%s@%s", request->params[0], request->params[1]);

    if (text == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for the request");
        return false;
    }
    return read_place(reply, text, ret);
}

bool evq_samples_request_side(const struct evq_http_request *request, struct evq_http_reply *reply,
                              const char *name, struct evq_sample_place *ret)
{
    const char *text = evq_http_query(request, name, "");

    if (text[0] == '\0') {
        evq_http_reply_error(reply, 400, "invalid",
                             "%s is missing, expected a checkpoint RUN@STEP such as run1@500",
                             name);
        return false;
    }
    return read_place(reply, text, ret);
}

void evq_samples_request_fail(struct evq_http_reply *reply, enum evq_status status,
                              const struct evq_error *err)
{
    if (status == EVQ_E_IO) {
        evq_http_reply_error(reply, 500, "io", "%s", err->message);
    } else {
        evq_http_reply_fail(reply, status, err);
    }
}

bool evq_samples_page_read(const struct evq_http_request *request, struct evq_http_reply *reply,
                           struct evq_samples_page *ret)
{
    struct evq_samples_page out = {.limit = LIMIT_DEFAULT,
                                   .text_bytes = TEXT_BYTES_DEFAULT,
                                   .grep = evq_http_query(request, "grep", "")};

    if (!evq_http_query_integer(request, reply, "offset", 0, EVQ_SAMPLES_ITEMS_MAX, &out.offset) ||
        !evq_http_query_integer(request, reply, "limit", 1, LIMIT_MAX, &out.limit) ||
        !evq_http_query_integer(request, reply, "text_bytes", 0, TEXT_BYTES_MAX, &out.text_bytes)) {
        return false;
    }
    *ret = out;
    return true;
}

bool evq_samples_page_finds(const struct evq_samples_page *page, const char *const *texts,
                            size_t count)
{
    bool found = page->grep[0] == '\0';

    for (size_t i = 0; i < count && !found; i++) {
        found = texts[i] != NULL && strstr(texts[i], page->grep) != NULL;
    }
    return found;
}

bool evq_samples_page_take(struct evq_samples_page *page, struct evq_buffer *out)
{
    const int64_t at = page->matched++;
    const bool is_next = at == page->offset + page->written; // No item between is left out.
    const bool fits = page->written < page->limit &&
                      (page->written == 0 || out->bytes < EVQ_SAMPLES_REPLY_BYTES_MAX);

    if (!is_next || !fits) {
        return false;
    }
    evq_buffer_text(out, page->written++ > 0 ? ",\n" : "");
    return true;
}

void evq_samples_page_end(const struct evq_samples_page *page, struct evq_buffer *out)
{
    const int64_t next = page->offset + page->written;

    evq_buffer_printf(out, ", \"matched\": %" PRId64 ", \"offset\": %" PRId64 ", \"next\": ",
                      page->matched, page->offset);
    if (next < page->matched) {
        evq_buffer_integer(out, next);
    } else {
        evq_buffer_text(out, "null");
    }
}

void evq_samples_page_text(const struct evq_samples_page *page, const char *name, const char *text,
                           struct evq_buffer *out)
{
    const size_t bytes = text != NULL ? strlen(text) : 0;
    size_t shown = bytes <= (size_t)page->text_bytes ? bytes : (size_t)page->text_bytes;

    while (shown < bytes && shown > 0 && ((unsigned char)text[shown] & 0xC0) == 0x80) {
        shown--; // No character is cut in two.
    }
    evq_buffer_printf(out, ", \"%s\": ", name);
    if (text == NULL) {
        evq_buffer_printf(out, "null, \"%s_bytes\": null", name);
        return;
    }
    evq_buffer_json(out, text, shown);
    evq_buffer_printf(out, ", \"%s_bytes\": %zu", name, bytes);
}

void evq_samples_page_number(double value, struct evq_buffer *out)
{
    if (isfinite(value)) {
        evq_buffer_json_double(out, value);
    } else {
        evq_buffer_text(out, "null");
    }
}
