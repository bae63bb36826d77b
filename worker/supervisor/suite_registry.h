/*
 * The suites that this worker serves, registered with the queue, and the job classes that each slot
 * can run. The supervisor's single thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_SUITE_REGISTRY_H
#define EVQ_WORKER_SUPERVISOR_SUITE_REGISTRY_H

#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "worker/supervisor/slot.h"

struct evq_suite_registry {
    const struct evq_config *config;
    bool *suites;    // For each suite of the configuration: whether this worker serves it.
    char where[512]; // Host and configuration file, such as "host:/etc/evalq/evalq.yaml".
    struct evq_class classes[EVQ_QUEUE_CLASSES_MAX];
    uint32_t class_count;
    int64_t version; // Version of the classes; -1: they were never read.
};

/* Selects the suites: list is "a,b", or NULL for all. A suite whose program is missing is logged
 * and not served. EVQ_E_NOT_FOUND: a named suite does not exist. EVQ_E_INVALID: a suite is not
 * valid, or none is left to serve. */
enum evq_status evq_suite_registry_open(struct evq_suite_registry *registry,
                                        const struct evq_config *config, const char *list,
                                        const char *host, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_suite_registry_close(struct evq_suite_registry *registry);
/* The served suite of this name, or NULL. */
const struct evq_suite *evq_suite_registry_suite(const struct evq_suite_registry *registry,
                                                 const char *name);

/* Registers the suites and reads the classes. EVQ_E_CONFLICT: a different definition of a suite is
 * registered. */
enum evq_status evq_suite_registry_register(struct evq_suite_registry *registry,
                                            struct evq_queue *queue,
                                            struct evq_error *err) EVQ_CHECK_RESULT;
/* Reads the classes again, and registers our suites if they are gone. Afterwards compute the fits
 * again. */
enum evq_status evq_suite_registry_refresh(struct evq_suite_registry *registry,
                                           struct evq_queue *queue,
                                           struct evq_error *err) EVQ_CHECK_RESULT;

/* Sets slot->fits. EVQ_E_NOMEM: some classes may be missing; call it again. */
enum evq_status evq_suite_registry_fit(const struct evq_suite_registry *registry,
                                       struct evq_slot *slot) EVQ_CHECK_RESULT;
/* The numbers of the classes in a mask. ret_classes has room for EVQ_QUEUE_CLASSES_MAX. */
uint32_t evq_suite_registry_classes(const struct evq_suite_registry *registry, uint64_t mask,
                                    uint32_t *ret_classes);
/* The bit of a class in a mask; 0: the number is not valid. */
uint64_t evq_suite_registry_bit(uint32_t class_number);

#endif
