#include "worker/convert/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/file.h"

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define NAMES_MAX      256
#define TEMPLATES      "additional_chat_templates"

static const char *const config_names[] = {"config.json", "generation_config.json",
                                           "processor_config.json", NULL};
static const char *const config_endings[] = {"preprocessor_config.json", ".py", NULL};
// A tokenizer is there if one of the first group is.
static const char *const tokenizer_names[] = {
    "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tekken.json", NULL};
static const char *const tokenizer_endings[] = {".model", ".tiktoken", ".bpe", NULL};
static const char *const more_names[] = {"special_tokens_map.json", "added_tokens.json",
                                         "merges.txt", "chat_template.json", NULL};
static const char *const more_endings[] = {".jinja", NULL};

static bool any_name(const char *name, const char *const *names)
{
    while (*names != NULL && strcmp(*names, name) != 0) {
        names++;
    }
    return *names != NULL;
}

static bool any_ending(const char *name, const char *const *endings)
{
    while (*endings != NULL && !evq_file_ends_with(name, *endings)) {
        endings++;
    }
    return *endings != NULL;
}

static bool is_tokenizer(const char *name)
{
    return any_name(name, tokenizer_names) || any_ending(name, tokenizer_endings);
}

static bool is_of(const char *name, enum evq_model_files kind)
{
    return kind == EVQ_MODEL_FILES_CONFIG
               ? any_name(name, config_names) || any_ending(name, config_endings)
               : is_tokenizer(name) || any_name(name, more_names) || any_ending(name, more_endings);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of the folder's files of one kind, sorted. The caller frees the texts. Returns how many. */
static size_t list(int folder_fd, enum evq_model_files kind, char *names[NAMES_MAX])
{
    const int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *entry;
    struct stat info;
    size_t count = 0;

    if (dir == NULL) {
        int left = fd;
        evq_file_close(&left);
        return 0;
    }
    while (count < NAMES_MAX && (entry = readdir(dir)) != NULL) {
        if (is_of(entry->d_name, kind) && fstatat(folder_fd, entry->d_name, &info, 0) == 0 &&
            S_ISREG(info.st_mode)) {
            names[count] = strdup(entry->d_name);
            count += names[count] != NULL;
        }
    }
    (void)closedir(dir); // It was opened for reading, so a failed close loses nothing.
    qsort(names, count, sizeof(*names), by_text);
    return count;
}

static void free_names(char *names[NAMES_MAX], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(names[i]);
    }
}

bool evq_model_files_has(int folder_fd, enum evq_model_files kind)
{
    char *names[NAMES_MAX];
    const size_t count = list(folder_fd, kind, names);
    bool found = false;

    for (size_t i = 0; i < count; i++) {
        found = found || (kind == EVQ_MODEL_FILES_CONFIG ? strcmp(names[i], "config.json") == 0
                                                         : is_tokenizer(names[i]));
    }
    free_names(names, count);
    return found;
}

static enum evq_status copy_file(int from_fd, const char *name, int flags, int out_fd,
                                 struct evq_error *err)
{
    struct evq_buffer content;
    int fd = -1;

    evq_buffer_init(&content, FILE_BYTES_MAX + 1);
    enum evq_status status = evq_file_read(from_fd, name, flags, FILE_BYTES_MAX, &content, err);
    if (status == EVQ_OK) {
        fd = openat(out_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0) {
            status = evq_error_set(err, EVQ_E_IO, "create '%s': %s", name, strerror(errno));
        }
    }
    if (status == EVQ_OK) {
        status = evq_file_write(fd, content.data, content.bytes, name, err);
    }
    if (fd >= 0 && close(fd) != 0 && status == EVQ_OK) {
        status = evq_error_set(err, EVQ_E_IO, "write '%s': %s", name, strerror(errno));
    }
    evq_buffer_free(&content);
    return status;
}

static enum evq_status copy_all(int folder_fd, enum evq_model_files kind, int flags, int out_fd,
                                struct evq_error *err)
{
    char *names[NAMES_MAX];
    const size_t count = list(folder_fd, kind, names);
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        status = copy_file(folder_fd, names[i], flags, out_fd, err);
    }
    free_names(names, count);
    return status;
}

enum evq_status evq_model_files_copy(int folder_fd, enum evq_model_files kind, int flags,
                                     int out_fd, struct evq_error *err)
{
    enum evq_status status = copy_all(folder_fd, kind, flags, out_fd, err);
    int from = -1;
    int to = -1;

    if (status != EVQ_OK || kind != EVQ_MODEL_FILES_TOKENIZER) {
        return status;
    }
    from = openat(folder_fd, TEMPLATES, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (from < 0) {
        return EVQ_OK; // The folder is optional.
    }
    if (mkdirat(out_fd, TEMPLATES, 0700) == 0) {
        to = openat(out_fd, TEMPLATES, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    status = to >= 0 ? copy_all(from, kind, flags, to, err)
                     : evq_error_set(err, EVQ_E_IO, "create '" TEMPLATES "': %s", strerror(errno));
    evq_file_close(&from);
    evq_file_close(&to);
    return status;
}

void evq_model_files_hash(int folder_fd, XXH3_state_t *state)
{
    for (int kind = EVQ_MODEL_FILES_CONFIG; kind <= EVQ_MODEL_FILES_TOKENIZER; kind++) {
        char *names[NAMES_MAX];
        const size_t count = list(folder_fd, (enum evq_model_files)kind, names);
        for (size_t i = 0; i < count; i++) {
            struct evq_buffer content;
            evq_buffer_init(&content, FILE_BYTES_MAX + 1);
            if (evq_file_read(folder_fd, names[i], 0, FILE_BYTES_MAX, &content, NULL) == EVQ_OK) {
                // An update fails for a NULL state only.
                (void)XXH3_128bits_update(state, names[i], strlen(names[i]) + 1);
                (void)XXH3_128bits_update(state, content.data, content.bytes);
            }
            evq_buffer_free(&content);
        }
        free_names(names, count);
    }
}
