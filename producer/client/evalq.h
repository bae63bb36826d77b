/*
 * evalq: submit checkpoints for evaluation elsewhere, and read the metrics back.
 *
 * A guest in somebody's training process: no call but those with a timeout waits, none exits,
 * raises or installs a signal handler. Any thread may call any function; of close() it must be the
 * last call. After fork() the child gets EVALQ_FORKED and opens a client of its own.
 *
 *     struct evalq_client *client = NULL;
 *     struct evalq_options options = {.run = "digits"};
 *     if (evalq_client_open(&options, &client) != EVALQ_OK) {
 *         fprintf(stderr, "%s\n", evalq_client_error(NULL));
 *     }
 *     struct evalq_checkpoint saved = {
 *         .path = "out/step-100.safetensors", .step = 100, .suites = "quick"};
 *     (void)evalq_client_submit(client, &saved); // Microseconds; training goes on.
 *     ...
 *     evalq_client_close(client);
 *
 * Submit a checkpoint after it was written, and put the step into its name. Then the client also
 * waits for a save that is still going on. If several steps are saved to one path, a step that is
 * overwritten before the client has pinned it is skipped (docs/client.md).
 */
#ifndef EVALQ_H
#define EVALQ_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EVALQ_API __attribute__((visibility("default")))

enum evalq_result_code {
    EVALQ_OK = 0,
    EVALQ_INVALID = 1,     // Wrong arguments or configuration; evalq_client_error() says which.
    EVALQ_FULL = 2,        // No room: this submit was dropped and counted; `evalq scan` finds it.
    EVALQ_TIMEOUT = 3,     // The timeout passed; what was asked for goes on in the background.
    EVALQ_UNAVAILABLE = 4, // Redis cannot be reached now, or refuses this user.
    EVALQ_NOT_FOUND = 5,
    EVALQ_NOMEM = 6,
    EVALQ_FORKED = 7, // The client was opened by the parent of this process.
    EVALQ_BUG = 8,    // A mistake of evalq's own; please report it.
    EVALQ_BUSY = 9    // A worker is at it.
};

struct evalq_client;

struct evalq_options { // Zero, NULL and "" mean the default.
    // The address. Default: as evalq's programs find it ($EVALQ_URL, ./.evalq/url, configuration).
    const char *url;
    // Configuration file. Default: $EVALQ_CONFIG, ./evalq.yaml, ./.evalq/evalq.yaml,
    // /etc/evalq/evalq.yaml.
    const char *config;
    const char *queue; // Default: $EVALQ_QUEUE, else the configuration's, else "main".
    // Default: $EVALQ_RUN, else the working directory's name and a hash of host and path.
    const char *run;
    int64_t session_ms; // When this life of the run began, unix ms. Default: this process's start.
    // A directory on a local disk or tmpfs. Default: $XDG_STATE_HOME/evalq, else
    // ~/.local/state/evalq; where that is on a network, /var/tmp/evalq-UID, or else
    // /dev/shm/evalq-UID.
    const char *ring_directory;
    uint32_t ring_bytes;     // Default 1 MiB, about 3,000 submits not yet taken by Redis or spool.
    int64_t spool_bytes_max; // What may wait on disk while Redis is away. Default 64 MiB.
    int64_t pin_bytes_max;   // Budget of pins that had to be copied. Default 64 GiB; -1: no copies.
    int pin_disabled;        // 1: checkpoints are evaluated where they lie, if they still do.
    const char *log_path;    // Warnings are appended here. Default: standard error.
    int quiet;               // 1: no warnings at all.
    // A name or address of this machine by which workers on other hosts fetch checkpoints in its
    // memory (the root shm). Default: $EVALQ_SNAPSHOT_HOST, else the address by which it reaches
    // Redis. "none": nobody fetches.
    const char *snapshot_host;
    // How long evalq_client_close() waits at most until what is ready was sent. Default 10,000 ms.
    int64_t close_ms;
    uint64_t reserved[6]; // Zero.
};

struct evalq_pair {
    const char *key;
    const char *value;
};

