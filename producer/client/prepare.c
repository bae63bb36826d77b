#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "producer/client/make_jobs.h"
#include "producer/client/overwrite.h"
#include "producer/client/remote_listing.h"
#include "producer/client/sender.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"

#define CONFIG_BYTES_MAX   ((size_t)1 << 20)
#define LOOK_FIRST_MS      20
#define LOOK_MAX_MS        2000
#define GONE_WAIT_MS       30000  // The save of a missing checkpoint may not have begun.
#define CORRUPT_WAIT_MS    3000   // Some formats look damaged until their last byte is written.
#define HURRY_MS           100    // Pause between checks while a flush or a close waits.
#define INCOMPLETE_WAIT_MS 600000 // Time for a large asynchronous save. Then the worker waits.

struct look {               // The present state of an item's checkpoint.
    enum evq_status status; // Result of taking its fingerprint.
    bool is_guarded;        // The path does not name the step: another step may be saved to it.
    bool is_overwritten;
    struct evq_files files; // If it is guarded.
    char fingerprint[33];
    struct evq_buffer manifest;
    struct evq_error error;
};

static void output_visit(struct evq_sender *sender, const struct evq_place *place)
{
    char output[PATH_MAX];
    const int bytes = (int)evq_pin_output_bytes(place->path);

    if (snprintf(output, sizeof(output), "%s%s%.*s", place->root->path, bytes == 0 ? "" : "/",
                 bytes, place->path) < (int)sizeof(output)) {
        evq_pin_releaser_visit(&sender->releaser, output, sender->queue, sender->run);
    }
}

static bool pin_stopped(const void *context)
{
    const struct evq_sender *sender = context;
    return atomic_load(&sender->stop);
}

/* The file system that contains the pinned files; 0: unknown. */
static dev_t device_of(const struct evq_place *place)
{
    struct stat info;

    return fstatat(place->root_fd, place->source, &info, 0) == 0 ? info.st_dev : 0;
}

/* Gives up a pin that may hold another step's files. One that was there before serves other jobs.
 */
static void pin_drop(const struct evq_pin *pin, const char *const *jobs, size_t job_count)
{
    if (!pin->found) {
        (void)!evq_pin_release(pin->directory, NULL); // `evalq gc` removes the rest.
    }
    for (size_t at = 0; pin->found && at < job_count; at++) {
        (void)!evq_pin_note_refused(pin->directory, jobs[at], NULL); // `evalq gc` removes it.
    }
}

/* Pins the item's checkpoint and writes the pin into its jobs. After an error they have no pin. */
static enum evq_status item_pin(struct evq_sender *sender, struct evq_pending *item,
                                const struct evq_place *place, const char *fingerprint,
                                struct look *look)
{
    struct evq_error *err = &look->error;
    char ids[EVQ_SUBMIT_SUITES_MAX][EVQ_JOB_ID_BYTES_MAX];
    const char *id_list[EVQ_SUBMIT_SUITES_MAX];
    struct evq_pin pin;

    for (size_t at = 0; at < item->job_count; at++) {
        evq_job_id(item->jobs[at], ids[at]);
        id_list[at] = ids[at];
    }
    output_visit(sender, place);
    const dev_t device = device_of(place);
    bool safe = evq_pin_hard_link_safe(place->path, item->request.step) && !item->reused;
    int64_t budget = sender->pin_bytes_max - sender->releaser.copied_bytes;
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
        evq_pin_releaser_spare(&sender->releaser, sender->redis, &sender->info)) {
        budget = sender->pin_bytes_max - sender->releaser.copied_bytes;
        request.copy_bytes_max = budget > 0 ? budget : 0;
        status = evq_pin_make(&request, &pin, err);
    }
    if (status == EVQ_OK) {
        status = evq_pin_verify(&request, &pin, err);
    }
    if (status == EVQ_OK && look->is_guarded) {
        status = evq_overwrite_recheck(sender, item, place, &look->files, err);
        if (status != EVQ_OK) {
            pin_drop(&pin, id_list, item->job_count);
        }
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (pin.lacks_reflink) {
        sender->lacks_reflink = true;
        sender->lacks_reflink_at = device;
    }
    evq_pin_releaser_add(&sender->releaser, pin.directory, pin.copied_bytes);
    for (size_t at = 0; at < item->job_count; at++) {
        const char *path = evq_arena_strdup(item->jobs[at]->arena, pin.path);
        item->jobs[at]->pin = path != NULL ? path : "";
    }
    return EVQ_OK;
}

/* How long to repeat a check that ended with this status; 0: the status is final. */
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

