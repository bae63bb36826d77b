#include "shared/config/config.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/file.h"
#include "shared/base/nearest.h"
#include "shared/config/config_read.h"
#include "shared/queue/keys.h"

#define URL_DEFAULT     "redis://127.0.0.1:6379"
#define URL_FILE        ".evalq/url"
#define PASSWORD_FILE   ".evalq/password"
#define URL_BYTES_MAX   ((size_t)4096)
#define FILE_HERE       "evalq.yaml"
#define FILE_STARTED    ".evalq/evalq.yaml" // `evalq up` writes it for the programs that it starts.
#define FILE_SYSTEM     "/etc/evalq/evalq.yaml"
#define ARENA_BYTES_MAX ((size_t)64 << 20)

static const char *scratch_default(struct evq_arena *arena)
{
    const char *parent = getenv("TMPDIR");
    if (parent == NULL || parent[0] != '/') {
        parent = "/tmp";
    }
    return evq_arena_printf(arena, "%s/evalq-%ju", parent, (uintmax_t)getuid());
}

/* The directory from which the program was started, like the logger's. Absolute, because other
 * programs are told about it. */
static const char *results_default(struct evq_arena *arena)
{
    char here[PATH_MAX];
    return evq_arena_printf(arena, "%s/evalq-lmms", getcwd(here, sizeof here) != NULL ? here : "");
}

static struct evq_config *config_new(void)
{
    struct evq_arena *arena = evq_arena_new(ARENA_BYTES_MAX);
    struct evq_config *config = arena != NULL ? evq_arena_alloc(arena, sizeof *config) : NULL;
    if (config == NULL) {
        evq_arena_free(arena);
        return NULL;
    }
    config->arena = arena;
    config->file = "";
    config->redis.url = "";
    config->redis.user = "";
    config->redis.password_file = "";
    config->redis.queue = "main";
    config->shm.name = EVQ_CONFIG_ROOT_SHM;
    config->shm.path = evq_arena_printf(arena, "/dev/shm/evalq-%ju", (uintmax_t)getuid());
    config->worker.devices = "auto";
    config->worker.gpus_per_slot = 1;
    config->worker.scratch = scratch_default(arena);
    config->worker.lease_ms = 15000;
    config->worker.heartbeat_ms = 3000;
    config->worker.drain_seconds = 30;
    config->worker.log_bytes_max = INT64_C(64) << 20;
    config->worker.fetch_bytes_max = INT64_C(1) << 40;
    config->worker.python = "";
    config->worker.cache = "";
    config->worker.cache_bytes = INT64_C(100) << 30;
    config->logger.directory = EVQ_CONFIG_RESULTS_DEFAULT;
    config->samples.directory = EVQ_CONFIG_SAMPLES_DEFAULT;
    config->samples.stream_bytes = INT64_C(64) << 20;
    config->samples.wait_seconds = 30;
    config->gateway.listen = "127.0.0.1:8000"; // The port of LMMS-Eval's own server.
    config->gateway.tokens = "";
    config->gateway.lmms.suite = "lmms";
    config->gateway.lmms.merged_suite = "lmms-merged";
    config->gateway.lmms.merge_suite = "lmms-merge";
    config->gateway.lmms.results = results_default(arena);
    config->gateway.lmms.catalog = "";
    config->gateway.lmms.both_variants = true;
    config->gateway.lmms.gpus_as_needs = true;
    config->gateway.lmms.pin = true;
    if (config->worker.scratch == NULL || config->shm.path == NULL ||
        config->gateway.lmms.results == NULL) {
        evq_arena_free(arena);
        return NULL;
    }
    return config;
}

void evq_config_free(struct evq_config *config)
{
    if (config != NULL) {
        evq_arena_free(config->arena);
    }
}

/* The absolute directory of file_name; NULL: out of memory, or no working directory. */
static const char *directory_of(const char *file_name, struct evq_arena *arena)
{
    char path[PATH_MAX];
    const char *slash = strrchr(file_name, '/');
    size_t bytes = slash == NULL ? 0 : slash == file_name ? 1 : (size_t)(slash - file_name);
    char *directory = evq_arena_strndup(arena, bytes > 0 ? file_name : ".", bytes > 0 ? bytes : 1);
    if (directory == NULL) {
        return NULL;
    }
    if (realpath(directory, path) != NULL) {
        return evq_arena_strdup(arena, path);
    }
    if (directory[0] == '/') {
        return directory;
    }
    return getcwd(path, sizeof path) != NULL ? evq_arena_printf(arena, "%s/%s", path, directory)
                                             : NULL;
}

