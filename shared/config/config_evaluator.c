#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "shared/config/config_read.h"

#define EVALUATORS_MAX 256

static enum evq_status read_kind(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    struct evq_evaluator *evaluator = base;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status != EVQ_OK) {
        return status;
    }
    if (strcmp(node->text, "command") == 0) {
        evaluator->kind = EVQ_EVALUATOR_COMMAND;
    } else if (strcmp(node->text, "persistent") == 0) {
        evaluator->kind = EVQ_EVALUATOR_PERSISTENT;
    } else if (strcmp(node->text, "model_server") != 0) { // Which has keys of its own.
        return evq_read_fail(reader, node,
                             "%s is \"%.60s\", expected command, persistent or model_server", where,
                             node->text);
    }
    return EVQ_OK;
}

static enum evq_status read_argv(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    struct evq_evaluator *evaluator = base;
    const char *const *argv = NULL;
    size_t argc = 0;
    if (evaluator->argv != NULL) {
        return evq_read_fail_key(reader, node,
                                 "%s: argv and command are the same, expected one of them", where);
    }
    if (node->kind == EVQ_NODE_SCALAR) {
        return evq_read_fail(
            reader, node,
            "%s is a single value, expected a list of words such as [python3, eval.py]: "
            "no shell splits it",
            where);
    }
    enum evq_status status = evq_read_texts(reader, node, where, 0, &argv, &argc);
    if (status != EVQ_OK) {
        return status;
    }
    if (argc == 0 || argv[0][0] == '\0') {
        return evq_read_fail(reader, node, "%s is empty, expected a program and its arguments",
                             where);
    }
    if (argv[0][0] != '/' && strchr(argv[0], '/') != NULL) { // "./eval.sh" is relative to the file.
        const char **copy = evq_arena_array(reader->arena, argc + 1, sizeof *copy);
        const char *program = evq_read_path(reader, argv[0]);
        if (copy == NULL || program == NULL) {
            return evq_read_nomem(reader);
        }
        memcpy(copy, argv, argc * sizeof *copy);
        copy[0] = program;
        argv = copy;
    }
    evaluator->argv = argv;
    evaluator->argc = argc;
    return EVQ_OK;
}

static bool variable_valid(const char *name)
{
    size_t bytes = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");
    return bytes > 0 && name[bytes] == '\0' && (name[0] < '0' || name[0] > '9');
}

static enum evq_status read_env(const struct evq_config_reader *reader, const struct evq_node *node,
                                const char *where, void *base)
{
    struct evq_evaluator *evaluator = base;
    struct evq_pair *pairs = NULL;
    enum evq_status status =
        evq_read_pairs(reader, node, where, NULL, &pairs, &evaluator->env_count);
    if (status != EVQ_OK) {
        return status;
    }
    for (size_t i = 0; i < evaluator->env_count; i++) {
        if (!variable_valid(pairs[i].key)) {
            return evq_read_fail(reader, node,
                                 "%s: \"%.60s\" is not the name of an environment variable", where,
                                 pairs[i].key);
        }
    }
    evaluator->env = pairs;
    return EVQ_OK;
}

static enum evq_status read_env_pass(const struct evq_config_reader *reader,
                                     const struct evq_node *node, const char *where, void *base)
{
    struct evq_evaluator *evaluator = base;
    enum evq_status status =
        evq_read_texts(reader, node, where, 0, &evaluator->env_pass, &evaluator->env_pass_count);
    for (size_t i = 0; status == EVQ_OK && i < evaluator->env_pass_count; i++) {
        char name[256];
        const char *text = evaluator->env_pass[i];
        const size_t bytes = strlen(text);
        // A star at the end matches all names with this beginning: "AZURE_*".
        const bool star = bytes > 1 && text[bytes - 1] == '*';
        (void)snprintf(name, sizeof name, "%.*s", (int)(star ? bytes - 1 : bytes), text);
        if (bytes >= sizeof name || !variable_valid(name)) {
            return evq_read_fail(reader, node,
                                 "%s: \"%.60s\" is not the name of an environment variable", where,
                                 text);
        }
    }
    return status;
}

static enum evq_status read_results(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where, void *base)
{
    struct evq_evaluator *evaluator = base;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status != EVQ_OK) {
        return status;
    }
    if (strcmp(node->text, "") != 0 && strcmp(node->text, "lm-eval") != 0 &&
        strcmp(node->text, "lmms-eval") != 0) {
        return evq_read_fail(reader, node, "%s is \"%.60s\", expected \"\", lm-eval or lmms-eval",
                             where, node->text);
    }
    evaluator->results = node->text;
    return EVQ_OK;
}

