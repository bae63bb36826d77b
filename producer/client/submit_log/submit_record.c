#include "producer/client/submit_log/submit_record.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "shared/remote/address.h"

#define REQUEST_VERSION 3 // Old rings may hold records of version 1 (no needs) or 2 (no held).

struct request_head {
    uint32_t version;
    int32_t priority;
    int64_t step;
    double epoch;
    int64_t session_ms;
    int64_t created_ms;
    uint16_t policy;
    uint16_t keep;
    uint16_t param_count;
    uint16_t tracker_count;
};

struct writer {
    uint8_t *data;
    size_t bytes;
    size_t bytes_max;
    bool failed;
};

static void put_bytes(struct writer *writer, const char *text, size_t bytes)
{
    if (writer->failed || bytes + 1 > writer->bytes_max - writer->bytes) {
        writer->failed = true;
        return;
    }
    memcpy(writer->data + writer->bytes, text, bytes);
    writer->data[writer->bytes + bytes] = '\0';
    writer->bytes += bytes + 1;
}

static void put_text(struct writer *writer, const char *text)
{
    put_bytes(writer, text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
}

/* Makes the path absolute, unless it is an address, and removes "//", "/./" and a slash at its end.
 */
static enum evq_status put_path(struct writer *writer, const char *path, struct evq_error *err)
{
    EVQ_SUBMIT_BUFFER char full[2 * PATH_MAX];
    size_t used = 0;
    size_t bytes = strlen(path);

    if (bytes >= PATH_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "path has %zu bytes, at most %d", bytes,
                             PATH_MAX - 1);
    }
    if (evq_address_is(path)) {
        const enum evq_status status = evq_address_normalize(path, full, PATH_MAX, err);
        if (status == EVQ_OK) {
            put_text(writer, full);
        }
        return status == EVQ_E_LIMIT ? evq_error_set(err, EVQ_E_INVALID, "the address is too long")
                                     : status;
    }
    if (path[0] != '/') {
        if (getcwd(full, PATH_MAX) == NULL) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "path '%s' is relative and the working "
                                 "directory is not known: %s",
                                 path, strerror(errno));
        }
        used = strlen(full);
    }
    while (*path != '\0') {
        size_t part = strcspn(path, "/");
        if (part > 0 && !(part == 1 && path[0] == '.')) {
            full[used++] = '/';
            memcpy(full + used, path, part);
            used += part;
        }
        path += part + (path[part] == '/');
    }
    if (used == 0) {
        full[used++] = '/';
    }
    if (used >= PATH_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "the absolute path has %zu bytes, at most %d",
                             used, PATH_MAX - 1);
    }
    put_bytes(writer, full, used);
    return EVQ_OK;
}

bool evq_submit_record_suite(const char **list, char out[EVQ_SUBMIT_SUITE_BYTES])
{
    const char *at = *list + strspn(*list, ", ");
    size_t bytes = strcspn(at, ", ");

    if (bytes == 0) {
        return false;
    }
    size_t kept = bytes < EVQ_SUBMIT_SUITE_BYTES - 1 ? bytes : EVQ_SUBMIT_SUITE_BYTES - 1;
    memcpy(out, at, kept);
    out[kept] = '\0';
    *list = at + bytes;
    return true;
}

static bool suite_earlier(const char *list, const char *end, const char *name)
{
    char other[EVQ_SUBMIT_SUITE_BYTES];

    while (evq_submit_record_suite(&list, other) && list < end) {
        if (strcmp(other, name) == 0) {
            return true;
        }
    }
    return false;
}

static enum evq_status put_suites(struct writer *writer, const char *suites, struct evq_error *err)
{
    EVQ_SUBMIT_BUFFER char joined[EVQ_SUBMIT_SUITES_MAX * (EVQ_JOB_NAME_BYTES_MAX + 1) + 1];
    char name[EVQ_SUBMIT_SUITE_BYTES];
    const char *at = suites == NULL ? "" : suites;
    const char *all = at;
    size_t used = 0;
    int count = 0;

