#include "producer/client/reuse.h"

#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/pins/pin.h"
#include "shared/base/clock.h"
#include "shared/checkpoint/checkpoint.h"

#define TICK_MS       10   // The clock that stamps files stands still for so long, and is behind.
#define SETTLE_MS     20   // From a save's end to its submit.
#define SETTLE_NEW_MS 1000 // The same of what was written after the submit; also between files.

struct written { // When a checkpoint's files were written, unix ns.
    int64_t first_ns;
    int64_t last_ns;
};

static bool written_find(int root_fd, const char *path, struct written *ret_written)
{
    static const struct evq_checkpoint_options options = {.files_only = true};
    struct evq_checkpoint *checkpoint = NULL;
    struct written written = {.first_ns = INT64_MAX};

    bool known = evq_checkpoint_open(root_fd, path, &options, &checkpoint, NULL) == EVQ_OK;
    for (size_t at = 0; known && at < checkpoint->file_count; at++) {
        struct stat info;
        known = fstat(checkpoint->files[at].fd, &info) == 0;
        const int64_t ns =
            known ? (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec : 0;
        written.first_ns = ns < written.first_ns ? ns : written.first_ns;
        written.last_ns = ns > written.last_ns ? ns : written.last_ns;
    }
    evq_checkpoint_close(checkpoint);
    *ret_written = written;
    return known;
}

/* What is remembered of the path; made when there is nothing. */
static struct evq_seen_path *seen_of(struct evq_sender *sender, const struct evq_item *item)
{
    const uint64_t hash = XXH3_64bits(item->request.path, strlen(item->request.path));
    const size_t kept =
        sender->path_count < EVQ_SENDER_PATHS_MAX ? sender->path_count : EVQ_SENDER_PATHS_MAX;

    for (size_t at = 0; at < kept; at++) {
        if (sender->paths[at].hash == hash) {
            return &sender->paths[at];
        }
    }
    struct evq_seen_path *seen = &sender->paths[sender->path_count++ % EVQ_SENDER_PATHS_MAX];
    *seen = (struct evq_seen_path){
        .hash = hash, .step = item->request.step, .came_late = item->came_late};
    return seen;
}

/*
 * Submits come when their save has ended, or, of saves that go on in the background, before it
 * begins. Where they come early, what was written between two submits is the first one's, and what
 * an earlier step was found to be is not this one's. Else what was written since the submit may be
 * the next step's, whose own submit follows soon.
 */
static enum evq_reuse whose(struct evq_item *item, const struct evq_seen_path *seen,
                            const struct written *written, int64_t later_ms)
{
    const int64_t written_ms = written->last_ns / 1000000;
    const int64_t created_ms = item->request.created_ms;
    const int64_t age_ms = evq_clock_unix_ms() - written_ms;
    const int64_t settle_ms = written_ms > created_ms ? SETTLE_NEW_MS : SETTLE_MS;
    const bool other = seen->step != item->request.step;

    if (other && seen->came_late && written->last_ns == seen->written_ns) {
        return EVQ_REUSE_EARLIER;
    }
    if (written_ms + TICK_MS < created_ms) {
        return EVQ_REUSE_OWN; // Also of the same files that are submitted for several steps.
    }
    if (later_ms != INT64_MAX) {
        return seen->came_late && written_ms + TICK_MS < later_ms ? EVQ_REUSE_OWN : EVQ_REUSE_LATER;
    }
    if (seen->came_late && !(other && written->first_ns <= seen->written_ns)) {
        return EVQ_REUSE_OWN; // No file is left of the step before: the save is through.
    }
    if (age_ms > -settle_ms && age_ms < settle_ms) { // Else the clocks disagree, or it is through.
        item->due_ms = evq_clock_mono_ms() + settle_ms - age_ms;
        return EVQ_REUSE_UNSETTLED;
    }
    return EVQ_REUSE_OWN;
}

/* Of a path whose steps came early, or did not so far. That this one's did is known only if it was
 * looked at right away: else what was written since may be the next step's. Where they did, a save
 * that seems to have ended at the submit tells nothing: the clock that stamps files is behind. */
static bool comes_late(const struct evq_item *item, const struct evq_seen_path *seen,
                       const struct written *written, enum evq_reuse found)
{
    const int64_t since_ms = written->last_ns / 1000000 - item->request.created_ms;

    return seen->came_late ? since_ms >= -TICK_MS || item->came_late || found == EVQ_REUSE_LATER
                           : since_ms > 0 && item->prompt;
}

/* What lies there was written soon after the submit before, and long before this one: as of saves
 * after their submits, over a file that was there at first. It cannot be known, so it is said. */
static void shift_warn(struct evq_sender *sender, const struct evq_item *item,
                       const struct evq_seen_path *seen, const struct written *written)
{
    const int64_t after_ms = written->last_ns / 1000000 - seen->created_ms;
    const int64_t before_ms = item->request.created_ms - written->last_ns / 1000000;

    if (seen->created_ms != 0 && seen->step != item->request.step && !seen->came_late &&
        after_ms > 0 && before_ms > SETTLE_NEW_MS && after_ms < before_ms) {
        evq_warn(&sender->warner, EVQ_WARN_SHIFTED,
                 "'%s' was written %lld ms after step %lld was submitted and %lld ms before step "
                 "%lld was: if steps are submitted before their saves, each gets the weights of "
                 "the one before; remove what lies there before the first, or put the step into "
                 "the name",
                 item->request.path, (long long)after_ms, (long long)seen->step,
                 (long long)before_ms, (long long)item->request.step);
    }
}

enum evq_reuse evq_reuse_look(struct evq_sender *sender, struct evq_item *item, int root_fd,
                              const char *path, bool held)
{
    const int64_t later_ms = held ? INT64_MAX : evq_source_later_ms(sender, item);
    const bool own_path = later_ms == INT64_MAX && evq_pin_hard_link_safe(path, item->request.step);
    const bool shared = !held && !own_path;
    const struct evq_item *before = shared ? evq_source_before(sender, item) : NULL;
    enum evq_reuse found = EVQ_REUSE_OWN;
    struct written written = {.first_ns = 0};

    if (before != NULL) { // One after the other: it may be that one's.
        item->due_ms = before->due_ms + 1;
        return EVQ_REUSE_UNSETTLED;
    }
    if (shared && !written_find(root_fd, path, &written)) {
        item->due_ms = evq_clock_mono_ms() + SETTLE_MS; // It was whole a moment ago: the next save
        return EVQ_REUSE_UNSETTLED;                     // has begun.
    }
    struct evq_seen_path *seen = seen_of(sender, item);
    if (shared) {
        found = whose(item, seen, &written, later_ms);
    }
    item->came_late = item->came_late || found == EVQ_REUSE_EARLIER;
    // What came before the later one was submitted is this step's, though it may be skipped.
    if (found == EVQ_REUSE_OWN ||
        (found == EVQ_REUSE_LATER && seen->came_late && written.last_ns / 1000000 <= later_ms)) {
        item->reused = item->reused || seen->step != item->request.step;
        shift_warn(sender, item, seen, &written);
        seen->step = item->request.step;
        seen->created_ms = item->request.created_ms;
        seen->written_ns = written.last_ns;
        seen->came_late = comes_late(item, seen, &written, found);
        item->prompt = false;
    }
    return found;
}