/* A persistent evaluator whose program is evalq's own. */
static enum evq_status read_server(const struct evq_config_reader *reader,
                                   const struct evq_node *node, const char *where,
                                   struct evq_evaluator *evaluator)
{
    struct server {
        struct evq_evaluator evaluator;
        const char *server;
        const char *python;
        const char *harness_python;
        int64_t hang_seconds;
    } base = {.evaluator = *evaluator, .server = "vllm", .harness_python = "python3"};
    static const struct evq_key keys[] = {
        EVQ_KEY_BY("kind", read_kind),
        EVQ_KEY_PLAIN("server", EVQ_KEY_TEXT, struct server, server),
        EVQ_KEY_PLAIN("python", EVQ_KEY_TEXT, struct server, python),
        EVQ_KEY_PLAIN("harness_python", EVQ_KEY_TEXT, struct server, harness_python),
        {.name = "options", .type = EVQ_KEY_ANY},
        {.name = "custom", .type = EVQ_KEY_ANY},
        EVQ_KEY_BY("env", read_env),
        EVQ_KEY_BY("env_pass", read_env_pass),
        EVQ_KEY_PLAIN("directory", EVQ_KEY_PATH, struct server, evaluator.directory),
        EVQ_KEY_RANGE("start_seconds", EVQ_KEY_INT64, struct server, evaluator.start_seconds, 1,
                      86400),
        EVQ_KEY_RANGE("hang_seconds", EVQ_KEY_INT64, struct server, hang_seconds, 1, 86400),
    };

    base.evaluator.kind = EVQ_EVALUATOR_PERSISTENT;
    enum evq_status status =
        evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], &base);
    if (status == EVQ_OK) {
        status = evq_read_model_server(reader, node, where, &base.evaluator, base.server,
                                       base.harness_python);
    }
    *evaluator = base.evaluator;
    return status;
}

static bool is_model_server(const struct evq_node *node)
{
    const struct evq_node *entry = node->kind == EVQ_NODE_MAP ? node->first : NULL;
    while (entry != NULL && strcmp(entry->key, "kind") != 0) {
        entry = entry->next;
    }
    return entry != NULL && entry->kind == EVQ_NODE_SCALAR &&
           strcmp(entry->text, "model_server") == 0;
}

static enum evq_status read_evaluator(const struct evq_config_reader *reader,
                                      const struct evq_node *node, struct evq_evaluator *evaluator)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_BY("kind", read_kind),
        EVQ_KEY_BY("argv", read_argv),
        EVQ_KEY_BY("command", read_argv),
        EVQ_KEY_BY("env", read_env),
        EVQ_KEY_BY("env_pass", read_env_pass),
        EVQ_KEY_PLAIN("directory", EVQ_KEY_PATH, struct evq_evaluator, directory),
        EVQ_KEY_BY("results", read_results),
        EVQ_KEY_RANGE("start_seconds", EVQ_KEY_INT64, struct evq_evaluator, start_seconds, 1,
                      86400),
    };
    char where[64];
    (void)snprintf(where, sizeof where, "evaluators.%.40s", node->key);
    *evaluator = (struct evq_evaluator){
        .name = node->key, .directory = "", .results = "", .start_seconds = 300, .settings = ""};
    if (is_model_server(node)) {
        return read_server(reader, node, where, evaluator);
    }
    enum evq_status status =
        evq_read_map(reader, node, where, keys, sizeof keys / sizeof keys[0], evaluator);
    if (status == EVQ_OK && evaluator->argc == 0) {
        return evq_read_fail_key(reader, node, "%s has no \"argv\"", where);
    }
    return status;
}

enum evq_status evq_read_evaluators(const struct evq_config_reader *reader,
                                    const struct evq_node *node, const char *where, void *base)
{
    struct evq_config *config = base;
    void *items = NULL;
    enum evq_status status = evq_read_entries(reader, node, where, EVQ_NODE_MAP, EVALUATORS_MAX,
                                              sizeof(struct evq_evaluator), &items);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_evaluator *evaluators = items;
    size_t count = 0;
    for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
        status = evq_read_name(reader, entry, "evaluator");
        if (status == EVQ_OK && strcmp(entry->key, "native") == 0) {
            status =
                evq_read_fail_key(reader, entry, "\"native\" is built in, expected another name");
        }
        if (status == EVQ_OK) {
            status = read_evaluator(reader, entry, &evaluators[count++]);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    config->evaluators = evaluators;
    config->evaluator_count = count;
    return EVQ_OK;
}

const struct evq_evaluator *evq_config_evaluator(const struct evq_config *config, const char *name)
{
    for (size_t i = 0; i < config->evaluator_count; i++) {
        if (strcmp(config->evaluators[i].name, name) == 0) {
            return &config->evaluators[i];
        }
    }
    return NULL;
}