/* Reads the file. The command line may override the address and the queue later. */
static enum evq_status config_parse(struct evq_config *config, const char *text, size_t bytes,
                                    const char *file_name, struct evq_error *err)
{
    const struct evq_node *root = NULL;
    struct evq_config_reader reader = {.arena = config->arena, .err = err, .config = config};

    reader.file_name = evq_arena_strdup(config->arena, file_name);
    reader.directory = directory_of(file_name, config->arena);
    if (reader.file_name == NULL || reader.directory == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", file_name);
    }
    enum evq_status status =
        evq_tree_parse(text, bytes, reader.file_name, config->arena, &root, err);
    if (status == EVQ_OK) {
        status = evq_read_file(&reader, root);
    }
    config->file = reader.file_name;
    return status;
}

enum evq_status evq_config_parse(const char *text, size_t bytes, const char *file_name,
                                 struct evq_config **ret_config, struct evq_error *err)
{
    struct evq_config *config = config_new();
    if (config == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%s", file_name);
    }
    enum evq_status status = config_parse(config, text, bytes, file_name, err);
    if (status != EVQ_OK) {
        evq_config_free(config);
        return status;
    }
    if (config->redis.url[0] == '\0') {
        config->redis.url = URL_DEFAULT;
    }
    *ret_config = config;
    return EVQ_OK;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Returns the name of an option as its caller wrote it. */
static const char *as_given(const struct evq_config_source *source, const char *option)
{
    return source->library ? option + strlen("--") : option;
}

static enum evq_status load_file(const struct evq_config_source *source, struct evq_config *config,
                                 struct evq_error *err)
{
    const char *paths[] = {FILE_HERE, FILE_STARTED, FILE_SYSTEM};
    const size_t path_count = sizeof(paths) / sizeof(paths[0]);
    const char *named = source->file != NULL ? source->file : environment("EVALQ_CONFIG");
    struct evq_buffer text;
    enum evq_status status = EVQ_E_NOT_FOUND;

    evq_buffer_init(&text, EVQ_CONFIG_BYTES_MAX * 2);
    const char *path = named;
    if (named != NULL) {
        status = evq_file_read(AT_FDCWD, named, 0, EVQ_CONFIG_BYTES_MAX, &text, err);
    }
    for (size_t i = 0; named == NULL && status == EVQ_E_NOT_FOUND && i < path_count; i++) {
        path = paths[i];
        status = evq_file_read(AT_FDCWD, path, 0, EVQ_CONFIG_BYTES_MAX, &text, err);
    }
    if (status == EVQ_OK) {
        const char *content = evq_buffer_string(&text);
        status = config_parse(config, content, text.bytes, path, err);
    } else if (status == EVQ_E_NOT_FOUND && named == NULL) {
        status = EVQ_OK; // Without a file, all values are defaults.
    } else {
        (void)evq_error_prefix(err, "configuration named by %s",
                               source->file != NULL ? as_given(source, "--config")
                               : named != NULL      ? "$EVALQ_CONFIG"
                                                    : path);
    }
    evq_buffer_free(&text);
    return status;
}

/* Reads the address that `evalq up` left in the working directory. Its private Redis has none of
 * the users in the file. */
static enum evq_status load_url_file(struct evq_config *config, bool *ret_found,
                                     struct evq_error *err)
{
    struct evq_buffer text;
    evq_buffer_init(&text, URL_BYTES_MAX * 8);
    enum evq_status status = evq_file_read(AT_FDCWD, URL_FILE, 0, URL_BYTES_MAX, &text, err);
    *ret_found = status == EVQ_OK;
    if (status == EVQ_OK) {
        const char *content = evq_buffer_string(&text);
        content += strspn(content, " \t\r\n");
        config->redis.url = evq_arena_strndup(config->arena, content, strcspn(content, " \t\r\n"));
        if (config->redis.url == NULL) {
            status = evq_error_set(err, EVQ_E_NOMEM, "%s", URL_FILE);
        } else if (config->redis.url[0] == '\0') {
            status =
                evq_error_set(err, EVQ_E_INVALID, "'%s' is empty, expected an address", URL_FILE);
        }
        config->redis.user = "";
        config->redis.password_file = "";
        char path[PATH_MAX];
        if (status == EVQ_OK && realpath(PASSWORD_FILE, path) != NULL) {
            const char *password_file = evq_arena_strdup(config->arena, path);
            config->redis.password_file = password_file != NULL ? password_file : "";
            if (password_file == NULL) {
                status = evq_error_set(err, EVQ_E_NOMEM, "%s", PASSWORD_FILE);
            }
        }
    } else if (status == EVQ_E_NOT_FOUND) {
        status = EVQ_OK;
    }
    evq_buffer_free(&text);
    return status;
}

static enum evq_status resolve_redis(const struct evq_config_source *source,
                                     struct evq_config *config, struct evq_error *err)
{
    const char *url = source->url != NULL ? source->url : environment("EVALQ_URL");
    const char *queue = source->queue != NULL ? source->queue : environment("EVALQ_QUEUE");
    bool found = false;

