#include "producer/cli/submit/checkpoint_listing.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/queue/job.h"

#define FOUND_MAX 1000000

static bool has_word(const char *name)
{
    static const char *const words[] = {"step", "checkpoint", "ckpt", "epoch", "iter"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasestr(name, words[i]) != NULL) {
            return true;
        }
    }
    return name[0] != '\0' && name[strspn(name, "0123456789")] == '\0';
}

/* Bytes of name without an extension of weights; the whole name when it has none. */
static size_t stem_bytes(const char *name)
{
    static const char *const ends[] = {".safetensors", ".pt",   ".pth",  ".bin",    ".ckpt",
                                       ".gguf",        ".npz",  ".onnx", ".h5",     ".hdf5",
                                       ".keras",       ".nemo", ".npy",  ".msgpack"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        if (evq_file_ends_with(name, ends[i])) {
            return strlen(name) - strlen(ends[i]);
        }
    }
    return strlen(name);
}

static bool fits_rules(const char *name, bool is_directory, const char *stem)
{
    if (is_directory || evq_file_ends_with(name, ".safetensors")) {
        return has_word(stem);
    }
    return strlen(stem) < strlen(name);
}

static bool parse_number(const char *digits, int64_t *ret)
{
    errno = 0;
    long long value = strtoll(digits, NULL, 10);
    if (errno != 0 || value < 0 || value >= EVQ_JOB_STEP_MAX) {
        return false;
    }
    *ret = value;
    return true;
}

static bool number_of(const char *stem, int64_t *ret_step)
{
    for (const char *at = strcasestr(stem, "step"); at != NULL; at = strcasestr(at + 1, "step")) {
        const char *digits = at + 4;
        digits += *digits == '-' || *digits == '_' || *digits == '=';
        if (isdigit((unsigned char)*digits)) {
            return parse_number(digits, ret_step);
        }
    }
    size_t end = strlen(stem);
    while (end > 0 && !isdigit((unsigned char)stem[end - 1])) {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && isdigit((unsigned char)stem[begin - 1])) {
        begin--;
    }
    return begin < end && parse_number(stem + begin, ret_step);
}

bool evq_checkpoint_listing_step(const char *name, bool is_directory, const char *pattern,
                                 int64_t *ret_step)
{
    char stem[256];
    size_t bytes = is_directory ? strlen(name) : stem_bytes(name);
    if (name[0] == '.' || bytes >= sizeof stem || evq_file_ends_with(name, ".tmp") ||
        evq_file_ends_with(name, ".part") || strncmp(name, "tmp-", 4) == 0) {
        return false;
    }
    memcpy(stem, name, bytes);
    stem[bytes] = '\0';
    if (pattern != NULL ? fnmatch(pattern, name, FNM_PERIOD) != 0
                        : !fits_rules(name, is_directory, stem)) {
        return false;
    }
    return number_of(stem, ret_step);
}

static bool append(struct evq_checkpoint_listing_list *list,
                   const struct evq_checkpoint_listing *found)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        struct evq_checkpoint_listing *items =
            capacity > FOUND_MAX ? NULL : realloc(list->items, capacity * sizeof *items);
        if (items == NULL) {
            return false;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = *found;
    return true;
}

static int compare(const void *a, const void *b)
{
    const struct evq_checkpoint_listing *x = a;
    const struct evq_checkpoint_listing *y = b;
    if (x->step != y->step) {
        return x->step < y->step ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

enum evq_status evq_checkpoint_listing_add(struct evq_checkpoint_listing_list *list,
                                           const char *name,
                                           const struct evq_checkpoint_listing *found,
                                           const char *pattern, struct evq_error *err)
{
    struct evq_checkpoint_listing one = *found;

    if (!evq_checkpoint_listing_step(name, one.is_directory, pattern, &one.step)) {
        return EVQ_OK;
    }
    one.name = strdup(name);
    if (one.name == NULL || !append(list, &one)) {
        free(one.name);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu checkpoints", list->count + 1);
    }
    return EVQ_OK;
}

void evq_checkpoint_listing_sort(struct evq_checkpoint_listing_list *list)
{
    if (list->count > 0) {
        qsort(list->items, list->count, sizeof *list->items, compare);
    }
}

static int64_t changed_ns(const struct stat *info)
{
    return info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

int64_t evq_checkpoint_listing_inside_ns(const char *directory, const char *name)
{
    char path[PATH_MAX];
    const int bytes = snprintf(path, sizeof path, "%s/%s", directory, name);
    DIR *stream = bytes > 0 && bytes < (int)sizeof path ? opendir(path) : NULL;
    const struct dirent *entry = NULL;
    int64_t newest = 0;

    while (stream != NULL && (entry = readdir(stream)) != NULL) {
        struct stat info;
        if (fstatat(dirfd(stream), entry->d_name, &info, 0) == 0 && S_ISREG(info.st_mode) &&
            changed_ns(&info) > newest) {
            newest = changed_ns(&info);
        }
    }
    if (stream != NULL) {
        (void)closedir(stream); // Only read.
    }
    return newest;
}

enum evq_status evq_checkpoint_listing_read(const char *directory, const char *pattern,
                                            struct evq_checkpoint_listing_list *ret_list,
                                            struct evq_error *err)
{
    struct evq_checkpoint_listing_list list = {0};
    const struct dirent *entry = NULL;
    enum evq_status status = EVQ_OK;
    DIR *stream = opendir(directory);
    if (stream == NULL) {
        return evq_error_set(err, errno == ENOENT || errno == ENOTDIR ? EVQ_E_NOT_FOUND : EVQ_E_IO,
                             "the directory '%s': %s", directory, strerror(errno));
    }
    while (status == EVQ_OK && (errno = 0, entry = readdir(stream)) != NULL) {
        struct stat info;
        if (fstatat(dirfd(stream), entry->d_name, &info, 0) != 0 ||
            (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode))) {
            continue; // Gone meanwhile, or nothing that holds weights.
        }
        const struct evq_checkpoint_listing found = {.is_directory = S_ISDIR(info.st_mode),
                                                     .changed_ns = changed_ns(&info),
                                                     .bytes = info.st_size};
        status = evq_checkpoint_listing_add(&list, entry->d_name, &found, pattern, err);
    }
    if (status == EVQ_OK && errno != 0) {
        status =
            evq_error_set(err, EVQ_E_IO, "read the directory '%s': %s", directory, strerror(errno));
    }
    (void)closedir(stream);
    if (status != EVQ_OK) {
        evq_checkpoint_listing_free(&list);
        return status;
    }
    evq_checkpoint_listing_sort(&list);
    *ret_list = list;
    return EVQ_OK;
}

void evq_checkpoint_listing_free(struct evq_checkpoint_listing_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].name);
    }
    free(list->items);
    memset(list, 0, sizeof *list);
}