struct evalq_checkpoint {
    const char *path;     // File or directory; absolute or relative to the working directory.
    int64_t step;         // >= 0.
    double epoch;         // 0 or NaN: unknown.
    const char *suites;   // Names from the configuration, separated by commas; needed.
    const char *variant;  // Which weights: default "regular"; "ema", or a name of your own.
    const char *policy;   // "all" (default), "latest" or "backfill".
    const char *format;   // Default: found out.
    const char *priority; // "urgent", "high", "normal" (default) or "backfill".
    int keep;             // 1: never superseded by a newer one (final, milestone).
    const struct evalq_pair *params; // For the evaluator.
    size_t param_count;
    const struct evalq_pair *trackers; // {"wandb_run_id", ...}: where results belong.
    size_t tracker_count;
    // In the place of the suite's needs: "gpus=2,gpu_memory=40GiB,labels=a100+fast", any of them;
    // "gpus=0": nothing but a slot. Default: as the suite says.
    const char *needs;
    // A copy of path, as of hard links, that stays when path is deleted: it is pinned in its place,
    // so that a checkpoint that goes at any moment is pinned as a whole. Beneath the same root.
    // Default: none.
    const char *held;
    uint64_t reserved[6]; // Zero.
};

struct evalq_metric_view { // Valid during the call only.
    const char *job;       // RUN/STEP/VARIANT/SUITE
    const char *task;      // "" : the end of a job, see state and reason.
    const char *state;     // "done", "dead", "skipped" or "cancelled".
    const char *reason;
    const char *variant;
    const char *suite;
    int64_t step;
    const char *key;    // "eval/<task>/<metric>"; "" for an end.
    const char *metric; // "<metric>"; "" for an end.
    double value;
    int64_t n;           // Samples behind it; -1 unknown.
    int64_t finished_ms; // Unix ms.
};
/* Called on the thread that polls or waits; must not call poll, wait, best, withdraw or idle of the
 * same client (EVALQ_INVALID), and must return: no exception of C++, no longjmp(). */
typedef void (*evalq_metric_fn)(void *context, const struct evalq_metric_view *metric);

struct evalq_stats {         // Submits, except where it says jobs (a submit has one job a suite).
    uint64_t submitted;      // Accepted into the ring.
    uint64_t dropped;        // Ring or spool full, or past a limit.
    uint64_t sent;           // Jobs acknowledged by Redis.
    uint64_t refused;        // Jobs refused for good by the queue.
    uint64_t pending;        // In the ring, and jobs in the spool, now; also for want of a root.
    uint64_t unpinned;       // Sent without a pin.
    int64_t submit_ns_total; // Time spent inside evalq_client_submit.
    int64_t submit_ns_max;
    int connected;
    uint64_t reserved[8];
};

/*
 * Reads the configuration, opens the run's ring and starts the background thread; does not connect
 * and does not need Redis. options may be NULL. What an earlier process of the same run left unsent
 * is sent. EVALQ_INVALID, EVALQ_NOMEM: evalq_client_error(NULL) says why; training can go on
 * without a client, since every function accepts NULL for it (EVALQ_INVALID).
 */
EVALQ_API int evalq_client_open(const struct evalq_options *options,
                                struct evalq_client **ret_client);
/*
 * Waits until everything that is ready was sent, at most options.close_ms, then stops the
 * background thread. An outage of Redis ends the wait early, and a checkpoint that is still being
 * written is waited for at most 0.7 s. What is not sent stays in the ring file for the next open of
 * the run, or for `evalq scan`; a warning says how much it is. Accepts NULL.
 */
EVALQ_API void evalq_client_close(struct evalq_client *client);
/* Copies the request into the ring and returns: microseconds, no lock, no system call that can
 * block, nothing kept of the caller's. Pinning, fingerprint and sending happen on the client's own
 * thread. Survives the death of this process, by any signal. EVALQ_INVALID, EVALQ_FULL,
 * EVALQ_FORKED. */
EVALQ_API int evalq_client_submit(struct evalq_client *client,
                                  const struct evalq_checkpoint *checkpoint);
/* Until everything submitted so far is in Redis, but for what no root holds: EVALQ_OK.
 * EVALQ_TIMEOUT, or EVALQ_UNAVAILABLE when Redis was away at the end. timeout_ms -1: for ever. */
