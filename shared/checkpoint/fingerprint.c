#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/hex.h"
#include "shared/checkpoint/beneath.h"
#include "shared/checkpoint/directory.h"

#define BLOCK_BYTES      4096u
#define BLOCK_COUNT      16u
#define TREE_DEPTH_MAX   16
#define TREE_NAMES_BYTES ((size_t)16 << 20)

/* 16 blocks spread evenly from the first to the last; a small file as a whole. */
static enum evq_status hash_blocks(XXH3_state_t *state, int fd, uint64_t bytes, uint8_t *block,
                                   struct evq_error *err)
{
    uint64_t last = bytes > BLOCK_BYTES ? bytes - BLOCK_BYTES : 0;
    bool whole = bytes <= (uint64_t)BLOCK_BYTES * BLOCK_COUNT;

    for (uint64_t i = 0; i < BLOCK_COUNT; i++) {
        // last / 15 * i + ...: as last * i / 15, without overflow.
        uint64_t at =
            whole ? i * BLOCK_BYTES
                  : last / (BLOCK_COUNT - 1) * i + last % (BLOCK_COUNT - 1) * i / (BLOCK_COUNT - 1);
        if (at >= bytes) {
            break;
        }
        size_t count = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        enum evq_status status = evq_directory_read_fd(fd, at, block, count, err);
        if (status != EVQ_OK) {
            return status;
        }
        (void)XXH3_128bits_update(state, block, count); // Fails for a NULL state only.
    }
    return EVQ_OK;
}

static void hash_size(XXH3_state_t *state, uint64_t bytes)
{
    uint8_t size[8];

    for (unsigned k = 0; k < sizeof(size); k++) {
        size[k] = (uint8_t)(bytes >> (8 * k));
    }
    (void)XXH3_128bits_update(state, size, sizeof(size)); // Fails for a NULL state only.
}

static int by_name(const void *a, const void *b)
{
    const struct evq_checkpoint_file *const *left = a;
    const struct evq_checkpoint_file *const *right = b;

    return strcmp((*left)->name, (*right)->name);
}

static enum evq_status hash_files(XXH3_state_t *state, const struct evq_checkpoint *checkpoint,
                                  struct evq_buffer *manifest, uint8_t *block,
                                  struct evq_error *err)
{
    size_t count = checkpoint->file_count;
    const struct evq_checkpoint_file **order = calloc(count == 0 ? 1 : count, sizeof(*order));
    enum evq_status status = EVQ_OK;

    if (order == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu files", count);
    }
    for (size_t i = 0; i < count; i++) {
        order[i] = &checkpoint->files[i];
    }
    qsort(order, count, sizeof(*order), by_name);
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        const struct evq_checkpoint_file *file = order[i];
        if (count > 1) { // A single file may be renamed.
            (void)XXH3_128bits_update(state, file->name, strlen(file->name) + 1);
        }
        hash_size(state, file->bytes);
        status = hash_blocks(state, file->fd, file->bytes, block, err);
        if (manifest != NULL) {
            evq_buffer_printf(manifest, "%s\t%llu\n", file->name, (unsigned long long)file->bytes);
        }
    }
    free(order);
    return status;
}

enum evq_status evq_checkpoint_fingerprint(int root_fd, const char *path, char out[33],
                                           struct evq_buffer *manifest, struct evq_error *err)
{
    static const struct evq_checkpoint_options options = {.files_only = true};
    struct evq_checkpoint *checkpoint = NULL;
    uint8_t *block = malloc(BLOCK_BYTES);
    XXH3_state_t *state = XXH3_createState();
    enum evq_status status;

    if (block == NULL || state == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a fingerprint");
        goto out;
    }
    status = evq_checkpoint_open(root_fd, path, &options, &checkpoint, err);
    if (status != EVQ_OK) {
        goto out;
    }
    (void)XXH3_128bits_reset(state); // Fails for a NULL state only.
    status = hash_files(state, checkpoint, manifest, block, err);
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    if (status != EVQ_OK) {
        char shown[EVQ_SHOWN_BYTES];
        evq_error_escape(path, strlen(path), shown, sizeof(shown));
        (void)evq_error_prefix(err, "checkpoint '%s'", shown); // The status stays what it is.
        goto out;
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    evq_hex_128(hash.high64, hash.low64, out);
out:
    evq_checkpoint_close(checkpoint);
    (void)XXH3_freeState(state);
    free(block);
    return status;
}

enum evq_status evq_checkpoint_same(const char *root, const char *path, const char *fingerprint,
                                    struct evq_error *err)
{
    char now[33] = "";

    const int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", root, strerror(errno));
    }
    enum evq_status status = evq_checkpoint_fingerprint(fd, path, now, NULL, err);
    if (status == EVQ_OK && strcmp(now, fingerprint) != 0) {
        status = evq_error_set(err, EVQ_E_CHANGED, "other weights have its name by now");
    }
    (void)close(fd); // Opened for reading.
    return status;
}

