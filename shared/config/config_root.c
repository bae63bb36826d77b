#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/config.h"
#include "shared/remote/address.h"

const struct evq_root *evq_config_root_find(const struct evq_config *config, const char *name)
{
    for (size_t i = 0; i < config->root_count; i++) {
        if (strcmp(config->roots[i].name, name) == 0) {
            return &config->roots[i];
        }
    }
    return strcmp(name, config->shm.name) == 0 ? &config->shm : NULL;
}

void evq_config_checkpoint_path(const struct evq_config *config, const char *checkpoint, char *out,
                                size_t out_bytes)
{
    const char *colon = strchr(checkpoint, ':');

    for (size_t i = 0; colon != NULL && i < config->root_count; i++) {
        const struct evq_root *root = &config->roots[i];
        if (strlen(root->name) == (size_t)(colon - checkpoint) &&
            strncmp(root->name, checkpoint, (size_t)(colon - checkpoint)) == 0) {
            (void)snprintf(out, out_bytes, "%s/%s", root->path, colon + 1);
            return;
        }
    }
    (void)snprintf(out, out_bytes, "%s", checkpoint);
}

/* Returns the part of path below root, "" for root itself, or NULL if path is elsewhere. */
static const char *below(const char *root, const char *path)
{
    size_t bytes = strlen(root);
    while (bytes > 0 && root[bytes - 1] == '/') {
        bytes--;
    }
    if (strncmp(root, path, bytes) != 0 || (path[bytes] != '/' && path[bytes] != '\0')) {
        return NULL;
    }
    return path + bytes + strspn(path + bytes, "/");
}

/* Whether a component is "." or "..". Only the file system knows where such a path leads. */
static bool has_dots(const char *path)
{
    for (const char *part = path; part != NULL;) {
        size_t length = strcspn(part, "/");
        if ((length == 1 && part[0] == '.') || (length == 2 && part[0] == '.' && part[1] == '.')) {
            return true;
        }
        part = part[length] == '/' ? part + length + 1 : NULL;
    }
    return false;
}

struct match {
    const struct evq_root *root;
    const char *tail;
};

static void match_root(const struct evq_root *root, const char *path, struct match *match)
{
    char real[PATH_MAX];
    const char *tail = below(root->path, path);
    const char *other =
        !root->is_remote && realpath(root->path, real) != NULL ? below(real, path) : NULL;

    if (tail == NULL || (other != NULL && strlen(other) < strlen(tail))) {
        tail = other;
    }
    if (tail != NULL && (match->tail == NULL || strlen(tail) < strlen(match->tail))) {
        match->root = root;
        match->tail = tail;
    }
}

static void match_path(const struct evq_config *config, const char *path, struct match *match)
{
    for (size_t i = 0; i < config->root_count; i++) {
        match_root(&config->roots[i], path, match);
    }
    match_root(&config->shm, path, match);
}

static enum evq_status fail_unmatched(const struct evq_config *config, const char *path,
                                      struct evq_error *err)
{
    char name[EVQ_JOB_NAME_BYTES_MAX + 1];
    char roots[192] = "none";
    size_t used = 0;
    const char *slash = strrchr(path, '/');
    int directory_bytes = slash != NULL && slash != path ? (int)(slash - path) : 1;
    if (slash != NULL && slash > path && slash[-1] == '/') {
        directory_bytes = (int)strlen(path); // The address has only a bucket and no path.
    }
    char directory[160];

    (void)snprintf(directory, sizeof directory, "%.*s",
                   directory_bytes < 159 ? directory_bytes : 159, path);
    const char *last = strrchr(directory, '/');
    evq_job_map_name(last != NULL && last[1] != '\0' ? last + 1 : "checkpoints",
                     EVQ_JOB_NAME_BYTES_MAX, name);
    for (size_t i = 0; i < config->root_count && used < sizeof roots - 1; i++) {
        int wrote = snprintf(roots + used, sizeof roots - used, "%s%s=%s", i > 0 ? ", " : "",
                             config->roots[i].name, config->roots[i].path);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    char shown[160];
    char safe[176];
    (void)evq_error_escape(path, strlen(path), shown, sizeof shown);
    (void)evq_error_escape(directory, strlen(directory), safe, sizeof safe);
    // The missing line comes before the list of roots, because a long list may be cut.
    return evq_error_set(err, EVQ_E_NOT_FOUND,
                         "'%s' lies beneath no root; add to %.60s: roots: {%s: %s} (present: %s)",
                         shown, config->file[0] != '\0' ? config->file : "evalq.yaml", name, safe,
                         roots);
}

static enum evq_status resolve_address(const struct evq_config *config, const char *text,
                                       char address[PATH_MAX], const struct evq_root **ret_root,
                                       const char **ret_path, struct evq_error *err)
{
    struct match match = {0};
    const enum evq_status status = evq_address_normalize(text, address, PATH_MAX, err);

    if (status != EVQ_OK) {
        return status;
    }
    match_path(config, address, &match);
    if (match.root == NULL) {
        return fail_unmatched(config, address, err);
    }
    *ret_root = match.root;
    *ret_path = match.tail[0] != '\0' ? match.tail : ".";
    return EVQ_OK;
}

enum evq_status evq_config_root_resolve(const struct evq_config *config, const char *absolute_path,
                                        char real[PATH_MAX], const struct evq_root **ret_root,
                                        const char **ret_path, struct evq_error *err)
{
    struct match match = {0};

    if (evq_address_is(absolute_path)) {
        return resolve_address(config, absolute_path, real, ret_root, ret_path, err);
    }
    if (absolute_path[0] != '/') {
        return evq_error_set(err, EVQ_E_INVALID, "'%.200s' is not an absolute path", absolute_path);
    }
    if (!has_dots(absolute_path)) {
        match_path(config, absolute_path, &match);
    }
    if (match.root == NULL && realpath(absolute_path, real) != NULL) {
        match_path(config, real, &match);
    }
    if (match.root == NULL) {
        return fail_unmatched(config, absolute_path, err);
    }
    *ret_root = match.root;
    *ret_path = match.tail[0] != '\0' ? match.tail : ".";
    return EVQ_OK;
}

size_t evq_config_roots_open(const struct evq_config *config, int *fds, size_t fds_max)
{
    size_t count = 0;

    for (size_t i = 0; i < config->root_count && count < fds_max; i++) {
        fds[count] = open(config->roots[i].path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        count += fds[count] >= 0;
    }
    return count;
}
