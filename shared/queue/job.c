#include "shared/queue/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/utf8.h"

static const char *const state_names[EVQ_JOB_STATE_COUNT] = {
    [EVQ_JOB_QUEUED] = "queued",       [EVQ_JOB_DELAYED] = "delayed", [EVQ_JOB_RUNNING] = "running",
    [EVQ_JOB_DONE] = "done",           [EVQ_JOB_DEAD] = "dead",       [EVQ_JOB_SKIPPED] = "skipped",
    [EVQ_JOB_CANCELLED] = "cancelled",
};

static const char *const policy_names[EVQ_POLICY_COUNT] = {
    [EVQ_POLICY_ALL] = "all",
    [EVQ_POLICY_LATEST] = "latest",
    [EVQ_POLICY_BACKFILL] = "backfill",
};

static const struct evq_job defaults = {
    .run = "",
    .epoch = NAN,
    .variant = "regular",
    .suite = "",
    .root = "",
    .path = "",
    .pin = "",
    .format = "",
    .fingerprint = "",
    .manifest = "",
    .host = "",
    .snapshot = {.boot = "", .place = "", .token = "", .checksum = ""},
    .priority = 2,
    .policy = EVQ_POLICY_ALL,
};

const struct evq_job *evq_job_defaults(void)
{
    return &defaults;
}

struct evq_job *evq_job_new(void)
{
    struct evq_arena *arena = evq_arena_new(0);
    if (arena == NULL) {
        return NULL;
    }
    struct evq_job *job = evq_arena_alloc(arena, sizeof *job);
    if (job == NULL) {
        evq_arena_free(arena);
        return NULL;
    }
    *job = defaults;
    job->arena = arena;
    return job;
}

void evq_job_free(struct evq_job *job)
{
    if (job != NULL) {
        evq_arena_free(job->arena);
    }
}

static enum evq_status refuse_name(const char *field, const char *value, size_t bytes_max,
                                   struct evq_error *err)
{
    if (value == NULL || value[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID, "%s is missing", field);
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "%s '%.160s' is not 1 to %zu of the bytes [A-Za-z0-9._-]", field, value,
                         bytes_max);
}

enum evq_status evq_job_check_text(const char *field, const char *value, struct evq_error *err)
{
    if (value == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "%s is NULL", field);
    }
    size_t bytes = strlen(value);
    for (size_t at = 0; at < bytes;) {
        size_t length = evq_utf8_sequence(value + at, bytes - at);
        if (length == 0) {
            return evq_error_set(err, EVQ_E_INVALID, "%s is not UTF-8 at byte %zu", field, at);
        }
        at += length;
    }
    return EVQ_OK;
}

static enum evq_status check_pairs(const char *field, const struct evq_pair *pairs, size_t count,
                                   struct evq_error *err)
{
    if (count > EVQ_JOB_PAIRS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%s has %zu entries, allowed %d", field, count,
                             EVQ_JOB_PAIRS_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        if (evq_job_check_text(field, pairs[i].key, err) != EVQ_OK ||
            evq_job_check_text(field, pairs[i].value, err) != EVQ_OK) {
            return EVQ_E_INVALID;
        }
        if (pairs[i].key[0] == '\0') {
            return evq_error_set(err, EVQ_E_INVALID, "%s has an empty key", field);
        }
        for (size_t j = 0; j < i; j++) {
            if (strcmp(pairs[i].key, pairs[j].key) == 0) {
                return evq_error_set(err, EVQ_E_INVALID, "%s has the key '%.160s' twice", field,
                                     pairs[i].key);
            }
        }
    }
    return EVQ_OK;
}

enum evq_status evq_job_check_file(const char *field, const char *path, struct evq_error *err)
{
    for (size_t i = 0; path != NULL && path[i] != '\0'; i++) {
        if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f) {
            return evq_error_set(err, EVQ_E_INVALID, "%s holds a control byte at %zu", field, i);
        }
    }
    return evq_job_check_text(field, path, err);
}

