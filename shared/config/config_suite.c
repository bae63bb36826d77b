#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/nearest.h"
#include "shared/config/config_read.h"

#define SUITES_MAX 256
#define TASKS_MAX  256

static enum evq_status read_labels(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    struct evq_needs *needs = base;
    enum evq_status status = evq_read_texts(reader, node, where, EVQ_JOB_NAME_BYTES_MAX,
                                            &needs->labels, &needs->label_count);
    if (status == EVQ_OK && needs->label_count > EVQ_NEEDS_LABELS_MAX) {
        return evq_read_fail(reader, node, "%s has %zu entries, allowed %d", where,
                             needs->label_count, EVQ_NEEDS_LABELS_MAX);
    }
    return status;
}

/* base is the struct evq_suite. */
static enum evq_status read_needs(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_RANGE("gpus", EVQ_KEY_INT32, struct evq_needs, gpus, 0, EVQ_NEEDS_GPUS_MAX),
        EVQ_KEY_RANGE("gpu_memory", EVQ_KEY_BYTES, struct evq_needs, gpu_memory_bytes, 0,
                      INT64_MAX),
        EVQ_KEY_BY("labels", read_labels),
    };
    struct evq_suite *suite = base;
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], &suite->needs);
}

static enum evq_status read_limits(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_RANGE("seconds", EVQ_KEY_INT64, struct evq_suite, limit_seconds, 1, 31536000),
    };
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], base);
}

/* true, false, or a map with a limit. base is the struct evq_suite. */
static enum evq_status read_samples(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where, void *base)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_RANGE("limit", EVQ_KEY_INT64, struct evq_suite, samples_limit, 1, INT32_MAX),
    };
    struct evq_suite *suite = base;

    if (node->kind == EVQ_NODE_SCALAR) {
        return evq_read_bool(reader, node, where, &suite->samples);
    }
    suite->samples = true;
    return evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], suite);
}

/* Whether a flattened key is `word` or an entry of a list of that name: "inputs", "inputs.3". */
static bool key_is(const char *key, const char *word)
{
    size_t bytes = strlen(word);
    return strncmp(key, word, bytes) == 0 && (key[bytes] == '\0' || key[bytes] == '.');
}

bool evq_config_is_data_path(const char *key)
{
    return key_is(key, "inputs") || key_is(key, "labels") || key_is(key, "text") ||
           key_is(key, "targets") || key_is(key, "tokens") || key_is(key, "mask") ||
           key_is(key, "types") || key_is(key, "tokenizer");
}

static bool is_model_path(const char *key)
{
    size_t bytes = strlen(key);
    return bytes >= 5 && strcmp(key + bytes - 5, "_path") == 0;
}

static enum evq_status resolve_paths(const struct evq_config_reader *reader, struct evq_pair *pairs,
                                     size_t count, bool (*is_path)(const char *key))
{
    for (size_t i = 0; i < count; i++) {
        if (is_path(pairs[i].key) && pairs[i].value[0] != '\0' &&
            strstr(pairs[i].value, "://") == NULL) {
            pairs[i].value = evq_read_path(reader, pairs[i].value);
            if (pairs[i].value == NULL) {
                return evq_read_nomem(reader);
            }
        }
    }
    return EVQ_OK;
}

static enum evq_status read_model(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    struct evq_task_config *task = base;
    struct evq_pair *pairs = NULL;
    enum evq_status status = evq_read_pairs(reader, node, where, NULL, &pairs, &task->model_count);
    task->model = pairs;
    return status != EVQ_OK ? status
                            : resolve_paths(reader, pairs, task->model_count, is_model_path);
}

static enum evq_status read_data(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    struct evq_task_config *task = base;
    struct evq_pair *pairs = NULL;
    enum evq_status status = evq_read_pairs(reader, node, where, NULL, &pairs, &task->data_count);
    task->data = pairs;
    return status != EVQ_OK
               ? status
               : resolve_paths(reader, pairs, task->data_count, evq_config_is_data_path);
}

