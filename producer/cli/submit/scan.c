/*
 * evalq scan: submits the checkpoints of a directory that the queue does not have yet.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/json.h"
#include "producer/cli/submit/checkpoint_listing.h"
#include "producer/cli/submit/remote_checkpoint.h"
#include "producer/cli/submit/submission.h"
#include "producer/cli/verbs.h"
#include "producer/client/dead_clients.h"
#include "shared/remote/address.h"

#define WATCH_PAUSE_US  1000000
#define WATCH_REMOTE_US 10000000 // The pause between passes over a remote store.
#define WATCH_READY_US  2050000  // The same while a checkpoint there must stay unchanged.
#define LEFTOVERS_MS    10000    // Time to send what dead processes left, for all runs.
#define CLOCK_MS        50       // usleep() and the monotonic clock may differ by this.
#define INSIDE_LOOKS    64       // Directories that a pass looks into though they are settled.

struct settled { // A checkpoint that is finished unless it changes.
    char *name;
    int64_t changed_ns;
    int64_t inside_ns; // For a directory: evq_checkpoint_listing_inside_ns().
    int64_t bytes;
};

enum pass {
    PASS_FIRST, // Prints what was done with each checkpoint.
    PASS_AGAIN, // Without --watch: the checkpoints that had to stay unchanged for a while.
    PASS_LATER, // With --watch: prints what is new.
};

struct scan {
    struct evq_cli *cli;
    struct evq_submission submission;
    const char *directory; // A directory or an address.
    bool is_remote;        // directory is an address.
    struct evq_ready ready;
    struct settled *settled;
    size_t settled_count;
    size_t settled_capacity;
    size_t turn;  // Place in the list where the next pass begins to look into directories.
    json_t *jobs; // With --json.
    size_t submitted;
    size_t duplicates;
    size_t incomplete;
    size_t bad;
    struct evq_error unread; // Why a checkpoint could not be read in this pass.
    bool unread_told;        // That was printed. It is printed once while it lasts.
    uint32_t told;           // A bit for each status that was printed in this outage.
};

static struct settled *find_settled(const struct scan *scan, const char *name)
{
    for (size_t i = scan->settled_count; i > 0; i--) {
        if (strcmp(scan->settled[i - 1].name, name) == 0) {
            return &scan->settled[i - 1];
        }
    }
    return NULL;
}

/* Whether the checkpoint has not changed since it was settled. look_inside: also checks the files
 * of a directory, because a resumed training may save a step again, file by file, into the same
 * directory. */
static bool is_settled(const struct scan *scan, const struct evq_checkpoint_listing *found,
                       bool look_inside)
{
    const struct settled *one = find_settled(scan, found->name);

    return one != NULL && one->changed_ns == found->changed_ns && one->bytes == found->bytes &&
           (!look_inside || !found->is_directory ||
            one->inside_ns == evq_checkpoint_listing_inside_ns(scan->directory, found->name));
}

/* Remembers a checkpoint that is finished. If memory runs out, it is only examined again. */
static void settle(struct scan *scan, const struct evq_checkpoint_listing *found, int64_t inside_ns)
{
    struct settled *one = find_settled(scan, found->name);

    if (one != NULL) {
        one->changed_ns = found->changed_ns;
        one->inside_ns = inside_ns;
        one->bytes = found->bytes;
        return;
    }
    if (scan->settled_count == scan->settled_capacity) {
        size_t capacity = scan->settled_capacity == 0 ? 64 : 2 * scan->settled_capacity;
        struct settled *items = realloc(scan->settled, capacity * sizeof *items);
        if (items == NULL) {
            return;
        }
        scan->settled = items;
        scan->settled_capacity = capacity;
    }
    char *name = strdup(found->name);
    if (name != NULL) {
        scan->settled[scan->settled_count++] =
            (struct settled){name, found->changed_ns, inside_ns, found->bytes};
    }
}

static void report(struct scan *scan, const struct evq_checkpoint_listing *found, const char *job,
                   const char *answer)
{
    const struct evq_terminal *terminal = &scan->cli->terminal;
    char name[1100];
    evq_error_escape(found->name, strlen(found->name), name, sizeof name);
    if (terminal->json) {
        (void)json_array_append_new(scan->jobs, json_pack("{s:s, s:I, s:s, s:s}", "name", name,
                                                          "step", (json_int_t)found->step, "job",
                                                          job, "answer", answer));
        return;
    }
    if (terminal->plain) {
        (void)printf("%" PRId64 "\t%s\t%s\t%s\n", found->step, name, answer, job);
    } else {
        (void)printf("%8" PRId64 "  %-32s  %-10s  %s\n", found->step, name, answer, job);
    }
    (void)fflush(stdout);
}