/* Plans another check if the status can still change. Returns false if the time is up. */
static bool item_wait(struct evq_sender *sender, struct evq_pending *item, enum evq_status status)
{
    int64_t now = evq_clock_mono_ms();

    if (now - item->since_ms >= patience_ms(status)) {
        return false;
    }
    item->due_ms =
        now + evq_clock_backoff_ms(&sender->jitter, item->try_count++, LOOK_FIRST_MS, LOOK_MAX_MS);
    return true;
}

/* Warns about a checkpoint that is not complete in time. Its jobs are still sent, so that the queue
 * records and shows how they end. */
static void warn_unready(struct evq_sender *sender, const struct evq_pending *item,
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

/* Makes the item's jobs end as skipped, because the path may no longer have the step's files. */
static void item_skip(struct evq_sender *sender, struct evq_pending *item, const char *why)
{
    for (size_t at = 0; at < item->job_count; at++) {
        item->jobs[at]->fingerprint = EVQ_OVERWRITTEN_FINGERPRINT;
        item->jobs[at]->manifest = "";
        item->jobs[at]->pin = "";
    }
    evq_warn(&sender->warner, EVQ_WARN_OVERWRITTEN,
             "'%s' (step %lld) is skipped as overwritten: %s. Submit each step after its save; a "
             "name with the step in it keeps every step",
             item->request.path, (long long)item->request.step, why);
}

/* Pins the checkpoint. Returns EVQ_E_CHANGED if the files may not be the step's own. */
static enum evq_status look_pin(struct evq_sender *sender, struct evq_pending *item,
                                const struct evq_place *place, struct look *look)
{
    const char *fingerprint = look->status == EVQ_OK ? look->fingerprint : "";
    enum evq_status status = item_pin(sender, item, place, fingerprint, look);

    if (status != EVQ_OK && status != EVQ_E_CHANGED && status != EVQ_E_STOPPED) {
        evq_warn(&sender->warner, EVQ_WARN_UNPINNED,
                 "'%s' is not pinned, so deleting it before its evaluation loses that: %s",
                 item->request.path, look->error.message);
    }
    return status;
}

/* Makes the item's jobs and its pin from the result of the check. If memory runs out, or if the
 * checkpoint changed since, the item waits for another check. */
static void item_finish(struct evq_sender *sender, struct evq_pending *item,
                        const struct evq_place *place, struct look *look)
{
    const bool is_known = look->status == EVQ_OK;
    const char *manifest = evq_buffer_string(&look->manifest);
    const bool exists = place->root_fd >= 0 && look->status != EVQ_E_GONE &&
                        look->status != EVQ_E_NOT_FOUND && !look->is_overwritten;

    if (!evq_jobs_make(sender, item, place, is_known ? look->fingerprint : "",
                       is_known && manifest != NULL ? manifest : "")) {
        (void)item_wait(sender, item, EVQ_E_NOMEM);
        return;
    }
    if (sender->pin && exists && look->status != EVQ_E_INCOMPLETE) {
        const enum evq_status status = look_pin(sender, item, place, look);
        look->is_overwritten = look->is_guarded && status == EVQ_E_CHANGED;
        if (!look->is_overwritten && (status == EVQ_E_CHANGED || status == EVQ_E_STOPPED) &&
            item_wait(sender, item, status)) {
            evq_jobs_free(item);
            return;
        }
    }
    const bool is_pinned = item->jobs[0]->pin != NULL && item->jobs[0]->pin[0] != '\0';
    // Without a fingerprint and a pin, a worker would evaluate any later files at the path.
    if (look->is_overwritten || (look->is_guarded && !is_known && !is_pinned)) {
        item_skip(sender, item, look->error.message);
    } else if (!is_known) {
        warn_unready(sender, item, look->status, &look->error);
    }
    if (!is_pinned) {
        atomic_fetch_add(&sender->unpinned, 1);
    }
    if (exists && place->root == &evq_prepare_roots(sender)->shm) {
        evq_job_snapshots_offer(sender, item, place->root);
    }
    item->ready = true;
}

const struct evq_config *evq_prepare_roots(const struct evq_sender *sender)
{
    return sender->later != NULL ? sender->later : sender->config;
}

/* Reads the configuration again if its file changed. If the new file is not valid, the roots stay
 * as they are; evalq's programs report the fault. */
static void roots_look(struct evq_sender *sender)
{
    struct evq_buffer text;
    struct evq_config *later = NULL;
    struct stat info;
    int64_t now = evq_clock_mono_ms();

    if (now < sender->config_due_ms) {
        return;
    }
    sender->config_due_ms = now + EVQ_ROOT_CHECK_MS;
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

/* Parks an item that no root contains. Flush and close do not wait for it. It stays in the ring,
 * also for the next process of the run. */
static void item_park(struct evq_sender *sender, struct evq_pending *item,
                      const struct evq_error *error)
{
    if (!item->parked) {
        evq_warn(&sender->warner, EVQ_WARN_ROOT,
                 "not submitted: %s. It is submitted as soon as that is there", error->message);
    }
    item->parked = true;
    item->due_ms = evq_clock_mono_ms() + EVQ_ROOT_CHECK_MS;
}

/* Takes the fingerprint of a remote checkpoint from its listing. */
static void remote_look(struct evq_sender *sender, const struct evq_pending *item,
                        const struct evq_place *place, struct look *look)
{
    struct evq_remote_listing listing;

    look->status = evq_remote_listing_take(sender, item, place, &listing, &look->error);
    if (look->status == EVQ_OK) {
        memcpy(look->fingerprint, listing.fingerprint, sizeof(look->fingerprint));
        evq_buffer_text(&look->manifest, listing.manifest);
    }
    if (look->status != EVQ_E_TIMEOUT && sender->pin) {
        evq_warn(&sender->warner, EVQ_WARN_REMOTE,
                 "remote checkpoints such as '%s' cannot be pinned: one that is deleted before its "
                 "evaluation is skipped (vanished)",
                 item->request.path);
    }
}

/* Checks whether the checkpoint exists, is complete, and belongs to the step. */
static void item_look(struct evq_sender *sender, struct evq_pending *item,
                      const struct evq_place *place, struct look *look)
{
    if (!place->is_held && evq_pending_has_later(sender, item)) {
        look->is_overwritten = true;
        (void)evq_error_set(&look->error, EVQ_E_CHANGED, "another step was submitted for the path");
        return;
    }
    if (look->is_guarded && !place->root->is_remote) {
        look->status = evq_overwrite_look(sender, item, place, &look->files, &look->error);
        look->is_overwritten = look->status == EVQ_E_CHANGED;
    }
    if (!look->is_overwritten && place->root->is_remote) {
        remote_look(sender, item, place, look);
    } else if (!look->is_overwritten) {
        look->status = evq_checkpoint_fingerprint(place->root_fd, place->source, look->fingerprint,
                                                  &look->manifest, &look->error);
    }
    if (look->status == EVQ_OK) {
        const bool has_files = look->is_guarded && !place->root->is_remote;
        evq_overwrite_note(sender, item, has_files ? &look->files : NULL);
    }
}

static void item_prepare(struct evq_sender *sender, struct evq_pending *item)
{
    struct look look = {.fingerprint = ""};
    struct evq_place place;

    if (item->parked) {
        roots_look(sender);
    }
    const struct evq_config *config = evq_prepare_roots(sender);
    look.status = evq_place_find(config, item->request.path, &place, &look.error);
    if (look.status == EVQ_E_NOT_FOUND || look.status == EVQ_E_INVALID) {
        item_park(sender, item, &look.error);
        return;
    }
    item->parked = false;
    look.is_guarded = !evq_pin_hard_link_safe(place.path, item->request.step);
    evq_buffer_init(&look.manifest, EVQ_JOB_BYTES_MAX / 4); // A longer list is omitted.
    if (look.status == EVQ_OK) {
        if (!place.root->is_remote) {
            evq_place_choose_source(&place, config, item->request.held);
        }
        item_look(sender, item, &place, &look);
    }
    if (look.status == EVQ_E_TIMEOUT) { // The store has not answered yet.
        item->due_ms = evq_clock_mono_ms() + EVQ_REMOTE_LISTING_PAUSE_MS;
        goto out;
    }
    if (look.status == EVQ_OK || look.is_overwritten || !item_wait(sender, item, look.status)) {
        item_finish(sender, item, &place, &look);
    }
out:
    evq_buffer_free(&look.manifest);
    evq_place_close(&place);
}

/* When to look at the item's checkpoint again. While a flush or a close waits, this is soon, so
 * that a save that ends just before them is not missed. */
static int64_t item_due_ms(const struct evq_sender *sender, struct evq_pending *item)
{
    const int64_t hurry_ms = evq_clock_mono_ms() + HURRY_MS;

    if (item->due_ms > hurry_ms && !item->parked && atomic_load(&sender->flushing) > 0) {
        item->due_ms = hurry_ms;
    }
    return item->due_ms;
}

int64_t evq_prepare_due(struct evq_sender *sender, struct evq_submit_log *log)
{
    // Submits that arrive from now on wait, so that ready jobs are sent first.
    const struct evq_pending *last = log->last;
    int64_t next = INT64_MAX;

    log->has_new = false;
    for (struct evq_pending *item = log->first; item != NULL && !atomic_load(&sender->stop);
         item = item == last ? NULL : item->next) {
        if (!item->ready && !item->done && item->due_ms <= evq_clock_mono_ms()) {
            item_prepare(sender, item);
        }
        if (!item->ready && !item->done) {
            const int64_t due_ms = item_due_ms(sender, item);
            next = due_ms < next ? due_ms : next;
        }
    }
    return next;
}
