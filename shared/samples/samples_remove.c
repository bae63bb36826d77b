#include "shared/samples/samples_remove.h"

#include <fts.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/samples/samples_writer.h"

/* Called with each file below a directory. Returns whether it was removed. */
typedef bool (*file_fn)(void *context, const FTSENT *entry);

/* Walks a directory and removes those of its directories that are empty then. Returns how many
 * files were removed. */
static int64_t walk(char *path, file_fn on_file, void *context)
{
    char *const roots[] = {path, NULL};
    int64_t removed = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);

    for (FTSENT *entry; tree != NULL && (entry = fts_read(tree)) != NULL;) {
        if (entry->fts_info == FTS_F && on_file(context, entry)) {
            removed++;
        } else if (entry->fts_info == FTS_DP && entry->fts_level > 0) {
            (void)rmdir(entry->fts_path); // It stays if something is left in it.
        }
    }
    if (tree != NULL) {
        (void)fts_close(tree);
    }
    return removed;
}

/* Removes a samples file, and a temporary one of a dead worker. */
static bool remove_file(void *context, const FTSENT *entry)
{
    (void)context;
    return strstr(entry->fts_name, EVQ_SAMPLES_SUFFIX) != NULL && unlink(entry->fts_path) == 0;
}

int64_t evq_samples_remove(const char *directory, const char *run, int64_t step)
{
    char path[EVQ_SAMPLES_PATH_BYTES + EVQ_JOB_ID_BYTES_MAX];
    const int bytes = snprintf(path, sizeof path, "%s/%s", directory, run);

    if (step >= 0) {
        (void)snprintf(path + bytes, sizeof path - (size_t)bytes, "/%" PRId64, step);
    }
    const int64_t removed = walk(path, remove_file, NULL);
    (void)rmdir(path);
    return removed;
}

/* Removes a temporary file without a writer, and notes the age of any other file. */
static bool sweep_file(void *context, const FTSENT *entry)
{
    time_t *newest = context;

    if (evq_temporary_file_sweep(entry->fts_path)) {
        return true;
    }
    const time_t time = entry->fts_statp->st_mtime;
    *newest = time > *newest ? time : *newest;
    return false;
}

int64_t evq_samples_remove_unfinished(const char *directory, const char *run, time_t *ret_newest)
{
    char path[EVQ_SAMPLES_PATH_BYTES + EVQ_JOB_ID_BYTES_MAX];

    *ret_newest = 0;
    (void)snprintf(path, sizeof path, "%s/%s", directory, run);
    return walk(path, sweep_file, ret_newest);
}
