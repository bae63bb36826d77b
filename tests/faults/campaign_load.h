/*
 * The parts of fault_load: processes that use the queue's verbs through shared/queue/queue.h as
 * trainers, workers and operators do, many jobs at a time, and write their history. A call whose
 * outcome is unknown is repeated with the same arguments until it is known.
 */
#ifndef EVQ_TESTS_FAULTS_CAMPAIGN_LOAD_H
#define EVQ_TESTS_FAULTS_CAMPAIGN_LOAD_H

#include <signal.h>

#include "shared/queue/queue.h"
#include "tests/faults/history.h"

#define LOAD_SUITE   "load"  // Plain jobs.
#define LOAD_SHARDED "parts" // Its jobs are split by those who claim them.

struct load {
    const char *url;
    const char *name;
    struct evq_conn *conn;
    struct evq_queue *queue;
    struct history history;
    const char *history_path;
    uint64_t random;
    uint32_t tries; // Of the call that is being repeated.
};

extern volatile sig_atomic_t load_stop; // SIGTERM came.

uint64_t load_random(struct load *load);
bool load_chance(struct load *load, uint32_t per_mille);

/*
 * After a call: EVQ_OK and answers go on; what may be repeated is waited for (true: call again);
 * anything else ends the process with its sentence.
 */
bool load_again(struct load *load, enum evq_status status, const struct evq_error *err,
                const char *what);

int load_submit(struct load *load, const char *run, uint64_t count, uint32_t batch,
                uint32_t pause_ms);
int load_work(struct load *load, uint32_t lease_ms);
int load_operate(struct load *load, const char *run, uint64_t count);

#endif
