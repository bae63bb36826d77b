#include "shared/job_log.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/job.h"

bool evq_job_log_path(const char *scratch, const char *id, int64_t attempt, char *out,
                      size_t out_bytes)
{
    char name[EVQ_JOB_ID_BYTES_MAX];
    size_t bytes = strlen(id);
    if (bytes >= sizeof name) {
        return false;
    }
    for (size_t i = 0; i <= bytes; i++) {
        name[i] = id[i] == '/' ? '_' : id[i];
    }
    int used = snprintf(out, out_bytes, "%s/logs/%s.a%" PRId64 ".log", scratch, name, attempt);
    return used > 0 && (size_t)used < out_bytes;
}

char *evq_job_log_tail(const char *path, size_t bytes_max, size_t *ret_bytes)
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
    if (fd >= 0) {
        (void)close(fd); // Opened for reading: a failed close loses nothing.
    }
    return text;
}