/* Checks that the path is relative and without "..", so that it stays below the root. */
static enum evq_status check_path(const char *field, const char *path, struct evq_error *err)
{
    enum evq_status status = evq_job_check_file(field, path, err);
    if (status != EVQ_OK) {
        return status;
    }
    size_t bytes = strlen(path);
    if (bytes == 0) {
        return evq_error_set(err, EVQ_E_INVALID, "%s is missing", field);
    }
    if (bytes > EVQ_JOB_PATH_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%s has %zu bytes, allowed %d", field, bytes,
                             EVQ_JOB_PATH_BYTES_MAX);
    }
    if (path[0] == '/') {
        return evq_error_set(err, EVQ_E_INVALID,
                             "%s '%.200s' is absolute, expected one relative to its root", field,
                             path);
    }
    for (const char *part = path; part != NULL;) {
        size_t length = strcspn(part, "/");
        if (length == 2 && part[0] == '.' && part[1] == '.') {
            return evq_error_set(err, EVQ_E_INVALID, "%s '%.200s' leaves its root with '..'", field,
                                 path);
        }
        part = part[length] == '/' ? part + length + 1 : NULL;
    }
    return EVQ_OK;
}

static enum evq_status check_needs(const struct evq_needs *needs, struct evq_error *err)
{
    if (needs->gpus < 0 || needs->gpus > EVQ_NEEDS_GPUS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "needs.gpus is %d, expected 0 to %d", needs->gpus,
                             EVQ_NEEDS_GPUS_MAX);
    }
    if (needs->gpu_memory_bytes < 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "needs.gpu_memory_bytes is %jd, expected 0 or more",
                             (intmax_t)needs->gpu_memory_bytes);
    }
    if (needs->label_count > EVQ_NEEDS_LABELS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "needs.labels has %zu entries, allowed %d",
                             needs->label_count, EVQ_NEEDS_LABELS_MAX);
    }
    for (size_t i = 0; i < needs->label_count; i++) {
        if (!evq_job_name_valid(needs->labels[i], EVQ_JOB_NAME_BYTES_MAX)) {
            return refuse_name("needs.labels", needs->labels[i], EVQ_JOB_NAME_BYTES_MAX, err);
        }
    }
    return EVQ_OK;
}

static enum evq_status check_names(const struct evq_job *job, struct evq_error *err)
{
    const struct {
        const char *field;
        const char *value;
        size_t bytes_max;
    } names[] = {
        {"run", job->run, EVQ_JOB_RUN_BYTES_MAX},
        {"variant", job->variant, EVQ_JOB_NAME_BYTES_MAX},
        {"suite", job->suite, EVQ_JOB_NAME_BYTES_MAX},
        {"root", job->root, EVQ_JOB_NAME_BYTES_MAX},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!evq_job_name_valid(names[i].value, names[i].bytes_max)) {
            return refuse_name(names[i].field, names[i].value, names[i].bytes_max, err);
        }
    }
    return EVQ_OK;
}

static enum evq_status check_numbers(const struct evq_job *job, struct evq_error *err)
{
    if (job->step < 0 || job->step >= EVQ_JOB_STEP_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "step is %jd, expected 0 to %jd",
                             (intmax_t)job->step, (intmax_t)EVQ_JOB_STEP_MAX - 1);
    }
    if (job->session_ms < 0 || job->created_ms < 0) {
        return evq_error_set(err, EVQ_E_INVALID, "%s is negative, expected unix milliseconds",
                             job->session_ms < 0 ? "session_ms" : "created_ms");
    }
    if (isinf(job->epoch)) {
        return evq_error_set(err, EVQ_E_INVALID, "epoch is infinite");
    }
    if (job->priority < 0 || job->priority >= EVQ_JOB_BANDS) {
        return evq_error_set(err, EVQ_E_INVALID, "priority is %d, expected 0 to %d", job->priority,
                             EVQ_JOB_BANDS - 1);
    }
    if ((unsigned)job->policy >= EVQ_POLICY_COUNT) {
        return evq_error_set(err, EVQ_E_INVALID, "policy is not all, latest or backfill");
    }
    return EVQ_OK;
}

