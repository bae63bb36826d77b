/*
 * Evaluators of the kind model_server and the harnesses of their suites. The worker starts such an
 * evaluator as a persistent program, python3 -m evalq.model_server. What the file says of it
 * reaches the program as JSON: of the server in $EVALQ_MODEL_SERVER, of a suite as option "harness"
 * of each of its tasks.
 */
#include <stdio.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/nearest.h"
#include "shared/config/config_read.h"

#define VARIABLE  "EVALQ_MODEL_SERVER"
#define TASKS_MAX 256

static const char *const server_words[] = {"vllm", "sglang", "custom"};
static const char *const harness_words[] = {"lm-eval",   "lmms-eval", "inspect",
                                            "lighteval", "python",    "command"};
#define COUNT_OF(words) (sizeof(words) / sizeof((words)[0]))

/* A number as JSON writes it: no leading zero, no plus sign, digits on both sides of the point. */
static bool number_is_json(const char *text)
{
    const char *digits = "0123456789";
    text += *text == '-';
    size_t bytes = strspn(text, digits);
    if (bytes == 0 || (bytes > 1 && text[0] == '0')) {
        return false;
    }
    text += bytes;
    if (*text == '.') {
        bytes = strspn(text + 1, digits);
        if (bytes == 0) {
            return false;
        }
        text += 1 + bytes;
    }
    if (*text == 'e' || *text == 'E') {
        text += 1 + (text[1] == '-' || text[1] == '+');
        bytes = strspn(text, digits);
        if (bytes == 0) {
            return false;
        }
        text += bytes;
    }
    return *text == '\0';
}

