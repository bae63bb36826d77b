#include "producer/client/pins/pin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/pins/pin_record.h"
#include "producer/client/pins/tree_copy.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/checkpoint/checkpoint.h"

/* Whether text holds step as a whole number: "checkpoint-100", "step-000100.pt". */
static bool holds_number(const char *text, size_t bytes, int64_t step)
{
    for (size_t at = 0; at < bytes;) {
        uint64_t number = 0;
        size_t digits = 0;
        while (at < bytes && text[at] >= '0' && text[at] <= '9' && digits < 18) {
            number = number * 10 + (uint64_t)(text[at++] - '0');
            digits++;
        }
        if (digits > 0 && number == (uint64_t)step) {
            return true;
        }
        at += digits == 0;
    }
    return false;
}

bool evq_pin_hard_link_safe(const char *path, int64_t step)
{
    size_t end = strlen(path);

    for (int part = 0; part < 2 && end > 0; part++) {
        size_t start = end;
        while (start > 0 && path[start - 1] != '/') {
            start--;
        }
        if (holds_number(path + start, end - start, step)) {
            return true;
        }
        end = start > 0 ? start - 1 : 0;
    }
    return false;
}

/* checkpoint_N */
static bool is_of_accelerate(const char *name)
{
    static const char stem[] = "checkpoint_";
    const char *number = name + sizeof(stem) - 1;

    return strncmp(name, stem, sizeof(stem) - 1) == 0 && number[0] != '\0' &&
           number[strspn(number, "0123456789")] == '\0';
}

/* Whether the last part of path's first bytes is the directory that Accelerate counts. */
static bool is_counted(const char *path, size_t bytes)
{
    static const char name[] = "checkpoints";
    const size_t length = sizeof(name) - 1;

    return bytes >= length && memcmp(path + bytes - length, name, length) == 0 &&
           (bytes == length || path[bytes - length - 1] == '/');
}

size_t evq_pin_output_bytes(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t bytes = slash == NULL ? 0 : (size_t)(slash - path);

    if (bytes > 0 && is_of_accelerate(slash + 1) && is_counted(path, bytes)) {
        while (bytes > 0 && path[bytes - 1] != '/') {
            bytes--;
        }
        bytes -= bytes > 0;
    }
    return bytes;
}

/* Returns the part of the path beneath OUTPUT_DIR. */
static const char *pinned_name(const char *path)
{
    const size_t bytes = evq_pin_output_bytes(path);

    return path + bytes + (bytes > 0);
}

static void pin_name(const struct evq_pin_request *request, char *out, size_t out_bytes)
{
    XXH64_hash_t hash = XXH3_64bits(request->run, strlen(request->run));

    hash = XXH3_64bits_withSeed(request->queue, strlen(request->queue), hash);
    if (request->fingerprint[0] != '\0') {
        hash = XXH3_64bits_withSeed(request->fingerprint, strlen(request->fingerprint), hash);
    } else {
        hash ^= evq_clock_random();
    }
    const char *base = pinned_name(request->path);
    hash = XXH3_64bits_withSeed(base, strlen(base), hash);
    (void)snprintf(out, out_bytes, "%lld-%s-%016llx", (long long)request->step, request->variant,
                   (unsigned long long)hash);
}

/* Whether a symbolic link on the way to the pins of output_dir leads out of the root. */
static bool path_leaves(int root_fd, const char *output_dir)
{
    char path[PATH_MAX + sizeof(EVQ_PINS_PATH) + 1];
    int fd = -1;

    (void)snprintf(path, sizeof(path), "%s%s" EVQ_PINS_PATH, output_dir,
                   output_dir[0] == '\0' ? "" : "/");
    bool leaves = evq_root_open(root_fd, path, true, &fd, NULL) == EVQ_E_INVALID;
    if (fd >= 0) {
        close(fd);
    }
    return leaves;
}