/* The keys of a task in this table. Every other key is an option for the evaluator. */
static const struct evq_key task_keys[] = {
    EVQ_KEY_PLAIN("name", EVQ_KEY_TEXT, struct evq_task_config, name),
    EVQ_KEY_PLAIN("type", EVQ_KEY_TEXT, struct evq_task_config, type),
    EVQ_KEY_BY("model", read_model),
    EVQ_KEY_BY("data", read_data),
};

static enum evq_status read_task_entry(const struct evq_config_reader *reader,
                                       const struct evq_node *entry, const char *where,
                                       struct evq_task_config *task)
{
    char inner[160];
    enum evq_status status;
    (void)snprintf(inner, sizeof inner, "%.120s.%.30s", where, entry->key);
    if (entry->kind == EVQ_NODE_NULL) {
        return EVQ_OK;
    }
    for (size_t i = 0; i < sizeof task_keys / sizeof task_keys[0]; i++) {
        if (strcmp(task_keys[i].name, entry->key) != 0) {
            continue;
        }
        if (task_keys[i].type == EVQ_KEY_CALL) {
            return task_keys[i].call(reader, entry, inner, task);
        }
        status = evq_read_kind(reader, entry, inner, EVQ_NODE_SCALAR);
        if (status == EVQ_OK) {
            memcpy((unsigned char *)task + task_keys[i].offset, &entry->text, sizeof entry->text);
        }
        return status;
    }
    return EVQ_OK;
}

static enum evq_status read_task(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, bool native,
                                 struct evq_task_config *task)
{
    static const char *const known[] = {"name", "type", "model", "data", NULL};
    struct evq_pair *options = NULL;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_MAP);

    task->name = "";
    task->type = "";
    for (const struct evq_node *entry = node->first; entry != NULL && status == EVQ_OK;
         entry = entry->next) {
        status = read_task_entry(reader, entry, where, task);
    }
    if (status == EVQ_OK) {
        status = evq_read_pairs(reader, node, where, known, &options, &task->option_count);
        task->options = options;
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (task->name[0] == '\0') {
        return evq_read_fail(reader, node, "%s has no \"name\"", where);
    }
    if (!evq_job_name_valid(task->name, EVQ_JOB_NAME_BYTES_MAX)) {
        return evq_read_fail(reader, node,
                             "%s: task name \"%.60s\" is not 1 to %d of the bytes [A-Za-z0-9._-]",
                             where, task->name, EVQ_JOB_NAME_BYTES_MAX);
    }
    if (native && task->type[0] == '\0') {
        return evq_read_fail(
            reader, node,
            "%s has no \"type\" (classification, regression, ...), which the native "
            "evaluator needs",
            where);
    }
    return EVQ_OK;
}

static bool suite_is_native(const struct evq_suite *suite)
{
    return strcmp(suite->evaluator, "native") == 0;
}

static enum evq_status read_tasks(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where,
                                  struct evq_suite *suite)
{
    void *items = NULL;
    enum evq_status status = evq_read_entries(reader, node, where, EVQ_NODE_LIST, TASKS_MAX,
                                              sizeof(struct evq_task_config), &items);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_task_config *tasks = items;
    size_t count = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next, count++) {
        char inner[160];
        (void)snprintf(inner, sizeof inner, "%.120s[%zu]", where, count);
        status = read_task(reader, entry, inner, suite_is_native(suite), &tasks[count]);
        if (status != EVQ_OK) {
            return status;
        }
        for (size_t i = 0; i < count; i++) {
            if (strcmp(tasks[i].name, tasks[count].name) == 0) {
                return evq_read_fail(reader, entry, "%s: task name \"%s\" comes twice", where,
                                     tasks[count].name);
            }
        }
    }
    suite->tasks = tasks;
    suite->task_count = count;
    return EVQ_OK;
}

