#include "producer/cli/submit/remote_checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"

#define KEY_BYTES (EVQ_JOB_NAME_BYTES_MAX + 1 + PATH_MAX)

/* Starts the helper, unless it runs already. */
static enum evq_status helper_have(struct evq_cli *cli, struct evq_error *err)
{
    return cli->remote != NULL ? EVQ_OK
                               : evq_remote_open(cli->config->worker.python, &cli->remote, err);
}

/* Turns errors of the store, the helper or this machine's set-up into EVQ_E_IO, because for callers
 * EVQ_E_INCOMPLETE means an incomplete checkpoint. Ends the helper; the next call starts a new one.
 */
static enum evq_status status_map(struct evq_cli *cli, enum evq_status status,
                                  struct evq_error *err)
{
    if (status == EVQ_E_INCOMPLETE || status == EVQ_E_RETRY || status == EVQ_E_TIMEOUT) {
        evq_remote_close(cli->remote);
        cli->remote = NULL;
        status = EVQ_E_IO;
        err->status = status;
    }
    return status;
}

static void key_write(const struct evq_root *root, const char *path, char out[KEY_BYTES])
{
    (void)snprintf(out, KEY_BYTES, "%s:%s", root->name, path);
}

enum evq_status evq_remote_checkpoint_inspect(struct evq_cli *cli, const struct evq_root *root,
                                              const char *path, const char *address,
                                              struct evq_ready *ready, char fingerprint[33],
                                              struct evq_buffer *manifest, struct evq_error *err)
{
    char key[KEY_BYTES];
    struct evq_remote_listing listing;
    enum evq_status status = helper_have(cli, err);

    key_write(root, path, key);
    if (status == EVQ_OK) {
        status = evq_remote_list(cli->remote, address, key, &listing, err);
    }
    status = status_map(cli, status, err);
    if (status == EVQ_OK && ready != NULL) {
        status = evq_ready_check_listing(ready, path, &listing, err);
    }
    if (status == EVQ_OK) {
        evq_buffer_text(manifest, listing.manifest);
        memcpy(fingerprint, listing.fingerprint, sizeof listing.fingerprint);
    }
    return status;
}

/* Adds one entry of a scan to the list. A store gives no time of the last change, so the
 * fingerprint takes its place. */
static enum evq_status entry_take(const struct evq_remote_line *line, const char *pattern,
                                  struct evq_checkpoint_listing_list *list, struct evq_error *err)
{
    char digits[16] = "";

    (void)snprintf(digits, sizeof digits, "%.15s", line->fields[3]);
    const struct evq_checkpoint_listing found = {.is_directory = line->fields[2][0] == 'd',
                                                 .changed_ns = strtoll(digits, NULL, 16),
                                                 .bytes = strtoll(line->fields[4], NULL, 10)};
    return evq_checkpoint_listing_add(list, line->fields[1], &found, pattern, err);
}

enum evq_status evq_remote_checkpoint_scan(struct evq_cli *cli, const char *address,
                                           const char *pattern,
                                           struct evq_checkpoint_listing_list *ret_list,
                                           struct evq_error *err)
{
    char real[PATH_MAX];
    char key[KEY_BYTES];
    struct evq_checkpoint_listing_list list = {0};
    struct evq_remote_line line = {.fields = {""}};
    const struct evq_root *root = NULL;
    const char *path = NULL;
    const int64_t deadline_ms = evq_clock_mono_ms() + EVQ_REMOTE_LIST_MS;
    enum evq_status status = evq_config_root_resolve(cli->config, address, real, &root, &path, err);

    if (status == EVQ_OK) {
        key_write(root, path, key);
        status = helper_have(cli, err);
    }
    if (status == EVQ_OK) {
        const char *const words[] = {"scan", real, key};
        status = evq_remote_send(cli->remote, words, sizeof words / sizeof words[0], err);
    }
    while (status == EVQ_OK && strcmp(line.fields[0], "end") != 0) {
        status = evq_remote_next(cli->remote, deadline_ms, &line, err);
        if (status == EVQ_OK && strcmp(line.fields[0], "entry") == 0) {
            status = entry_take(&line, pattern, &list, err);
        }
    }
    if (status != EVQ_OK) {
        evq_checkpoint_listing_free(&list);
        return status_map(cli, status, err);
    }
    evq_checkpoint_listing_sort(&list);
    *ret_list = list;
    return EVQ_OK;
}
