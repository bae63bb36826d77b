#include "producer/client/submit_log/ring_directory.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

enum evq_status evq_ring_directory_make(const char *directory, struct evq_error *err)
{
    char path[PATH_MAX];
    size_t bytes = strlen(directory);

    if (bytes == 0 || bytes >= sizeof(path) - 128) {
        return evq_error_set(err, EVQ_E_INVALID, "ring directory '%s' is empty or too long",
                             directory);
    }
    memcpy(path, directory, bytes + 1);
    for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        (void)mkdir(path, 0700); // A failure shows at the last directory.
        *slash = '/';
    }
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return evq_error_set(err, EVQ_E_INVALID, "cannot make the ring directory '%s': %s", path,
                             strerror(errno));
    }
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode) || access(path, W_OK | X_OK) != 0) {
        return evq_error_set(err, EVQ_E_INVALID, "the ring directory '%s' cannot be written to",
                             path);
    }
    if ((info.st_mode & 0077) != 0) {
        (void)chmod(path, 0700); // It fails if another user owns the directory.
    }
    return EVQ_OK;
}

/* Whether access to the file system can wait for another machine. */
static bool on_network(const char *path)
{
    // From statfs(2) and the file systems' own sources; FUSE may be anything.
    static const unsigned long network[] = {
        0x6969 /* NFS */,          0x517b /* SMB */,       0xff534d42 /* CIFS */,
        0xfe534d42 /* SMB2 */,     0x5346414f /* AFS */,   0x73757245 /* Coda */,
        0x0bd00bd0 /* Lustre */,   0x47504653 /* GPFS */,  0x00c36400 /* Ceph */,
        0x19830326 /* BeeGFS */,   0x65735546 /* FUSE */,  0x01021997 /* 9p */,
        0x20030528 /* OrangeFS */, 0x7461636f /* OCFS2 */, 0x01161970 /* GFS2 */};
    struct statfs info;

    if (statfs(path, &info) != 0) {
        return true;
    }
    for (size_t at = 0; at < sizeof(network) / sizeof(network[0]); at++) {
        if ((unsigned long)info.f_type == network[at]) {
            return true;
        }
    }
    return false;
}

static bool usable(const char *path, int64_t room_bytes, struct evq_error *err)
{
    struct stat info;
    struct statvfs room;

    if (evq_ring_directory_make(path, err) != EVQ_OK) {
        return false;
    }
    // In /var/tmp and /dev/shm another user may have made a directory of this name.
    if (lstat(path, &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
        (void)evq_error_set(err, EVQ_E_INVALID, "'%s' is not this user's directory", path);
        return false;
    }
    if (on_network(path)) {
        (void)evq_error_set(err, EVQ_E_INVALID, "'%s' is on a network file system", path);
        return false;
    }
    if (statvfs(path, &room) == 0 &&
        (uint64_t)room.f_bavail * room.f_frsize < (uint64_t)room_bytes) {
        (void)evq_error_set(err, EVQ_E_INVALID, "'%s' has no %lld bytes left", path,
                            (long long)room_bytes);
        return false;
    }
    return true;
}

static bool state_directory(char *out, size_t out_bytes)
{
    const char *state = getenv("XDG_STATE_HOME");
    const char *home = getenv("HOME");
    struct passwd entry;
    struct passwd *found = NULL;
    char strings[4096];
    int written = -1;

    if (state != NULL && state[0] == '/') {
        written = snprintf(out, out_bytes, "%s/evalq", state);
    } else {
        if (home == NULL || home[0] != '/') {
            int failed = getpwuid_r(geteuid(), &entry, strings, sizeof(strings), &found);
            home = failed == 0 && found != NULL ? found->pw_dir : NULL;
        }
        if (home != NULL && strcmp(home, "/") != 0) {
            written = snprintf(out, out_bytes, "%s/.local/state/evalq", home);
        }
    }
    return written > 0 && (size_t)written < out_bytes;
}

enum evq_status evq_ring_directory_find(unsigned *at, int64_t room_bytes, char *out,
                                        size_t out_bytes, struct evq_error *err)
{
    static const char *const others[] = {NULL, "/var/tmp", "/dev/shm"};
    struct evq_error error = {.status = EVQ_OK, .message = "there is no other"};

    while (*at < sizeof(others) / sizeof(others[0])) {
        const char *other = others[(*at)++];
        bool named = other == NULL
                         ? state_directory(out, out_bytes)
                         : snprintf(out, out_bytes, "%s/evalq-%u", other, (unsigned)geteuid()) > 0;
        if (named && usable(out, room_bytes, &error)) {
            return EVQ_OK;
        }
    }
    return evq_error_set(err, EVQ_E_INVALID,
                         "no directory for the submit ring: %s; name one with ring_directory",
                         error.message);
}
