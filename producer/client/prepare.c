#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "producer/client/reuse.h"
#include "producer/client/sender.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"

#define CONFIG_BYTES_MAX   ((size_t)1 << 20)
#define LOOK_FIRST_MS      20
#define LOOK_MAX_MS        2000
#define GONE_WAIT_MS       30000  // A save that has not begun to show.
#define CORRUPT_WAIT_MS    3000   // Formats that look damaged until their last byte.
#define PROMPT_MS          1000   // Later looks tell nothing of how it was at the submit.
#define INCOMPLETE_WAIT_MS 600000 // Large asynchronous saves; afterwards the worker waits for it.
#define NO_FINGERPRINT     "00000000000000000000000000000000" // What no checkpoint has.

struct place { // Where the checkpoint is.
    const struct evq_root *root;
    const char *path; // Relative to the root.
    char real[PATH_MAX];
    char source[PATH_MAX]; // What is read and pinned: path, or what is held of it.
    int root_fd;
};

/* The longest root whose real directory holds the real path: for roots behind symbolic links. */
static bool real_root_match(const struct evq_config *config, struct place *place)
{
    size_t longest = 0;

    for (size_t at = 0; at < config->root_count; at++) {
        char root[PATH_MAX];
        if (realpath(config->roots[at].path, root) == NULL) {
            continue;
        }
        size_t bytes = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if ((longest == 0 || bytes > longest) && strncmp(place->real, root, bytes) == 0 &&
            (place->real[bytes] == '/' || place->real[bytes] == '\0')) {
            place->root = &config->roots[at];
            place->path = place->real[bytes] == '\0' ? "." : place->real + bytes + 1;
            longest = bytes;
        }
    }
    return place->root != NULL;
}

static enum evq_status place_find(const struct evq_config *config, const char *path,
                                  struct place *place, struct evq_error *err)
{
    place->root = NULL;
    place->root_fd = -1;
    bool plain = strstr(path, "/../") == NULL &&
                 (strlen(path) < 3 || strcmp(path + strlen(path) - 3, "/..") != 0);
    enum evq_status status = EVQ_E_NOT_FOUND;
    if (plain) {
        status = evq_config_root_resolve(config, path, &place->root, &place->path, err);
    }
    if (status != EVQ_OK) {
        place->root = NULL;
        if (realpath(path, place->real) == NULL || !real_root_match(config, place)) {
            // Unknown for good, unless a part of the path is not there yet.
            return plain ? status : evq_error_set(err, EVQ_E_NOT_FOUND, "no root holds '%s'", path);
        }
    }
    place->root_fd = open(place->root->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place->root_fd < 0) { // Without a descriptor, or permission, nothing is known of it.
        const bool gone = errno == ENOENT || errno == ENOTDIR || errno == ESTALE;
        return evq_error_set(err, gone ? EVQ_E_GONE : EVQ_E_IO, "open root %s at '%s': %s",
                             place->root->name, place->root->path, strerror(errno));
    }
    return EVQ_OK;
}

/* What is held of the checkpoint is read in its place, where it is whole: path may be deleted file
 * by file at any moment, and what is left of it look like a checkpoint. */
static void source_choose(const struct evq_config *config, const char *held, struct place *place)
{
    struct place other = {.root_fd = -1};
    const char *source = place->path;

    if (held[0] != '\0' && place_find(config, held, &other, NULL) == EVQ_OK &&
        other.root == place->root &&
        evq_checkpoint_check_complete(place->root_fd, other.path, NULL) == EVQ_OK) {
        source = other.path;
    }
    (void)snprintf(place->source, sizeof(place->source), "%s", source);
    if (other.root_fd >= 0) {
        close(other.root_fd);
    }
}

static const struct evq_pair *pairs_copy(struct evq_arena *arena, const char **at, size_t count)
{
    struct evq_pair *pairs = evq_arena_array(arena, count == 0 ? 1 : count, sizeof(*pairs));

    for (size_t pair = 0; pairs != NULL && pair < count; pair++) {
        pairs[pair].key = evq_arena_strdup(arena, *at);
        *at += strlen(*at) + 1;
        pairs[pair].value = evq_arena_strdup(arena, *at);
        *at += strlen(*at) + 1;
        if (pairs[pair].key == NULL || pairs[pair].value == NULL) {
            return NULL;
        }
    }
    return pairs;
}

