/* Adds to a job how other hosts can fetch its snapshot. Declared in sender.h. */
#include <stdio.h>
#include <string.h>

#include "producer/client/sender.h"

/* Makes the path of the file to serve: the pinned copy if there is one. False: it is too long. */
static bool item_path(const struct evq_pending *item, const struct evq_root *root,
                      char out[PATH_MAX])
{
    const struct evq_job *job = item->jobs[0];
    const bool pinned = job->pin != NULL && job->pin[0] != '\0';

    return snprintf(out, PATH_MAX, "%s/%s", root->path, pinned ? job->pin : job->path) < PATH_MAX;
}

static bool set_snapshot(struct evq_job *job, const char *boot,
                         const struct evq_snapshot_offer *offer)
{
    struct evq_snapshot snapshot = {.boot = evq_arena_strdup(job->arena, boot),
                                    .place = "",
                                    .token = evq_arena_strdup(job->arena, offer->token),
                                    .bytes = offer->bytes,
                                    .checksum = evq_arena_strdup(job->arena, offer->checksum)};

    if (snapshot.boot == NULL || snapshot.token == NULL || snapshot.checksum == NULL) {
        return false;
    }
    job->snapshot = snapshot;
    job->snapshot_given = true;
    return true;
}

void evq_job_snapshots_offer(struct evq_sender *sender, struct evq_pending *item,
                             const struct evq_root *root)
{
    char boot[EVQ_SNAPSHOT_BOOT_BYTES_MAX + 1];
    char path[PATH_MAX];
    struct evq_snapshot_offer offer = {.token = ""};
    struct evq_error error = {.status = EVQ_OK};
    enum evq_status status = EVQ_OK;

    evq_snapshot_boot(boot);
    if (strcmp(sender->snapshot_host, "none") != 0 && item_path(item, root, path)) {
        if (sender->snapshots == NULL) {
            status = evq_snapshot_server_open(&sender->snapshots, &error);
        }
        if (status == EVQ_OK) {
            status = evq_snapshot_server_offer(sender->snapshots, path, &offer, &error);
        }
    }
    for (size_t at = 0; at < item->job_count; at++) {
        if (!set_snapshot(item->jobs[at], boot, &offer)) {
            status = evq_error_set(&error, EVQ_E_NOMEM, "'%s'", item->request.path);
        }
    }
    if (status != EVQ_OK) {
        evq_warn(&sender->warner, EVQ_WARN_SNAPSHOT,
                 "only workers that share this machine's /dev/shm can evaluate what lies in it: %s",
                 error.message);
    }
}

void evq_job_snapshots_set_address(struct evq_sender *sender, struct evq_job *job)
{
    char local[EVQ_SNAPSHOT_HOST_BYTES_MAX + 1];
    const char *host = sender->snapshot_host;
    const char *place = NULL;
    struct evq_error error;

    if (!job->snapshot_given || job->snapshot.token[0] == '\0' || job->snapshot.place[0] != '\0' ||
        sender->snapshots == NULL) {
        return;
    }
    if (host[0] == '\0') { // Use the address from which we reach Redis.
        host = evq_snapshot_server_local(evq_conn_fd(sender->conn), local) ? local : "127.0.0.1";
    }
    if (evq_snapshot_server_listen(sender->snapshots, host, &place, &error) != EVQ_OK) {
        evq_warn(&sender->warner, EVQ_WARN_SNAPSHOT, "no worker on another host can fetch: %s",
                 error.message);
        return; // Only workers of this machine can read it.
    }
    place = evq_arena_strdup(job->arena, place);
    job->snapshot.place = place != NULL ? place : "";
}
