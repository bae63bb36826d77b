/*
 * The body of POST /v1/jobs, read into a message per suite. One thread.
 */
#ifndef EVQ_GATEWAY_SUBMISSION_H
#define EVQ_GATEWAY_SUBMISSION_H

#include "producer/gateway/http/http.h"
#include "shared/config/config.h"

#define EVQ_SUBMISSION_SUITES_MAX 32

struct evq_submission {
    struct evq_job *job; // evq_job_free(); its suite is to be set to each of suites.
    const char *suites[EVQ_SUBMISSION_SUITES_MAX]; // In the job's arena.
    size_t suite_count;
    int64_t delay_ms;
    bool look; // Look at the checkpoint, where its root is here; false: as the body says.
};

/* false: the reply says what is wrong. Touches no file but to match an absolute path to a root. */
bool evq_submission_read(const struct evq_config *config, struct evq_http_request *request,
                         struct evq_submission *ret_submission, struct evq_http_reply *reply);

#endif
