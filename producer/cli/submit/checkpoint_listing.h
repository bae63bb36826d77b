/*
 * Finds checkpoints in a directory by their names. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_SUBMIT_CHECKPOINT_LISTING_H
#define EVQ_PRODUCER_CLI_SUBMIT_CHECKPOINT_LISTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

struct evq_checkpoint_listing {
    char *name; // Relative to the directory.
    int64_t step;
    bool is_directory;
    int64_t changed_ns; // The time of its last change, by stat().
    int64_t bytes;
};

struct evq_checkpoint_listing_list {
    struct evq_checkpoint_listing *items; // By step, then name.
    size_t count;
    size_t capacity;
};

/*
 * Reads the step in a name: the number after "step" (step-100, step_100, step=100, global_step100),
 * else the last number before the extension. False: it is not the name of a checkpoint.
 *
 * pattern: a shell pattern that the name must match. NULL: these names match: directories named
 * checkpoint, ckpt, step, epoch or iter with a number, or a number alone; files *.safetensors with
 * such a name; files *.pt, *.pth, *.bin, *.ckpt with a number. Hidden and temporary names never
 * match.
 */
bool evq_checkpoint_listing_step(const char *name, bool is_directory, const char *pattern,
                                 int64_t *ret_step);

/* Adds a copy of found under this name and with the step of the name, if the name is a
 * checkpoint's. evq_checkpoint_listing_sort() gives a filled list its order. EVQ_E_NOMEM. */
enum evq_status evq_checkpoint_listing_add(struct evq_checkpoint_listing_list *list,
                                           const char *name,
                                           const struct evq_checkpoint_listing *found,
                                           const char *pattern,
                                           struct evq_error *err) EVQ_CHECK_RESULT;
void evq_checkpoint_listing_sort(struct evq_checkpoint_listing_list *list);

/* EVQ_E_NOT_FOUND: there is no such directory. */
enum evq_status evq_checkpoint_listing_read(const char *directory, const char *pattern,
                                            struct evq_checkpoint_listing_list *ret_list,
                                            struct evq_error *err) EVQ_CHECK_RESULT;
void evq_checkpoint_listing_free(struct evq_checkpoint_listing_list *list);

/* Returns when a file directly in directory/name changed last, because the directory's own time
 * does not change when a file is overwritten. 0: there is no file, or it cannot be read. */
int64_t evq_checkpoint_listing_inside_ns(const char *directory, const char *name);

#endif
