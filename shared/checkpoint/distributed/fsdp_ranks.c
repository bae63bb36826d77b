#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/checkpoint/format.h"
#include "shared/checkpoint/root_open.h"

/*
 * FSDP2 checkpoints with one file per rank: model_world_size_W_rank_R.pt, as LMMs-Engine and verl
 * save them. evalq does not join the weights; a program does that. It only checks that all ranks
 * are there and complete, and whether they changed.
 */

static const char *const folders[] = {".", "pytorch_model_fsdp_0", "pytorch_ema_model_fsdp_0"};

/* Number of ranks in the file name; 0: it is not such a name. */
static unsigned world_of(const char *name)
{
    unsigned world = 0;
    unsigned rank = 0;
    int bytes = 0;

    if (sscanf(name, "model_world_size_%6u_rank_%6u.pt%n", &world, &rank, &bytes) != 2 ||
        bytes == 0 || name[bytes] != '\0' || rank >= world) {
        return 0;
    }
    return world;
}

/* Finds the number of ranks of the files in a folder; *ret_world is 0 if there are none. */
static enum evq_status find_world(int folder_fd, unsigned *ret_world, struct evq_error *err)
{
    const struct dirent *entry;
    enum evq_status status = EVQ_OK;

    *ret_world = 0;
    DIR *stream = fdopendir(folder_fd);
    if (stream == NULL) {
        (void)close(folder_fd); // Never read from.
        return evq_error_set(err, EVQ_E_NOMEM, "list a folder");
    }
    while (status == EVQ_OK && (entry = readdir(stream)) != NULL) {
        const unsigned world = world_of(entry->d_name);
        if (world != 0 && *ret_world != 0 && world != *ret_world) {
            status = evq_error_set(
                err, EVQ_E_INVALID, "the folder holds files of %u ranks and of %u",
                world < *ret_world ? world : *ret_world, world < *ret_world ? *ret_world : world);
        }
        *ret_world = world != 0 ? world : *ret_world;
    }
    (void)closedir(stream); // Opened for reading: a failed close loses nothing.
    if (status == EVQ_OK && *ret_world > EVQ_CHECKPOINT_FILES_MAX / 2) {
        return evq_error_set(err, EVQ_E_LIMIT, "%u ranks, allowed %d", *ret_world,
                             EVQ_CHECKPOINT_FILES_MAX / 2);
    }
    return status;
}

static enum evq_status add_folder(struct evq_checkpoint *checkpoint, int root_fd, const char *path,
                                  int directory_fd, const char *folder, bool *ret_found,
                                  const struct evq_checkpoint_options *options,
                                  struct evq_error *err)
{
    const bool here = strcmp(folder, ".") == 0;
    unsigned world = 0;
    char name[128];
    int fd = -1;

    enum evq_status status = evq_root_open(directory_fd, folder, true, &fd, NULL);
    if (status != EVQ_OK) {
        return EVQ_OK; // There is no such folder.
    }
    status = find_world(fd, &world, err);
    for (unsigned rank = 0; status == EVQ_OK && rank < world; rank++) {
        (void)snprintf(name, sizeof(name), "%s%smodel_world_size_%u_rank_%u.pt", here ? "" : folder,
                       here ? "" : "/", world, rank);
        status = evq_format_read_part(checkpoint, root_fd, path, name, options, err);
        *ret_found = true;
    }
    return status;
}

enum evq_status evq_fsdp_ranks_read(struct evq_checkpoint *checkpoint, int root_fd,
                                    const char *path, int directory_fd,
                                    const struct evq_checkpoint_options *options, bool *ret_found,
                                    struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    *ret_found = false;
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]) && status == EVQ_OK; i++) {
        status = add_folder(checkpoint, root_fd, path, directory_fd, folders[i], ret_found, options,
                            err);
    }
    return status;
}