EVALQ_API int evalq_client_flush(struct evalq_client *client, int timeout_ms);
/* Calls on_metric for each metric and end of the run that arrived since the last poll. Connects
 * when needed; never takes longer than timeout_ms. on_metric may be NULL. What nobody polls takes
 * no memory here: it waits in Redis, as long as its job's record does. */
EVALQ_API int evalq_client_poll(struct evalq_client *client, evalq_metric_fn on_metric,
                                void *context, int timeout_ms);
/* Until everything submitted is in Redis and no job of the run is open, or timeout_ms (-1: for
 * ever). Metrics are delivered as by poll. An outage is waited out. EVALQ_NOT_FOUND: all ended but
 * what no root holds, also after another look at the configuration (within 2 s): it is submitted
 * when its root is there. */
EVALQ_API int evalq_client_wait(struct evalq_client *client, evalq_metric_fn on_metric,
                                void *context, int timeout_ms);
/* Best so far. metric: "eval/<task>/<metric>", NULL or "" for the first. path_out (may be NULL)
 * gets the checkpoint's path on this machine, "root:path" when the root is not configured here; no
 * text is ever cut: EVALQ_INVALID says how much room it needs. EVALQ_NOT_FOUND: no result yet. */
EVALQ_API int evalq_client_best(struct evalq_client *client, const char *metric, double *ret_value,
                                int64_t *ret_step, char *path_out, size_t path_bytes,
                                int timeout_ms);
/* The same, and which metric it is the best by, in metric_out: of NULL or "" the first's name. */
EVALQ_API int evalq_client_best_metric(struct evalq_client *client, const char *metric,
                                       double *ret_value, int64_t *ret_step, char *path_out,
                                       size_t path_bytes, char *metric_out, size_t metric_bytes,
                                       int timeout_ms);
/* The job of this step, variant ("" or NULL: "regular") and suite is wanted no more: it ends as
 * skipped with the reason, unless a worker has begun with it: EVALQ_BUSY, and it goes on.
 * EVALQ_OK: it is at an end, by this call or before. EVALQ_NOT_FOUND: it is not in Redis, now. */
EVALQ_API int evalq_client_withdraw(struct evalq_client *client, int64_t step, const char *variant,
                                    const char *suite, const char *reason, int timeout_ms);
/* The same for a job by its id, as evalq_client_job() tells it. */
EVALQ_API int evalq_client_withdraw_job(struct evalq_client *client, const char *job,
                                        const char *reason, int timeout_ms);
/* The job that this client's newest submit of the path became for the suite:
 * RUN/STEP/VARIANT/SUITE, with ~2 and so on where other weights of the step had a job before. "":
 * none that will end, as it was refused, is not due, or had ended before. 192 bytes hold any. Asks
 * nobody. EVALQ_NOT_FOUND: it is not in Redis yet, or is not among the newest 1,024. */
EVALQ_API int evalq_client_job(struct evalq_client *client, const char *path, const char *suite,
                               char *job_out, size_t job_bytes);
/*
 * For which of the suites (names, separated by commas) a worker is free that found nothing to do:
 * their names, so separated, in suites_out. Each yes is taken: of several askers one gets it, and
 * the worker says it again while it stays free. So a spare worker evaluates the newest weights: ask
 * between steps, on another thread, and submit when the answer is EVALQ_OK. needs as in struct
 * evalq_checkpoint. EVALQ_NOT_FOUND: none is free. suites_bytes: strlen(suites) + 1 is enough.
 */
EVALQ_API int evalq_client_idle(struct evalq_client *client, const char *suites, const char *needs,
                                char *suites_out, size_t suites_bytes, int timeout_ms);
EVALQ_API void evalq_client_stats(struct evalq_client *client, struct evalq_stats *ret_stats);
/* The sentence of this thread's last call that failed, on client or (NULL) open. Never NULL; valid
 * until this thread's next call. */
EVALQ_API const char *evalq_client_error(const struct evalq_client *client);
EVALQ_API const char *evalq_client_run(const struct evalq_client *client); // Lives with the client.
EVALQ_API const char *evalq_client_version(void);

#ifdef __cplusplus
}
#endif
#endif
