#include "producer/gateway/api/submit_body.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "producer/gateway/api/body.h"
#include "shared/base/clock.h"
#include "shared/remote/address.h"

#define DELAY_MS_MAX (30LL * 86400 * 1000)

static const char *const known[] = {"run",      "step",     "suites",      "variant",    "root",
                                    "path",     "format",   "fingerprint", "session_ms", "epoch",
                                    "needs",    "priority", "policy",      "keep",       "params",
                                    "trackers", "tags",     "delay_ms",    "look",       NULL};
static const char *const bands[] = {"urgent", "high", "normal", "backfill"};
static const char *const policies[] = {"all", "latest", "backfill"};

/* Copies a text into the job's arena; NULL becomes "". */
static const char *keep(struct evq_body *body, struct evq_job *job, const char *text)
{
    const char *copy = evq_arena_strdup(job->arena, text != NULL ? text : "");
    if (copy == NULL) {
        evq_body_fail(body, "no memory for the message");
    }
    return copy != NULL ? copy : "";
}

static void read_names(struct evq_body *body, struct evq_submit_body *s)
{
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    const char *name = evq_body_text(body, "run", "");
    if (name[0] == '\0') {
        evq_body_fail(body, "'run' is missing: name the training run");
    }
    evq_job_map_name(name, EVQ_JOB_RUN_BYTES_MAX, run);
    s->job->run = keep(body, s->job, run);
    s->job->step = evq_body_integer(body, "step", EVQ_JOB_STEP_MAX - 1, -1);
    if (s->job->step < 0) {
        evq_body_fail(body, "'step' is missing: give the training step of the checkpoint");
    }
    s->job->variant = keep(body, s->job, evq_body_text(body, "variant", "regular"));
    if (!evq_job_name_valid(s->job->variant, EVQ_JOB_NAME_BYTES_MAX)) {
        evq_body_fail(body, "'variant' is not 1 to %d of the bytes [A-Za-z0-9._-]",
                      EVQ_JOB_NAME_BYTES_MAX);
    }
    s->suite_count = evq_body_texts(body, "suites", s->suites, EVQ_SUBMIT_BODY_SUITES_MAX);
    if (s->suite_count == 0) {
        evq_body_fail(body, "'suites' is missing: name what to evaluate");
    }
    for (size_t i = 0; i < s->suite_count; i++) {
        if (!evq_job_name_valid(s->suites[i], EVQ_JOB_NAME_BYTES_MAX)) {
            evq_body_fail(body, "suite '%.60s' is not 1 to %d of the bytes [A-Za-z0-9._-]",
                          s->suites[i], EVQ_JOB_NAME_BYTES_MAX);
        }
        s->suites[i] = keep(body, s->job, s->suites[i]);
    }
}

/* Sets root and path. For an absolute path, finds the longest root that contains it. */
static void read_place(struct evq_body *body, const struct evq_config *config,
                       struct evq_submit_body *s)
{
    struct evq_error err = {EVQ_OK, ""};
    const struct evq_root *root = NULL;
    char real[PATH_MAX];
    const char *path = keep(body, s->job, evq_body_text(body, "path", ""));
    const char *name = evq_body_text(body, "root", "");
    const bool absolute = path[0] == '/' || evq_address_is(path);

    if (path[0] == '\0') {
        evq_body_fail(body, "'path' is missing: name the checkpoint");
    } else if (!absolute && name[0] == '\0') {
        evq_body_fail(body, "'root' is missing: name the root that contains '%.200s'", path);
    } else if (absolute && name[0] != '\0') {
        evq_body_fail(body, "'path' is absolute: give it alone, or relative to 'root'");
    }
    s->job->root = keep(body, s->job, name);
    s->job->path = path;
    if (!absolute || body->failed) {
        return;
    }
    if (evq_config_root_resolve(config, path, real, &root, &path, &err) != EVQ_OK) {
        evq_body_fail(body, "%s", err.message);
        return;
    }
    s->job->root = root->name;
    s->job->path = keep(body, s->job, path);
}

static void read_needs(struct evq_body *body, struct evq_job *job)
{
    struct evq_error err = {EVQ_OK, ""};
    const char *needs = evq_body_text(body, "needs", NULL);
    job->needs_given = needs != NULL;
    if (needs != NULL && evq_needs_parse(needs, job->arena, &job->needs, &err) != EVQ_OK) {
        evq_body_fail(body, "'needs': %s", err.message);
    }
}

static void read_wishes(struct evq_body *body, struct evq_submit_body *s)
{
    struct evq_job *job = s->job;
    job->format = keep(body, job, evq_body_text(body, "format", ""));
    job->fingerprint = keep(body, job, evq_body_text(body, "fingerprint", ""));
    job->session_ms = evq_body_integer(body, "session_ms", INT64_MAX / 2, 0);
    job->epoch = evq_body_number(body, "epoch", NAN);
    job->priority = evq_body_word(body, "priority", bands, EVQ_JOB_BANDS, 2);
    job->policy = (enum evq_job_policy)evq_body_word(body, "policy", policies, EVQ_POLICY_COUNT,
                                                     EVQ_POLICY_ALL);
    job->keep = evq_body_bool(body, "keep", false);
    evq_body_pairs(body, "params", job->arena, &job->params, &job->param_count);
    evq_body_pairs(body, "trackers", job->arena, &job->trackers, &job->tracker_count);
    evq_body_pairs(body, "tags", job->arena, &job->tags, &job->tag_count);
    s->delay_ms = evq_body_integer(body, "delay_ms", DELAY_MS_MAX, 0);
    s->look = evq_body_bool(body, "look", job->fingerprint[0] == '\0');
    job->created_ms = evq_clock_unix_ms();
}

bool evq_submit_body_read(const struct evq_config *config, struct evq_http_request *request,
                          struct evq_submit_body *ret_submission, struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_submit_body s = {.job = evq_job_new()};
    struct evq_body body;

    if (s.job == NULL) {
        evq_http_reply_error(reply, 500, "nomem", "no memory for the message");
        return false;
    }
    bool good = evq_body_open(&body, request, reply, known);
    if (good) {
        read_names(&body, &s);
        read_place(&body, config, &s);
        read_needs(&body, s.job);
        read_wishes(&body, &s);
        good = !body.failed;
        evq_body_close(&body);
    }
    for (size_t i = 0; good && i < s.suite_count; i++) {
        s.job->suite = s.suites[i];
        if (evq_job_check(s.job, &err) != EVQ_OK) {
            evq_http_reply_fail(reply, EVQ_E_INVALID, &err);
            good = false;
        }
    }
    if (!good) {
        evq_job_free(s.job);
        return false;
    }
    *ret_submission = s;
    return true;
}
