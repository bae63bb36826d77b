/*
 * Submits one checkpoint on disk as jobs. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SUBMIT_SUBMISSION_H
#define EVQ_PRODUCER_CLI_SUBMIT_SUBMISSION_H

#include "producer/cli/cli.h"
#include "producer/cli/submit/ready.h"

#define EVQ_SUBMISSION_SUITES_MAX EVQ_READY_SUITES_MAX

struct evq_submission { // The options of submit and scan.
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char suites[EVQ_SUBMISSION_SUITES_MAX][EVQ_JOB_NAME_BYTES_MAX + 1];
    size_t suite_count;
    const char *variant;
    enum evq_job_policy policy;
    int32_t priority;
    bool keep;
    bool pin;
    const char *format;
    const char *needs; // "": the needs of the suite.
    int64_t session_ms;
    int64_t delay_ms;
    struct evq_ready
        *ready; // Set by scan: decides when a checkpoint is complete. NULL: the content decides.
    struct evq_pair *params; // Owned.
    size_t param_count;
    char host[256];
};

/* Reads --run --suite --variant --policy --priority --keep --pin --param --format --needs --session
 * --delay, as far as the verb has them. */
enum evq_status evq_submission_read(struct evq_cli *cli, struct evq_submission *ret_submission,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
void evq_submission_free(struct evq_submission *submission);

/* The answers of the queue, in the order of the suites. */
struct evq_submission_sent {
    struct evq_submitted submitted[EVQ_SUBMISSION_SUITES_MAX];
    char fingerprint[33];
    bool pinned;
};

/*
 * Checks that path is a complete checkpoint beneath a root, takes its fingerprint and submits one
 * job per suite. EVQ_E_INCOMPLETE, EVQ_E_GONE, EVQ_E_CORRUPT: the checkpoint; EVQ_E_NOT_FOUND: no
 * root holds it; others as the queue.
 */
enum evq_status evq_submission_send(struct evq_cli *cli, const struct evq_submission *submission,
                                    const char *path, int64_t step,
                                    struct evq_submission_sent *ret_sent,
                                    struct evq_error *err) EVQ_CHECK_RESULT;

const char *evq_submission_answer(enum evq_submit_answer answer); // "queued", "duplicate", ...

#endif