static bool word_in(const char *word, const char *const *words)
{
    for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
        if (strcmp(word, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* node as JSON, less the entries named in except; as deep as the tree, which is bounded. A scalar
 * without quotes that is true, false or a number stays one. short_paths: absolute paths by their
 * base names, as the digest of a suite has them. */
static void put_json(struct evq_buffer *out, const struct evq_node *node, const char *const *except,
                     bool short_paths)
{
    const char *comma = "";

    if (node->kind == EVQ_NODE_NULL) {
        evq_buffer_text(out, "null");
    } else if (node->kind == EVQ_NODE_SCALAR) {
        const char *slash = short_paths && node->text[0] == '/' ? strrchr(node->text, '/') : NULL;
        if (!node->quoted && (strcmp(node->text, "true") == 0 || strcmp(node->text, "false") == 0 ||
                              number_is_json(node->text))) {
            evq_buffer_text(out, node->text);
        } else {
            evq_buffer_json_text(out, slash != NULL ? slash + 1 : node->text);
        }
    } else {
        const bool map = node->kind == EVQ_NODE_MAP;
        evq_buffer_text(out, map ? "{" : "[");
        for (const struct evq_node *entry = node->first; entry != NULL; entry = entry->next) {
            if (map && word_in(entry->key, except)) {
                continue;
            }
            evq_buffer_text(out, comma);
            if (map) {
                evq_buffer_json_text(out, entry->key);
                evq_buffer_text(out, ":");
            }
            put_json(out, entry, NULL, short_paths);
            comma = ",";
        }
        evq_buffer_text(out, map ? "}" : "]");
    }
}

/* The JSON for the program starts with the name, and with the directory of the file, where relative
 * paths start. */
static const char *json_of(const struct evq_config_reader *reader, const struct evq_node *node,
                           const char *const *except, bool short_paths)
{
    struct evq_buffer out;
    const char *text = NULL;

    evq_buffer_init(&out, EVQ_CONFIG_BYTES_MAX * 8);
    if (!short_paths) {
        evq_buffer_text(&out, "{\"name\":");
        evq_buffer_json_text(&out, node->key);
        evq_buffer_text(&out, ",\"directory\":");
        evq_buffer_json_text(&out, reader->directory);
        evq_buffer_text(&out, ",\"given\":");
    }
    put_json(&out, node, except, short_paths);
    evq_buffer_text(&out, short_paths ? "" : "}");
    const char *made = evq_buffer_string(&out);
    if (made != NULL) {
        text = evq_arena_strndup(reader->arena, made, out.bytes);
    }
    evq_buffer_free(&out);
    return text;
}

static enum evq_status check_word(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, const char *word,
                                  const char *const *words, size_t count)
{
    char choice[200];
    for (size_t i = 0; i < count; i++) {
        if (strcmp(word, words[i]) == 0) {
            return EVQ_OK;
        }
    }
    return evq_read_fail(reader, node, "%s is \"%.60s\": %s", where, word,
                         evq_nearest_choice(word, words, count, choice, sizeof choice));
}

static const struct evq_node *entry_of(const struct evq_node *node, const char *key)
{
    const struct evq_node *entry = node->first;
    while (entry != NULL && strcmp(entry->key, key) != 0) {
        entry = entry->next;
    }
    return entry != NULL && entry->kind != EVQ_NODE_NULL ? entry : NULL;
}

enum evq_status evq_read_model_server(const struct evq_config_reader *reader,
                                      const struct evq_node *node, const char *where,
                                      struct evq_evaluator *evaluator, const char *server,
                                      const char *python)
{
    static const char *const not_told[] = {"kind", "env", "env_pass", NULL};
    static const char *const not_numbers[] = {
        "kind",           "env",           "env_pass",     "python",
        "harness_python", "start_seconds", "hang_seconds", NULL};
    const struct evq_node *custom = entry_of(node, "custom");
    const bool is_custom = strcmp(server, "custom") == 0;
    char inner[80];

    (void)snprintf(inner, sizeof inner, "%s.server", where);
    const struct evq_node *named = entry_of(node, "server");
    enum evq_status status = check_word(reader, named != NULL ? named : node, inner, server,
                                        server_words, COUNT_OF(server_words));
    if (status != EVQ_OK) {
        return status;
    }
    if (is_custom != (custom != NULL)) {
        return evq_read_fail_key(reader, custom != NULL ? custom : node,
                                 "%s: \"custom\" says how to start and reload a server, %s", where,
                                 is_custom ? "and server is custom, but it is not given"
                                           : "but server is not custom");
    }
    const char **argv = evq_arena_array(reader->arena, 4, sizeof *argv);
    struct evq_pair *env = evq_arena_array(reader->arena, evaluator->env_count + 1, sizeof *env);
    const char *told = json_of(reader, node, not_told, false);
    evaluator->settings = json_of(reader, node, not_numbers, true);
    if (argv == NULL || env == NULL || told == NULL || evaluator->settings == NULL) {
        return evq_read_nomem(reader);
    }
    argv[0] = strchr(python, '/') != NULL ? evq_read_path(reader, python) : python;
    argv[1] = "-m";
    argv[2] = "evalq.model_server";
    if (evaluator->env_count > 0) {
        memcpy(env, evaluator->env, evaluator->env_count * sizeof *env);
    }
    env[evaluator->env_count] = (struct evq_pair){.key = VARIABLE, .value = told};
    const struct evq_node *options = entry_of(node, "options");
    const struct evq_node *lora =
        options != NULL && options->kind == EVQ_NODE_MAP ? entry_of(options, "enable_lora") : NULL;
    evaluator->takes_adapters =
        lora != NULL && lora->kind == EVQ_NODE_SCALAR && strcmp(lora->text, "true") == 0;
    evaluator->env = env;
    evaluator->env_count++;
    evaluator->argv = argv;
    evaluator->argc = 3;
    return argv[0] != NULL ? EVQ_OK : evq_read_nomem(reader);
}

struct harness {
    const char *kind;
    const char *function;
    int64_t num_fewshot;
    int64_t concurrency;
    const char *const *tasks;
    size_t task_count;
};

static enum evq_status read_task_names(const struct evq_config_reader *reader,
                                       const struct evq_node *node, const char *where, void *base)
{
    struct harness *harness = base;
    enum evq_status status =
        evq_read_texts(reader, node, where, 0, &harness->tasks, &harness->task_count);
    if (status == EVQ_OK && harness->task_count > TASKS_MAX) {
        return evq_read_fail(reader, node, "%s has %zu entries, allowed %d", where,
                             harness->task_count, TASKS_MAX);
    }
    return status;
}

static enum evq_status read_chat(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where, void *base)
{
    bool ignored = false; // The program gets it as JSON.
    (void)base;
    return evq_read_bool(reader, node, where, &ignored);
}

static enum evq_status read_limit(const struct evq_config_reader *reader,
                                  const struct evq_node *node, const char *where, void *base)
{
    (void)base;
    enum evq_status status = evq_read_kind(reader, node, where, EVQ_NODE_SCALAR);
    if (status == EVQ_OK && (!number_is_json(node->text) || node->text[0] == '-' ||
                             strspn(node->text, "0.") == strlen(node->text))) {
        return evq_read_fail(reader, node, "%s is \"%.40s\", expected a number of samples above 0",
                             where, node->text);
    }
    return status;
}

/* One task of the suite for each of the harness, or one named as the suite. */
static enum evq_status make_tasks(const struct evq_config_reader *reader,
                                  const struct harness *harness, const char *json,
                                  struct evq_suite *suite)
{
    const size_t count = harness->task_count > 0 ? harness->task_count : 1;
    struct evq_task_config *tasks = evq_arena_array(reader->arena, count, sizeof *tasks);
    if (tasks == NULL) {
        return evq_read_nomem(reader);
    }
    for (size_t i = 0; i < count; i++) {
        const char *source = harness->task_count > 0 ? harness->tasks[i] : suite->name;
        char name[EVQ_JOB_NAME_BYTES_MAX + 1];
        struct evq_pair *options = evq_arena_array(reader->arena, 3, sizeof *options);
        evq_job_map_name(source, EVQ_JOB_NAME_BYTES_MAX, name);
        const char *copy = evq_arena_strndup(reader->arena, name, strlen(name));
        if (options == NULL || copy == NULL) {
            return evq_read_nomem(reader);
        }
        options[0] = (struct evq_pair){.key = "harness", .value = json};
        options[1] = (struct evq_pair){.key = "source", .value = source};
        options[2] = (struct evq_pair){.key = "base", .value = suite->base};
        tasks[i] = (struct evq_task_config){
            .name = copy, .type = "", .options = options, .option_count = 3};
    }
    suite->tasks = tasks;
    suite->task_count = count;
    return EVQ_OK;
}

static enum evq_status check_harness(const struct evq_config_reader *reader,
                                     const struct evq_node *node, const char *where,
                                     const struct harness *harness)
{
    const struct evq_node *kind = entry_of(node, "kind");
    const struct evq_node *argv = entry_of(node, "argv");
    const bool python = strcmp(harness->kind, "python") == 0;
    const bool command = strcmp(harness->kind, "command") == 0;
    char inner[96];

    if (kind == NULL) {
        return evq_read_fail_key(reader, node, "%s has no \"kind\"", where);
    }
    (void)snprintf(inner, sizeof inner, "%.80s.kind", where);
    enum evq_status status =
        check_word(reader, kind, inner, harness->kind, harness_words, COUNT_OF(harness_words));
    if (status != EVQ_OK) {
        return status;
    }
    if (python && (strchr(harness->function, ':') == NULL)) {
        return evq_read_fail_key(reader, node, "%s has no \"function\" as \"module:function\"",
                                 where);
    }
    if (command && (argv == NULL || argv->kind != EVQ_NODE_LIST || argv->count == 0)) {
        return evq_read_fail_key(reader, node, "%s has no \"argv\", a list of words", where);
    }
    for (size_t i = 0; i < harness->task_count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(harness->tasks[i], harness->tasks[j]) == 0) {
                return evq_read_fail(reader, node, "%s.tasks names \"%.60s\" twice", where,
                                     harness->tasks[i]);
            }
        }
    }
    return python || command || harness->task_count > 0
               ? EVQ_OK
               : evq_read_fail_key(reader, node, "%s has no \"tasks\"", where);
}

enum evq_status evq_read_harness(const struct evq_config_reader *reader,
                                 const struct evq_node *node, const char *where,
                                 struct evq_suite *suite)
{
    static const struct evq_key keys[] = {
        EVQ_KEY_PLAIN("kind", EVQ_KEY_TEXT, struct harness, kind),
        EVQ_KEY_BY("tasks", read_task_names),
        EVQ_KEY_BY("limit", read_limit),
        EVQ_KEY_BY("chat", read_chat),
        EVQ_KEY_RANGE("num_fewshot", EVQ_KEY_INT64, struct harness, num_fewshot, 0, 1000),
        EVQ_KEY_RANGE("concurrency", EVQ_KEY_INT64, struct harness, concurrency, 1, 4096),
        EVQ_KEY_PLAIN("function", EVQ_KEY_TEXT, struct harness, function),
        {.name = "argv", .type = EVQ_KEY_ANY},
        {.name = "env", .type = EVQ_KEY_ANY},
        {.name = "include_path", .type = EVQ_KEY_ANY},
        {.name = "gen_kwargs", .type = EVQ_KEY_ANY},
        {.name = "options", .type = EVQ_KEY_ANY}, // The harness's own, as it names them.
        {.name = "samples", .type = EVQ_KEY_ANY},
    };
    struct harness harness = {.kind = "", .function = ""};

    enum evq_status status = evq_read_map(reader, node, where, keys, COUNT_OF(keys), &harness);
    if (status == EVQ_OK) {
        status = check_harness(reader, node, where, &harness);
    }
    if (status != EVQ_OK) {
        return status;
    }
    const char *told = json_of(reader, node, NULL, false);
    suite->harness = json_of(reader, node, NULL, true);
    if (told == NULL || suite->harness == NULL) {
        return evq_read_nomem(reader);
    }
    return make_tasks(reader, &harness, told, suite);
}