/* Checked when they were submitted. */
static bool needs_take(struct evq_job *job, const char *needs)
{
    job->needs_given = needs[0] != '\0';
    return !job->needs_given || evq_needs_parse(needs, job->arena, &job->needs, NULL) == EVQ_OK;
}

static struct evq_job *job_make(const struct evq_sender *sender, const struct evq_request *request,
                                const char *suite, const struct place *place,
                                const char *fingerprint, const char *manifest)
{
    struct evq_job *job = evq_job_new();
    char variant[EVQ_JOB_NAME_BYTES_MAX + 1];
    const char *pairs = request->pairs;

    if (job == NULL) {
        return NULL;
    }
    evq_job_map_name(request->variant[0] == '\0' ? "regular" : request->variant,
                     EVQ_JOB_NAME_BYTES_MAX, variant);
    job->run = evq_arena_strdup(job->arena, sender->run);
    job->session_ms = request->session_ms;
    job->step = request->step;
    job->epoch = request->epoch;
    job->variant = evq_arena_strdup(job->arena, variant);
    job->suite = evq_arena_strdup(job->arena, suite);
    job->root = evq_arena_strdup(job->arena, place->root->name);
    job->path = evq_arena_strdup(job->arena, place->path);
    job->format = evq_arena_strdup(job->arena, request->format);
    job->fingerprint = evq_arena_strdup(job->arena, fingerprint);
    job->manifest = evq_arena_strdup(job->arena, manifest);
    job->host = evq_arena_strdup(job->arena, sender->host);
    job->created_ms = request->created_ms;
    job->priority = request->priority;
    job->policy = request->policy;
    job->keep = request->keep;
    job->params = pairs_copy(job->arena, &pairs, request->param_count);
    job->param_count = request->param_count;
    if (job->params != NULL) {
        job->trackers = pairs_copy(job->arena, &pairs, request->tracker_count);
        job->tracker_count = request->tracker_count;
    }
    if (job->run == NULL || job->variant == NULL || job->suite == NULL || job->root == NULL ||
        job->path == NULL || job->format == NULL || job->fingerprint == NULL ||
        job->manifest == NULL || job->host == NULL || job->params == NULL ||
        job->trackers == NULL || !needs_take(job, request->needs)) {
        evq_job_free(job);
        return NULL;
    }
    return job;
}

static bool jobs_make(const struct evq_sender *sender, struct evq_item *item,
                      const struct place *place, const char *fingerprint, const char *manifest)
{
    const char *list = item->request.suites;
    char suite[EVQ_REQUEST_SUITE_BYTES];

    item->job_count = 0;
    while (item->job_count < EVQ_REQUEST_SUITES_MAX && evq_request_suite(&list, suite)) {
        struct evq_job *job = job_make(sender, &item->request, suite, place, fingerprint, manifest);
        if (job == NULL) {
            while (item->job_count > 0) {
                evq_job_free(item->jobs[--item->job_count]);
            }
            return false;
        }
        item->jobs[item->job_count++] = job;
    }
    return true;
}

static void output_visit(struct evq_sender *sender, const struct place *place)
{
    char output[PATH_MAX];
    const int bytes = (int)evq_pin_output_bytes(place->path);

    if (snprintf(output, sizeof(output), "%s%s%.*s", place->root->path, bytes == 0 ? "" : "/",
                 bytes, place->path) < (int)sizeof(output)) {
        evq_pin_releaser_visit(&sender->keeper, output, sender->queue, sender->run);
    }
}

static bool pin_stopped(const void *context)
{
    const struct evq_sender *sender = context;
    return atomic_load(&sender->stop);
}

