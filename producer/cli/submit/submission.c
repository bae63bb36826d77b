#include "producer/cli/submit/submission.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/submit/remote_checkpoint.h"
#include "producer/client/pins/pin.h"
#include "shared/base/clock.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/remote/address.h"

#define PIN_COPY_BYTES_MAX ((int64_t)64 << 30)

struct located { // A checkpoint beneath a root.
    const struct evq_root *root;
    char absolute[PATH_MAX];
    char real[PATH_MAX];
    const char *path; // Relative to the root; points into absolute or real.
};

const char *evq_submission_answer(enum evq_submit_answer answer)
{
    static const char *const words[] = {"queued", "duplicate", "replaced", "followed", "skipped"};
    return (size_t)answer < sizeof words / sizeof words[0] ? words[answer] : "unknown";
}

static enum evq_status read_suites(struct evq_cli *cli, struct evq_submission *submission,
                                   struct evq_error *err)
{
    const char *list = NULL;
    for (size_t i = 0; (list = evq_option_item(&cli->options, "suite", i)) != NULL; i++) {
        while (*list != '\0') {
            size_t bytes = strcspn(list, ",");
            char name[EVQ_JOB_NAME_BYTES_MAX + 1] = "";
            if (bytes <= EVQ_JOB_NAME_BYTES_MAX) {
                memcpy(name, list, bytes);
            }
            if (!evq_job_name_valid(name, EVQ_JOB_NAME_BYTES_MAX)) {
                char shown[160];
                return evq_cli_usage(
                    cli, err, "--suite '%s' is not 1 to %d of the bytes [A-Za-z0-9._-]",
                    evq_error_escape(list, bytes, shown, sizeof shown), EVQ_JOB_NAME_BYTES_MAX);
            }
            if (submission->suite_count == EVQ_SUBMISSION_SUITES_MAX) {
                return evq_cli_usage(cli, err, "more than %d suites", EVQ_SUBMISSION_SUITES_MAX);
            }
            memcpy(submission->suites[submission->suite_count++], name, sizeof name);
            list += bytes + (list[bytes] == ',');
        }
    }
    if (submission->suite_count == 0) {
        return evq_cli_usage(cli, err, "--suite is missing: name what to evaluate");
    }
    return EVQ_OK;
}

static enum evq_status read_params(struct evq_cli *cli, struct evq_submission *submission,
                                   struct evq_error *err)
{
    const char *text = NULL;
    size_t count = 0;
    while (evq_option_item(&cli->options, "param", count) != NULL) {
        count++;
    }
    if (count == 0) {
        return EVQ_OK;
    }
    submission->params = calloc(count, sizeof *submission->params);
    if (submission->params == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu parameters", count);
    }
    submission->param_count = count;
    for (size_t i = 0; (text = evq_option_item(&cli->options, "param", i)) != NULL; i++) {
        const char *equals = strchr(text, '=');
        if (equals == NULL || equals == text) {
            return evq_cli_usage(cli, err, "--param '%.100s' is not NAME=VALUE", text);
        }
        submission->params[i].key = strndup(text, (size_t)(equals - text));
        submission->params[i].value = strdup(equals + 1);
        if (submission->params[i].key == NULL || submission->params[i].value == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu parameters", count);
        }
        for (size_t before = 0; before < i; before++) {
            if (strcmp(submission->params[before].key, submission->params[i].key) == 0) {
                return evq_cli_usage(cli, err, "--param '%.100s' is given twice, expected once",
                                     submission->params[i].key);
            }
        }
    }
    return EVQ_OK;
}

/* 0 urgent, 1 high, 2 normal, 3 backfill; the words are the option's own choices. */
static int32_t priority_of(const char *word)
{
    static const char *const words[] = {"urgent", "high", "normal", "backfill"};
    for (int32_t i = 0; i < EVQ_JOB_BANDS; i++) {
        if (strcmp(words[i], word) == 0) {
            return i;
        }
    }
    return 2;
}

