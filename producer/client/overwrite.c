#include "producer/client/overwrite.h"

#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shared/checkpoint/checkpoint.h"
#include "shared/checkpoint/file_list.h"

bool evq_overwrite_is_marked(const struct evq_job *job)
{
    return strcmp(job->fingerprint, EVQ_OVERWRITTEN_FINGERPRINT) == 0;
}

static void file_add(struct evq_files *files, ino_t inode, uint64_t bytes, int64_t written_ns)
{
    const uint64_t fields[] = {inode, bytes, (uint64_t)written_ns};

    files->identity = XXH3_64bits_withSeed(fields, sizeof(fields), files->identity) | 1;
    files->written_ns = written_ns > files->written_ns ? written_ns : files->written_ns;
}

/* Looks at the files that hold weights; of a format that evalq does not read, at every file. */
static enum evq_status read_files(const struct evq_place *place, struct evq_files *ret_files,
                                  struct evq_error *err)
{
    static const struct evq_checkpoint_options options = {.files_only = true};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_file_list list = {0};
    struct evq_files files = {.written_ns = 0};
    struct stat info;

    enum evq_status status =
        evq_checkpoint_open(place->root_fd, place->source, &options, &checkpoint, err);
    for (size_t at = 0; status == EVQ_OK && at < checkpoint->file_count; at++) {
        if (fstat(checkpoint->files[at].fd, &info) != 0) {
            status = evq_error_set(err, EVQ_E_IO, "its files cannot be looked at");
            break;
        }
        file_add(&files, info.st_ino, (uint64_t)info.st_size,
                 (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec);
    }
    evq_checkpoint_close(checkpoint);
    if (status != EVQ_OK && status != EVQ_E_GONE && status != EVQ_E_INCOMPLETE) {
        files = (struct evq_files){.written_ns = 0};
        status = evq_file_list_scan(place->root_fd, place->source, &list, err);
        for (size_t at = 0; status == EVQ_OK && at < list.count; at++) {
            const struct evq_file_list_entry *file = &list.files[at];
            file_add(&files, file->inode, file->bytes, file->modified_ns);
        }
        evq_file_list_free(&list);
    }
    if (status == EVQ_OK) {
        *ret_files = files;
    }
    return status;
}

/* Returns the remembered entry of the path, or NULL. */
static struct evq_seen_path *seen_find(struct evq_sender *sender, uint64_t hash)
{
    for (size_t at = 0; at < EVQ_SENDER_PATHS_MAX && at < sender->path_count; at++) {
        if (sender->paths[at].hash == hash) {
            return &sender->paths[at];
        }
    }
    return NULL;
}

enum evq_status evq_overwrite_look(struct evq_sender *sender, const struct evq_pending *item,
                                   const struct evq_place *place, struct evq_files *ret_files,
                                   struct evq_error *err)
{
    const struct evq_seen_path *seen = seen_find(sender, item->path_hash);
    struct evq_files files;

    const enum evq_status status = read_files(place, &files, err);
    if (status != EVQ_OK) {
        return status;
    }
    // Files that were written after the submit belong to the next step. If the clock of the file
    // server is ahead, evalq skips a step, but it never confuses two.
    if (files.written_ns / 1000000 > item->request.created_ms) {
        return evq_error_set(err, EVQ_E_CHANGED, "its files were written after the submit");
    }
    if (seen != NULL && seen->step != item->request.step && seen->identity == files.identity) {
        return evq_error_set(err, EVQ_E_CHANGED, "it still holds the files of step %lld",
                             (long long)seen->step);
    }
    *ret_files = files;
    return EVQ_OK;
}

enum evq_status evq_overwrite_recheck(struct evq_sender *sender, const struct evq_pending *item,
                                      const struct evq_place *place, const struct evq_files *files,
                                      struct evq_error *err)
{
    struct evq_files now;

    if (read_files(place, &now, NULL) != EVQ_OK || now.identity != files->identity) {
        return evq_error_set(err, EVQ_E_CHANGED, "its files changed while they were read");
    }
    if (!place->is_held && evq_pending_has_later(sender, item)) {
        return evq_error_set(err, EVQ_E_CHANGED, "another step was submitted for the path");
    }
    return EVQ_OK;
}

void evq_overwrite_note(struct evq_sender *sender, struct evq_pending *item,
                        const struct evq_files *files)
{
    struct evq_seen_path *seen = seen_find(sender, item->path_hash);

    if (seen == NULL) {
        seen = &sender->paths[sender->path_count++ % EVQ_SENDER_PATHS_MAX];
    } else if (seen->step != item->request.step) {
        item->reused = true;
    }
    *seen = (struct evq_seen_path){.hash = item->path_hash,
                                   .step = item->request.step,
                                   .identity = files != NULL ? files->identity : 0};
}
