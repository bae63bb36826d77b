#include "shared/verify/saved_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json_memory.h"
#include "shared/checkpoint/checkpoint.h"
#include "shared/redis/conn.h"

/* Finds the fingerprint of what the job evaluated; "": not known. */
static enum evq_status fingerprint_find(struct evq_queue *queue, const char *job,
                                        char out[EVQ_JOB_FINGERPRINT_CHARS + 1],
                                        struct evq_error *err)
{
    char *text = NULL;

    out[0] = '\0';
    enum evq_status status = evq_queue_show(queue, job, &text, err);
    if (status != EVQ_OK) {
        return evq_conn_is_outage(status) || status == EVQ_E_NOMEM ? status : EVQ_OK;
    }
    evq_json_memory_clear();
    json_t *view = json_loads(text, 0, NULL);
    free(text);
    const char *fingerprint =
        json_string_value(json_object_get(json_object_get(view, "job"), "fingerprint"));
    if (fingerprint != NULL && strlen(fingerprint) == EVQ_JOB_FINGERPRINT_CHARS) {
        (void)snprintf(out, EVQ_JOB_FINGERPRINT_CHARS + 1, "%s", fingerprint);
    }
    json_decref(view);
    return evq_json_memory_failed() ? evq_error_set(err, EVQ_E_NOMEM, "job '%s'", job) : EVQ_OK;
}

enum evq_status evq_saved_weights_verify(struct evq_queue *queue, const struct evq_config *config,
                                         struct evq_timed_verify *verify, const char *job,
                                         const char *checkpoint, struct evq_error *err)
{
    char fingerprint[EVQ_JOB_FINGERPRINT_CHARS + 1];
    char name[EVQ_JOB_NAME_BYTES_MAX + 1];
    const char *colon = strchr(checkpoint, ':');

    if (colon == NULL || (size_t)(colon - checkpoint) >= sizeof(name)) {
        return EVQ_OK;
    }
    (void)snprintf(name, sizeof(name), "%.*s", (int)(colon - checkpoint), checkpoint);
    const struct evq_root *root = evq_config_root_find(config, name);
    if (root == NULL || root->is_remote) { // This function does not ask remote stores.
        return EVQ_OK;
    }
    enum evq_status status = fingerprint_find(queue, job, fingerprint, err);
    if (status != EVQ_OK || fingerprint[0] == '\0') {
        return status;
    }
    status = verify != NULL
                 ? evq_timed_verify_run(verify, root->path, colon + 1, fingerprint, err)
                 : evq_checkpoint_verify_fingerprint(root->path, colon + 1, fingerprint, err);
    // The evaluated checkpoint was whole.
    if (status == EVQ_E_INCOMPLETE || status == EVQ_E_CORRUPT) {
        status = evq_error_set(err, EVQ_E_CHANGED, "it is no whole checkpoint any more");
    }
    return evq_saved_weights_lost(status) || status == EVQ_E_NOMEM ? status : EVQ_OK;
}