    while (evq_submit_record_suite(&at, name)) {
        size_t bytes = strlen(name);
        const char *end = at;
        if (!evq_job_name_valid(name, EVQ_JOB_NAME_BYTES_MAX)) {
            return evq_error_set(
                err, EVQ_E_INVALID,
                "suites: '%s...' is not the name of a suite: 1 to %d of letters, digits and "
                "'.', '_', '-'",
                name, EVQ_JOB_NAME_BYTES_MAX);
        }
        if (suite_earlier(all, end, name)) {
            continue;
        }
        if (count == EVQ_SUBMIT_SUITES_MAX) {
            return evq_error_set(err, EVQ_E_INVALID, "suites: more than %d names",
                                 EVQ_SUBMIT_SUITES_MAX);
        }
        if (count++ > 0) {
            joined[used++] = ',';
        }
        memcpy(joined + used, name, bytes);
        used += bytes;
    }
    if (count == 0) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "suites is empty: name one or more suites of evalq.yaml, as in "
                             ".suites = \"quick\" or \"quick,full\"");
    }
    put_bytes(writer, joined, used);
    return EVQ_OK;
}

static enum evq_status put_pairs(struct writer *writer, const char *what,
                                 const struct evalq_pair *pairs, size_t count,
                                 struct evq_error *err)
{
    if (count > EVQ_SUBMIT_PAIRS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "%s: %zu pairs, at most %d", what, count,
                             EVQ_SUBMIT_PAIRS_MAX);
    }
    if (count > 0 && pairs == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "%s is NULL, with a count of %zu", what, count);
    }
    for (size_t at = 0; at < count; at++) {
        if (pairs[at].key == NULL || pairs[at].key[0] == '\0') {
            return evq_error_set(err, EVQ_E_INVALID, "%s: pair %zu has no key", what, at);
        }
        enum evq_status status = evq_job_check_text(what, pairs[at].key, err);
        if (status == EVQ_OK && pairs[at].value != NULL) {
            status = evq_job_check_text(what, pairs[at].value, err);
        }
        for (size_t other = 0; status == EVQ_OK && other < at; other++) {
            if (strcmp(pairs[other].key, pairs[at].key) == 0) {
                status = evq_error_set(err, EVQ_E_INVALID, "%s has the key '%.100s' twice", what,
                                       pairs[at].key);
            }
        }
        if (status != EVQ_OK) {
            return status;
        }
        put_text(writer, pairs[at].key);
        put_text(writer, pairs[at].value);
    }
    return EVQ_OK;
}

static enum evq_status head_fill(const struct evalq_checkpoint *checkpoint,
                                 struct request_head *head, struct evq_error *err)
{
    static const char *const bands[EVQ_JOB_BANDS] = {"urgent", "high", "normal", "backfill"};
    const char *priority = checkpoint->priority;
    const char *policy_word = checkpoint->policy;
    enum evq_job_policy policy = EVQ_POLICY_ALL;

    head->priority = 2;
    if (priority != NULL && priority[0] != '\0') {
        int band = 0;
        while (band < EVQ_JOB_BANDS && strcmp(priority, bands[band]) != 0) {
            band++;
        }
        if (band == EVQ_JOB_BANDS) {
            return evq_error_set(err, EVQ_E_INVALID,
                                 "priority is '%s', expected urgent, high, normal or backfill",
                                 priority);
        }
        head->priority = band;
    }
    if (policy_word != NULL && policy_word[0] != '\0' &&
        evq_job_policy_parse(policy_word, &policy) != EVQ_OK) {
        return evq_error_set(err, EVQ_E_INVALID, "policy is '%s', expected all, latest or backfill",
                             policy_word);
    }
    if (checkpoint->step < 0 || checkpoint->step >= EVQ_JOB_STEP_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "step is %lld, expected 0 to 2^40 - 1",
                             (long long)checkpoint->step);
    }
    if (isinf(checkpoint->epoch)) {
        return evq_error_set(err, EVQ_E_INVALID, "epoch is infinite");
    }
    head->policy = (uint16_t)policy;
    head->keep = checkpoint->keep != 0;
    head->step = checkpoint->step;
    head->epoch = checkpoint->epoch == 0.0 ? (double)NAN : checkpoint->epoch;
    return EVQ_OK;
}

