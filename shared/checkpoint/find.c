/* Finding a tensor of a checkpoint by its name. */
#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/checkpoint.h"

static int by_name(const void *key, const void *item)
{
    const struct evq_tensor *tensor = item;

    return strcmp(key, tensor->name);
}

const struct evq_tensor *evq_checkpoint_find(const struct evq_checkpoint *checkpoint,
                                             const char *name)
{
    if (checkpoint->tensor_count == 0) {
        return NULL;
    }
    return bsearch(name, checkpoint->tensors, checkpoint->tensor_count,
                   sizeof(*checkpoint->tensors), by_name);
}