/* OUTPUT_DIR/.evalq/pins of the checkpoint, made when missing. */
static enum evq_status pins_open(int root_fd, const struct evq_pin_request *request,
                                 const char *parent, int *ret_fd, struct evq_error *err)
{
    int out_fd = -1;
    enum evq_status status =
        evq_root_open(root_fd, parent[0] == '\0' ? "." : parent, true, &out_fd, err);
    if (status != EVQ_OK) {
        return status;
    }
    int fd = -1;
    for (int tries = 0; tries < 3 && fd < 0; tries++) { // Another process may tidy up meanwhile.
        (void)mkdirat(out_fd, ".evalq", 0777);
        (void)mkdirat(out_fd, EVQ_PINS_PATH, 0777);
        fd = openat(out_fd, EVQ_PINS_PATH, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }
    if (fd >= 0 && path_leaves(root_fd, parent)) {
        close(fd);
        fd = -1;
        status =
            evq_error_set(err, EVQ_E_UNSUPPORTED,
                          "pin: '%s/%s%s.evalq' leads out of the root, where no worker follows",
                          request->root_path, parent, parent[0] == '\0' ? "" : "/");
    } else if (fd < 0) {
        status = evq_error_set(err, EVQ_E_IO, "pin: cannot make '%s/%s%s" EVQ_PINS_PATH "': %s",
                               request->root_path, parent, parent[0] == '\0' ? "" : "/",
                               strerror(errno));
    }
    close(out_fd);
    *ret_fd = fd;
    return status;
}

static bool text_write(int fd, const char *text, size_t bytes)
{
    ssize_t put = write(fd, text, bytes);
    return put >= 0 && (size_t)put == bytes;
}

/* Appends one line to the record of the pin in directory_fd. */
static enum evq_status record_append(int directory_fd, const char *line, struct evq_error *err)
{
    int fd =
        openat(directory_fd, EVQ_PIN_RECORD_NAME, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    bool written = fd >= 0 && text_write(fd, line, strlen(line));
    int why = errno;

    if (fd >= 0) {
        close(fd);
    }
    return written ? EVQ_OK
                   : evq_error_set(err, why == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO,
                                   "pin: write its record: %s", strerror(why));
}

static enum evq_status record_append_to(const char *directory, const char *line,
                                        struct evq_error *err)
{
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        return evq_error_set(err, errno == ENOENT ? EVQ_E_NOT_FOUND : EVQ_E_IO, "pin '%s': %s",
                             directory, strerror(errno));
    }
    enum evq_status status = record_append(fd, line, err);
    close(fd);
    return status;
}

/* Records which jobs want the pin. A new record also gets its head. */
static enum evq_status record_want(int directory_fd, const struct evq_pin_request *request,
                                   int64_t copied_bytes, bool head, struct evq_error *err)
{
    struct evq_buffer text;

    evq_buffer_init(&text, 0);
    if (head) {
        evq_buffer_printf(&text, "evalq-pin 1\nqueue %s\nrun %s\ncopied %lld\ncreated %lld\n",
                          request->queue, request->run, (long long)copied_bytes,
                          (long long)evq_clock_unix_ms());
    }
    for (size_t at = 0; at < request->job_count; at++) {
        evq_buffer_printf(&text, "want %s\n", request->jobs[at]);
    }
    const char *lines = evq_buffer_string(&text);
    enum evq_status status = lines != NULL ? record_append(directory_fd, lines, err)
                                           : evq_error_set(err, EVQ_E_NOMEM, "pin: its record");
    evq_buffer_free(&text);
    return status;
}

/* Adds these jobs to a pin that an earlier try made. Locks it, so that a process that saw its last
 * job end cannot release it at the same time. */
static bool pin_reuse(int pins_fd, const char *name, const struct evq_pin *pin,
                      const struct evq_pin_request *request)
{
    struct stat by_fd;
    struct stat by_name;
    int lock = evq_pin_lock(pin->directory);
    int fd = openat(pins_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool reused = lock >= 0 && fd >= 0 && fstat(lock, &by_fd) == 0 &&
                  fstatat(fd, EVQ_PIN_RECORD_NAME, &by_name, AT_SYMLINK_NOFOLLOW) == 0 &&
                  by_fd.st_ino == by_name.st_ino && // Otherwise it was released before the lock.
                  record_want(fd, request, 0, false, NULL) == EVQ_OK;

    if (fd >= 0) {
        close(fd);
    }
    if (lock >= 0) {
        close(lock);
    }
    return reused;
}

/* Checks that the file system has space for two more checkpoints. A pin needs space only once the
 * trainer deletes the checkpoint, and the trainer's next saves then lack it. A held copy of a
 * folder has only the weights; the optimizer's states need twice as much. */
static enum evq_status room_check(int directory_fd, const struct evq_pin_request *request,
                                  const struct evq_tree_clone *clone, struct evq_error *err)
{
    struct statvfs room;
    bool weights_only =
        clone->files > 1 && request->source != NULL && strcmp(request->source, request->path) != 0;

    if (fstatvfs(directory_fd, &room) != 0) {
        return EVQ_OK; // The space is unknown.
    }
    uint64_t free_bytes = (uint64_t)room.f_bavail * room.f_frsize;
    uint64_t wanted = (uint64_t)clone->bytes * (weights_only ? 4 : 2);
    if (free_bytes >= wanted) {
        return EVQ_OK;
    }
    return evq_error_set(err, EVQ_E_FULL,
                         "pin: '%s' has %llu MiB left, and the next saves may need %llu",
                         request->root_path, (unsigned long long)(free_bytes >> 20),
                         (unsigned long long)(wanted >> 20));
}

static enum evq_status pin_build(int root_fd, int pins_fd, const char *name,
                                 const struct evq_pin_request *request, struct evq_pin *pin,
                                 struct evq_error *err)
{
    struct evq_tree_clone clone = {.root_fd = root_fd,
                                   .root_path = request->root_path,
                                   .reflink = request->reflink,
                                   .hard_link = request->hard_link,
                                   .copy_bytes_max = request->copy_bytes_max,
                                   .stopped = request->stopped,
                                   .stop_context = request->stop_context};
    const char *base = pinned_name(request->path);
    const char *slash = strchr(base, '/');
    char folder[PATH_MAX];
    char half[64];

    (void)snprintf(half, sizeof(half), ".half-%016llx", (unsigned long long)evq_clock_random());
    if (mkdirat(pins_fd, half, 0777) != 0) {
        return evq_error_set(err, EVQ_E_IO, "pin: %s: %s", half, strerror(errno));
    }
    int fd = openat(pins_fd, half, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const char *source = request->source != NULL ? request->source : request->path;
    if (slash != NULL) {
        (void)snprintf(folder, sizeof(folder), "%.*s", (int)(slash - base), base);
        (void)mkdirat(fd, folder, 0777); // If it fails, the next call fails too.
    }
    enum evq_status status = fd >= 0 ? evq_tree_clone(&clone, source, fd, base, err)
                                     : evq_error_set(err, EVQ_E_IO, "pin: %s", strerror(errno));
    if (status == EVQ_OK) {
        status = room_check(fd, request, &clone, err);
    }
    if (status == EVQ_OK) {
        status = record_want(fd, request, clone.copied_bytes, true, err);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (status == EVQ_OK && renameat(pins_fd, half, pins_fd, name) != 0) {
        if ((errno == EEXIST || errno == ENOTEMPTY) && pin_reuse(pins_fd, name, pin, request)) {
            pin->found = true; // Another process of the run was faster.
        } else {
            status = evq_error_set(err, EVQ_E_IO, "pin: rename to '%s': %s", name, strerror(errno));
        }
    }
    if (status != EVQ_OK || pin->found) {
        (void)!evq_tree_remove(pins_fd, half, NULL); // `evalq gc` removes the rest.
    }
    pin->kind = clone.kind;
    pin->lacks_reflink = clone.lacks_reflink;
    pin->copied_bytes = pin->found ? 0 : clone.copied_bytes;
    return status;
}

enum evq_status evq_pin_make(const struct evq_pin_request *request, struct evq_pin *ret_pin,
                             struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    const char *base = pinned_name(request->path);
    size_t parent_bytes = evq_pin_output_bytes(request->path);
    char parent[PATH_MAX];
    char name[128];
    struct evq_pin pin = {.kind = EVQ_PIN_REFLINK};
    int root_fd = -1;
    int pins_fd = -1;

    if (base[0] == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0 ||
        strncmp(base, EVQ_PIN_RECORD_NAME, strlen(EVQ_PIN_RECORD_NAME)) == 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "pin: '%s/%s' has no directory beneath the root to keep its pin in",
                             request->root_path, request->path);
    }
    if (is_of_accelerate(base) && is_counted(request->root_path, strlen(request->root_path))) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "pin: Accelerate would take it for a checkpoint, and the directory "
                             "above '%s' is beneath no root: make that one the root",
                             request->root_path);
    }
    (void)snprintf(parent, sizeof(parent), "%.*s", (int)parent_bytes, request->path);
    const char *slash = parent_bytes > 0 ? "/" : "";
    pin_name(request, name, sizeof(name));
    int path_bytes = snprintf(pin.path, sizeof(pin.path), "%s%s" EVQ_PINS_PATH "/%s/%s", parent,
                              slash, name, base);
    int directory_bytes =
        snprintf(pin.directory, sizeof(pin.directory), "%s/%s%s" EVQ_PINS_PATH "/%s",
                 request->root_path, parent, slash, name);
    if (path_bytes >= (int)sizeof(pin.path) || directory_bytes >= (int)sizeof(pin.directory)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "pin: the path of '%s' is too long", name);
    }
    root_fd = open(request->root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root_fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", request->root_path, strerror(errno));
    }
    status = pins_open(root_fd, request, parent, &pins_fd, err);
    if (status == EVQ_OK) {
        pin.found = pin_reuse(pins_fd, name, &pin, request);
        if (!pin.found) {
            status = pin_build(root_fd, pins_fd, name, request, &pin, err);
        }
        close(pins_fd);
    }
    close(root_fd);
    if (status == EVQ_OK) {
        *ret_pin = pin;
    }
    return status;
}

