#include "worker/evaluators/job_json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "worker/evaluators/sample_store.h"

void evq_job_json_checkpoint(const struct evq_eval_request *request, char *out, size_t out_bytes)
{
    if (request->prepared[0] != '\0') {
        (void)snprintf(out, out_bytes, "%s", request->prepared);
    } else if (strcmp(request->path, ".") == 0) {
        (void)snprintf(out, out_bytes, "%s", request->root_path);
    } else {
        (void)snprintf(out, out_bytes, "%s/%s", request->root_path, request->path);
    }
}

static void text_field(struct evq_buffer *out, const char *name, const char *value)
{
    evq_buffer_printf(out, ", \"%s\": ", name);
    evq_buffer_json_text(out, value);
}

static void pairs_field(struct evq_buffer *out, const char *name, const struct evq_pair *pairs,
                        size_t count)
{
    evq_buffer_printf(out, ", \"%s\": {", name);
    for (size_t i = 0; i < count; i++) {
        evq_buffer_text(out, i > 0 ? ", " : "");
        evq_buffer_json_text(out, pairs[i].key);
        evq_buffer_text(out, ": ");
        evq_buffer_json_text(out, pairs[i].value);
    }
    evq_buffer_text(out, "}");
}

static void tasks_field(struct evq_buffer *out, const struct evq_eval_request *request)
{
    const char *comma = "";

    evq_buffer_text(out, ", \"tasks\": [");
    for (size_t i = 0; i < request->suite->task_count; i++) {
        const struct evq_task_config *task = &request->suite->tasks[i];
        if (evq_eval_task_is_done(request, task->name)) {
            continue;
        }
        evq_buffer_printf(out, "%s{\"name\": ", comma);
        evq_buffer_json_text(out, task->name);
        text_field(out, "type", task->type != NULL ? task->type : "");
        pairs_field(out, "model", task->model, task->model_count);
        pairs_field(out, "data", task->data, task->data_count);
        pairs_field(out, "options", task->options, task->option_count);
        evq_buffer_text(out, "}");
        comma = ", ";
    }
    evq_buffer_text(out, "]");
}

static void job_fields(struct evq_buffer *out, const struct evq_job *job)
{
    char id[EVQ_JOB_ID_BYTES_MAX];

    evq_job_id(job, id);
    text_field(out, "job", id);
    text_field(out, "run", job->run);
    evq_buffer_printf(out, ", \"step\": %lld", (long long)job->step);
    if (isfinite(job->epoch)) {
        evq_buffer_text(out, ", \"epoch\": ");
        evq_buffer_json_double(out, job->epoch);
    } else {
        evq_buffer_text(out, ", \"epoch\": null");
    }
    text_field(out, "variant", job->variant);
    pairs_field(out, "params", job->params, job->param_count);
    pairs_field(out, "tags", job->tags, job->tag_count);
}

void evq_job_json_text(const struct evq_eval_request *request, uint64_t turn, const char *result,
                       struct evq_buffer *out)
{
    char path[8192];

    evq_buffer_text(out, "{");
    if (turn != 0) {
        evq_buffer_printf(out, "\"type\": \"job\", \"turn\": %llu, ", (unsigned long long)turn);
    }
    evq_buffer_text(out, "\"version\": 1");
    evq_job_json_checkpoint(request, path, sizeof(path));
    text_field(out, "checkpoint", path);
    (void)snprintf(path, sizeof(path), "%s/%s", request->root_path, request->path);
    text_field(out, "source", path);
    if (request->job != NULL) {
        job_fields(out, request->job);
    } else {
        evq_buffer_text(out, ", \"job\": null, \"run\": null, \"step\": null, \"epoch\": null");
        text_field(out, "variant", evq_eval_variant(request));
        evq_buffer_text(out, ", \"params\": {}, \"tags\": {}");
    }
    text_field(out, "suite", request->suite->name);
    tasks_field(out, request);
    if (request->shard >= 0) {
        evq_buffer_printf(out, ", \"shard\": {\"index\": %d, \"count\": %d}", request->shard,
                          request->shard_count);
    } else {
        evq_buffer_text(out, ", \"shard\": null");
    }
    evq_buffer_printf(out, ", \"samples\": %s",
                      evq_sample_store_wanted(request) ? "true" : "false");
    evq_buffer_printf(out, ", \"attempt\": %d", request->attempt);
    text_field(out, "scratch", request->scratch);
    if (result[0] != '\0') {
        text_field(out, "result", result);
    }
    evq_buffer_text(out, "}");
}

enum evq_status evq_job_json_write(const struct evq_eval_request *request, const char *result,
                                   const char *path, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    struct evq_buffer json;

    evq_buffer_init(&json, 0);
    evq_job_json_text(request, 0, result, &json);
    evq_buffer_text(&json, "\n");
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        status = evq_error_set(err, EVQ_E_IO, "create '%s': %s", path, strerror(errno));
        goto out;
    }
    if (json.failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "'%s'", path);
        goto out;
    }
    status = evq_file_write(fd, json.data, json.bytes, path, err);
out:
    if (fd >= 0 && close(fd) != 0 && status == EVQ_OK) {
        status = evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    evq_buffer_free(&json);
    return status;
}