/* Adds the regular files beneath a directory to names, each "PREFIXNAME", NUL. Takes over fd. */
static enum evq_status tree_list(int fd, const char *prefix, int depth, struct evq_buffer *names,
                                 struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    DIR *stream = fdopendir(fd);
    const struct dirent *entry = NULL;
    char inner[4096];
    struct stat info;

    if (stream == NULL) {
        (void)close(fd); // Never read from.
        return evq_error_set(err, EVQ_E_IO, "list '%s': %s", prefix, strerror(errno));
    }
    while (status == EVQ_OK && (errno = 0, entry = readdir(stream)) != NULL) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
            continue;
        }
        const int bytes = snprintf(inner, sizeof(inner), "%s%s", prefix, name);
        if (bytes < 0 || (size_t)bytes + 1 >= sizeof(inner) || depth >= TREE_DEPTH_MAX) {
            status = evq_error_set(err, EVQ_E_LIMIT, "'%s' lies deeper than %d folders", prefix,
                                   TREE_DEPTH_MAX);
        } else if (fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
            status = evq_error_set(err, EVQ_E_CHANGED, "'%s': %s", inner, strerror(errno));
        } else if (S_ISREG(info.st_mode)) {
            evq_buffer_append(names, inner, (size_t)bytes + 1);
        } else if (S_ISDIR(info.st_mode)) {
            const int folder = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            inner[bytes] = '/';
            inner[bytes + 1] = '\0';
            status = folder >= 0 ? tree_list(folder, inner, depth + 1, names, err)
                                 : evq_error_set(err, EVQ_E_IO, "'%s': %s", inner, strerror(errno));
        }
    }
    if (status == EVQ_OK && errno != 0) {
        status = evq_error_set(err, EVQ_E_IO, "list '%s': %s", prefix, strerror(errno));
    }
    (void)closedir(stream); // Opened for reading: a failed close loses nothing.
    return status;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What lies beneath a directory, in the order of names. */
static enum evq_status tree_hash(XXH3_state_t *state, int fd, const struct evq_buffer *names,
                                 uint8_t *block, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t count = 0;
    struct stat info;

    for (size_t at = 0; at < names->bytes; at++) {
        count += names->data[at] == '\0';
    }
    const char **order = calloc(count == 0 ? 1 : count, sizeof(*order));
    if (order == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu files", count);
    }
    const char *name = (const char *)names->data;
    for (size_t i = 0; i < count; i++, name += strlen(name) + 1) {
        order[i] = name;
    }
    qsort(order, count, sizeof(*order), by_text);
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        int file = -1;
        status = evq_beneath_open(fd, order[i], false, &file, err);
        if (status == EVQ_OK && fstat(file, &info) != 0) {
            status = evq_error_set(err, EVQ_E_IO, "'%s': %s", order[i], strerror(errno));
        }
        if (status == EVQ_OK) {
            (void)XXH3_128bits_update(state, order[i], strlen(order[i]) + 1);
            hash_size(state, (uint64_t)info.st_size);
            status = hash_blocks(state, file, (uint64_t)info.st_size, block, err);
        }
        evq_file_close(&file);
    }
    free(order);
    return status;
}

enum evq_status evq_checkpoint_tree_fingerprint(int root_fd, const char *path, char out[33],
                                                struct evq_error *err)
{
    uint8_t *block = malloc(BLOCK_BYTES);
    XXH3_state_t *state = XXH3_createState();
    struct evq_buffer names;
    struct stat info;
    int fd = -1;

    evq_buffer_init(&names, TREE_NAMES_BYTES);
    enum evq_status status = evq_beneath_open_any(root_fd, path, &fd, &info, err);
    if (status != EVQ_OK) {
        goto out;
    }
    if (block == NULL || state == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a fingerprint");
        goto out;
    }
    (void)XXH3_128bits_reset(state); // Fails for a NULL state only.
    if (S_ISDIR(info.st_mode)) {
        const int listed = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = listed >= 0 ? tree_list(listed, "", 0, &names, err)
                             : evq_error_set(err, EVQ_E_IO, "'%s': %s", path, strerror(errno));
        if (status == EVQ_OK && names.failed) {
            status = names.full
                         ? evq_error_set(err, EVQ_E_LIMIT,
                                         "the names of files in '%s' are over %zu bytes", path,
                                         TREE_NAMES_BYTES)
                         : evq_error_set(err, EVQ_E_NOMEM, "the names of files in '%s'", path);
        }
        if (status == EVQ_OK) {
            status = tree_hash(state, fd, &names, block, err);
        }
    } else {
        hash_size(state, (uint64_t)info.st_size);
        status = hash_blocks(state, fd, (uint64_t)info.st_size, block, err);
    }
    if (status == EVQ_OK) {
        const XXH128_hash_t hash = XXH3_128bits_digest(state);
        evq_hex_128(hash.high64, hash.low64, out);
    }
out:
    evq_file_close(&fd);
    evq_buffer_free(&names);
    (void)XXH3_freeState(state);
    free(block);
    return status;
}
