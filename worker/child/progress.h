/*
 * Who hears how far something long has come. Told often enough that a worker that is busy does not
 * pass for one that hangs, and rarely enough to cost nothing.
 */
#ifndef EVQ_WORKER_PROGRESS_H
#define EVQ_WORKER_PROGRESS_H

#include <stdint.h>

#include "shared/base/error.h"

struct evq_progress {
    /* done of total, in bytes. EVQ_E_STOPPED: give up, with that status. */
    enum evq_status (*tell)(void *context, int64_t done, int64_t total);
    void *context;
};

#endif
