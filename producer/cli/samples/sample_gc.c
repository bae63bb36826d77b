#include "producer/cli/samples/sample_gc.h"

#include <dirent.h>
#include <string.h>
#include <time.h>

#include "producer/cli/view.h"
#include "shared/samples/samples_remove.h"

#define OLD_SECONDS ((time_t)90 * 86400) // So long the queue knows a run after its last submit.

static enum evq_status match_run(void *context, const char *run, struct evq_error *err)
{
    const char **wanted = context;

    (void)err;
    if (*wanted != NULL && strcmp(*wanted, run) == 0) {
        *wanted = NULL; // It was found.
    }
    return EVQ_OK;
}

/* Removes the samples of a run if they are old and the queue does not know it. */
static enum evq_status collect_run(struct evq_cli *cli, const char *run, int64_t *removed,
                                   struct evq_error *err)
{
    const char *directory = cli->config->samples.directory;
    const char *unknown = run;
    time_t newest = 0;

    *removed += evq_samples_remove_unfinished(directory, run, &newest);
    if (newest == 0 || time(NULL) - newest < OLD_SECONDS) {
        return EVQ_OK;
    }
    const enum evq_status status = evq_view_each_run(cli, match_run, &unknown, err);
    if (status == EVQ_OK && unknown != NULL) {
        *removed += evq_samples_remove(directory, run, -1);
    }
    return status;
}

enum evq_status evq_sample_gc(struct evq_cli *cli, int64_t *ret_removed, struct evq_error *err)
{
    struct dirent *entry;
    enum evq_status status = EVQ_OK;
    DIR *dir = opendir(cli->config->samples.directory);

    *ret_removed = 0;
    while (dir != NULL && status == EVQ_OK && (entry = readdir(dir)) != NULL) {
        if (evq_job_name_valid(entry->d_name, EVQ_JOB_RUN_BYTES_MAX)) {
            status = collect_run(cli, entry->d_name, ret_removed, err);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    return status;
}
