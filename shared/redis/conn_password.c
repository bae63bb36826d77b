#include "shared/redis/conn_password.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The password taken from the environment, for later connections: it can be read there only once.
static pthread_mutex_t taken_lock = PTHREAD_MUTEX_INITIALIZER;
static char taken[EVQ_CONN_PASSWORD_BYTES_MAX];

void evq_conn_password_wipe(char *secret, size_t bytes)
{
    explicit_bzero(secret, bytes);
}

static bool is_secret_mount(const char *path)
{
    return strncmp(path, "/run/secrets/", 13) == 0 || strncmp(path, "/var/run/secrets/", 17) == 0;
}

static enum evq_status check_file(int fd, const char *path, struct evq_error *err)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        return evq_error_set(err, EVQ_E_IO, "stat password file '%s': %s", path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        return evq_error_set(err, EVQ_E_INVALID, "the password file '%s' is not a regular file",
                             path);
    }
    if ((info.st_mode & S_IROTH) != 0 && !is_secret_mount(path)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "the password file '%s' is readable by every user (mode %04o): run "
                             "chmod 640 or 600 on it",
                             path, (unsigned)(info.st_mode & 07777));
    }
    return EVQ_OK;
}

enum evq_status evq_conn_password_file(const char *path, char out[EVQ_CONN_PASSWORD_BYTES_MAX],
                                       struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    size_t used = 0;

    // Non-blocking, so that a FIFO is refused instead of waited for.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open password file '%s': %s", path, strerror(errno));
    }
    status = check_file(fd, path, err);
    if (status != EVQ_OK) {
        goto out;
    }
    while (used < EVQ_CONN_PASSWORD_BYTES_MAX) {
        ssize_t got = read(fd, out + used, EVQ_CONN_PASSWORD_BYTES_MAX - used);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            status =
                evq_error_set(err, EVQ_E_IO, "read password file '%s': %s", path, strerror(errno));
            goto out;
        }
        if (got == 0) {
            break;
        }
        used += (size_t)got;
    }
    size_t line = 0;
    while (line < used && out[line] != '\n' && out[line] != '\r' && out[line] != '\0') {
        line++;
    }
    if (line == 0 || line >= EVQ_CONN_PASSWORD_BYTES_MAX) {
        status = evq_error_set(err, EVQ_E_INVALID, "the first line of the password file '%s' is %s",
                               path, line == 0 ? "empty" : "longer than 1023 bytes");
        goto out;
    }
    evq_conn_password_wipe(out + line, EVQ_CONN_PASSWORD_BYTES_MAX - line);
out:
    if (status != EVQ_OK) {
        evq_conn_password_wipe(out, EVQ_CONN_PASSWORD_BYTES_MAX);
    }
    (void)close(fd); // Opened for reading: a failed close loses nothing.
    return status;
}

/* Copies the password of the environment, or the one taken from it before; "" if there is none. */
static enum evq_status read_environment(bool keep_environment,
                                        char out[EVQ_CONN_PASSWORD_BYTES_MAX],
                                        struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    (void)pthread_mutex_lock(&taken_lock); // A plain mutex of our own: it cannot fail.
    char *value = getenv(EVQ_CONN_PASSWORD_ENV);
    if (value == NULL || *value == '\0') {
        memcpy(out, taken, sizeof taken);
    } else if (strlen(value) >= EVQ_CONN_PASSWORD_BYTES_MAX) {
        status = evq_error_set(err, EVQ_E_INVALID, "$%s is longer than %d bytes",
                               EVQ_CONN_PASSWORD_ENV, EVQ_CONN_PASSWORD_BYTES_MAX - 1);
    } else {
        memcpy(out, value, strlen(value) + 1); // Its length is checked above.
        if (!keep_environment) {
            memcpy(taken, value, strlen(value) + 1);
            // The bytes too: /proc/PID/environ shows them even when the variable is unset.
            evq_conn_password_wipe(value, strlen(value));
            (void)unsetenv(EVQ_CONN_PASSWORD_ENV); // Fails only for a malformed name.
        }
    }
    (void)pthread_mutex_unlock(&taken_lock);
    return status;
}

enum evq_status evq_conn_password_read(const char *file, bool keep_environment,
                                       char out[EVQ_CONN_PASSWORD_BYTES_MAX], struct evq_error *err)
{
    // Taken in any case, because child processes must not get even an unused password.
    enum evq_status status = read_environment(keep_environment, out, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (file != NULL && *file != '\0') {
        return evq_conn_password_file(file, out, err);
    }
    if (*out != '\0') {
        return EVQ_OK;
    }
    file = getenv(EVQ_CONN_PASSWORD_FILE_ENV);
    return file != NULL && *file != '\0' ? evq_conn_password_file(file, out, err) : EVQ_OK;
}
