#include "worker/tokenizer/tokenizer_files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/checkpoint/root_open.h"

static bool gone(enum evq_status status)
{
    return status == EVQ_E_GONE || status == EVQ_E_NOT_FOUND;
}

static enum evq_status open_any(int root_fd, const char *path, int *ret_fd, struct stat *ret_info,
                                struct evq_error *err)
{
    char shown[260];

    if (root_fd != AT_FDCWD) {
        return evq_root_open_any(root_fd, path, ret_fd, ret_info, err);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, ret_info) != 0) {
        const int error = errno;
        evq_error_escape(path, strlen(path), shown, sizeof(shown));
        evq_file_close(&fd);
        return error == ENOENT || error == ENOTDIR
                   ? evq_error_set(err, EVQ_E_NOT_FOUND, "'%s' does not exist", shown)
                   : evq_error_set(err, EVQ_E_IO, "open '%s': %s", shown, strerror(error));
    }
    *ret_fd = fd;
    return EVQ_OK;
}

enum evq_status evq_tokenizer_files_read(const struct evq_tokenizer_files *files, const char *path,
                                         struct evq_buffer *out, struct evq_error *err)
{
    char shown[260];
    char block[65536];
    struct stat info;
    int fd = -1;

    enum evq_status status = open_any(files->root_fd, path, &fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_error_escape(path, strlen(path), shown, sizeof(shown));
    if (!S_ISREG(info.st_mode)) {
        status = evq_error_set(err, EVQ_E_INVALID, "'%s' is not a regular file", shown);
    } else if ((uint64_t)info.st_size > EVQ_TOKENIZER_FILE_BYTES_MAX) {
        status = evq_error_set(err, EVQ_E_LIMIT, "'%s' holds %jd bytes, expected at most %zu",
                               shown, (intmax_t)info.st_size, EVQ_TOKENIZER_FILE_BYTES_MAX);
    }
    for (uint64_t at = 0; status == EVQ_OK && at < (uint64_t)info.st_size;) {
        const uint64_t left = (uint64_t)info.st_size - at;
        const size_t bytes = left < sizeof(block) ? (size_t)left : sizeof(block);
        status = evq_file_read_at(fd, block, bytes, at, shown, err);
        evq_buffer_append(out, block, status == EVQ_OK ? bytes : 0);
        at += bytes;
    }
    if (status == EVQ_OK && out->failed) {
        status = evq_error_set(err, EVQ_E_NOMEM, "'%s': %jd bytes", shown, (intmax_t)info.st_size);
    }
    (void)close(fd); // It was opened for reading, so a failed close loses nothing.
    return status;
}

static bool join(char out[EVQ_TOKENIZER_PATH_MAX], const char *folder, const char *name)
{
    const size_t folder_bytes = strlen(folder);
    const size_t name_bytes = strlen(name);

    if (folder_bytes + name_bytes >= EVQ_TOKENIZER_PATH_MAX) {
        return false;
    }
    memcpy(out, folder, folder_bytes);
    memcpy(out + folder_bytes, name, name_bytes + 1);
    return true;
}

static enum evq_status exists(const struct evq_tokenizer_files *files, const char *path,
                              bool *ret_exists, struct evq_error *err)
{
    struct stat info;
    int fd = -1;

    const enum evq_status status = open_any(files->root_fd, path, &fd, &info, err);
    if (status == EVQ_OK) {
        (void)close(fd); // It was opened only to see whether it exists.
    }
    *ret_exists = status == EVQ_OK;
    return gone(status) ? EVQ_OK : status;
}

enum evq_status evq_tokenizer_files_find(int root_fd, const char *path,
                                         struct evq_tokenizer_files *ret_files,
                                         struct evq_error *err)
{
    char shown[260];
    struct stat info;
    bool found = false;
    int fd = -1;

    *ret_files = (struct evq_tokenizer_files){.root_fd = root_fd};
    evq_error_escape(path, strlen(path), shown, sizeof(shown));
    enum evq_status status = open_any(root_fd, path, &fd, &info, err);
    if (status != EVQ_OK) {
        return status;
    }
    (void)close(fd); // It was opened only to see whether it exists.
    const bool folder = S_ISDIR(info.st_mode);
    const char *slash = strrchr(path, '/');
    const size_t length = folder || slash == NULL ? strlen(path) : (size_t)(slash - path) + 1;
    if (length + sizeof("special_tokens_map.json") >= sizeof(ret_files->folder)) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s': the path is too long", shown);
    }
    if (folder || slash != NULL) {
        memcpy(ret_files->folder, path, length);
        if (length > 0 && path[length - 1] != '/') {
            ret_files->folder[length] = '/';
        }
    }
    if (!folder) {
        // It fits, because it is longer than its folder only by a file name.
        (void)join(ret_files->path, path, "");
        return EVQ_OK;
    }
    if (!join(ret_files->path, ret_files->folder, "tokenizer.json")) {
        return evq_error_set(err, EVQ_E_LIMIT, "'%s': the path is too long", shown);
    }
    status = exists(ret_files, ret_files->path, &found, err);
    if (status == EVQ_OK && !found) {
        status = evq_error_set(err, EVQ_E_NOT_FOUND,
                               "'%s' has no tokenizer.json (save_pretrained of Transformers "
                               "writes one)",
                               shown);
    }
    return status;
}
