/* A sink: a destination of results. One thread of the logger serves one sink, from the sink's own
 * consumer group. An entry is acknowledged only after write() and flush() returned EVQ_OK. The sink
 * must recognise a repeated result by its result id.
 */
#ifndef EVQ_LOGGER_SINKS_SINK_H
#define EVQ_LOGGER_SINKS_SINK_H

#include <stdatomic.h>

#include "shared/base/buffer.h"
#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "shared/queue/result.h"

/* What a sink may use while it is open. */
struct evq_sink_context {
    const struct evq_config *config;
    const struct evq_sink_config *sink;
    const char *directory;   // logger.directory, which exists. The sink's files are beneath it.
    struct evq_queue *queue; // The thread's own.
    const atomic_bool *stop; // Set: the logger stops, and long waits must end. May be NULL.
    // The list of held results is full, or the logger stops: write() must not return
    // EVQ_E_INCOMPLETE.
    bool must_take;
};

struct evq_sink_ops {
    const char *kind;           // "jsonl", "tensorboard", ...
    const char *const *options; // Its options, ended by NULL. A list is "NAME.".
    // Each write is complete by itself: it is acknowledged even if the next one fails.
    bool each;
    // It may be flushed seldom while more results wait, because a repeated result changes nothing.
    bool gathers;
    // It also gets the ends of jobs.
    bool ends;
    /* context outlives the state. EVQ_E_CONFLICT: another process holds the sink's files. */
    enum evq_status (*open)(const struct evq_sink_context *context, void **ret_state,
                            struct evq_error *err);
    /* Takes one result or end; may buffer it. EVQ_E_INCOMPLETE: the logger must give it again
     * later. EVQ_E_INVALID, EVQ_E_LIMIT: it can never be written; the logger sets it aside with the
     * reason and acknowledges it. Any other status: the sink is down, and everything since the last
     * flush is given again after a pause.
     */
    enum evq_status (*write)(void *state, const struct evq_result *result, struct evq_error *err);
    /* Makes everything written durable. */
    enum evq_status (*flush)(void *state, struct evq_error *err);
    void (*close)(void *state); // Accepts NULL.
};

extern const struct evq_sink_ops evq_sink_jsonl;
extern const struct evq_sink_ops evq_sink_tensorboard;
extern const struct evq_sink_ops evq_sink_exec;
extern const struct evq_sink_ops evq_sink_best;
extern const struct evq_sink_ops evq_sink_csv;
extern const struct evq_sink_ops evq_sink_wandb;
extern const struct evq_sink_ops evq_sink_trackio;
extern const struct evq_sink_ops evq_sink_swanlab;
extern const struct evq_sink_ops evq_sink_comet;
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

/* Checks the kind and the options. EVQ_E_INVALID names the nearest valid one, or what this build
 * lacks. */
enum evq_status evq_sink_check(const struct evq_sink_config *sink,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads an option in seconds, at most a week. If it is absent, it is fallback. EVQ_E_INVALID names
 * sink and key. */
enum evq_status evq_sink_option_seconds(const struct evq_sink_config *sink, const char *key,
                                        double fallback, double *ret_value,
                                        struct evq_error *err) EVQ_CHECK_RESULT;
/* Reads an option that is true or false. If it is absent, it is false. */
enum evq_status evq_sink_option_flag(const struct evq_sink_config *sink, const char *key,
                                     bool *ret_value, struct evq_error *err) EVQ_CHECK_RESULT;
/* Returns an option as text, or NULL if it is absent. */
const char *evq_sink_option(const struct evq_sink_config *sink, const char *key);
/* Reads an option that is a list of at most `most` texts, which point into the configuration. out
 * has room for one more: the NULL at the end. Returns how many there are. */
size_t evq_sink_option_list(const struct evq_sink_config *sink, const char *key, const char **out,
                            size_t most);

/* Reads a secret: the content of the file that the option KEY_file names, without the newline at
 * its end, else the environment variable (NULL: none). out must be initialised; it stays empty if
 * there is no secret. EVQ_E_INVALID: the file cannot be read, or every user may read it, or the
 * configuration has the secret itself as KEY.
 */
enum evq_status evq_sink_secret(const struct evq_sink_config *sink, const char *key,
                                const char *variable, struct evq_buffer *out,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Sets aside a result that a sink can never take: logs it and stores it with the reason in the
 * queue's `bad` stream, which status shows. data: its content, if known. After an error it must be
 * given again.
 */
enum evq_status evq_sink_refuse(const struct evq_sink_context *context, const char *result_id,
                                const void *data, size_t bytes, const char *reason,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