static void refuse(struct scan *scan, const struct evq_checkpoint_listing *found,
                   const struct evq_error *why)
{
    char shown[1100];

    scan->bad++;
    report(scan, found, "", "refused");
    evq_cli_say(scan->cli, "evalq: %s",
                evq_error_escape(why->message, strlen(why->message), shown, sizeof shown));
}

/* Submits one checkpoint. Returns only faults that concern every checkpoint. */
static enum evq_status scan_one(struct scan *scan, const struct evq_checkpoint_listing *found,
                                enum pass pass, struct evq_error *err)
{
    char path[PATH_MAX];
    struct evq_submission_sent sent;
    const size_t waiting = scan->ready.waiting;
    const int64_t inside_ns =
        found->is_directory ? evq_checkpoint_listing_inside_ns(scan->directory, found->name) : 0;
    int bytes = snprintf(path, sizeof path, "%s/%s", scan->directory, found->name);
    if (bytes < 0 || bytes >= (int)sizeof path) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%.200s/...' is too long",
                             scan->directory);
    }
    enum evq_status status =
        evq_submission_send(scan->cli, &scan->submission, path, found->step, &sent, err);
    const bool own =
        sent.fingerprint[0] == '\0'; // Nothing was sent, so the checkpoint is at fault.
    switch (status) {
    case EVQ_OK:
        settle(scan, found, inside_ns);
        for (size_t i = 0; i < scan->submission.suite_count; i++) {
            const struct evq_submitted *one = &sent.submitted[i];
            bool duplicate = one->answer == EVQ_SUBMIT_DUPLICATE;
            scan->duplicates += duplicate;
            scan->submitted += !duplicate;
            if (pass != PASS_LATER || !duplicate) {
                report(scan, found, one->id, evq_submission_answer(one->answer));
            }
        }
        scan->told = 0;
        return EVQ_OK;
    case EVQ_E_INCOMPLETE:
    case EVQ_E_GONE:
    case EVQ_E_CHANGED:
        scan->incomplete++;
        if (pass != PASS_LATER && (pass == PASS_AGAIN || scan->ready.waiting == waiting)) {
            report(scan, found, "",
                   status == EVQ_E_INCOMPLETE ? "incomplete" : evq_status_name(status));
        }
        return EVQ_OK;
    case EVQ_E_CORRUPT:
    case EVQ_E_UNSUPPORTED:
    case EVQ_E_LIMIT:
        settle(scan, found, inside_ns);
        refuse(scan, found, err);
        return EVQ_OK;
    case EVQ_E_INVALID: // For example a link that leads out of its root.
        if (own) {
            settle(scan, found, inside_ns);
            refuse(scan, found, err);
        }
        return own ? EVQ_OK : status;
    case EVQ_E_IO:
    case EVQ_E_NOT_FOUND: // This may concern only this checkpoint, so the others are tried.
        if (own && scan->unread.status == EVQ_OK) {
            scan->unread = *err;
        }
        return own ? EVQ_OK : status;
    default:
        return status;
    }
}

static enum evq_status scan_pass(struct scan *scan, enum pass pass, struct evq_error *err)
{
    const bool first_look = pass == PASS_FIRST;
    struct evq_checkpoint_listing_list list = {0};
    const char *pattern = evq_option_text(&scan->cli->options, "pattern", NULL);
    enum evq_status status =
        scan->is_remote
            ? evq_remote_checkpoint_scan(scan->cli, scan->directory, pattern, &list, err)
            : evq_checkpoint_listing_read(scan->directory, pattern, &list, err);
    scan->incomplete = pass == PASS_AGAIN ? scan->incomplete - scan->ready.waiting : 0;
    scan->ready.waiting = 0;
    scan->unread.status = EVQ_OK;
    for (size_t i = 0; status == EVQ_OK && i < list.count; i++) {
        if (i > 0 && list.items[i].step == list.items[i - 1].step) {
            if (first_look) {
                evq_cli_say(
                    scan->cli,
                    "evalq: '%s' has the step of '%s' and is left out; choose with --pattern",
                    list.items[i].name, list.items[i - 1].name);
            }
            continue;
        }
        if (pass == PASS_AGAIN && !evq_ready_waits(&scan->ready, list.items[i].name)) {
            continue;
        }
        const bool look_inside =
            (i + list.count - scan->turn % list.count) % list.count < INSIDE_LOOKS;
        if (!is_settled(scan, &list.items[i], look_inside)) {
            status = scan_one(scan, &list.items[i], pass, err);
        }
    }
    if (status == EVQ_OK && first_look && list.count == 0) {
        evq_cli_say(scan->cli, "evalq: no checkpoint in '%s'%s", scan->directory,
                    pattern != NULL ? " matches the pattern" : "; name them with --pattern");
    }
    scan->turn += INSIDE_LOOKS;
    evq_checkpoint_listing_free(&list);
    return status;
}