enum evq_status evq_pin_verify(const struct evq_pin_request *request, const struct evq_pin *pin,
                               struct evq_error *err)
{
    char again[33];

    if (request->fingerprint[0] == '\0' || pin->found) {
        return EVQ_OK;
    }
    const int root_fd = open(request->root_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum evq_status status =
        root_fd >= 0
            ? evq_checkpoint_fingerprint(root_fd, pin->path, again, NULL, err)
            : evq_error_set(err, EVQ_E_IO, "open '%s': %s", request->root_path, strerror(errno));
    if (root_fd >= 0) {
        close(root_fd);
    }
    if (status == EVQ_OK && strcmp(again, request->fingerprint) != 0) {
        status = evq_error_set(err, EVQ_E_CHANGED, "'%s/%s' changed while it was pinned",
                               request->root_path, request->path);
    }
    if (status != EVQ_OK) {
        (void)!evq_pin_release(pin->directory, NULL); // `evalq gc` removes the rest.
    }
    return status == EVQ_E_INCOMPLETE ? EVQ_E_CHANGED : status;
}

enum evq_status evq_pin_note_sent(const char *directory, const char *job, const char *sent_as,
                                  const char *epoch, struct evq_error *err)
{
    char line[2 * EVQ_JOB_ID_BYTES_MAX + 64];

    (void)snprintf(line, sizeof(line), "sent %s %s%s%.40s\n", job, sent_as,
                   epoch[0] != '\0' ? " " : "", epoch);
    return record_append_to(directory, line, err);
}

enum evq_status evq_pin_note_refused(const char *directory, const char *job, struct evq_error *err)
{
    char line[EVQ_JOB_ID_BYTES_MAX + 16];

    (void)snprintf(line, sizeof(line), "refused %s\n", job);
    return record_append_to(directory, line, err);
}

static void message_path(const char *directory, const char *job, char out[PATH_MAX + 32])
{
    (void)snprintf(out, PATH_MAX + 32, "%s/" EVQ_PIN_RECORD_NAME "-job-%016llx", directory,
                   (unsigned long long)XXH3_64bits(job, strlen(job)));
}

enum evq_status evq_pin_message_keep(const char *directory, const char *job, const void *data,
                                     size_t bytes, struct evq_error *err)
{
    char path[PATH_MAX + 32];

    message_path(directory, job, path);
    return evq_file_replace(path, data, bytes, 0644, err);
}

enum evq_status evq_pin_message_read(const char *directory, const char *job, struct evq_buffer *out,
                                     struct evq_error *err)
{
    char path[PATH_MAX + 32];

    message_path(directory, job, path);
    return evq_file_read(AT_FDCWD, path, O_NOFOLLOW, EVQ_JOB_BYTES_MAX, out, err);
}
