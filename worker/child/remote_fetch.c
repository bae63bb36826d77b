#include "worker/child/remote_fetch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/remote/remote.h"
#include "worker/child/checkpoint_cache.h"
#include "worker/child/kept_directory.h"
#include "worker/child/scratch.h"

#define TICK_MS   100 // How often to check whether to stop.
#define TRIES_MAX 3   // Another process may remove the checkpoint before we lock it.

struct fetch {
    const struct evq_config *config;
    const struct evq_job *job;
    const struct evq_eval_report *report;
    struct evq_checkpoint_cache cache;
    char address[PATH_MAX];
    char key[EVQ_JOB_NAME_BYTES_MAX + 1 + PATH_MAX];
    char fingerprint[EVQ_REMOTE_FINGERPRINT_CHARS + 1]; // "": not known yet.
    struct evq_remote *remote;                          // NULL: not started yet.
};

static enum evq_status report_tell(const struct fetch *fetch, const char *status,
                                   struct evq_error *err)
{
    return fetch->report->progress(fetch->report->context, -1, -1, status) == EVQ_OK
               ? EVQ_OK
               : evq_error_set(err, EVQ_E_STOPPED, "stopped while '%.200s' was fetched",
                               fetch->address);
}

/* Waits for a line of the helper. A helper that is silent for too long has failed. */
static enum evq_status line_wait(const struct fetch *fetch, struct evq_remote_line *ret_line,
                                 const char *doing, struct evq_error *err)
{
    const int64_t deadline_ms = evq_clock_mono_ms() + EVQ_REMOTE_LIST_MS;

    for (;;) {
        enum evq_status status =
            evq_remote_next(fetch->remote, evq_clock_mono_ms() + TICK_MS, ret_line, err);
        if (status != EVQ_E_TIMEOUT) {
            return status;
        }
        if (evq_clock_left_ms(deadline_ms) == 0) {
            return evq_error_set(err, EVQ_E_RETRY, "the store did not answer for %d s at '%.200s'",
                                 EVQ_REMOTE_LIST_MS / 1000, fetch->address);
        }
        status = report_tell(fetch, doing, err);
        if (status != EVQ_OK) {
            return status;
        }
    }
}

static enum evq_status list(struct fetch *fetch, struct evq_remote_listing *ret_listing,
                            struct evq_error *err)
{
    enum evq_status status =
        fetch->remote == NULL ? evq_remote_open(fetch->config->worker.python, &fetch->remote, err)
                              : EVQ_OK;

    if (status == EVQ_OK) {
        status = evq_remote_list_begin(fetch->remote, fetch->address, fetch->key, err);
    }
    const int64_t deadline_ms = evq_clock_mono_ms() + EVQ_REMOTE_LIST_MS;
    while (status == EVQ_OK) {
        status =
            evq_remote_list_next(fetch->remote, evq_clock_mono_ms() + TICK_MS, ret_listing, err);
        if (status == EVQ_OK) {
            return EVQ_OK;
        }
        if (status == EVQ_E_TIMEOUT && evq_clock_left_ms(deadline_ms) > 0) {
            status = report_tell(fetch, "lists the remote checkpoint", err);
        } else if (status == EVQ_E_TIMEOUT) {
            status = evq_error_set(err, EVQ_E_RETRY, "'%.300s' was not listed within %d s",
                                   fetch->address, EVQ_REMOTE_LIST_MS / 1000);
        }
    }
    return status;
}

/* Fetches all files into the partial directory. */
static enum evq_status transfer(struct fetch *fetch, const char *partial, struct evq_error *err)
{
    const char *const words[] = {"fetch", fetch->address, fetch->key, fetch->fingerprint, partial};
    struct evq_remote_line line;
    char doing[64] = "fetches the checkpoint";
    enum evq_status status =
        evq_remote_send(fetch->remote, words, sizeof(words) / sizeof(words[0]), err);

    while (status == EVQ_OK) {
        status = line_wait(fetch, &line, doing, err);
        if (status != EVQ_OK || strcmp(line.fields[0], "end") == 0) {
            break;
        }
        if (strcmp(line.fields[0], "progress") == 0) {
            (void)snprintf(doing, sizeof(doing), "fetching: %lld of %lld MB",
                           strtoll(line.fields[1], NULL, 10) / 1000000,
                           strtoll(line.fields[2], NULL, 10) / 1000000);
            status = report_tell(fetch, doing, err);
        }
    }
    return status;
}

/* Fetches the checkpoint into the cache. The caller holds its lock exclusively. */
static enum evq_status make(struct fetch *fetch, const char *path, int lock_fd,
                            struct evq_error *err)
{
    char partial[PATH_MAX + 96];
    struct evq_remote_listing listing;
    enum evq_status status = list(fetch, &listing, err);

