/*
 * evalq: submit checkpoints for evaluation elsewhere, and read the metrics back.
 *
 * A guest in somebody's training process: no call but those with a timeout waits, none exits, raises or installs a signal
 * handler. All functions may be called from any thread; a client survives fork() (the child must open its own).
 * Returned strings belong to the client and live until its next call on that thread unless said otherwise.
 *
 *     struct evalq_client *client = NULL;
 *     evalq_client_open(&(struct evalq_options){.run = "digits"}, &client);
 *     evalq_client_submit(client, &(struct evalq_checkpoint){.path = "ckpt/step-100.safetensors", .step = 100, .suites = "quick"});
 *     ...
 *     evalq_client_close(client);
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
    EVALQ_FULL = 2,        // The ring has no room: this submit was dropped (counted; `evalq scan` finds it later).
    EVALQ_TIMEOUT = 3,     // The timeout passed; what was asked for goes on in the background.
    EVALQ_UNAVAILABLE = 4, // Redis cannot be reached now.
    EVALQ_NOT_FOUND = 5,
    EVALQ_NOMEM = 6,
    EVALQ_FORKED = 7,      // The client was opened by the parent of this process.
    EVALQ_BUG = 8
};

struct evalq_client;

struct evalq_options { // Zero: the default.
    const char *url;      // "" : as evalq's programs find it ($EVALQ_URL, ./.evalq/url, evalq.yaml).
    const char *config;   // "" : $EVALQ_CONFIG, ./evalq.yaml, /etc/evalq/evalq.yaml.
    const char *queue;    // "" : "main".
    const char *run;      // "" : $EVALQ_RUN, else the name of the working directory and a hash of host and path.
    int64_t session_ms;   // When training began, unix ms; 0: when this process started.
    const char *ring_directory; // "" : $XDG_STATE_HOME/evalq, else ~/.local/state/evalq.
    uint32_t ring_bytes;  // 0: 1 MiB.
    int64_t pin_bytes_max; // Budget of copied pins; 0: 64 GiB; -1: never copy.
    int pin_disabled;
    const char *log_path; // "" : warnings to standard error; else appended to this file.
    int quiet;            // 1: no warnings at all.
};

struct evalq_pair {
    const char *key;
    const char *value;
};

struct evalq_checkpoint {
    const char *path;   // File or directory; relative to the working directory or absolute.
    int64_t step;       // >= 0.
    double epoch;       // NaN or 0: unknown.
    const char *suites; // Comma-separated names; "" : every suite that workers offer is not assumed: EVALQ_INVALID.
    const char *variant; // "" : "regular".
    const char *policy; // "", "all", "latest", "backfill"; "" : "all".
    const char *format; // "" : found out.
    const char *priority; // "", "urgent", "high", "normal", "backfill"; "" : "normal".
    int keep;           // 1: never superseded (final, milestone).
    const struct evalq_pair *params;
    size_t param_count;
    const struct evalq_pair *trackers; // {"wandb_run_id", ...}
    size_t tracker_count;
};

struct evalq_metric_view {
    const char *job;
    const char *task;    // "" : the end of a job, see state and reason.
    const char *state;   // "done", "dead", "skipped", "cancelled".
    const char *reason;
    const char *variant;
    const char *suite;
    int64_t step;
    const char *key;     // "eval/<task>/<metric>"; "" for an end.
    const char *metric;
    double value;
    int64_t n;
    int64_t finished_ms;
};
typedef void (*evalq_metric_fn)(void *context, const struct evalq_metric_view *metric);

struct evalq_stats {
    uint64_t submitted;  // Accepted into the ring.
    uint64_t dropped;    // Ring full or past a limit.
    uint64_t sent;       // Acknowledged by Redis.
    uint64_t refused;    // Refused by the queue for good.
    uint64_t pending;    // In ring and spool now.
    uint64_t unpinned;   // Sent without a pin.
    int64_t submit_ns_total; // Time spent inside evalq_client_submit.
    int64_t submit_ns_max;
    int connected;
};

EVALQ_API int evalq_client_open(const struct evalq_options *options, struct evalq_client **ret_client);
/* Sends nothing more; what is not sent stays in the ring file for the next open. Waits at most 1 s for its thread. */
EVALQ_API void evalq_client_close(struct evalq_client *client);
/* Copies the request into the ring and returns: microseconds, no lock a thread can hold for long, no system call that
 * can block. Pinning, fingerprint and sending happen on the client's own thread. */
EVALQ_API int evalq_client_submit(struct evalq_client *client, const struct evalq_checkpoint *checkpoint);
/* Until everything submitted so far is in Redis, or timeout_ms. */
EVALQ_API int evalq_client_flush(struct evalq_client *client, int timeout_ms);
/* Calls on_metric for each metric and end of the run that arrived since the last poll; connects if needed. */
EVALQ_API int evalq_client_poll(struct evalq_client *client, evalq_metric_fn on_metric, void *context, int timeout_ms);
/* Until no job of the run is open, or timeout_ms (-1: for ever). Metrics are delivered as by poll. */
EVALQ_API int evalq_client_wait(struct evalq_client *client, evalq_metric_fn on_metric, void *context, int timeout_ms);
/* Best so far. metric: "eval/<task>/<metric>" or "" for the first. path_out may be NULL. */
EVALQ_API int evalq_client_best(struct evalq_client *client, const char *metric, double *ret_value, int64_t *ret_step,
                                char *path_out, size_t path_bytes, int timeout_ms);
EVALQ_API void evalq_client_stats(struct evalq_client *client, struct evalq_stats *ret_stats);
/* The last error of this thread's calls on client, or of open (client NULL). Never NULL. */
EVALQ_API const char *evalq_client_error(const struct evalq_client *client);
EVALQ_API const char *evalq_client_run(const struct evalq_client *client);
EVALQ_API const char *evalq_client_version(void);

#ifdef __cplusplus
}
#endif
#endif
