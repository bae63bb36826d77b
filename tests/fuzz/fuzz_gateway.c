/* A request as anybody may send it: first line METHOD TARGET, the rest the body of a submit. What
 * is taken is clean and within its limits; what is refused has a reply that is JSON. */
// fuzz: gateway producer
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/api/routes.h"
#include "producer/gateway/api/submit_body.h"
#include "tests/fuzz/request.h"

/* A refusal: a code and one JSON object with a sentence. */
static void check_refusal(struct evq_http_reply *reply)
{
    check(reply->code >= 300 && reply->code < 600);
    json_t *json = json_loads(evq_buffer_string(&reply->body), JSON_REJECT_DUPLICATES, NULL);
    check(json_string_length(json_object_get(json, "detail")) > 0);
    json_decref(json);
    evq_http_reply_free(reply);
}

static void try_target(struct evq_http_request *request, const char *target)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_http_reply reply;
    evq_http_reply_init(&reply);
    if (evq_http_target(request, target, &err) != EVQ_OK) {
        evq_http_reply_fail(&reply, EVQ_E_INVALID, &err);
        check_refusal(&reply);
        return;
    }
    check_request(request);
    const struct evq_route *route = evq_route_find(request, target, &reply);
    if (route == NULL) {
        check_refusal(&reply);
        return;
    }
    check(strcmp(route->method, request->method) == 0);
    for (size_t i = 0; i < request->param_count; i++) {
        check(request->params[i][0] != '\0');
        check_clean(request->params[i]);
    }
    evq_http_reply_free(&reply);
}

static void try_body(const struct evq_config *config, struct evq_http_request *request)
{
    struct evq_submit_body submission;
    struct evq_http_reply reply;
    evq_http_reply_init(&reply);
    if (!evq_submit_body_read(config, request, &submission, &reply)) {
        check_refusal(&reply);
        return;
    }
    check(submission.suite_count >= 1 && submission.suite_count <= EVQ_SUBMIT_BODY_SUITES_MAX);
    for (size_t i = 0; i < submission.suite_count; i++) {
        submission.job->suite = submission.suites[i];
        check(evq_job_check(submission.job, NULL) == EVQ_OK);
    }
    evq_job_free(submission.job);
    evq_http_reply_free(&reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct evq_config *config = NULL;
    static const char text[] = "roots: {ckpt: /nowhere/ckpt}\n";
    if (config == NULL) {
        check(evq_config_parse(text, sizeof text - 1, "f.yaml", &config, NULL) == EVQ_OK);
    }
    char *line = malloc(bytes + 1);
    check(line != NULL);
    memcpy(line, data, bytes);
    line[bytes] = '\0';
    const char *newline = memchr(line, '\n', bytes);
    const size_t head = newline != NULL ? (size_t)(newline - line) : bytes;
    struct evq_http_request request = {.host = "",
                                       .authorization = "",
                                       .last_event_id = "",
                                       .path = "",
                                       .arena = evq_arena_new((size_t)8 << 20)};
    request.body = newline != NULL ? newline + 1 : "";
    request.body_len = newline != NULL ? bytes - head - 1 : 0;
    line[head] = '\0';
    char *blank = strchr(line, ' ');
    if (blank != NULL) {
        *blank = '\0';
    }
    request.method = line;
    try_target(&request, blank != NULL ? blank + 1 : "");
    try_body(config, &request);
    evq_arena_free(request.arena);
    free(line);
    return 0;
}
