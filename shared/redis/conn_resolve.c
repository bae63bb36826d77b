#include "shared/redis/conn_resolve.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shared/base/clock.h"

struct evq_conn_resolve {
    atomic_int owners; // The caller and the thread: the last one frees.
    pid_t pid;
    atomic_bool done; // The fields below `done_fd` are set.
    int done_fd;      // An eventfd the thread signals after that.
    char host[256];
    char port[8];
    int failure; // Of getaddrinfo().
    int failure_errno;
    struct addrinfo *list;
};

static void release(struct evq_conn_resolve *resolve)
{
    if (atomic_fetch_sub(&resolve->owners, 1) != 1) {
        return;
    }
    if (resolve->list != NULL) {
        freeaddrinfo(resolve->list);
    }
    (void)close(resolve->done_fd); // An eventfd: closing it cannot lose anything.
    free(resolve);
}

static int look_up(const char *host, const char *port, int flags, struct addrinfo **ret_list)
{
    struct addrinfo hints;
    memset(&hints, 0, sizeof hints);
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = flags | AI_NUMERICSERV;
    return getaddrinfo(host, port, &hints, ret_list);
}

static void *resolve_main(void *argument)
{
    struct evq_conn_resolve *resolve = argument;
    const uint64_t one = 1;

    resolve->failure = look_up(resolve->host, resolve->port, 0, &resolve->list);
    resolve->failure_errno = errno;
    atomic_store(&resolve->done, true);
    (void)!write(resolve->done_fd, &one, sizeof one); // An eventfd at 0 always takes 1.
    release(resolve);
    return NULL;
}

static enum evq_status resolve_start(const char *host, const char *port,
                                     struct evq_conn_resolve **ret_resolve, struct evq_error *err)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all;
    sigset_t before;

    struct evq_conn_resolve *resolve = calloc(1, sizeof *resolve);
    if (resolve == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory to look up '%s'", host);
    }
    (void)snprintf(resolve->host, sizeof resolve->host, "%s", host);
    (void)snprintf(resolve->port, sizeof resolve->port, "%s", port);
    resolve->pid = getpid();
    atomic_init(&resolve->owners, 2);
    atomic_init(&resolve->done, false);
    resolve->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (resolve->done_fd < 0) {
        enum evq_status status = evq_error_set(err, EVQ_E_IO, "eventfd: %s", strerror(errno));
        free(resolve);
        return status;
    }
    // The thread blocks all signals of the program. It may outlive the call that started it.
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    (void)pthread_attr_init(&attributes); // Cannot fail on Linux.
    // Uses the default stack, because thread-local variables of the program are taken from it.
    (void)pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failure = pthread_create(&thread, &attributes, resolve_main, resolve);
    (void)pthread_attr_destroy(&attributes);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failure != 0) {
        atomic_store(&resolve->owners, 1);
        release(resolve);
        return evq_error_set(err, EVQ_E_IO, "start a thread to look up '%s': %s", host,
                             strerror(failure));
    }
    *ret_resolve = resolve;
    return EVQ_OK;
}

static enum evq_status resolve_wait(const struct evq_conn_resolve *resolve, int interrupt_fd,
                                    int64_t deadline_ms, struct evq_error *err)
{
    for (;;) {
        struct pollfd polls[2] = {{.fd = resolve->done_fd, .events = POLLIN},
                                  {.fd = interrupt_fd, .events = POLLIN}};
        int ready = poll(polls, 2, evq_clock_left_ms(deadline_ms));
        if (ready < 0 && errno != EINTR) {
            return evq_error_set(err, EVQ_E_IO, "poll: %s", strerror(errno));
        }
        if (ready > 0 && polls[1].revents != 0) {
            return evq_error_set(err, EVQ_E_STOPPED, "asked to stop while looking up '%s'",
                                 resolve->host);
        }
        if (atomic_load(
                &resolve->done)) { // What the thread wrote is seen by this one from here on.
            return EVQ_OK;
        }
        if (ready == 0 && evq_clock_left_ms(deadline_ms) == 0) {
            return evq_error_set(err, EVQ_E_TIMEOUT, "the look-up of host '%s' takes too long",
                                 resolve->host);
        }
    }
}

void evq_conn_resolve_drop(struct evq_conn_resolve **pending)
{
    struct evq_conn_resolve *resolve = *pending;
    *pending = NULL;
    if (resolve == NULL) {
        return;
    }
    if (resolve->pid != getpid()) {
        // The thread exists only in the parent, so this copy has one owner.
        atomic_store(&resolve->owners, 1);
        resolve->list = NULL; // It may be half built.
    }
    release(resolve);
}

enum evq_status evq_conn_resolve(struct evq_conn_resolve **pending, const char *host,
                                 uint16_t port_number, int interrupt_fd, int64_t deadline_ms,
                                 struct addrinfo **ret_list, struct evq_error *err)
{
    char port[8];
    (void)snprintf(port, sizeof port, "%u", (unsigned)port_number);
    if (look_up(host, port, AI_NUMERICHOST, ret_list) == 0) {
        return EVQ_OK; // It is an address, so no lookup is needed.
    }
    struct evq_conn_resolve *resolve = *pending;
    if (resolve != NULL && (resolve->pid != getpid() || strcmp(resolve->host, host) != 0 ||
                            strcmp(resolve->port, port) != 0)) {
        evq_conn_resolve_drop(pending);
        resolve = NULL;
    }
    if (resolve == NULL) {
        enum evq_status status = resolve_start(host, port, &resolve, err);
        if (status != EVQ_OK) {
            return status;
        }
        *pending = resolve;
    }
    enum evq_status status = resolve_wait(resolve, interrupt_fd, deadline_ms, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (resolve->failure == 0) {
        *ret_list = resolve->list;
        resolve->list = NULL;
    } else {
        const char *why = resolve->failure == EAI_SYSTEM ? strerror(resolve->failure_errno)
                                                         : gai_strerror(resolve->failure);
        status = evq_error_set(err, resolve->failure == EAI_MEMORY ? EVQ_E_NOMEM : EVQ_E_IO,
                               "look up host '%s': %s", host, why);
    }
    evq_conn_resolve_drop(pending);
    return status;
}
