#include "shared/base/json_memory.h"

#include <stdlib.h>

static _Thread_local bool failed;

static void *watched_malloc(size_t bytes)
{
    void *memory = malloc(bytes);

    failed = failed || memory == NULL;
    return memory;
}

void evq_json_memory_watch(void)
{
    json_set_alloc_funcs(watched_malloc, free);
}

bool evq_json_memory_failed(void)
{
    return failed;
}

void evq_json_memory_clear(void)
{
    failed = false;
}

char *evq_json_memory_dumps(const json_t *document, size_t flags)
{
    char *text = document != NULL ? json_dumps(document, flags) : NULL;

    if (failed) {
        free(text);
        return NULL;
    }
    return text;
}
