/*
 * Writes a JUnit report with one test case, which CI systems show. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SAMPLES_JUNIT_H
#define EVQ_PRODUCER_CLI_SAMPLES_JUNIT_H

#include "shared/base/error.h"

enum evq_junit_outcome { EVQ_JUNIT_PASSED, EVQ_JUNIT_FAILED, EVQ_JUNIT_ERROR };

/* Replaces the file. class_name and name identify the case; message is why it failed. */
enum evq_status evq_junit_write(const char *path, const char *class_name, const char *name,
                                enum evq_junit_outcome outcome, const char *message,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
