#include "tests/faults/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1024 };

static _Noreturn void die(const char *what, const char *path)
{
    (void)fprintf(stderr, "history: %s '%s': %s\n", what, path, strerror(errno));
    exit(1);
}

void history_open(struct history *history, const char *path, const char *process)
{
    memset(history, 0, sizeof *history);
    (void)snprintf(history->process, sizeof history->process, "%s.%ld", process, (long)getpid());
    history->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    history->room = 65536;
    history->text = malloc(history->room);
    if (history->fd < 0 || history->text == NULL) {
        die("open", path);
    }
}

void history_close(struct history *history)
{
    history_flush(history);
    (void)close(history->fd); // Every write was looked at.
    free(history->text);
    history->text = NULL;
}

uint64_t history_call(struct history *history)
{
    return ++history->calls;
}

static const char *word(const char *text)
{
    return text != NULL && *text != '\0' ? text : "-";
}

void history_line(struct history *history, uint64_t call, const char *phase, const char *op,
                  const char *id, const char *token, const char *detail)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    if (history->room - history->bytes < LINE_MAX_BYTES) {
        history_flush(history);
    }
    const int bytes =
        snprintf(history->text + history->bytes, LINE_MAX_BYTES, "%lld%09ld %s %llu %s %s %s %s %s",
                 (long long)now.tv_sec, now.tv_nsec, history->process, (unsigned long long)call,
                 phase, op, word(id), word(token), word(detail));
    if (bytes < 0 || bytes >= LINE_MAX_BYTES - 1) {
        die("a line too long for", history->process);
    }
    history->bytes += (size_t)bytes;
    history->text[history->bytes++] = '\n';
}

void history_flush(struct history *history)
{
    if (history->bytes > 0 &&
        write(history->fd, history->text, history->bytes) != (ssize_t)history->bytes) {
        die("write", history->process);
    }
    history->bytes = 0;
}

uint64_t history_count(const char *path, const char *words)
{
    char line[LINE_MAX_BYTES];
    uint64_t count = 0;

    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        count += strchr(line, '\n') != NULL && strstr(line, words) != NULL;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return count;
}
