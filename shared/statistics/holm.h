/*
 * Holm's correction for several tests. Any thread.
 */
#ifndef EVQ_SHARED_STATISTICS_HOLM_H
#define EVQ_SHARED_STATISTICS_HOLM_H

#include <stddef.h>

#include "shared/base/error.h"

/* Replaces count p-values by their corrected ones, in place. A p-value that is NaN stays NaN and
 * does not count as a test. */
enum evq_status evq_holm_correct(double *p, size_t count, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
