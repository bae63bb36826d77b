/*
 * evalq: submit checkpoints for evaluation elsewhere, and read the metrics back.
 *
 * The library is a guest in a training process. Only functions with a timeout wait; close() waits
 * at most options.close_ms. No function exits, raises a signal or installs a signal handler. Any
 * thread may call any function, but close() must be the last call. After fork(), calls of the child
 * return EVALQ_FORKED; the child can open a client of its own.
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
    EVALQ_FULL = 2,        // The ring is full: the submit was dropped and counted. `evalq scan`
                           // finds the checkpoint.
    EVALQ_TIMEOUT = 3,     // The timeout passed. Submits are still sent in the background.
    EVALQ_UNAVAILABLE = 4, // Redis cannot be reached now, or refuses this user.
    EVALQ_NOT_FOUND = 5,
    EVALQ_NOMEM = 6,
    EVALQ_FORKED = 7, // The client was opened by the parent of this process.
    EVALQ_BUG = 8,    // A mistake of evalq's own; please report it.
    EVALQ_BUSY = 9    // A worker is already running the job.
};

struct evalq_client;

struct evalq_options { // Zero, NULL and "" mean the default.
    // The address. Default: as evalq's programs find it ($EVALQ_URL, ./.evalq/url, configuration).
    const char *url;
    // Configuration file. Default: $EVALQ_CONFIG, ./evalq.yaml, ./.evalq/evalq.yaml,
    // /etc/evalq/evalq.yaml.
    const char *config;
    const char *queue; // Default: $EVALQ_QUEUE, then the configuration's, then "main".
    // Default: $EVALQ_RUN, then the working directory's name and a hash of host and path.
    const char *run;
    int64_t session_ms; // When the training was started, unix ms. Default: this process's start.
    // A directory on a local disk or tmpfs. Default: $XDG_STATE_HOME/evalq, or ~/.local/state/evalq
    // if that is unset. If it is on a network file system, /var/tmp/evalq-UID or
    // /dev/shm/evalq-UID.
    const char *ring_directory;
    uint32_t ring_bytes;     // Default 1 MiB, about 3,000 submits not yet taken by Redis or spool.
    int64_t spool_bytes_max; // Most bytes that wait on disk while Redis is away. Default 64 MiB.
    int64_t pin_bytes_max;   // Budget of pins that had to be copied. Default 64 GiB; -1: no copies.
    int pin_disabled;        // 1: no pins; a checkpoint that was deleted is not evaluated.
    const char *log_path;    // Warnings are appended here. Default: standard error.
    int quiet;               // 1: no warnings at all.
    // A name or address of this machine by which workers on other hosts fetch checkpoints in its
    // memory (the root shm). Default: $EVALQ_SNAPSHOT_HOST; if it is unset, the address from which
    // this machine reaches Redis. "none": other hosts cannot fetch.
    const char *snapshot_host;
    // How long evalq_client_close() waits at most for sending. Default 10,000 ms.
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
    const char *suites;   // Names from the configuration, separated by commas; required.
    const char *variant;  // Which weights: default "regular"; "ema", or a name of your own.
    const char *policy;   // "all" (default), "latest" or "backfill".
    const char *format;   // Default: evalq detects it.
    const char *priority; // "urgent", "high", "normal" (default) or "backfill".
    int keep;             // 1: never superseded by a newer one (final, milestone).
    const struct evalq_pair *params; // Parameters that the evaluator gets.
    size_t param_count;
    const struct evalq_pair *trackers; // {"wandb_run_id", ...}: the tracker's run for the results.
    size_t tracker_count;
    // Replaces the suite's needs: any of "gpus=2,gpu_memory=40GiB,labels=a100+fast". "gpus=0": the
    // job needs only a slot. Default: the suite's needs.
    const char *needs;
    // A copy of path, for example of hard links, that stays when the training deletes path. evalq
    // pins the copy, so the pin is complete even if path is deleted at any moment. It must be
    // beneath the same root. Default: none.
    const char *held;
    uint64_t reserved[6]; // Zero.
};

struct evalq_metric_view { // Valid during the call only.
    const char *job;       // RUN/STEP/VARIANT/SUITE
    const char *task;      // "": this is the end of a job; see state and reason.
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
/* Called on the thread that polls or waits. It must not call poll, wait, best, withdraw or idle of
 * the same client (they return EVALQ_INVALID), and it must return: no C++ exception, no longjmp().
 */
typedef void (*evalq_metric_fn)(void *context, const struct evalq_metric_view *metric);

struct evalq_stats {         // Counts submits, or jobs if it says so. A submit has a job per suite.
    uint64_t submitted;      // Submits that the ring accepted.
    uint64_t dropped;        // Submits lost because ring or spool was full, or a limit exceeded.
    uint64_t sent;           // Jobs acknowledged by Redis.
    uint64_t refused;        // Jobs that the queue refused; they are not sent again.
    uint64_t pending;        // Submits in the ring, also those that no root contains, and jobs in
                             // the spool.
    uint64_t unpinned;       // Submits sent without a pin.
    int64_t submit_ns_total; // Time spent inside evalq_client_submit.
    int64_t submit_ns_max;
    int connected;
    uint64_t reserved[8];
};

/*
 * Reads the configuration, opens the run's ring and starts the background thread, which also sends
 * what an earlier process of the run left unsent. Does not connect to Redis. options may be NULL.
 * EVALQ_INVALID, EVALQ_NOMEM: evalq_client_error(NULL) says why. Training can continue without a
 * client: every function accepts NULL for it and returns EVALQ_INVALID.
 */