/* A program with only one set of metrics need not name a task: the suite is the task. */
static enum evq_status add_only_task(const struct evq_config_reader *reader,
                                     struct evq_suite *suite)
{
    struct evq_task_config *task = evq_arena_array(reader->arena, 1, sizeof *task);
    if (task == NULL) {
        return evq_read_nomem(reader);
    }
    *task = (struct evq_task_config){.name = suite->name, .type = ""};
    suite->tasks = task;
    suite->task_count = 1;
    return EVQ_OK;
}

/* Checks an evaluator that a suite names. The evaluators were read before. */
static enum evq_status check_evaluator(const struct evq_config_reader *reader,
                                       const struct evq_node *node, const char *where,
                                       const char *name, bool command_only)
{
    const struct evq_config *config = reader->config;
    const struct evq_evaluator *found = evq_config_evaluator(config, name);
    if (found != NULL && command_only && found->kind != EVQ_EVALUATOR_COMMAND) {
        return evq_read_fail(reader, node,
                             "%s names \"%.60s\", which is persistent, expected a command", where,
                             name);
    }
    if (found != NULL || (!command_only && strcmp(name, "native") == 0)) {
        return EVQ_OK;
    }
    const char **words = evq_arena_array(reader->arena, config->evaluator_count + 1, sizeof *words);
    if (words == NULL) {
        return evq_read_nomem(reader);
    }
    for (size_t i = 0; i < config->evaluator_count; i++) {
        words[i] = config->evaluators[i].name;
    }
    words[config->evaluator_count] = "native";
    const char *near =
        evq_nearest_word(name, words, config->evaluator_count + (command_only ? 0 : 1));
    return evq_read_fail(reader, node,
                         "%s names \"%.60s\", which is not in the section evaluators%s%s%s", where,
                         name, near != NULL ? ", did you mean \"" : "", near != NULL ? near : "",
                         near != NULL ? "\"?" : "");
}

static const struct evq_node *entry_of(const struct evq_node *node, const char *key)
{
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        if (strcmp(entry->key, key) == 0) {
            return entry;
        }
    }
    return NULL;
}

/* Tasks of the suite, or the harness that brings them. */
static enum evq_status read_content(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where,
                                    struct evq_suite *suite)
{
    static const char *const sources[] = {"base", "tokenizer"};
    const struct evq_node *tasks = entry_of(node, "tasks");
    const struct evq_node *harness = entry_of(node, "harness");
    const struct evq_evaluator *evaluator = evq_config_evaluator(reader->config, suite->evaluator);
    const bool on_server = evaluator != NULL && evaluator->settings[0] != '\0';
    char inner[80];

    if (on_server != (harness != NULL)) {
        return evq_read_fail_key(reader, harness != NULL ? harness : node,
                                 on_server ? "%s has no \"harness\", which a model server runs"
                                           : "%s.harness needs an evaluator of kind model_server",
                                 where);
    }
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        const struct evq_node *source = entry_of(node, sources[i]);
        if (source != NULL && (!on_server || suite->prepare[0] != '\0')) {
            return evq_read_fail_key(
                reader, source, "%s.%s is for the conversion to a model server's format, %s", where,
                sources[i],
                on_server ? "but prepare converts here" : "but the evaluator is no model_server");
        }
    }
    if (on_server && tasks != NULL) {
        return evq_read_fail_key(reader, tasks, "%s.tasks belong into %s.harness", where, where);
    }
    if (on_server) {
        (void)snprintf(inner, sizeof inner, "%s.harness", where);
        return evq_read_harness(reader, harness, inner, suite);
    }
    if (tasks != NULL && tasks->kind != EVQ_NODE_NULL) {
        (void)snprintf(inner, sizeof inner, "%s.tasks", where);
        const enum evq_status status = read_tasks(reader, tasks, inner, suite);
        if (status != EVQ_OK) {
            return status;
        }
    }
    if (suite->task_count > 0) {
        return EVQ_OK;
    }
    return suite_is_native(suite)
               ? evq_read_fail_key(reader, node,
                                   "%s has no tasks, and the native evaluator needs at least one",
                                   where)
               : add_only_task(reader, suite);
}

