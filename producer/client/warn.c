#include "producer/client/warn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum evq_status evq_warner_open(struct evq_warner *warner, const char *log_path, bool quiet,
                                struct evq_error *err)
{
    atomic_init(&warner->warned, 0);
    warner->fd = quiet ? -1 : STDERR_FILENO;
    if (quiet || log_path[0] == '\0') {
        return EVQ_OK;
    }
    warner->fd = open(log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (warner->fd < 0) {
        return evq_error_set(err, EVQ_E_INVALID, "log_path: open '%s': %s", log_path,
                             strerror(errno));
    }
    return EVQ_OK;
}

void evq_warner_close(struct evq_warner *warner)
{
    if (warner->fd > STDERR_FILENO) {
        close(warner->fd);
    }
    warner->fd = -1;
}

void evq_warn(struct evq_warner *warner, enum evq_warning condition, const char *format, ...)
{
    char text[1024];
    char line[1200];
    unsigned bit = 1u << condition;
    va_list arguments;

    if ((atomic_fetch_or(&warner->warned, bit) & bit) != 0 || warner->fd < 0) {
        return;
    }
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (bytes < 0) {
        return;
    }
    (void)evq_error_escape(text, strlen(text), line, sizeof(line));
    (void)dprintf(warner->fd, "evalq: warning: %s\n",
                  line); // A warning that cannot be written is dropped.
}