EVALQ_API int evalq_client_open(const struct evalq_options *options,
                                struct evalq_client **ret_client);
/*
 * Waits at most options.close_ms until every complete checkpoint was sent, then stops the
 * background thread. Waits at most 0.7 s for a checkpoint that is still being written, and not at
 * all during an outage of Redis. Unsent submits stay in the ring file; the next open of the run or
 * `evalq scan` sends them, and a warning says how many they are. Accepts NULL.
 */
EVALQ_API void evalq_client_close(struct evalq_client *client);
/* Copies the request into the ring. It takes microseconds, uses no lock and no system call that can
 * block, and keeps no pointer of the caller. The client's own thread takes the fingerprint, pins
 * and sends. The request survives the death of this process, also by SIGKILL. EVALQ_INVALID,
 * EVALQ_FULL, EVALQ_FORKED. */
EVALQ_API int evalq_client_submit(struct evalq_client *client,
                                  const struct evalq_checkpoint *checkpoint);
/* Waits until Redis has everything submitted so far, except checkpoints that no root contains.
 * timeout_ms -1: no limit. EVALQ_TIMEOUT; EVALQ_UNAVAILABLE: Redis was away when the time was up.
 */
EVALQ_API int evalq_client_flush(struct evalq_client *client, int timeout_ms);
/* Calls on_metric for each metric and each end of a job of the run that arrived since the last
 * poll. Connects if needed and takes at most timeout_ms. on_metric may be NULL. Results that you do
 * not poll use no memory here: Redis keeps them as long as the record of their job. */
EVALQ_API int evalq_client_poll(struct evalq_client *client, evalq_metric_fn on_metric,
                                void *context, int timeout_ms);
/* Waits until Redis has everything submitted and every job of the run has ended. timeout_ms -1: no
 * limit. Delivers metrics as poll does, and continues after an outage of Redis. EVALQ_NOT_FOUND:
 * all jobs ended, but the configuration, which was read again, has no root for some checkpoints.
 * They are submitted when it has one. EVALQ_TIMEOUT. */
EVALQ_API int evalq_client_wait(struct evalq_client *client, evalq_metric_fn on_metric,
                                void *context, int timeout_ms);
/* Returns the best checkpoint of the run so far. metric: "eval/<task>/<metric>"; NULL or "": the
 * first by name. path_out (may be NULL) gets its path on this machine, or "root:path" if this
 * machine's configuration lacks the root. Texts are never truncated: EVALQ_INVALID says how many
 * bytes are needed. EVALQ_NOT_FOUND: there is no result yet. */
EVALQ_API int evalq_client_best(struct evalq_client *client, const char *metric, double *ret_value,
                                int64_t *ret_step, char *path_out, size_t path_bytes,
                                int timeout_ms);
/* Like evalq_client_best(), and writes the name of the metric that was used to metric_out. */
EVALQ_API int evalq_client_best_metric(struct evalq_client *client, const char *metric,
                                       double *ret_value, int64_t *ret_step, char *path_out,
                                       size_t path_bytes, char *metric_out, size_t metric_bytes,
                                       int timeout_ms);
/* Ends a waiting job, whose id evalq_client_job() returned, as skipped with the reason. EVALQ_OK:
 * the job has ended, by this call or earlier. EVALQ_BUSY: a worker runs it, so it continues.
 * EVALQ_NOT_FOUND: Redis does not have it now. */
EVALQ_API int evalq_client_withdraw_job(struct evalq_client *client, const char *job,
                                        const char *reason, int timeout_ms);
/* Writes to job_out the id of the job that the suite got for this client's newest submit of the
 * path: RUN/STEP/VARIANT/SUITE, and ~2 or more if other weights of the step had a job before. "":
 * no job will end, because it was refused, is not due, or had already ended. 192 bytes are enough.
 * Does not ask Redis. EVALQ_NOT_FOUND: Redis does not have the job yet, or it is not one of the
 * newest 1,024 of this client. */
EVALQ_API int evalq_client_job(struct evalq_client *client, const char *path, const char *suite,
                               char *job_out, size_t job_bytes);
/*
 * Asks for which of the suites (names, separated by commas) a free worker found no job. Writes
 * their names, separated by commas, to suites_out. Only one of several callers learns of a free
 * worker; a worker that stays free is reported again. Use it to give spare workers the newest
 * weights: ask between steps, on another thread, and submit if the result is EVALQ_OK. needs: see
 * struct evalq_checkpoint. suites_bytes: strlen(suites) + 1 is enough. EVALQ_NOT_FOUND: no worker
 * is free.
 */
EVALQ_API int evalq_client_idle(struct evalq_client *client, const char *suites, const char *needs,
                                char *suites_out, size_t suites_bytes, int timeout_ms);
EVALQ_API void evalq_client_stats(struct evalq_client *client, struct evalq_stats *ret_stats);
/* The message of this thread's last failed call; client NULL: of evalq_client_open(). Never NULL;
 * valid until this thread's next call. */
EVALQ_API const char *evalq_client_error(const struct evalq_client *client);
EVALQ_API const char *evalq_client_run(const struct evalq_client *client); // Valid until close.
EVALQ_API const char *evalq_client_version(void);

#ifdef __cplusplus
}
#endif
#endif
