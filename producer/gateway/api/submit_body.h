/*
 * Reads the body of POST /v1/jobs into a job message. One thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_API_SUBMIT_BODY_H
#define EVQ_PRODUCER_GATEWAY_API_SUBMIT_BODY_H

#include "producer/gateway/http/http.h"
#include "shared/config/config.h"

#define EVQ_SUBMIT_BODY_SUITES_MAX 32

struct evq_submit_body {
    struct evq_job *job; // Free it with evq_job_free(). Set its suite to each of `suites` in turn.
    const char *suites[EVQ_SUBMIT_BODY_SUITES_MAX]; // In the job's arena.
    size_t suite_count;
    int64_t delay_ms;
    bool look; // Check the checkpoint on disk, if its root is on this machine; else trust the body.
};

/* false: the reply says what is wrong. Reads no file except to match an absolute path to a root. */
bool evq_submit_body_read(const struct evq_config *config, struct evq_http_request *request,
                          struct evq_submit_body *ret_submission, struct evq_http_reply *reply);

#endif