/* The file system of what is pinned; 0: not known. */
static dev_t device_of(const struct place *place)
{
    struct stat info;

    return fstatat(place->root_fd, place->source, &info, 0) == 0 ? info.st_dev : 0;
}

/* Pins the item's checkpoint and has its jobs name the pin. Anything but EVQ_OK leaves them
 * without. */
static enum evq_status item_pin(struct evq_sender *sender, struct evq_item *item,
                                const struct place *place, const char *fingerprint,
                                struct evq_error *err)
{
    char ids[EVQ_REQUEST_SUITES_MAX][EVQ_JOB_ID_BYTES_MAX];
    const char *id_list[EVQ_REQUEST_SUITES_MAX];
    struct evq_pin pin;

    for (size_t at = 0; at < item->job_count; at++) {
        evq_job_id(item->jobs[at], ids[at]);
        id_list[at] = ids[at];
    }
    output_visit(sender, place);
    const dev_t device = device_of(place);
    bool safe = evq_pin_hard_link_safe(place->path, item->request.step) && !item->reused;
    int64_t budget = sender->pin_bytes_max - sender->keeper.copied_bytes;
    if (item->reused) {
        evq_warn(&sender->warner, EVQ_WARN_REUSED,
                 "'%s' is submitted for more than one step, so each is copied before it is "
                 "overwritten; a name with the step in it makes that free",
                 item->request.path);
    }
    struct evq_pin_request request = {.root_path = place->root->path,
                                      .path = place->path,
                                      .source = place->source,
                                      .queue = sender->queue,
                                      .run = sender->run,
                                      .step = item->request.step,
                                      .variant = item->jobs[0]->variant,
                                      .fingerprint = fingerprint,
                                      .jobs = id_list,
                                      .job_count = item->job_count,
                                      .reflink = !sender->lacks_reflink || device == 0 ||
                                                 sender->lacks_reflink_at != device,
                                      .hard_link = safe,
                                      .copy_bytes_max = budget > 0 ? budget : 0,
                                      .stopped = pin_stopped,
                                      .stop_context = sender};
    enum evq_status status = evq_pin_make(&request, &pin, err);
    if (status == EVQ_E_FULL &&
        evq_pin_releaser_spare(&sender->keeper, sender->redis, &sender->info)) {
        budget = sender->pin_bytes_max - sender->keeper.copied_bytes;
        request.copy_bytes_max = budget > 0 ? budget : 0;
        status = evq_pin_make(&request, &pin, err);
    }
    if (status == EVQ_OK) {
        status = evq_pin_verify(&request, &pin, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (pin.lacks_reflink) {
        sender->lacks_reflink = true;
        sender->lacks_reflink_at = device;
    }
    evq_pin_releaser_add(&sender->keeper, pin.directory, pin.copied_bytes);
    for (size_t at = 0; at < item->job_count; at++) {
        const char *path = evq_arena_strdup(item->jobs[at]->arena, pin.path);
        item->jobs[at]->pin = path != NULL ? path : "";
    }
    return EVQ_OK;
}

/* How long a look that ended with status may be repeated; 0: it is final. */
static int64_t patience_ms(enum evq_status status)
{
    switch (status) {
    case EVQ_E_INCOMPLETE:
    case EVQ_E_CHANGED:
        return INCOMPLETE_WAIT_MS;
    case EVQ_E_GONE:
    case EVQ_E_NOT_FOUND:
    case EVQ_E_IO:
        return GONE_WAIT_MS;
    case EVQ_E_CORRUPT:
        return CORRUPT_WAIT_MS;
    case EVQ_E_STOPPED:
    case EVQ_E_NOMEM:
        return INT64_MAX;
    default:
        return 0;
    }
}

/* Another look later, if it may still change; false when the wait is over. */
static bool item_wait(struct evq_sender *sender, struct evq_item *item, enum evq_status status)
{
    int64_t now = evq_clock_mono_ms();

    if (now - item->since_ms >= patience_ms(status)) {
        return false;
    }
    item->due_ms =
        now + evq_clock_backoff_ms(&sender->jitter, item->try_count++, LOOK_FIRST_MS, LOOK_MAX_MS);
    return true;
}

/* It goes to the queue all the same, where its end is recorded and shown. */
static void warn_unready(struct evq_sender *sender, const struct evq_item *item,
                         enum evq_status status, const struct evq_error *error)
{
    const char *path = item->request.path;

    if (status == EVQ_E_GONE || status == EVQ_E_NOT_FOUND) {
        evq_warn(&sender->warner, EVQ_WARN_GONE,
                 "'%s' (step %lld) is not there; its evaluation will be skipped. Once it is back: "
                 "evalq retry JOB",
                 path, (long long)item->request.step);
    } else if (status == EVQ_E_INCOMPLETE || status == EVQ_E_CHANGED) {
        evq_warn(&sender->warner, EVQ_WARN_INCOMPLETE,
                 "'%s' (step %lld) is still incomplete after %d s: %s", path,
                 (long long)item->request.step, INCOMPLETE_WAIT_MS / 1000, error->message);
    } else {
        evq_warn(&sender->warner, EVQ_WARN_FORMAT, "'%s' is submitted as it is: %s", path,
                 error->message);
    }
}

struct look { // What was seen of the checkpoint.
    enum evq_status status;
    bool foreign; // What lies there is of another step.
    char fingerprint[33];
    struct evq_buffer manifest;
    struct evq_error error;
};

/* What lies there is another step's: the job ends as skipped, its content changed. */
static void foreign_note(struct evq_sender *sender, const struct evq_item *item, bool later,
                         struct look *look)
{
    const char *path = item->request.path;
    const long long step = (long long)item->request.step;

    look->foreign = true;
    memcpy(look->fingerprint, NO_FINGERPRINT, sizeof(NO_FINGERPRINT));
    evq_buffer_clear(&look->manifest);
    if (later) {
        evq_warn(&sender->warner, EVQ_WARN_OVERWRITTEN,
                 "another step was saved to '%s' before step %lld was read: its evaluation will "
                 "be skipped; a name with the step in it keeps each",
                 path, step);
    } else {
        evq_warn(&sender->warner, EVQ_WARN_INCOMPLETE,
                 "'%s' holds the weights of the step before still, %d s after step %lld was "
                 "submitted: its evaluation will be skipped",
                 path, INCOMPLETE_WAIT_MS / 1000, step);
    }
}

/* false: it cannot be told yet whose weights lie there; another look later. */
static bool own_look(struct evq_sender *sender, struct evq_item *item, const struct place *place,
                     struct look *look)
{
    const bool held = strcmp(place->source, place->path) != 0;
    const enum evq_reuse found = evq_reuse_look(sender, item, place->root_fd, place->path, held);

    if (found == EVQ_REUSE_UNSETTLED ||
        (found == EVQ_REUSE_EARLIER && item_wait(sender, item, EVQ_E_INCOMPLETE))) {
        return false;
    }
    if (found != EVQ_REUSE_OWN) {
        foreign_note(sender, item, found == EVQ_REUSE_LATER, look);
    }
    return true;
}

static void item_finish(struct evq_sender *sender, struct evq_item *item, struct place *place,
                        struct look *look)
{
    struct evq_error *error = &look->error;
    const char *fingerprint = look->status == EVQ_OK ? look->fingerprint : "";
    const char *manifest = evq_buffer_string(&look->manifest);
    enum evq_status status = look->status;

    if (!jobs_make(sender, item, place, fingerprint,
                   status == EVQ_OK && manifest != NULL ? manifest : "")) {
        (void)item_wait(sender, item, EVQ_E_NOMEM);
        return;
    }
    bool exists = place->root_fd >= 0 && status != EVQ_E_GONE && status != EVQ_E_NOT_FOUND;
    if (status != EVQ_OK) {
        warn_unready(sender, item, status, error);
    }
    if (sender->pin && exists && status != EVQ_E_INCOMPLETE && !look->foreign) {
        status = item_pin(sender, item, place, fingerprint, error);
        if (status == EVQ_E_CHANGED || status == EVQ_E_STOPPED) {
            if (item_wait(sender, item, status)) {
                while (item->job_count > 0) {
                    evq_job_free(item->jobs[--item->job_count]);
                }
                return;
            }
        }
        if (status != EVQ_OK) {
            evq_warn(&sender->warner, EVQ_WARN_UNPINNED,
                     "'%s' is not pinned, so deleting it before its evaluation loses that: %s",
                     item->request.path, error->message);
        }
    }
    if (item->jobs[0]->pin == NULL || item->jobs[0]->pin[0] == '\0') {
        atomic_fetch_add(&sender->unpinned, 1);
    }
    if (exists && place->root == &evq_prepare_roots(sender)->shm) {
        evq_snapshots_offer(sender, item, place->root);
    }
    item->ready = true;
}

const struct evq_config *evq_prepare_roots(const struct evq_sender *sender)
{
    return sender->later != NULL ? sender->later : sender->config;
}

/* Reads the configuration again if its file is another one by now. What is wrong with it is said by
 * the programs that it is for; here the roots stay as they are. */
static void roots_look(struct evq_sender *sender)
{
    struct evq_buffer text;
    struct evq_config *later = NULL;
    struct stat info;
    int64_t now = evq_clock_mono_ms();

    if (now < sender->config_due_ms) {
        return;
    }
    sender->config_due_ms = now + EVQ_ROOT_LOOK_MS;
    if (stat(sender->config_path, &info) != 0 || evq_file_unchanged(&info, &sender->config_seen)) {
        return;
    }
    evq_buffer_init(&text, 0);
    if (evq_file_read(AT_FDCWD, sender->config_path, 0, CONFIG_BYTES_MAX, &text, NULL) == EVQ_OK &&
        evq_config_parse((const char *)text.data, text.bytes, sender->config_path, &later, NULL) ==
            EVQ_OK) {
        evq_config_free(sender->later);
        sender->later = later;
        sender->config_seen = info;
    }
    evq_buffer_free(&text);
}

/* Nobody waits for it, and it keeps its place in the ring: also for the next process of the run. */
static void item_park(struct evq_sender *sender, struct evq_item *item,
                      const struct evq_error *error)
{
    if (!item->parked) {
        evq_warn(&sender->warner, EVQ_WARN_ROOT,
                 "not submitted: %s. It is submitted as soon as that is there", error->message);
    }
    item->parked = true;
    item->due_ms = evq_clock_mono_ms() + EVQ_ROOT_LOOK_MS;
}

/* What is gone later than that may have been deleted for the save of the next step. */
static void first_look_note(struct evq_item *item, enum evq_status status)
{
    if (!item->looked) {
        item->looked = true;
        item->prompt = evq_clock_unix_ms() - item->request.created_ms < PROMPT_MS;
        item->came_late = item->prompt && status == EVQ_E_GONE;
    }
}

void evq_prepare_item(struct evq_sender *sender, struct evq_item *item)
{
    struct look look = {.fingerprint = ""};
    struct place place;

    if (item->parked) {
        roots_look(sender);
    }
    const struct evq_config *config = evq_prepare_roots(sender);
    look.status = place_find(config, item->request.path, &place, &look.error);
    if (look.status == EVQ_E_NOT_FOUND || look.status == EVQ_E_INVALID) {
        item_park(sender, item, &look.error);
        return;
    }
    item->parked = false;
    evq_buffer_init(&look.manifest, EVQ_JOB_BYTES_MAX / 4); // Longer ones are left out.
    if (look.status == EVQ_OK) {
        source_choose(config, item->request.held, &place);
        look.status = evq_checkpoint_fingerprint(place.root_fd, place.source, look.fingerprint,
                                                 &look.manifest, &look.error);
    }
    first_look_note(item, look.status);
    if (look.status == EVQ_OK ? own_look(sender, item, &place, &look)
                              : !item_wait(sender, item, look.status)) {
        item_finish(sender, item, &place, &look);
    }
    evq_buffer_free(&look.manifest);
    if (place.root_fd >= 0) {
        close(place.root_fd);
    }
}