static enum evq_status read_suite(const struct evq_config_reader *reader,
                                  const struct evq_node *node, struct evq_suite *suite)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("evaluator", EVQ_KEY_TEXT, struct evq_suite, evaluator),
        EVQ_KEY_PLAIN("prepare", EVQ_KEY_TEXT, struct evq_suite, prepare),
        EVQ_KEY_PLAIN("ready", EVQ_KEY_TEXT, struct evq_suite, ready),
        EVQ_KEY_PLAIN("base", EVQ_KEY_PATH, struct evq_suite, base),
        EVQ_KEY_PLAIN("tokenizer", EVQ_KEY_PATH, struct evq_suite, tokenizer),
        EVQ_KEY_BY("needs", read_needs),
        EVQ_KEY_BY("limits", read_limits),
        EVQ_KEY_BY("samples", read_samples),
        EVQ_KEY_RANGE("shards", EVQ_KEY_INT32, struct evq_suite, shards, 1, 1024),
        EVQ_KEY_RANGE("every", EVQ_KEY_INT64, struct evq_suite, every, 1, EVQ_JOB_STEP_MAX),
        {.name = "tasks", .type = EVQ_KEY_ANY}, // Read after the evaluator is known.
        {.name = "harness", .type = EVQ_KEY_ANY},
    };
    char where[64];
    char inner[80];
    (void)snprintf(where, sizeof where, "suites.%.40s", node->key);
    *suite = (struct evq_suite){.name = node->key,
                                .evaluator = "native",
                                .prepare = "",
                                .ready = "",
                                .harness = "",
                                .base = "",
                                .tokenizer = "",
                                .limit_seconds = 3600,
                                .shards = 1,
                                .every = 1};
    enum evq_status status =
        evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], suite);
    if (status == EVQ_OK) {
        const struct evq_node *named = entry_of(node, "evaluator");
        (void)snprintf(inner, sizeof inner, "%s.evaluator", where);
        status =
            check_evaluator(reader, named != NULL ? named : node, inner, suite->evaluator, false);
    }
    if (status == EVQ_OK && suite->prepare[0] != '\0') {
        (void)snprintf(inner, sizeof inner, "%s.prepare", where);
        status = check_evaluator(reader, entry_of(node, "prepare"), inner, suite->prepare, true);
    }
    if (status == EVQ_OK && (suite->ready[0] == '/' || strstr(suite->ready, "..") != NULL)) {
        status = evq_read_fail(reader, entry_of(node, "ready"),
                               "%s.ready is \"%.60s\", expected the name of a file in the "
                               "checkpoint's directory",
                               where, suite->ready);
    }
    if (status == EVQ_OK) {
        status = read_content(reader, node, where, suite);
    }
    if (status == EVQ_OK && suite->samples && suite->shards > 1) {
        status = evq_read_fail(reader, entry_of(node, "samples"),
                               "%s has samples and shards: %u, and samples of shards cannot be "
                               "joined: remove one of the two",
                               where, suite->shards);
    }
    return status == EVQ_OK ? evq_suite_digest(reader, suite) : status;
}

enum evq_status evq_read_suites(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base)
{
    struct evq_config *config = base;
    void *items = NULL;
    enum evq_status status = evq_read_entries(reader, node, where, EVQ_NODE_MAP, SUITES_MAX,
                                              sizeof(struct evq_suite), &items);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_suite *suites = items;
    size_t count = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        status = evq_read_name(reader, entry, "suite");
        if (status == EVQ_OK) {
            status = read_suite(reader, entry, &suites[count++]);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    config->suites = suites;
    config->suite_count = count;
    return EVQ_OK;
}
