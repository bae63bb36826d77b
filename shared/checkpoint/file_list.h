/* The files of a checkpoint at one moment, whatever its format: names, sizes, change times. It
 * shows whether a file was rewritten or removed while an evaluation ran. Any thread. */
#ifndef EVQ_SHARED_CHECKPOINT_FILE_LIST_H
#define EVQ_SHARED_CHECKPOINT_FILE_LIST_H

#include <stdint.h>
#include <sys/types.h>

#include "shared/base/error.h"

struct evq_file_list_entry {
    const char *path; // Relative to the root.
    const char *name; // Relative to the checkpoint; "" if the checkpoint is this file.
    uint64_t bytes;
    int64_t modified_ns;
    ino_t inode;
};

struct evq_file_list {
    struct evq_file_list_entry *files; // Sorted by name.
    size_t count;
    struct evq_arena *arena;
};

/*
 * Lists every regular file at path below root_fd, except in `.evalq` folders. A symbolic link
 * counts as the file it leads to, which must be below the root. Errors: EVQ_E_GONE (path is not
 * there); EVQ_E_INVALID (a link that leaves the root, a device, a pipe or a socket); EVQ_E_CHANGED
 * (a file disappeared during the scan); EVQ_E_LIMIT (over 16 folders deep, or 64 MiB of names).
 */
enum evq_status evq_file_list_scan(int root_fd, const char *path, struct evq_file_list *ret,
                                   struct evq_error *err) EVQ_CHECK_RESULT;
void evq_file_list_free(struct evq_file_list *list);

/*
 * Compares every listed file with what is there now: EVQ_E_GONE if one is missing, EVQ_E_CHANGED if
 * its size, change time or inode differs. New files are not looked for: in a format that evalq does
 * not read they change the fingerprint, in any other they are not weights.
 */
enum evq_status evq_file_list_verify(const struct evq_file_list *list, int root_fd,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* A hash over names and sizes. It differs while files are added or grow. */
uint64_t evq_file_list_hash(const struct evq_file_list *list);

#endif
