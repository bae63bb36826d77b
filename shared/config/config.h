/*
 * evalq.yaml: redis roots suites evaluators worker logger gateway samples. Parsed once and
 * read-only afterwards; everything is in the config's arena. docs/configuration.md lists every key
 * with type, unit and default.
 */
#ifndef EVQ_SHARED_CONFIG_CONFIG_H
#define EVQ_SHARED_CONFIG_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/option.h"
#include "shared/queue/job.h"
#include "shared/redis/conn.h"

#define EVQ_CONFIG_SINKS_MAX       64
#define EVQ_CONFIG_ROOT_SHM        "shm"
#define EVQ_CONFIG_RESULTS_DEFAULT "./evalq-results" // logger.directory.
#define EVQ_CONFIG_SAMPLES_DEFAULT "./evalq-samples" // samples.directory.

struct evq_root {
    const char *name;
    const char *path; // Absolute, or an address such as s3://bucket/run.
    bool is_remote;   // path is an address.
};

struct evq_task_config {
    const char *name;
    // "classification", "regression", ...; the worker that runs the task checks it.
    const char *type;
    // Nested maps flattened with dots, scalars as written: "activation" -> "relu".
    const struct evq_pair *model;
    size_t model_count;
    const struct evq_pair *data; // "format", "inputs", "labels", "scale", "limit", ...
    size_t data_count;
    // Any other scalar key of the task: "top_k", "metric_prefix", ...
    const struct evq_pair *options;
    size_t option_count;
};

struct evq_suite {
    const char *name;
    const char *evaluator; // "native" or a name of the evaluators section.
    const char *prepare;   // "" or a name of the evaluators section (kind command).
    const char *ready; // "" or the file that a trainer writes last into a checkpoint's directory.
    struct evq_needs needs;
    int64_t limit_seconds; // Time limit of one attempt; default 3600.
    uint32_t shards;       // Default 1.
    int64_t every;         // Default 1.
    const struct evq_task_config *tasks;
    size_t task_count;
    bool samples;           // Keeps what each item of a task got.
    int64_t samples_limit;  // Only the first items of each task; 0: all.
    const char *harness;    // "", or on a model server: what runs there, as JSON.
    const char *base;       // "", or on a model server: the directory from which a conversion takes
                            // configuration, tokenizer and names that the checkpoint lacks.
    const char *tokenizer;  // "", or the same for the tokenizer alone.
    char digest[33];        // XXH3-128 of the canonical definition (evaluator and all that changes
                            // numbers).
    const char *definition; // The canonical definition as JSON.
};

enum evq_evaluator_kind { EVQ_EVALUATOR_COMMAND, EVQ_EVALUATOR_PERSISTENT };
struct evq_evaluator {
    const char *name;
    enum evq_evaluator_kind kind;
    const char *const *argv; // NULL-terminated; argv[0] absolute or found on the worker's PATH.
    size_t argc;
    const struct evq_pair *env; // Added to the clean environment.
    size_t env_count;
    const char *const *env_pass; // Names passed through from the worker's environment; "AZURE_*":
                                 // all that begin so.
    size_t env_pass_count;
    const char *directory; // Working directory; "" : the attempt's scratch directory.
    const char *results; // "" : $EVALQ_RESULT as flat JSON; "lm-eval" or "lmms-eval": their results
                         // directory.
    int64_t start_seconds; // persistent: time to say ready; default 300.
    const char *settings;  // "", or of a model server what changes its numbers, as JSON.
    bool takes_adapters;   // A model server that adds LoRA adapters to the suite's base itself.
};

struct evq_sink_config {
    const char *name;               // Group name; unique.
    const char *kind;               // "jsonl", "tensorboard", "exec", ...
    const struct evq_pair *options; // "directory", "path", "command.0", "max_hold_seconds", ...
    size_t option_count;
    bool disabled; // `enabled: false`: the sink does not run, and no default takes its place.
};

