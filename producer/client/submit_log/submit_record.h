/*
 * The form of one submit in the ring: fixed fields, then NUL-terminated strings. Packing copies
 * everything, allocates nothing and opens no file. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_SUBMIT_LOG_SUBMIT_RECORD_H
#define EVQ_PRODUCER_CLIENT_SUBMIT_LOG_SUBMIT_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "producer/client/evalq.h"
#include "shared/queue/job.h"

/* For large buffers on the submitting thread: filling them with zeros would cost more than the
 * rest. */
#if defined(__has_attribute)
#if __has_attribute(uninitialized)
#define EVQ_SUBMIT_BUFFER __attribute__((uninitialized))
#endif
#endif
#ifndef EVQ_SUBMIT_BUFFER
#define EVQ_SUBMIT_BUFFER
#endif

#define EVQ_SUBMIT_PAIRS_MAX  256
#define EVQ_SUBMIT_SUITES_MAX 64

struct evq_submit_record { // Strings point into the record.
    int64_t step;
    double epoch; // NaN: unknown.
    int64_t session_ms;
    int64_t created_ms;
    int32_t priority;
    enum evq_job_policy policy;
    bool keep;
    const char *path;   // Absolute, without doubled slashes or "." parts.
    const char *suites; // "a,b": each a valid name, none twice.
    const char *variant;
    const char *format;
    const char *needs; // "": as the suite says.
    const char *held;  // The held copy, in the same form as path; "": none.
    const char *pairs; // param_count, then tracker_count times key NUL value NUL.
    size_t param_count;
    size_t tracker_count;
};

/* Checks and copies. EVQ_E_INVALID names the field; EVQ_E_LIMIT: longer than out_bytes. */
enum evq_status evq_submit_record_pack(const struct evalq_checkpoint *checkpoint,
                                       int64_t session_ms, int64_t created_ms, uint8_t *out,
                                       size_t out_bytes, size_t *ret_bytes,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

/* EVQ_E_CORRUPT: the bytes are not a submit. data must outlive *ret_request. */
enum evq_status evq_submit_record_unpack(const uint8_t *data, size_t bytes,
                                         struct evq_submit_record *ret_request,
                                         struct evq_error *err) EVQ_CHECK_RESULT;

/* Copies the next name of a comma-separated list to out and moves *list behind it. A name that is
 * too long is truncated, but stays longer than a valid one. Returns false at the end of the list.
 */
#define EVQ_SUBMIT_SUITE_BYTES (EVQ_JOB_NAME_BYTES_MAX + 2)
bool evq_submit_record_suite(const char **list, char out[EVQ_SUBMIT_SUITE_BYTES]);

#endif