enum evq_status evq_submit_record_pack(const struct evalq_checkpoint *checkpoint,
                                       int64_t session_ms, int64_t created_ms, uint8_t *out,
                                       size_t out_bytes, size_t *ret_bytes, struct evq_error *err)
{
    struct request_head head = {
        .version = REQUEST_VERSION, .session_ms = session_ms, .created_ms = created_ms};
    struct writer writer = {.data = out, .bytes = sizeof(head), .bytes_max = out_bytes};

    if (checkpoint->path == NULL || checkpoint->path[0] == '\0') {
        return evq_error_set(err, EVQ_E_INVALID, "path is empty");
    }
    enum evq_status status = head_fill(checkpoint, &head, err);
    if (status == EVQ_OK) {
        status = evq_job_check_file("path", checkpoint->path, err);
    }
    if (status == EVQ_OK && checkpoint->format != NULL) {
        status = evq_job_check_text("format", checkpoint->format, err);
    }
    if (status == EVQ_OK && checkpoint->needs != NULL) {
        status = evq_needs_check(checkpoint->needs, err);
    }
    if (status == EVQ_OK) {
        status = put_path(&writer, checkpoint->path, err);
    }
    if (status == EVQ_OK) {
        status = put_suites(&writer, checkpoint->suites, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    put_text(&writer, checkpoint->variant);
    put_text(&writer, checkpoint->format);
    put_text(&writer, checkpoint->needs);
    if (checkpoint->held == NULL || checkpoint->held[0] == '\0') {
        put_text(&writer, "");
    } else if ((status = put_path(&writer, checkpoint->held, err)) != EVQ_OK) {
        return status;
    }
    status = put_pairs(&writer, "params", checkpoint->params, checkpoint->param_count, err);
    if (status == EVQ_OK) {
        status =
            put_pairs(&writer, "trackers", checkpoint->trackers, checkpoint->tracker_count, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (writer.failed) {
        return evq_error_set(err, EVQ_E_LIMIT, "the request is longer than %zu bytes", out_bytes);
    }
    head.param_count = (uint16_t)checkpoint->param_count;
    head.tracker_count = (uint16_t)checkpoint->tracker_count;
    memcpy(out, &head, sizeof(head));
    *ret_bytes = writer.bytes;
    return EVQ_OK;
}

static const char *take_text(const uint8_t *data, size_t bytes, size_t *at)
{
    const uint8_t *end = *at < bytes ? memchr(data + *at, '\0', bytes - *at) : NULL;

    if (end == NULL) {
        return NULL;
    }
    const char *text = (const char *)data + *at;
    *at = (size_t)(end - data) + 1;
    return text;
}

enum evq_status evq_submit_record_unpack(const uint8_t *data, size_t bytes,
                                         struct evq_submit_record *ret_request,
                                         struct evq_error *err)
{
    struct request_head head;
    size_t at = sizeof(head);
    bool whole = bytes >= sizeof(head);

    if (whole) {
        memcpy(&head, data, sizeof(head));
        whole = head.version >= 1 && head.version <= REQUEST_VERSION &&
                head.policy < EVQ_POLICY_COUNT && head.param_count <= EVQ_SUBMIT_PAIRS_MAX &&
                head.tracker_count <= EVQ_SUBMIT_PAIRS_MAX;
    }
    if (!whole) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a submit in the ring is of another version");
    }
    struct evq_submit_record request = {.step = head.step,
                                        .epoch = head.epoch,
                                        .session_ms = head.session_ms,
                                        .created_ms = head.created_ms,
                                        .priority = head.priority,
                                        .policy = (enum evq_job_policy)head.policy,
                                        .keep = head.keep != 0,
                                        .param_count = head.param_count,
                                        .tracker_count = head.tracker_count};
    request.path = take_text(data, bytes, &at);
    request.suites = take_text(data, bytes, &at);
    request.variant = take_text(data, bytes, &at);
    request.format = take_text(data, bytes, &at);
    request.needs = head.version >= 2 ? take_text(data, bytes, &at) : "";
    request.held = head.version >= 3 ? take_text(data, bytes, &at) : "";
    request.pairs = (const char *)data + at;
    // If one text is missing, all later ones are missing too.
    whole = request.format != NULL && request.needs != NULL && request.held != NULL;
    for (size_t pair = 0; whole && pair < 2 * (request.param_count + request.tracker_count);
         pair++) {
        whole = take_text(data, bytes, &at) != NULL;
    }
    if (!whole || at != bytes) {
        return evq_error_set(err, EVQ_E_CORRUPT, "a submit in the ring is malformed");
    }
    *ret_request = request;
    return EVQ_OK;
}