/* Where the address of Redis comes from; for messages. */
enum evq_config_url_from {
    EVQ_CONFIG_URL_DEFAULT,
    EVQ_CONFIG_URL_OPTION,
    EVQ_CONFIG_URL_ENVIRONMENT,
    EVQ_CONFIG_URL_UP, // ./.evalq/url
    EVQ_CONFIG_URL_FILE,
};

struct evq_config {
    struct evq_arena *arena;
    const char *file; // The file that was read; "": none, all values are defaults.
    struct {
        const char *url; // As resolved: --url, $EVALQ_URL, ./.evalq/url, this file, else
                         // redis://127.0.0.1:6379.
        enum evq_config_url_from url_from;
        const char *user;
        const char *password_file;
        const char *queue; // Default "main".
        struct evq_conn_tls_config tls;
        struct evq_conn_sentinel_config sentinel;
        bool tls_given;
    } redis;
    const struct evq_root *roots;
    size_t root_count;
    // Always set: weights in memory are in /dev/shm/evalq-UID unless roots say otherwise.
    struct evq_root shm;
    const struct evq_suite *suites;
    size_t suite_count;
    const struct evq_evaluator *evaluators;
    size_t evaluator_count;
    struct {
        int32_t slots;       // 0: one per device, or 1 on CPU.
        const char *devices; // "auto", "cpu", "0,1", ...
        // UUIDs of this machine's GPUs that its workers share; none: devices decides.
        const char *const *gpus;
        size_t gpu_count;
        int32_t gpus_per_slot; // Number of shared GPUs per slot; default 1.
        const char *const *labels;
        size_t label_count;
        const char *scratch;   // Directory for logs and scratch; default $TMPDIR/evalq-<uid>.
        int64_t lease_ms;      // Default 15000; at least 3 heartbeats.
        int64_t heartbeat_ms;  // Default 3000.
        int64_t drain_seconds; // Default 30.
        int32_t threads;       // CPU threads per slot; 0: cores / slots.
        int64_t log_bytes_max; // Per attempt; default 64 MiB.
        // Largest snapshot fetched from another machine; default 1 TiB, 0: none.
        int64_t fetch_bytes_max;
        const char *python; // Interpreter that has evalq[remote]; default $EVALQ_PYTHON or python3.
        const char *cache;  // Directory of fetched remote checkpoints; default SCRATCH/cache.
        int64_t cache_bytes; // Most bytes that it holds; default 100 GiB.
    } worker;
    struct {
        const struct evq_sink_config *sinks;
        size_t sink_count;
        const char *directory; // Default EVQ_CONFIG_RESULTS_DEFAULT.
    } logger;
    struct {
        const char *directory; // Default EVQ_CONFIG_SAMPLES_DEFAULT.
        // Workers send the files through Redis, and the logger stores them; default false.
        bool send;
        int64_t stream_bytes; // Bytes of files that Redis may hold; default 64 MiB.
        int64_t wait_seconds; // How long a worker waits for room in Redis; default 30.
    } samples;
    struct {
        bool given;               // The file has the section: `evalq up` starts the gateway.
        const char *listen;       // Default "127.0.0.1:8000".
        const char *tokens;       // "" or the file of tokens.
        bool lmms_open;           // LMMS-Eval's endpoints need no token; default false.
        const char *const *hosts; // Names under which clients reach the gateway.
        size_t host_count;
        struct {               // LMMS-Eval's endpoints.
            const char *suite; // Evaluates a checkpoint as it is; default lmms.
            // Evaluates sharded weights that its `prepare` merges: lmms-merged.
            const char *merged_suite;
            const char *merge_suite; // Answers /merge: lmms-merge.
            const char *results;     // Directory of results; default "./evalq-lmms".
            const char *catalog;     // "" or a file that /tasks and /models are read from.
            bool cancel_running;     // DELETE also ends a running job; default false.
            // Evaluates regular and averaged weights if both exist; default true.
            bool both_variants;
            bool gpus_as_needs; // num_gpus above 1 replaces the suite's needs; default true.
            bool pin;           // Keeps checkpoints until they are evaluated; default true.
        } lmms;
    } gateway;
};

