/* Finds which file of a checkpoint's directory to read. For the readers in this folder. Any thread.
 */
#ifndef EVQ_SHARED_CHECKPOINT_LAYOUT_H
#define EVQ_SHARED_CHECKPOINT_LAYOUT_H

#include <stdbool.h>

#include "shared/base/error.h"

struct evq_layout {
    char name[512];     // The file to read, relative to the directory.
    bool with_adapter;  // adapter_config.json is next to a whole model.
    bool stray_adapter; // Weights of an adapter are there without adapter_config.json.
};

/* Finds the file of a directory to read for a variant (NULL: regular). Its name ends in
 * ".index.json" if the weights are sharded, in ".metadata" if they are distributed. */
enum evq_status evq_layout_find(int directory_fd, const char *variant,
                                struct evq_layout *ret_layout,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/* Returns why a file of this name is never read, as a sentence; NULL: it may be read. */
const char *evq_layout_refuses(const char *name);

#endif
