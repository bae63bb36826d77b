/*
 * Paths below a root, among symbolic links that the input makes: line 1 is where link `a` leads,
 * line 2 where `d/b` leads, the rest the path. What opens is one of the files that were put below
 * the root; one component after another opens nothing else.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/checkpoint/root_open.h"
#include "tests/fuzz/check.h"

static char folder[64];
static int root_fd = -1;
static struct stat inside[5]; // root, root/d, root/d/e, root/f, root/d/g

static void stop(void)
{
    static const char *const names[] = {"/root/a", "/root/d/b", "/root/f", "/root/d/g", "/secret"};
    static const char *const folders[] = {"/root/d/e", "/root/d", "/root", ""};
    char path[128];

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", folder, names[i]);
        (void)unlink(path);
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", folder, folders[i]);
        (void)rmdir(path);
    }
}

static void put(const char *name, struct stat *info)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s%s", folder, name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    check(fd >= 0 && (info == NULL || fstat(fd, info) == 0));
    (void)close(fd);
}

static void make(const char *name, struct stat *info)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s%s", folder, name);
    check(mkdir(path, 0700) == 0 && stat(path, info) == 0);
}

static void start(void)
{
    char path[128];
    struct stat ignored;

    (void)snprintf(folder, sizeof(folder), "/dev/shm/evq-fuzz-%d", (int)getpid());
    make("", &ignored);
    make("/root", &inside[0]);
    make("/root/d", &inside[1]);
    make("/root/d/e", &inside[2]);
    put("/root/f", &inside[3]);
    put("/root/d/g", &inside[4]);
    put("/secret", NULL);
    (void)snprintf(path, sizeof(path), "%s/root", folder);
    root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(root_fd >= 0);
    (void)atexit(stop);
}

static void check_inside(int fd)
{
    struct stat info;
    bool known = false;

    check(fstat(fd, &info) == 0);
    for (size_t i = 0; i < sizeof(inside) / sizeof(inside[0]); i++) {
        known = known || (info.st_ino == inside[i].st_ino && info.st_dev == inside[i].st_dev);
    }
    check(known);
    (void)close(fd);
}

/* One line of at most 1,000 bytes, without NUL. */
static char *line_take(const uint8_t **at, const uint8_t *end, char out[1001])
{
    size_t bytes = 0;

    while (*at < end && **at != '\n') {
        if (bytes < 1000 && **at != '\0') {
            out[bytes++] = (char)**at;
        }
        (*at)++;
    }
    *at += *at < end ? 1 : 0;
    out[bytes] = '\0';
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data;
    char target[1001];
    char path[1001];
    struct evq_error err = {EVQ_OK, ""};
    struct stat info;
    int fd = -1;

    if (root_fd < 0) {
        start();
    }
    (void)unlinkat(root_fd, "a", 0);
    (void)unlinkat(root_fd, "d/b", 0);
    (void)!symlinkat(line_take(&at, data + bytes, target), root_fd, "a");
    (void)!symlinkat(line_take(&at, data + bytes, target), root_fd, "d/b");
    line_take(&at, data + bytes, path);
    if (evq_root_open_any(root_fd, path, &fd, &info, &err) == EVQ_OK) {
        check_inside(fd);
    } else {
        check(fd == -1 && err.message[0] != '\0');
        for (const char *c = err.message; *c != '\0'; c++) {
            check((unsigned char)*c >= 0x20 && *c != 0x7f);
        }
    }
    if (path[0] != '/' && strstr(path, "..") == NULL) { // Its caller refuses these.
        fd = evq_root_open_stepwise(root_fd, path[0] != '\0' ? path : ".", O_RDONLY | O_CLOEXEC);
        if (fd >= 0) {
            check_inside(fd);
        }
    }
    return 0;
}
