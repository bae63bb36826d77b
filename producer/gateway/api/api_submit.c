/* POST /v1/jobs: one checkpoint, a job per suite. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "producer/gateway/api/routes.h"
#include "producer/gateway/api/submit_body.h"
#include "shared/checkpoint/checkpoint.h"

static const char *const answers[] = {
    [EVQ_SUBMIT_QUEUED] = "queued",     [EVQ_SUBMIT_DUPLICATE] = "duplicate",
    [EVQ_SUBMIT_REPLACED] = "replaced", [EVQ_SUBMIT_FOLLOWED] = "followed",
    [EVQ_SUBMIT_SKIPPED] = "skipped",
};

/* Checks that the checkpoint is complete and takes its fingerprint, if its root is on this machine.
 * Otherwise the request's own fingerprint counts. */
static enum evq_status look(const struct evq_config *config, struct evq_job *job,
                            char fingerprint[33], struct evq_error *err)
{
    const struct evq_root *root = evq_config_root_find(config, job->root);
    const int fd = root != NULL && !root->is_remote
                       ? open(root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                       : -1;
    struct evq_buffer manifest;
    if (fd < 0) {
        return EVQ_OK;
    }
    evq_buffer_init(&manifest, 32768); // A longer list does not fit into a message.
    const enum evq_status status =
        evq_checkpoint_fingerprint(fd, job->path, fingerprint, &manifest, err);
    const char *text = status == EVQ_OK ? evq_buffer_string(&manifest) : NULL;
    if (status == EVQ_OK) {
        job->fingerprint = fingerprint;
        text = text != NULL ? evq_arena_strdup(job->arena, text) : NULL;
        job->manifest = text != NULL ? text : "";
    }
    evq_buffer_free(&manifest);
    (void)close(fd); // Opened for reading: a failed close loses nothing.
    return status;
}

static void write_answer(struct evq_buffer *out, const struct evq_submitted *one, bool first)
{
    evq_buffer_text(out, first ? "{\"id\": " : ", {\"id\": ");
    evq_buffer_json_text(out, one->id);
    evq_buffer_printf(out,
                      ", \"answer\": \"%s\", \"state\": \"%s\", \"reason\": ", answers[one->answer],
                      evq_job_state_name(one->state));
    evq_buffer_json_text(out, strcmp(one->reason, "every") == 0
                                  ? "the suite's `every` does not divide its step"
                                  : one->reason);
    evq_buffer_text(out, "}");
}

void evq_api_submit(struct evq_api *api, struct evq_http_request *request,
                    struct evq_http_reply *reply)
{
    struct evq_submit_body s;
    struct evq_error err = {EVQ_OK, ""};
    char fingerprint[33] = "";

    if (!evq_submit_body_read(api->config, request, &s, reply)) {
        return;
    }
    s.job->host = request->peer;
    enum evq_status status = s.look ? look(api->config, s.job, fingerprint, &err) : EVQ_OK;
    evq_buffer_text(&reply->body, "{\"fingerprint\": ");
    evq_buffer_json_text(&reply->body, s.job->fingerprint);
    evq_buffer_text(&reply->body, ", \"jobs\": [");
    for (size_t i = 0; i < s.suite_count && status == EVQ_OK; i++) {
        struct evq_submitted submitted;
        s.job->suite = s.suites[i];
        status = evq_queue_submit(api->queue, s.job, s.delay_ms, &submitted, &err);
        if (status == EVQ_OK) {
            write_answer(&reply->body, &submitted, i == 0);
        }
    }
    evq_buffer_text(&reply->body, "]}\n");
    if (status != EVQ_OK) { // The client repeats all; jobs in the queue are duplicates then.
        evq_http_reply_fail(reply, status, &err);
    }
    evq_job_free(s.job);
}
