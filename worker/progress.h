/*
 * A listener for the progress of a long operation. It is called often enough that a busy worker is
 * not taken for a hanging one, and rarely enough to cost nothing. The thread that calls the
 * operation calls the listener.
 */
#ifndef EVQ_WORKER_PROGRESS_H
#define EVQ_WORKER_PROGRESS_H

#include <stdint.h>

#include "shared/base/error.h"

struct evq_progress {
    /* done of total, in bytes. If it returns EVQ_E_STOPPED, the operation ends with that status. */
    enum evq_status (*tell)(void *context, int64_t done, int64_t total);
    void *context;
};

#endif
