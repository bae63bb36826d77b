#include "shared/queue/attempt_log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/queue/job.h"

#define QUEUE_BYTES 8 // Length of the queue's part in an epoch.

/* Length of the part of epoch that no failover changes and that can be in a file name. */
static size_t queue_bytes(const char *epoch)
{
    const size_t bytes = strspn(epoch, "0123456789abcdef");
    return bytes < QUEUE_BYTES ? bytes : QUEUE_BYTES;
}

bool evq_attempt_log_path(const char *scratch, const char *epoch, const char *id, int64_t attempt,
                          char *out, size_t out_bytes)
{
    char name[EVQ_JOB_ID_BYTES_MAX];
    size_t bytes = strlen(id);
    if (bytes >= sizeof name) {
        return false;
    }
    for (size_t i = 0; i <= bytes; i++) {
        name[i] = id[i] == '/' ? '_' : id[i];
    }
    const int queue = (int)queue_bytes(epoch);
    int used = snprintf(out, out_bytes, "%s/logs/%s.a%" PRId64 "%s%.*s.log", scratch, name, attempt,
                        queue > 0 ? "." : "", queue, epoch);
    return used > 0 && (size_t)used < out_bytes;
}

char *evq_attempt_log_tail(const char *path, size_t bytes_max, size_t *ret_bytes)
{
    struct stat info;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        goto out;
    }
    size_t bytes = (uintmax_t)info.st_size > bytes_max ? bytes_max : (size_t)info.st_size;
    text = malloc(bytes + 1);
    ssize_t got = text != NULL ? pread(fd, text, bytes, info.st_size - (off_t)bytes) : -1;
    if (got < 0) {
        free(text);
        text = NULL;
        goto out;
    }
    text[got] = '\0';
    *ret_bytes = (size_t)got;
out:
    evq_file_close(&fd);
    return text;
}
