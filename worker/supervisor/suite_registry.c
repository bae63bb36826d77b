#include "worker/supervisor/suite_registry.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "worker/child/runner.h"

static bool list_holds(const char *list, const char *name)
{
    const size_t bytes = strlen(name);

    for (const char *at = list; at != NULL && *at != '\0';) {
        const size_t word = strcspn(at, ",");
        if (word == bytes && memcmp(at, name, bytes) == 0) {
            return true;
        }
        at += word;
        at += *at == ',';
    }
    return false;
}

static enum evq_status list_check(const struct evq_config *config, const char *list,
                                  struct evq_error *err)
{
    for (const char *at = list; at != NULL && *at != '\0';) {
        char name[EVQ_JOB_NAME_BYTES_MAX + 2];
        const size_t word = strcspn(at, ",");
        (void)snprintf(name, sizeof(name), "%.*s",
                       (int)(word < sizeof(name) ? word : sizeof(name) - 1), at);
        if (evq_config_suite_find(config, name, err) == NULL) {
            return evq_error_prefix(err, "--suites");
        }
        at += word;
        at += *at == ',';
    }
    return EVQ_OK;
}

/* Whether the programs of a suite can be started on this machine. If not, *why names the missing
 * one. */
static bool programs_are_there(const struct evq_config *config, const struct evq_suite *suite,
                               struct evq_error *why)
{
    const char *const names[] = {suite->evaluator, suite->prepare};
    char path[PATH_MAX];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const struct evq_evaluator *evaluator = evq_config_evaluator(config, names[i]);
        if (evaluator != NULL && !evq_file_program_find(evaluator->argv[0], path, sizeof(path))) {
            char fault[PATH_MAX + 128] = "is not in $PATH";
            if (strchr(evaluator->argv[0], '/') != NULL) {
                (void)evq_file_program_fault(evaluator->argv[0], errno, fault, sizeof(fault));
            }
            (void)evq_error_set(why, EVQ_E_INVALID,
                                "suite '%s' cannot be served: the program '%s' of evaluator '%s' "
                                "%s",
                                suite->name, evaluator->argv[0], evaluator->name, fault);
            return false;
        }
    }
    return true;
}

enum evq_status evq_suite_registry_open(struct evq_suite_registry *registry,
                                        const struct evq_config *config, const char *list,
                                        const char *host, struct evq_error *err)
{
    struct evq_error why = {0};
    size_t count = 0;

    memset(registry, 0, sizeof(*registry));
    registry->config = config;
    registry->version = -1;
    // A relative path such as "evalq.yaml" would not tell which file it is.
    char *file = realpath(config->file, NULL);
    (void)snprintf(registry->where, sizeof(registry->where), "%s:%s", host,
                   file != NULL ? file : config->file);
    free(file);
    registry->suites = calloc(config->suite_count + 1, sizeof(*registry->suites));
    if (registry->suites == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "suites");
    }
    enum evq_status status = list_check(config, list, err);
    for (size_t i = 0; i < config->suite_count && status == EVQ_OK; i++) {
        registry->suites[i] = list == NULL || list_holds(list, config->suites[i].name);
        if (registry->suites[i] && !programs_are_there(config, &config->suites[i], &why)) {
            evq_log(EVQ_LOG_ERROR, "suite_not_offered", "reason=%s", why.message);
            registry->suites[i] = false;
        }
        if (registry->suites[i]) {
            count++;
            status = evq_runner_suite_check(config, &config->suites[i], err);
        }
    }
    if (status == EVQ_OK && count == 0 && why.status != EVQ_OK) {
        status = evq_error_set(err, EVQ_E_INVALID, "no suites to serve: %s", why.message);
    } else if (status == EVQ_OK && count == 0) {
        status = evq_error_set(
            err, EVQ_E_INVALID, "no suites to serve: %s",
            config->file[0] != '\0'
                ? "the configuration has no suites; `evalq init` shows how to add one"
                : "there is no evalq.yaml; write one with `evalq init`, or name it with --config");
    }
    return status;
}

void evq_suite_registry_close(struct evq_suite_registry *registry)
{
    free(registry->suites);
    registry->suites = NULL;
}

const struct evq_suite *evq_suite_registry_suite(const struct evq_suite_registry *registry,
                                                 const char *name)
{
    for (size_t i = 0; i < registry->config->suite_count; i++) {
        if (registry->suites[i] && strcmp(registry->config->suites[i].name, name) == 0) {
            return &registry->config->suites[i];
        }
    }
    return NULL;
}