/* Reports once that a checkpoint could not be read. It may be repaired while we watch. */
static void unread_tell(struct scan *scan)
{
    const bool unread = scan->unread.status != EVQ_OK;
    char shown[1100];

    if (unread && !scan->unread_told) {
        const char *why = scan->unread.message;
        evq_cli_say(scan->cli, "evalq: %s; trying on",
                    evq_error_escape(why, strlen(why), shown, sizeof shown));
    }
    scan->unread_told = unread;
}

static enum evq_status scan_watch(struct scan *scan, struct evq_error *err)
{
    for (;;) {
        unread_tell(scan);
        // Listing a store costs more than listing a directory.
        const bool is_slow = scan->is_remote && scan->ready.waiting == 0;
        (void)usleep(is_slow ? WATCH_REMOTE_US : scan->is_remote ? WATCH_READY_US : WATCH_PAUSE_US);
        enum evq_status status = scan_pass(scan, PASS_LATER, err);
        bool passing = evq_conn_is_outage(status);
        if (status != EVQ_OK && !passing) {
            return status;
        }
        const uint32_t kind = UINT32_C(1) << status;
        if (passing && (scan->told & kind) == 0) { // Each reason is printed once.
            evq_cli_say(scan->cli, "evalq: %s; trying on", err->message);
            scan->told |= kind;
        }
    }
}

static enum evq_status finish(struct scan *scan, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    if (scan->cli->terminal.json) {
        status = evq_json_print(json_pack("{s:I, s:I, s:I, s:I, s:O}", "submitted",
                                          (json_int_t)scan->submitted, "duplicates",
                                          (json_int_t)scan->duplicates, "incomplete",
                                          (json_int_t)scan->incomplete, "refused",
                                          (json_int_t)scan->bad, "checkpoints", scan->jobs),
                                err);
    } else {
        evq_cli_say(scan->cli,
                    "evalq: %zu submitted, %zu were there already, %zu incomplete, %zu refused",
                    scan->submitted, scan->duplicates, scan->incomplete, scan->bad);
    }
    if (status == EVQ_OK && scan->bad > 0) {
        scan->cli->exit_code = EVQ_EXIT_BAD_INPUT;
    }
    return status;
}

/* First sends what dead training processes of this machine left unsent. Their submits know more
 * than a scan of the directories finds. */
static enum evq_status send_leftovers(struct evq_cli *cli, struct evq_error *err)
{
    // Passes on the options as they were given, because they decide where a password is searched.
    const struct evalq_options options = {.url = evq_option_text(&cli->options, "url", NULL),
                                          .config = evq_option_text(&cli->options, "config", NULL),
                                          .queue = evq_option_text(&cli->options, "queue", NULL),
                                          .quiet = 1};
    struct evq_dead_clients left = {.runs = 0};
    enum evq_status status =
        evq_dead_clients_send(&options, cli->config->redis.queue, LEFTOVERS_MS, &left, err);

    if (status == EVQ_E_INVALID) {
        return EVQ_OK; // There is no ring directory, so there are no rings.
    }
    if (status == EVQ_OK && left.sent + left.refused > 0) {
        evq_cli_say(cli, "evalq: %" PRIu64 " sent that dead training processes had left",
                    left.sent);
    }
    if (status == EVQ_OK && left.unseen > 0) {
        evq_cli_say(cli,
                    "evalq: what %" PRIu64
                    " more runs of dead processes may have left waits for the next scan",
                    left.unseen);
    }
    return status;
}

static void suites_find(struct scan *scan)
{
    for (size_t i = 0; i < scan->submission.suite_count; i++) {
        const struct evq_suite *suite =
            evq_config_suite(scan->cli->config, scan->submission.suites[i]);
        if (suite != NULL) {
            scan->ready.suites[scan->ready.suite_count++] = suite;
        }
    }
    scan->submission.ready = &scan->ready;
}

