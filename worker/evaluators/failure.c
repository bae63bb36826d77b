#include "worker/evaluators/failure.h"

enum evq_fail_kind evq_failure_kind(enum evq_status status, bool crash)
{
    if (crash) {
        return EVQ_FAIL_CRASH;
    }
    switch (status) {
    case EVQ_E_GONE:
        return EVQ_FAIL_VANISHED;
    case EVQ_E_CHANGED:
        return EVQ_FAIL_CHANGED;
    case EVQ_E_INCOMPLETE:
        return EVQ_FAIL_INCOMPLETE;
    case EVQ_E_TIMEOUT:
        return EVQ_FAIL_TIMEOUT;
    case EVQ_E_INVALID:
    case EVQ_E_CORRUPT:
    case EVQ_E_UNSUPPORTED:
    case EVQ_E_LIMIT:
    case EVQ_E_BUG:
        return EVQ_FAIL_FATAL;
    default:
        return EVQ_FAIL_RETRY;
    }
}
