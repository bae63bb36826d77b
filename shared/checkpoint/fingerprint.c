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
#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/file_list.h"
#include "shared/checkpoint/root_open.h"

#define BLOCK_BYTES 4096u
#define BLOCK_COUNT 16u

/* Hashes 16 blocks spread evenly over the file, or all of a small file. */
static enum evq_status hash_blocks(XXH3_state_t *state, int fd, uint64_t bytes, uint8_t *block,
                                   struct evq_error *err)
{
    uint64_t last = bytes > BLOCK_BYTES ? bytes - BLOCK_BYTES : 0;
    bool whole = bytes <= (uint64_t)BLOCK_BYTES * BLOCK_COUNT;

    for (uint64_t i = 0; i < BLOCK_COUNT; i++) {
        // This is last * i / 15 without overflow.
        uint64_t at =
            whole ? i * BLOCK_BYTES
                  : last / (BLOCK_COUNT - 1) * i + last % (BLOCK_COUNT - 1) * i / (BLOCK_COUNT - 1);
        if (at >= bytes) {
            break;
        }
        size_t count = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        enum evq_status status = evq_checkpoint_read_fd(fd, at, block, count, err);
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

/* Hashes every file of a checkpoint whose format evalq does not read. */
static enum evq_status hash_any(XXH3_state_t *state, int root_fd, const char *path,
                                struct evq_buffer *manifest, uint8_t *block, struct evq_error *err)
{
    struct evq_file_list list = {0};
    enum evq_status status = evq_file_list_scan(root_fd, path, &list, err);

    if (status == EVQ_OK && list.count == 0) {
        status = evq_error_set(err, EVQ_E_INCOMPLETE, "checkpoint '%s' holds no file yet", path);
    }
    for (size_t i = 0; i < list.count && status == EVQ_OK; i++) {
        const struct evq_file_list_entry *file = &list.files[i];
        int fd = -1;
        status = evq_root_open(root_fd, file->path, false, &fd, err);
        if (status == EVQ_OK) {
            (void)XXH3_128bits_update(state, file->name, strlen(file->name) + 1);
            hash_size(state, file->bytes);
            status = hash_blocks(state, fd, file->bytes, block, err);
        }
        if (status == EVQ_OK && manifest != NULL) {
            evq_buffer_printf(manifest, "%s\t%llu\n", file->name, (unsigned long long)file->bytes);
        }
        evq_file_close(&fd);
    }
    if (status == EVQ_OK) {
        status = evq_file_list_verify(&list, root_fd, err);
    }
    evq_file_list_free(&list);
    return status;
}

/* Hashes the files that hold the weights. EVQ_E_UNSUPPORTED: evalq does not read the format. */
static enum evq_status hash_weights(XXH3_state_t *state, int root_fd, const char *path,
                                    struct evq_buffer *manifest, uint8_t *block,
                                    struct evq_error *err)
{
    static const struct evq_checkpoint_options options = {.files_only = true};
    struct evq_checkpoint *checkpoint = NULL;
    enum evq_status status = evq_checkpoint_open(root_fd, path, &options, &checkpoint, err);

    if (status != EVQ_OK) {
        return status;
    }
    status = hash_files(state, checkpoint, manifest, block, err);
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "checkpoint '%.160s'", path); // The status stays what it is.
    }
    evq_checkpoint_close(checkpoint);
    return status;
}

static enum evq_status fingerprint(bool any, int root_fd, const char *path, char out[33],
                                   struct evq_buffer *manifest, struct evq_error *err)
{
    uint8_t *block = malloc(BLOCK_BYTES);
    XXH3_state_t *state = XXH3_createState();
    enum evq_status status = EVQ_E_UNSUPPORTED;

    if (block == NULL || state == NULL) {
        status = evq_error_set(err, EVQ_E_NOMEM, "a fingerprint");
        goto out;
    }
    (void)XXH3_128bits_reset(state); // Fails for a NULL state only.
    if (!any) {
        status = hash_weights(state, root_fd, path, manifest, block, err);
    }
    if (status == EVQ_E_UNSUPPORTED) {
        status = hash_any(state, root_fd, path, manifest, block, err);
    }
    if (status == EVQ_OK) {
        const XXH128_hash_t hash = XXH3_128bits_digest(state);
        evq_hex_128(hash.high64, hash.low64, out);
    }
out:
    (void)XXH3_freeState(state);
    free(block);
    return status;
}

enum evq_status evq_checkpoint_fingerprint(int root_fd, const char *path, char out[33],
                                           struct evq_buffer *manifest, struct evq_error *err)
{
    return fingerprint(false, root_fd, path, out, manifest, err);
}

enum evq_status evq_checkpoint_files_fingerprint(int root_fd, const char *path, char out[33],
                                                 struct evq_error *err)
{
    return fingerprint(true, root_fd, path, out, NULL, err);
}

enum evq_status evq_checkpoint_verify_fingerprint(const char *root, const char *path,
                                                  const char *fingerprint, struct evq_error *err)
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