static enum evq_status scan_run(struct evq_cli *cli, struct evq_error *err)
{
    struct scan scan = {.cli = cli, .directory = evq_cli_arg(cli, 0), .jobs = json_array()};
    scan.is_remote = evq_address_is(scan.directory);
    bool watch = evq_option_flag(&cli->options, "watch");
    if (watch && cli->terminal.json) {
        json_decref(scan.jobs);
        return evq_cli_usage(cli, err, "scan: --json is one document, --watch never ends");
    }
    enum evq_status status = evq_submission_read(cli, &scan.submission, err);
    if (status == EVQ_OK) {
        status = evq_cli_open(cli, err);
    }
    if (status == EVQ_OK) {
        suites_find(&scan);
        status = send_leftovers(cli, err);
    }
    if (status == EVQ_OK) {
        status = scan_pass(&scan, PASS_FIRST, err);
    }
    if (status == EVQ_OK && !watch && scan.ready.waiting > 0) {
        (void)usleep((EVQ_READY_MS + CLOCK_MS) *
                     1000); // The files must stay unchanged for this time.
        status = scan_pass(&scan, PASS_AGAIN, err);
    }
    if (status == EVQ_OK && watch) {
        status = scan_watch(&scan, err);
    } else if (status == EVQ_OK && scan.unread.status != EVQ_OK) {
        *err = scan.unread;
        status = err->status;
    } else if (status == EVQ_OK) {
        status = finish(&scan, err);
    }
    for (size_t i = 0; i < scan.settled_count; i++) {
        free(scan.settled[i].name);
    }
    free(scan.settled);
    evq_ready_free(&scan.ready);
    json_decref(scan.jobs);
    evq_submission_free(&scan.submission);
    return status;
}

static const struct evq_option options[] = {
    {"run", 'r', EVQ_OPTION_TEXT, "RUN", "training run; default $EVALQ_RUN", 0, 0},
    {"suite", 'S', EVQ_OPTION_LIST, "SUITE[,SUITE...]", "what to evaluate; may be repeated", 0, 0},
    {"pattern", 0, EVQ_OPTION_TEXT, "GLOB", "only names that match; they also need a number", 0, 0},
    {"watch", 'w', EVQ_OPTION_FLAG, NULL, "do not end, and scan again every second", 0, 0},
    {"variant", 0, EVQ_OPTION_TEXT, "NAME", "regular (default), ema, or a name", 0, 0},
    {"policy", 0, EVQ_OPTION_CHOICE, "all|latest|backfill", "as for submit", 0, 0},
    {"priority", 0, EVQ_OPTION_CHOICE, "urgent|high|normal|backfill", "default normal", 0, 0},
    {"keep", 0, EVQ_OPTION_FLAG, NULL, "never skip these checkpoints for newer ones", 0, 0},
    {"pin", 0, EVQ_OPTION_FLAG, NULL, "keep the files of each until its jobs end", 0, 0},
    {"param", 'p', EVQ_OPTION_LIST, "NAME=VALUE", "parameter for the evaluator; may be repeated", 0,
     0},
    {"needs", 0, EVQ_OPTION_TEXT, "NEEDS",
     "what the jobs need, instead of the suite's needs; such as gpus=2,gpu_memory=40GiB,labels=a+b",
     0, 0},
    {"format", 0, EVQ_OPTION_TEXT, "NAME", "format of the checkpoints, if it cannot be detected", 0,
     0},
    {"session", 0, EVQ_OPTION_INTEGER, "MS",
     "start time of the training process in unix milliseconds; default 0", 0, INT64_MAX / 2},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_scan = {
    .name = "scan",
    .arguments = "DIR --run RUN --suite SUITE [--watch] [OPTION...]",
    .summary = "Submit the checkpoints of a directory that are missing in the queue",
    .description =
        "Finds checkpoints in DIR by their names: directories such as checkpoint-500 or 500, "
        "files such as step-100.safetensors, model_step_100.pt or epoch=1-step=100.ckpt. The "
        "step is the number after \"step\", or else the last number in the name. --pattern "
        "chooses other names.\n\nScan submits the complete checkpoints. The queue answers "
        "`duplicate` for a checkpoint that it has already; this is no error. A checkpoint "
        "that is still being written is left for the next scan, or with --watch for the next "
        "second. A checkpoint that was written again is submitted again.\n\nA checkpoint is "
        "complete when it holds the file that the suite's key `ready` names. Without that "
        "key, the content decides if evalq reads the format. Any other file or directory "
        "must stay the same for 2 seconds. Scan waits once for these 2 seconds.\n\nExit code "
        "9: a checkpoint was refused because it is damaged or has an unknown format. The "
        "others were submitted.\n\nExample: `evalq scan out --run my-run --suite heldout "
        "--watch`",
    .options = options,
    .arg_min = 1,
    .arg_max = 1,
    .role = "producer",
    .run = scan_run,
};