/* What the command line, or a caller of the library, named; NULL members: not named. */
struct evq_config_source {
    const char *file;  // --config, else $EVALQ_CONFIG, ./evalq.yaml, ./.evalq/evalq.yaml,
                       // /etc/evalq/evalq.yaml.
    const char *url;   // --url, else $EVALQ_URL, ./.evalq/url, the file.
    const char *queue; // --queue, else $EVALQ_QUEUE, the file.
    bool library;      // Messages say config instead of --config, because there is no command line.
};

/* The source that the common options of a program name. */
struct evq_config_source evq_config_source_of(const struct evq_option_set *options);

/*
 * Finds, reads and checks the configuration. Errors name file, line, column, key and the nearest
 * valid key (EVQ_E_INVALID). EVQ_E_NOT_FOUND: a named file does not exist. Without a file, all
 * values are defaults.
 */
enum evq_status evq_config_load(const struct evq_config_source *source,
                                struct evq_config **ret_config,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* The same from memory. file_name is for messages; relative paths are relative to its directory. */
enum evq_status evq_config_parse(const char *text, size_t bytes, const char *file_name,
                                 struct evq_config **ret_config,
                                 struct evq_error *err) EVQ_CHECK_RESULT;
void evq_config_free(struct evq_config *config); // Accepts NULL.

/* Returns how to connect to the Redis of config. name is shown in CLIENT LIST. The strings remain
 * those of config and name. The caller may set time limits and keep_environment. */
struct evq_conn_config evq_config_conn(const struct evq_config *config, const char *name);

/* Returns the suite of this name, or NULL. */
const struct evq_suite *evq_config_suite(const struct evq_config *config, const char *name);
/* The same for a name that a user gave. NULL: err is EVQ_E_NOT_FOUND and lists what there is. */
const struct evq_suite *evq_config_suite_find(const struct evq_config *config, const char *name,
                                              struct evq_error *err) EVQ_CHECK_RESULT;
/* Returns the task of this name, else the one whose `source` is "*", which stands for every task
 * that a program reports; NULL: none. */
const struct evq_task_config *evq_suite_task(const struct evq_suite *suite, const char *name);
/* Whether the value of this key of a task's data is a path. Paths are absolute unless they contain
 * "://". */
bool evq_config_is_data_path(const char *key);
/* Returns the evaluator of this name, or NULL. */
const struct evq_evaluator *evq_config_evaluator(const struct evq_config *config, const char *name);

/* Returns the root of this name, also shm, or NULL. */
const struct evq_root *evq_config_root_find(const struct evq_config *config, const char *name);

/* Writes "root:path" as an absolute path of this machine, cut to out_bytes, or unchanged if this
 * machine does not know the root. */
void evq_config_checkpoint_path(const struct evq_config *config, const char *checkpoint, char *out,
                                size_t out_bytes);

/*
 * Finds the longest root that contains an absolute path, by whole components and through symbolic
 * links, or an address. EVQ_E_INVALID: neither of them, or the address has a password, a query or
 * an unknown scheme. EVQ_E_NOT_FOUND prints the path, the roots and the missing line of
 * configuration. ret_path points into absolute_path or, if a link was followed, into real. It is
 * "." if the path is the root itself. Any thread.
 */
enum evq_status evq_config_root_resolve(const struct evq_config *config, const char *absolute_path,
                                        char real[PATH_MAX], const struct evq_root **ret_root,
                                        const char **ret_path,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Opens the directories of the configured roots, at most fds_max, and returns how many it opened. A
 * directory that does not exist is skipped. */
size_t evq_config_roots_open(const struct evq_config *config, int *fds, size_t fds_max);

#endif
