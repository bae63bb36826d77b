/*
 * What this worker offers: its suites, registered with the queue, and the classes of the queue that
 * each slot can run. The supervisor's single thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_SUITE_REGISTRY_H
#define EVQ_WORKER_SUPERVISOR_SUITE_REGISTRY_H

#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "worker/supervisor/slot.h"

struct evq_suite_registry {
    const struct evq_config *config;
    bool *suites;    // By number in the configuration: offered by this worker.
    char where[512]; // "host:/etc/evalq/evalq.yaml"
    struct evq_class classes[EVQ_QUEUE_CLASSES_MAX];
    uint32_t class_count;
    int64_t version; // Of classes; -1: never read.
};

/* list: "a,b", NULL: all suites. A suite whose program is not on this machine is logged and not
 * offered. EVQ_E_NOT_FOUND: no such suite; EVQ_E_INVALID: one cannot be served as configured, or
 * none can. */
enum evq_status evq_suite_registry_open(struct evq_suite_registry *registry,
                                        const struct evq_config *config, const char *list,
                                        const char *host, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_suite_registry_close(struct evq_suite_registry *registry);
/* NULL: not offered. */
const struct evq_suite *evq_suite_registry_suite(const struct evq_suite_registry *registry,
                                                 const char *name);

/* Registers the suites and reads the classes. EVQ_E_CONFLICT: another definition is registered. */
enum evq_status evq_suite_registry_register(struct evq_suite_registry *registry,
                                            struct evq_queue *queue,
                                            struct evq_error *err) EVQ_CHECK_RESULT;
/* Reads the classes again; registers when ours have gone. Then compute fits again. */
enum evq_status evq_suite_registry_refresh(struct evq_suite_registry *registry,
                                           struct evq_queue *queue,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* Sets slot->fits. EVQ_E_NOMEM: classes may be missing; ask again. */
enum evq_status evq_suite_registry_fit(const struct evq_suite_registry *registry,
                                       struct evq_slot *slot) EVQ_CHECK_RESULT;
/* Numbers of the classes of a mask. ret_classes has room for EVQ_QUEUE_CLASSES_MAX. */
uint32_t evq_suite_registry_classes(const struct evq_suite_registry *registry, uint64_t mask,
                                    uint32_t *ret_classes);
/* The bit of a class; 0 for none. */
uint64_t evq_suite_registry_bit(uint32_t class_number);

#endif