enum evq_status evq_submission_read(struct evq_cli *cli, struct evq_submission *ret_submission,
                                    struct evq_error *err)
{
    const struct evq_option_set *set = &cli->options;
    struct evq_submission *s = ret_submission;
    memset(s, 0, sizeof *s);
    const char *run = evq_option_text(set, "run", getenv("EVALQ_RUN"));
    if (run == NULL || run[0] == '\0') {
        return evq_cli_usage(cli, err, "--run is missing: name the training run, or set EVALQ_RUN");
    }
    evq_job_map_name(run, EVQ_JOB_RUN_BYTES_MAX, s->run);
    s->variant = evq_option_text(set, "variant", "regular");
    s->priority = priority_of(evq_option_text(set, "priority", "normal"));
    s->keep = evq_option_flag(set, "keep");
    s->pin = evq_option_flag(set, "pin");
    s->format = evq_option_text(set, "format", "");
    s->needs = evq_option_text(set, "needs", "");
    s->session_ms = evq_option_integer(set, "session", 0);
    s->delay_ms = 1000 * evq_option_integer(set, "delay", 0);
    if (gethostname(s->host, sizeof s->host - 1) != 0) {
        s->host[0] = '\0'; // Only for people to read.
    }
    enum evq_status status =
        evq_job_policy_parse(evq_option_text(set, "policy", "all"), &s->policy);
    if (status != EVQ_OK) {
        return evq_error_set(err, EVQ_E_BUG, "the policies of --policy are not the queue's");
    }
    if (!evq_job_name_valid(s->variant, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_cli_usage(cli, err,
                             "--variant '%.64s' is not 1 to %d of the bytes [A-Za-z0-9._-]",
                             s->variant, EVQ_JOB_NAME_BYTES_MAX);
    }
    struct evq_error why;
    if (evq_needs_check(s->needs, &why) != EVQ_OK) {
        return evq_cli_usage(cli, err, "--needs: %s", why.message);
    }
    status = read_suites(cli, s, err);
    return status == EVQ_OK ? read_params(cli, s, err) : status;
}

void evq_submission_free(struct evq_submission *submission)
{
    for (size_t i = 0; i < submission->param_count; i++) {
        free((void *)(uintptr_t)submission->params[i]
                 .key); // Ours: const is the record's view of it.
        free((void *)(uintptr_t)submission->params[i].value);
    }
    free(submission->params);
    submission->params = NULL;
    submission->param_count = 0;
}

/* Finds the root that contains path: first as it is written, then with symbolic links resolved. */
static enum evq_status locate(struct evq_cli *cli, const char *path, struct located *ret,
                              struct evq_error *err)
{
    char real[PATH_MAX];
    char here[PATH_MAX] = "";
    if (evq_address_is(path)) {
        return evq_config_root_resolve(cli->config, path, ret->real, &ret->root, &ret->path, err);
    }
    if (realpath(path, real) == NULL) {
        return evq_error_set(err, errno == ENOENT || errno == ENOTDIR ? EVQ_E_GONE : EVQ_E_IO,
                             "the checkpoint '%s': %s", path, strerror(errno));
    }
    bool plain = strstr(path, "..") == NULL && strstr(path, "//") == NULL &&
                 strncmp(path, "./", 2) != 0 && strstr(path, "/./") == NULL;
    if (path[0] != '/' && getcwd(here, sizeof here) == NULL) {
        plain = false;
    }
    if (plain) {
        int bytes = snprintf(ret->absolute, sizeof ret->absolute, "%s%s%s", here,
                             path[0] != '/' ? "/" : "", path);
        size_t end = bytes > 0 && bytes < (int)sizeof ret->absolute ? (size_t)bytes : 0;
        while (end > 1 && ret->absolute[end - 1] == '/') {
            ret->absolute[--end] = '\0';
        }
        if (end > 0 && evq_config_root_resolve(cli->config, ret->absolute, ret->real, &ret->root,
                                               &ret->path, NULL) == EVQ_OK) {
            return EVQ_OK;
        }
    }
    memcpy(ret->absolute, real, strlen(real) + 1);
    return evq_config_root_resolve(cli->config, ret->absolute, ret->real, &ret->root, &ret->path,
                                   err);
}

static enum evq_status inspect(struct evq_cli *cli, const struct located *at,
                               struct evq_ready *ready, char fingerprint[33],
                               struct evq_buffer *manifest, struct evq_error *err)
{
    if (at->root->is_remote) {
        return evq_remote_checkpoint_inspect(cli, at->root, at->path, at->real, ready, fingerprint,
                                             manifest, err);
    }
    int fd = open(at->root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open the root '%s' at '%s': %s", at->root->name,
                             at->root->path, strerror(errno));
    }
    enum evq_status status = ready != NULL ? evq_ready_check(ready, fd, at->path, err) : EVQ_OK;
    if (status == EVQ_OK) {
        status = evq_checkpoint_fingerprint(fd, at->path, fingerprint, manifest, err);
    }
    (void)close(fd); // Opened for reading: a failed close loses nothing.
    return status;
}

static enum evq_status fill_job(struct evq_job *job, const struct evq_submission *s,
                                const struct located *at, int64_t step, const char *suite,
                                const char *fingerprint, const char *manifest,
                                struct evq_error *err)
{
    job->run = s->run;
    job->session_ms = s->session_ms;
    job->step = step;
    job->variant = s->variant;
    job->suite = suite;
    job->root = at->root->name;
    job->path = at->path;
    job->format = s->format;
    job->fingerprint = fingerprint;
    job->manifest = manifest;
    job->host = s->host;
    job->created_ms = evq_clock_unix_ms();
    job->priority = s->priority;
    job->policy = s->policy;
    job->keep = s->keep;
    job->params = s->params;
    job->param_count = s->param_count;
    job->needs_given = s->needs[0] != '\0';
    return evq_needs_parse(s->needs, job->arena, &job->needs, err);
}

/* Tells the user once that remote checkpoints cannot be pinned. */
static void pin_refuse(struct evq_cli *cli)
{
    if (!cli->pin_told) {
        evq_cli_say(cli,
                    "evalq: remote checkpoints cannot be pinned, so one that is deleted before "
                    "its evaluation is skipped (vanished)");
    }
    cli->pin_told = true;
}

