/*
 * Preloaded (LD_PRELOAD): one allocation of a program fails, as it does without memory, or that one
 * and all that follow.
 *
 *   EVQ_FAIL_PROGRAM  name of the executable that is meant; others go untouched
 *   EVQ_FAIL_WORD     its first argument; unset: any
 *   EVQ_FAIL_AT       the K-th call of malloc, calloc, realloc or one of their kind; 0: none
 *   EVQ_FAIL_COUNT    how many fail from there on, 1 unless set; 0: all
 *   EVQ_FAIL_REPORT   a file that gets how many calls there were (8 bytes, native), then a line for
 *                     the first that failed: who called, as OBJECT+OFFSET or OBJECT:SYMBOL
 *
 * Calls count from the start of the program, over all its threads; not in forked copies.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FRAMES_MAX 16

void *memalign(size_t alignment, size_t bytes); // <malloc.h> has it, and more that is not wanted.

/* The C library's own, beneath the names that are replaced here. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static _Atomic uint64_t *calls; // In the report; NULL: not this program.
static uint64_t at;
static uint64_t count = 1;
static int report_fd = -1;
static atomic_bool reported;
static _Thread_local bool inside; // What the report itself allocates.

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static void callers_write(void)
{
    void *frames[FRAMES_MAX];
    char line[2048];
    size_t used = 0;

    const int found = backtrace(frames, FRAMES_MAX);
    for (int i = 2; i < found && used < sizeof line - 256; i++) { // Not this file's two.
        Dl_info info = {.dli_fname = NULL};
        if (dladdr(frames[i], &info) == 0 || info.dli_fname == NULL) {
            continue;
        }
        const char *object = base_name(info.dli_fname);
        const size_t offset = (size_t)((char *)frames[i] - (char *)info.dli_fbase);
        const int put = info.dli_sname != NULL
                            ? snprintf(line + used, 200, "%.60s:%.100s ", object, info.dli_sname)
                            : snprintf(line + used, 200, "%.60s+0x%zx ", object, offset);
        used += put > 0 ? (size_t)put : 0;
    }
    line[used++] = '\n';
    if (write(report_fd, line, used) < 0) {
        _exit(125); // A fault that nobody hears of must not pass for none.
    }
}

static bool fails(void)
{
    if (calls == NULL || inside) {
        return false;
    }
    const uint64_t number = atomic_fetch_add(calls, 1) + 1;
    if (at == 0 || number < at || (count != 0 && number >= at + count)) {
        return false;
    }
    if (!atomic_exchange(&reported, true)) {
        inside = true;
        callers_write();
        inside = false;
    }
    errno = ENOMEM;
    return true;
}

#pragma GCC visibility push(default) // What replaces the C library's must be seen.

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t items, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(items, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(old, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **ret_memory, size_t alignment, size_t bytes)
{
    if (fails()) {
        return ENOMEM;
    }
    void *memory = __libc_memalign(alignment, bytes);
    if (memory == NULL) {
        return ENOMEM;
    }
    *ret_memory = memory;
    return 0;
}

#pragma GCC visibility pop

static void in_forked_copy(void)
{
    calls = NULL;
}

static bool meant(void)
{
    char text[4096];
    const char *program = getenv("EVQ_FAIL_PROGRAM");
    const char *word = getenv("EVQ_FAIL_WORD");

    const ssize_t named = readlink("/proc/self/exe", text, sizeof text - 1);
    if (named <= 0 || program == NULL) {
        return false;
    }
    text[named] = '\0';
    if (strcmp(base_name(text), program) != 0) {
        return false;
    }
    const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    (void)close(fd);
    if (got < 0) {
        return false;
    }
    text[got] = '\0';
    const size_t first = strlen(text) + 1;
    return word == NULL || (first < (size_t)got && strcmp(text + first, word) == 0);
}

__attribute__((constructor)) static void begin(void)
{
    void *frames[2];
    const char *path = getenv("EVQ_FAIL_REPORT");
    const char *which = getenv("EVQ_FAIL_AT");
    const char *many = getenv("EVQ_FAIL_COUNT");
    struct stat info;

    if (path == NULL || which == NULL || !meant()) {
        return;
    }
    (void)backtrace(frames, 2); // The first time it loads a library.
    report_fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    // A process of the same kind that comes after counts on from where the first one was.
    if (report_fd < 0 || fstat(report_fd, &info) != 0 ||
        (info.st_size == 0 && ftruncate(report_fd, sizeof *calls) != 0)) {
        _exit(125);
    }
    void *shared = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED, report_fd, 0);
    if (shared == MAP_FAILED) {
        _exit(125);
    }
    at = strtoull(which, NULL, 10);
    count = many != NULL ? strtoull(many, NULL, 10) : 1;
    (void)pthread_atfork(NULL, NULL, in_forked_copy); // Without it a copy would count too.
    calls = shared;
}