    (void)snprintf(partial, sizeof(partial), "%s" EVQ_KEPT_DIRECTORY_PARTIAL, path);
    if (status == EVQ_OK && strcmp(listing.fingerprint, fetch->fingerprint) != 0) {
        status = evq_error_set(err, EVQ_E_CHANGED, "the files changed after the submit: '%.300s'",
                               fetch->address);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_cache_reserve(&fetch->cache, fetch->fingerprint, lock_fd,
                                              listing.bytes, err);
    }
    if (status == EVQ_OK) {
        do {
            status = transfer(fetch, partial, err);
        } while (status == EVQ_E_FULL &&
                 evq_checkpoint_cache_shrink(&fetch->cache, fetch->fingerprint));
    }
    if (status == EVQ_OK && rename(partial, path) != 0) {
        status = evq_error_set(err, EVQ_E_IO, "rename '%s': %s", partial, strerror(errno));
    }
    // After any other failure, the next attempt continues with the parts that are there.
    if (status == EVQ_E_FULL || status == EVQ_E_CHANGED || status == EVQ_E_GONE) {
        evq_scratch_remove(partial);
    }
    return status;
}

/* Locks the checkpoint in the cache, and fetches it if it is not there. */
static enum evq_status have(struct fetch *fetch, struct evq_remote_fetched *fetched,
                            struct evq_error *err)
{
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        bool made = false;
        enum evq_status status = evq_kept_directory_lock(
            fetched->directory, "a fetch", fetch->report, &fetched->lock_fd, &made, err);
        if (status == EVQ_OK && made) {
            evq_checkpoint_cache_touch(fetched->lock_fd);
            return EVQ_OK;
        }
        if (status == EVQ_OK) {
            status = make(fetch, fetched->directory, fetched->lock_fd, err);
        }
        evq_file_close(&fetched->lock_fd);
        if (status == EVQ_E_CHANGED || status == EVQ_E_GONE) {
            (void)evq_kept_directory_remove(fetched->directory);
        }
        if (status != EVQ_OK) {
            return status;
        }
    }
    return evq_error_set(err, EVQ_E_FULL,
                         "worker.cache is too small: '%.200s' was removed before its use",
                         fetch->address);
}

static enum evq_status names_make(const struct evq_root *root, struct fetch *fetch,
                                  struct evq_remote_fetched *fetched, struct evq_error *err)
{
    const char *path = strcmp(fetch->job->path, ".") != 0 ? fetch->job->path : "";
    const int bytes = snprintf(fetch->address, sizeof(fetch->address), "%s%s%s", root->path,
                               path[0] != '\0' ? "/" : "", path);

    if (bytes < 0 || (size_t)bytes >= sizeof(fetch->address)) {
        return evq_error_set(err, EVQ_E_INVALID, "the address '%.60s...' is too long", root->path);
    }
    (void)snprintf(fetch->key, sizeof(fetch->key), "%s:%s", root->name, fetch->job->path);
    const char *name = strrchr(fetch->address, '/') + 1; // An address always has slashes.
    if (strlen(name) >= sizeof(fetched->name)) {
        return evq_error_set(err, EVQ_E_INVALID, "the name '%.60s...' is too long", name);
    }
    memcpy(fetched->name, name, strlen(name) + 1);
    return EVQ_OK;
}

/* A store that fails is not the job's fault, so the attempt is not charged. Wrong data is charged:
 * otherwise it would be fetched again and again. */
static enum evq_status status_map(enum evq_status status, struct evq_error *err)
{
    if (status == EVQ_E_RETRY || status == EVQ_E_CORRUPT) {
        err->status = status == EVQ_E_RETRY ? EVQ_E_INCOMPLETE : EVQ_E_RETRY;
        return err->status;
    }
    return status;
}

enum evq_status evq_remote_fetch_open(const struct evq_config *config, const struct evq_root *root,
                                      const struct evq_job *job,
                                      const struct evq_eval_report *report,
                                      struct evq_remote_fetched *ret_fetched, struct evq_error *err)
{
    struct fetch *fetch = calloc(1, sizeof(*fetch));
    struct evq_remote_fetched fetched = {.lock_fd = -1};
    struct evq_remote_listing listing;

    if (fetch == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "to fetch '%.100s'", job->path);
    }
    *fetch = (struct fetch){.config = config, .job = job, .report = report};
    enum evq_status status = names_make(root, fetch, &fetched, err);
    if (status == EVQ_OK) {
        status = evq_checkpoint_cache_open(config->worker.cache, config->worker.scratch,
                                           config->worker.cache_bytes, &fetch->cache, err);
    }
    // The record was checked: a fingerprint has 32 hexadecimal digits.
    (void)snprintf(fetch->fingerprint, sizeof(fetch->fingerprint), "%s",
                   job->fingerprint != NULL ? job->fingerprint : "");
    if (status == EVQ_OK && fetch->fingerprint[0] == '\0') {
        status = list(fetch, &listing, err);
        if (status == EVQ_OK) {
            memcpy(fetch->fingerprint, listing.fingerprint, sizeof(listing.fingerprint));
        }
    }
    if (status == EVQ_OK) {
        (void)snprintf(fetched.directory, sizeof(fetched.directory), "%s/%s",
                       fetch->cache.directory, fetch->fingerprint);
        status = have(fetch, &fetched, err);
    }
    if (status == EVQ_OK) {
        *ret_fetched = fetched;
    }
    evq_remote_close(fetch->remote);
    free(fetch);
    return status_map(status, err);
}

void evq_remote_fetch_close(struct evq_remote_fetched *fetched)
{
    evq_file_close(&fetched->lock_fd);
    fetched->directory[0] = '\0';
}
