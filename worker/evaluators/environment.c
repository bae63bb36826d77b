#include "worker/evaluators/environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *const base_names[] = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"};
#define BASE_COUNT  (sizeof(base_names) / sizeof(base_names[0]))
#define FIXED_COUNT 4 // CUDA_VISIBLE_DEVICES, MASTER_ADDR, MASTER_PORT and the NULL.

/* Whether the name would make a program believe that it belongs to somebody else's job: SLURM_*,
 * RANK, MASTER_PORT and others. */
static bool is_scrubbed(const char *name)
{
    static const char *const prefixes[] = {"SLURM_",        "SLURMD_", "SRUN_",  "SBATCH_",
                                           "TORCHELASTIC_", "GROUP_",  "PMI_",   "PMIX_",
                                           "OMPI_",         "MASTER_", "HYDRA_", "MPI_"};
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "NODE_RANK",
                                        "ROLE_RANK",
                                        "ROLE_WORLD_SIZE",
                                        "ROLE_NAME",
                                        "CUDA_VISIBLE_DEVICES",
                                        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
                                        "NCCL_ASYNC_ERROR_HANDLING"};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* A port on which nobody listens now; -1: there is none. If another process takes it first, torch
 * reports that. */
static int port_free(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int port = -1;

    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
        getsockname(fd, (struct sockaddr *)&address, &bytes) == 0) {
        port = ntohs(address.sin_port);
    }
    (void)close(fd);
    return port;
}

struct list {
    char **items;
    size_t count;
    struct evq_arena *arena;
    bool failed;
};

static void list_set(struct list *list, const char *name, const char *value)
{
    const size_t bytes = strlen(name);

    char *item = evq_arena_printf(list->arena, "%s=%s", name, value);
    if (item == NULL) {
        list->failed = true;
        return;
    }
    for (size_t i = 0; i < list->count; i++) {
        if (strncmp(list->items[i], name, bytes) == 0 && list->items[i][bytes] == '=') {
            list->items[i] = item;
            return;
        }
    }
    list->items[list->count++] = item;
}

static void list_pass(struct list *list, const char *name)
{
    const char *value = getenv(name);

    if (value != NULL) {
        list_set(list, name, value);
    }
}

/* Passes the variable `name`, or, if it ends in '*', all variables that begin with the text before
 * it. */
static void list_pass_matching(struct list *list, const char *name)
{
    const char *star = strchr(name, '*');
    const size_t bytes = star != NULL ? (size_t)(star - name) : strlen(name);
    char found[256];

    if (star == NULL && !is_scrubbed(name)) {
        list_pass(list, name);
    }
    for (size_t i = 0; star != NULL && environ[i] != NULL; i++) {
        const size_t length = strcspn(environ[i], "=");
        if (length < sizeof(found) && strncmp(environ[i], name, bytes) == 0) {
            (void)snprintf(found, sizeof(found), "%.*s", (int)length, environ[i]);
            if (!is_scrubbed(found)) {
                list_pass(list, found);
            }
        }
    }
}

static size_t environ_count(void)
{
    size_t count = 0;

    while (environ != NULL && environ[count] != NULL) {
        count++;
    }
    return count;
}

char *const *evq_environment_build(const struct evq_evaluator *evaluator, const char *devices,
                                   const struct evq_pair *extra, size_t extra_count,
                                   struct evq_arena *arena)
{
    struct list list = {.arena = arena};
    char port[16];

    list.items = evq_arena_array(
        arena, BASE_COUNT + FIXED_COUNT + environ_count() + evaluator->env_count + extra_count,
        sizeof(*list.items));
    if (list.items == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < BASE_COUNT; i++) {
        list_pass(&list, base_names[i]);
    }
    for (size_t i = 0; i < evaluator->env_pass_count; i++) {
        list_pass_matching(&list, evaluator->env_pass[i]);
    }
    const int number = port_free();
    if (number > 0) {
        (void)snprintf(port, sizeof(port), "%d", number);
        list_set(&list, "MASTER_ADDR", "127.0.0.1");
        list_set(&list, "MASTER_PORT", port);
    }
    for (size_t i = 0; i < evaluator->env_count; i++) {
        list_set(&list, evaluator->env[i].key, evaluator->env[i].value);
    }
    list_set(&list, "CUDA_VISIBLE_DEVICES", devices);
    for (size_t i = 0; i < extra_count; i++) {
        list_set(&list, extra[i].key, extra[i].value);
    }
    list.items[list.count] = NULL;
    return list.failed ? NULL : list.items;
}
