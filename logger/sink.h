/*
 * Where results go. One sink is driven by one thread of the logger, from its own consumer group; an
 * entry is acknowledged only after write() and flush() returned EVQ_OK. A redelivered result must
 * be recognised by its result id.
 */
#ifndef EVQ_LOGGER_SINK_H
#define EVQ_LOGGER_SINK_H

#include "shared/config.h"
#include "shared/queue.h"
#include "shared/result.h"

/* What the logger lends a sink while it is open. */
struct evq_sink_context {
    const struct evq_config *config;
    const struct evq_sink_config *sink;
    const char *directory;   // logger.directory, existing; the sink's own files go beneath it.
    struct evq_queue *queue; // The thread's own.
};

struct evq_sink_ops {
    const char *kind; // "jsonl", "tensorboard", "exec", "best".
    /* context outlives the state. EVQ_E_CONFLICT: another process holds the sink's files. */
    enum evq_status (*open)(const struct evq_sink_context *context, void **ret_state,
                            struct evq_error *err);
    /*
     * Takes one result or end; may buffer. EVQ_E_INCOMPLETE: held back, give it again later (do not
     * acknowledge). EVQ_E_INVALID, EVQ_E_LIMIT: it can never be written; the logger records that
     * and acknowledges it. Any other: the sink is down; everything since the last flush is given
     * again after a pause.
     */
    enum evq_status (*write)(void *state, const struct evq_result *result, struct evq_error *err);
    /* Makes everything written durable. */
    enum evq_status (*flush)(void *state, struct evq_error *err);
    void (*close)(void *state); // Accepts NULL; compacts what can be compacted.
};

extern const struct evq_sink_ops evq_sink_jsonl;
extern const struct evq_sink_ops evq_sink_tensorboard;
extern const struct evq_sink_ops evq_sink_exec;
extern const struct evq_sink_ops evq_sink_best;

/* The sink of that kind, or NULL. */
const struct evq_sink_ops *evq_sink_find(const char *kind);

/* An option of the sink as a number; EVQ_E_INVALID names sink and key. Absent: fallback. */
enum evq_status evq_sink_option_number(const struct evq_sink_config *sink, const char *key,
                                       double fallback, double *ret_value,
                                       struct evq_error *err) EVQ_CHECK_RESULT;

#endif
