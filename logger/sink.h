/*
 * Where results go. One sink is driven by one thread of the logger, from its own consumer group; an entry is acknowledged
 * only after write() and flush() returned EVQ_OK. A redelivered result must be recognised by its result id.
 */
#ifndef EVQ_LOGGER_SINK_H
#define EVQ_LOGGER_SINK_H

#include "shared/config.h"
#include "shared/result.h"

struct evq_sink_context; // What the logger lends a sink: evq_sink_flow_open() and the like; logger/forward.h.

struct evq_sink_ops {
    const char *kind; // "jsonl", "tensorboard", "exec".
    enum evq_status (*open)(const struct evq_sink_config *config, const char *directory, void **ret_state,
                            struct evq_error *err);
    /* Takes one result or end. May buffer. EVQ_E_IO, EVQ_E_RETRY: repeated later with back-off; EVQ_E_INVALID: this
     * result can never be written; it goes to the sink's dead list and is acknowledged. */
    enum evq_status (*write)(void *state, const struct evq_result *result, struct evq_error *err);
    /* Makes everything written durable. */
    enum evq_status (*flush)(void *state, struct evq_error *err);
    void (*close)(void *state); // Accepts NULL; compacts what can be compacted.
};

extern const struct evq_sink_ops evq_sink_jsonl;
extern const struct evq_sink_ops evq_sink_tensorboard;
extern const struct evq_sink_ops evq_sink_exec;

#endif
