/*
 * Where results go. One sink is driven by one thread of the logger, from its own consumer group; an
 * entry is acknowledged only after write() and flush() returned EVQ_OK. A redelivered result must
 * be recognised by its result id.
 */
#ifndef EVQ_LOGGER_SINK_H
#define EVQ_LOGGER_SINK_H

#include <stdatomic.h>

#include "shared/base/buffer.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "shared/queue/result.h"

/* What the logger lends a sink while it is open. */
struct evq_sink_context {
    const struct evq_config *config;
    const struct evq_sink_config *sink;
    const char *directory;   // logger.directory, existing; the sink's own files go beneath it.
    struct evq_queue *queue; // The thread's own.
    const atomic_bool *stop; // Set: the program is to end, long waits too. May be NULL.
    bool crowded;            // Hold nothing back now: the logger's list is full, or it stops.
};

struct evq_sink_ops {
    const char *kind;           // "jsonl", "tensorboard", ...
    const char *const *options; // What it knows, ended by NULL; a list is "NAME.".
    // Each write is complete in itself: what was taken is acknowledged though the next one fails.
    bool each;
    // While more wait it may be flushed seldom: what it was given comes to the same when it is
    // given again.
    bool gathers;
    // It has use for the ends of jobs; else none is read for it.
    bool ends;
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
extern const struct evq_sink_ops evq_sink_csv;
extern const struct evq_sink_ops evq_sink_wandb;
extern const struct evq_sink_ops evq_sink_mlflow;  // With libcurl,
extern const struct evq_sink_ops evq_sink_webhook; // this one too.

/* The sink of that kind, or NULL. */
const struct evq_sink_ops *evq_sink_find(const char *kind);
/* The most sinks that evq_sink_collect() returns: the configured ones and the defaults. */
#define EVQ_SINKS_MAX (EVQ_CONFIG_SINKS_MAX + 3)

/*
 * The sinks to run: the enabled ones of the configuration, and `jsonl` and `best` if it names none
 * of that kind. Without configured sinks TensorBoard runs too. sinks has room for EVQ_SINKS_MAX
 * pointers into config or into static memory. Returns how many there are.
 */
size_t evq_sink_collect(const struct evq_config *config, const struct evq_sink_config **sinks);

/* Whether its kind and its options are known. EVQ_E_INVALID names the nearest, or what this build
 * lacks. */
enum evq_status evq_sink_check(const struct evq_sink_config *sink,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* An option of the sink that is a time, a week at most; EVQ_E_INVALID names sink and key. Absent:
 * fallback. */
enum evq_status evq_sink_option_seconds(const struct evq_sink_config *sink, const char *key,
                                        double fallback, double *ret_value,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* As true or false; absent: false. */
enum evq_status evq_sink_option_flag(const struct evq_sink_config *sink, const char *key,
                                     bool *ret_value, struct evq_error *err) EVQ_CHECK_RESULT;
/* As text; NULL: it is not there. */
const char *evq_sink_option(const struct evq_sink_config *sink, const char *key);
/* As a list of at most `most` texts, which point into the configuration. out has room for one more,
 * a NULL at the end. Returns how many there are. */
size_t evq_sink_option_list(const struct evq_sink_config *sink, const char *key, const char **out,
                            size_t most);

/*
 * A secret: the content of the file that the option KEY_file names, without the newline at its end,
 * else the environment's variable (NULL: none). out, empty and initialised, stays empty where there
 * is none. EVQ_E_INVALID: the file cannot be read or any user may read it, or the secret itself
 * stands in the configuration as KEY.
 */
enum evq_status evq_sink_secret(const struct evq_sink_config *sink, const char *key,
                                const char *variable, struct evq_buffer *out,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * What a sink can never take: into the log, and with its reason into the queue's `bad` stream,
 * where status shows it. data: what there is of it. Any error: it could not be set aside, and must
 * be given again.
 */
enum evq_status evq_sink_refuse(const struct evq_sink_context *context, const char *result_id,
                                const void *data, size_t bytes, const char *reason,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