static enum evq_status make_pin(struct evq_cli *cli, const struct evq_submission *s,
                                const struct located *at, int64_t step, const char *fingerprint,
                                char (*ids)[EVQ_JOB_ID_BYTES_MAX], struct evq_pin *ret_pin,
                                struct evq_error *err)
{
    const char *jobs[EVQ_SUBMISSION_SUITES_MAX];
    for (size_t i = 0; i < s->suite_count; i++) {
        jobs[i] = ids[i];
    }
    struct evq_pin_request request = {
        .root_path = at->root->path,
        .path = at->path,
        .queue = evq_queue_name(cli->queue),
        .run = s->run,
        .step = step,
        .variant = s->variant,
        .fingerprint = fingerprint,
        .jobs = jobs,
        .job_count = s->suite_count,
        .reflink = true,
        .hard_link = evq_pin_hard_link_safe(at->path, step),
        .copy_bytes_max = PIN_COPY_BYTES_MAX,
    };
    return evq_pin_make(&request, ret_pin, err);
}

/* Records in the pin which jobs were sent, so that it can be released after they have ended.
 * status: the status of the first job that was not sent. If its reply was lost, it may be in the
 * queue, so the pin stays. */
static void settle_pin(struct evq_cli *cli, const struct evq_submission *s,
                       const struct evq_pin *pin, char (*ids)[EVQ_JOB_ID_BYTES_MAX],
                       const struct evq_submission_sent *sent, size_t sent_count,
                       enum evq_status status)
{
    struct evq_queue_info info;
    if (sent_count == 0 || evq_queue_info(cli->queue, &info, NULL) != EVQ_OK) {
        info.epoch[0] = '\0';
    }
    for (size_t i = 0; i < s->suite_count; i++) {
        enum evq_status ignored = EVQ_OK;
        if (i < sent_count) {
            ignored =
                evq_pin_note_sent(pin->directory, ids[i], sent->submitted[i].id, info.epoch, NULL);
        } else if (i > sent_count || !evq_conn_retryable(status)) {
            ignored = evq_pin_note_refused(pin->directory, ids[i], NULL);
        }
        (void)ignored; // The pin stays until `evalq gc` sees that its jobs have ended.
    }
}

enum evq_status evq_submission_send(struct evq_cli *cli, const struct evq_submission *s,
                                    const char *path, int64_t step,
                                    struct evq_submission_sent *ret_sent, struct evq_error *err)
{
    struct located at;
    struct evq_buffer manifest;
    char ids[EVQ_SUBMISSION_SUITES_MAX][EVQ_JOB_ID_BYTES_MAX];
    struct evq_pin *pin = NULL;
    size_t sent_count = 0;

    memset(ret_sent, 0, sizeof *ret_sent);
    evq_buffer_init(&manifest,
                    32768); // A longer list does not fit into a message and is omitted.
    struct evq_job *job = evq_job_new();
    enum evq_status status = job == NULL ? evq_error_set(err, EVQ_E_NOMEM, "no memory for a job")
                                         : locate(cli, path, &at, err);
    if (status == EVQ_OK) {
        status = inspect(cli, &at, s->ready, ret_sent->fingerprint, &manifest, err);
    }
    const char *manifest_text = status == EVQ_OK ? evq_buffer_string(&manifest) : NULL;
    for (size_t i = 0; status == EVQ_OK && i < s->suite_count; i++) {
        status = fill_job(job, s, &at, step, s->suites[i], ret_sent->fingerprint,
                          manifest_text != NULL ? manifest_text : "", err);
        if (status == EVQ_OK) {
            status = evq_job_check(job, err);
        }
        if (status == EVQ_OK) {
            evq_job_id(job, ids[i]);
        } else {
            ret_sent->fingerprint[0] = '\0'; // Tells the caller that nothing was sent.
        }
    }
    if (status == EVQ_OK && s->pin && at.root->is_remote) {
        pin_refuse(cli);
    } else if (status == EVQ_OK && s->pin) {
        pin = calloc(1, sizeof *pin);
        status = pin == NULL ? evq_error_set(err, EVQ_E_NOMEM, "no memory for a pin")
                             : make_pin(cli, s, &at, step, ret_sent->fingerprint, ids, pin, err);
        ret_sent->pinned = status == EVQ_OK;
    }
    for (; status == EVQ_OK && sent_count < s->suite_count; sent_count++) {
        job->suite = s->suites[sent_count];
        job->pin = ret_sent->pinned ? pin->path : "";
        status =
            evq_queue_submit(cli->queue, job, s->delay_ms, &ret_sent->submitted[sent_count], err);
        if (status != EVQ_OK) {
            break;
        }
    }
    if (ret_sent->pinned) {
        settle_pin(cli, s, pin, ids, ret_sent, sent_count, status);
    }
    free(pin);
    evq_buffer_free(&manifest);
    evq_job_free(job);
    return status;
}