    if (url != NULL) {
        config->redis.url = evq_arena_strdup(config->arena, url);
        config->redis.url_from =
            source->url != NULL ? EVQ_CONFIG_URL_OPTION : EVQ_CONFIG_URL_ENVIRONMENT;
        if (environment("EVALQ_REDIS_PASSWORD") != NULL ||
            environment("EVALQ_REDIS_PASSWORD_FILE") != NULL) {
            // Address and password both come from outside. The file's belong to another server.
            config->redis.user = "";
            config->redis.password_file = "";
        }
    } else {
        enum evq_status status = load_url_file(config, &found, err);
        if (status != EVQ_OK) {
            return status;
        }
        config->redis.url_from = found                          ? EVQ_CONFIG_URL_UP
                                 : config->redis.url[0] != '\0' ? EVQ_CONFIG_URL_FILE
                                                                : EVQ_CONFIG_URL_DEFAULT;
    }
    if (queue != NULL) {
        if (!evq_job_name_valid(queue, EVQ_KEYS_QUEUE_BYTES_MAX)) {
            return evq_error_set(
                err, EVQ_E_INVALID,
                "queue '%.80s' given by %s is not 1 to %d of the bytes [A-Za-z0-9._-]", queue,
                source->queue != NULL ? as_given(source, "--queue") : "$EVALQ_QUEUE",
                EVQ_KEYS_QUEUE_BYTES_MAX);
        }
        config->redis.queue = evq_arena_strdup(config->arena, queue);
    }
    if (config->redis.url == NULL || config->redis.queue == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "configuration");
    }
    if (config->redis.url[0] == '\0') {
        config->redis.url = URL_DEFAULT;
    }
    return EVQ_OK;
}

struct evq_config_source evq_config_source_of(const struct evq_option_set *options)
{
    return (struct evq_config_source){.file = evq_option_text(options, "config", NULL),
                                      .url = evq_option_text(options, "url", NULL),
                                      .queue = evq_option_text(options, "queue", NULL)};
}

enum evq_status evq_config_load(const struct evq_config_source *source,
                                struct evq_config **ret_config, struct evq_error *err)
{
    struct evq_config *config = config_new();
    if (config == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "configuration");
    }
    enum evq_status status = load_file(source, config, err);
    if (status == EVQ_OK) {
        status = resolve_redis(source, config, err);
    }
    if (status != EVQ_OK) {
        evq_config_free(config);
        return status;
    }
    *ret_config = config;
    return EVQ_OK;
}

const struct evq_suite *evq_config_suite(const struct evq_config *config, const char *name)
{
    for (size_t i = 0; i < config->suite_count; i++) {
        if (strcmp(config->suites[i].name, name) == 0) {
            return &config->suites[i];
        }
    }
    return NULL;
}

const struct evq_suite *evq_config_suite_find(const struct evq_config *config, const char *name,
                                              struct evq_error *err)
{
    const struct evq_suite *suite = evq_config_suite(config, name);
    char choice[256];
    if (suite != NULL) {
        return suite;
    }
    const char **names = calloc(config->suite_count + 1, sizeof *names);
    for (size_t i = 0; names != NULL && i < config->suite_count; i++) {
        names[i] = config->suites[i].name;
    }
    (void)evq_error_set(err, EVQ_E_NOT_FOUND, "no suite '%.64s' in %.150s: %s", name,
                        config->file[0] != '\0' ? config->file
                                                : "the configuration, for there is no file",
                        evq_nearest_choice(name, names, names != NULL ? config->suite_count : 0,
                                           choice, sizeof choice));
    free(names);
    return NULL;
}

const struct evq_task_config *evq_suite_task(const struct evq_suite *suite, const char *name)
{
    const struct evq_task_config *any = NULL;
    for (size_t i = 0; i < suite->task_count; i++) {
        const struct evq_task_config *task = &suite->tasks[i];
        if (strcmp(task->name, name) == 0) {
            return task;
        }
        if (strcmp(evq_pair_get(task->options, task->option_count, "source", ""), "*") == 0) {
            any = task;
        }
    }
    return any;
}