static enum evq_status classes_read(struct evq_suite_registry *registry, struct evq_queue *queue,
                                    struct evq_error *err)
{
    return evq_queue_classes(queue, registry->classes, &registry->class_count, &registry->version,
                             err);
}

enum evq_status evq_suite_registry_register(struct evq_suite_registry *registry,
                                            struct evq_queue *queue, struct evq_error *err)
{
    char needs[256];
    uint32_t class_number = 0;

    for (size_t i = 0; i < registry->config->suite_count; i++) {
        const struct evq_suite *suite = &registry->config->suites[i];
        if (!registry->suites[i]) {
            continue;
        }
        enum evq_status status = evq_needs_text(&suite->needs, needs, sizeof(needs), err);
        if (status != EVQ_OK) {
            return status;
        }
        const struct evq_suite_offer words = {.name = suite->name,
                                              .digest = suite->digest,
                                              .needs = needs,
                                              .shards = suite->shards,
                                              .every = suite->every,
                                              .definition = suite->definition,
                                              .where = registry->where};
        status = evq_queue_suite_register(queue, &words, false, &class_number, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
    return classes_read(registry, queue, err);
}

static bool suites_present(const struct evq_suite_registry *registry)
{
    for (size_t i = 0; i < registry->config->suite_count; i++) {
        bool present = !registry->suites[i];
        for (uint32_t c = 0; c < registry->class_count && !present; c++) {
            present = strcmp(registry->classes[c].suite, registry->config->suites[i].name) == 0;
        }
        if (!present) {
            return false;
        }
    }
    return true;
}

enum evq_status evq_suite_registry_refresh(struct evq_suite_registry *registry,
                                           struct evq_queue *queue, struct evq_error *err)
{
    const enum evq_status status = classes_read(registry, queue, err);

    if (status != EVQ_OK || suites_present(registry)) {
        return status;
    }
    return evq_suite_registry_register(registry, queue, err);
}

uint64_t evq_suite_registry_bit(uint32_t class_number)
{
    return class_number >= 1 && class_number <= 64 ? UINT64_C(1) << (class_number - 1) : 0;
}

/* Computes whether the slot meets the needs of a class. Needs that cannot be parsed fit no slot.
 * Returns EVQ_OK or EVQ_E_NOMEM. */
static enum evq_status needs_fit(const struct evq_suite_registry *registry,
                                 const struct evq_class *class, const struct evq_slot *slot,
                                 bool *ret_fits)
{
    struct evq_needs needs;
    enum evq_status status = EVQ_E_NOMEM;
    bool fits = false;

    struct evq_arena *arena = evq_arena_new(0);
    if (arena != NULL) {
        status = evq_needs_parse(class->needs, arena, &needs, NULL);
    }
    if (status == EVQ_OK) {
        fits = needs.gpus <= slot->gpus &&
               (needs.gpu_memory_bytes == 0 || needs.gpu_memory_bytes <= slot->memory_bytes);
        for (size_t i = 0; i < needs.label_count && fits; i++) {
            bool have = false;
            for (size_t l = 0; l < registry->config->worker.label_count; l++) {
                have = have || strcmp(registry->config->worker.labels[l], needs.labels[i]) == 0;
            }
            fits = have;
        }
    }
    evq_arena_free(arena);
    *ret_fits = fits;
    return status == EVQ_E_NOMEM ? EVQ_E_NOMEM : EVQ_OK;
}

enum evq_status evq_suite_registry_fit(const struct evq_suite_registry *registry,
                                       struct evq_slot *slot)
{
    enum evq_status status = EVQ_OK;

    slot->fits = 0;
    for (uint32_t i = 0; i < registry->class_count; i++) {
        const struct evq_class *class = &registry->classes[i];
        bool fits = false;
        if (evq_suite_registry_suite(registry, class->suite) == NULL) {
            continue;
        }
        if (needs_fit(registry, class, slot, &fits) != EVQ_OK) {
            status = EVQ_E_NOMEM;
        } else if (fits) {
            slot->fits |= evq_suite_registry_bit(class->number);
        }
    }
    return status;
}

uint32_t evq_suite_registry_classes(const struct evq_suite_registry *registry, uint64_t mask,
                                    uint32_t *ret_classes)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < registry->class_count; i++) {
        if ((mask & evq_suite_registry_bit(registry->classes[i].number)) != 0) {
            ret_classes[count++] = registry->classes[i].number;
        }
    }
    return count;
}