static enum evq_status check_fingerprint(const char *text, struct evq_error *err)
{
    bool good = text != NULL && (text[0] == '\0' ||
                                 (strlen(text) == EVQ_JOB_FINGERPRINT_CHARS &&
                                  strspn(text, "0123456789abcdef") == EVQ_JOB_FINGERPRINT_CHARS));
    return good ? EVQ_OK
                : evq_error_set(err, EVQ_E_INVALID, "fingerprint is not %d lower-case hex digits",
                                EVQ_JOB_FINGERPRINT_CHARS);
}

enum evq_status evq_job_check(const struct evq_job *job, struct evq_error *err)
{
    enum evq_status status = check_names(job, err);
    if (status == EVQ_OK) {
        status = check_numbers(job, err);
    }
    if (status == EVQ_OK) {
        status = check_path("path", job->path, err);
    }
    if (status == EVQ_OK && job->pin != NULL && job->pin[0] != '\0') {
        status = check_path("pin", job->pin, err);
    }
    if (status == EVQ_OK) {
        status = check_fingerprint(job->fingerprint, err);
    }
    if (status == EVQ_OK) {
        status = evq_job_check_text("format", job->format, err);
    }
    if (status == EVQ_OK) {
        status = evq_job_check_text("manifest", job->manifest, err);
    }
    if (status == EVQ_OK) {
        status = evq_job_check_text("host", job->host, err);
    }
    if (status == EVQ_OK && job->snapshot_given) {
        status = evq_job_check_text("snapshot.boot", job->snapshot.boot, err);
    }
    if (status == EVQ_OK && job->snapshot_given) {
        status = evq_snapshot_check(&job->snapshot, err);
    }
    if (status == EVQ_OK) {
        status = check_needs(&job->needs, err);
    }
    if (status == EVQ_OK) {
        status = check_pairs("params", job->params, job->param_count, err);
    }
    if (status == EVQ_OK) {
        status = check_pairs("trackers", job->trackers, job->tracker_count, err);
    }
    if (status == EVQ_OK) {
        status = check_pairs("tags", job->tags, job->tag_count, err);
    }
    return status;
}

void evq_job_id(const struct evq_job *job, char out[EVQ_JOB_ID_BYTES_MAX])
{
    // A checked job's parts fit: 64 + 13 + 32 + 32 bytes and three slashes.
    (void)snprintf(out, EVQ_JOB_ID_BYTES_MAX, "%s/%jd/%s/%s", job->run, (intmax_t)job->step,
                   job->variant, job->suite);
}

const char *evq_job_state_name(enum evq_job_state state)
{
    return (unsigned)state < EVQ_JOB_STATE_COUNT ? state_names[state] : "unknown";
}

enum evq_status evq_job_state_parse(const char *word, enum evq_job_state *ret_state)
{
    for (size_t i = 0; word != NULL && i < EVQ_JOB_STATE_COUNT; i++) {
        if (strcmp(word, state_names[i]) == 0) {
            *ret_state = (enum evq_job_state)i;
            return EVQ_OK;
        }
    }
    return EVQ_E_INVALID;
}

const char *evq_job_policy_name(enum evq_job_policy policy)
{
    return (unsigned)policy < EVQ_POLICY_COUNT ? policy_names[policy] : "unknown";
}

enum evq_status evq_job_policy_parse(const char *word, enum evq_job_policy *ret_policy)
{
    for (size_t i = 0; word != NULL && i < EVQ_POLICY_COUNT; i++) {
        if (strcmp(word, policy_names[i]) == 0) {
            *ret_policy = (enum evq_job_policy)i;
            return EVQ_OK;
        }
    }
    return EVQ_E_INVALID;
}
