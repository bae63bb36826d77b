#include "shared/checkpoint/pin_path.h"

#include <stdio.h>
#include <string.h>

/* Returns where NAME begins in OUT/.evalq/pins/PIN/NAME; NULL: path is not in a pin. */
static const char *pinned_find(const char *path, size_t *ret_out_bytes)
{
    static const char pins[] = "/.evalq/pins/";
    const char *at = strstr(path, pins);
    const char *pin = at != NULL ? at + strlen(pins) : NULL;

    if (at == NULL && strncmp(path, pins + 1, strlen(pins) - 1) == 0) { // OUT is the root itself.
        at = path;
        pin = path + strlen(pins) - 1;
    }
    const char *name = pin != NULL ? strchr(pin, '/') : NULL;
    if (name == NULL || name[1] == '\0') {
        return NULL;
    }
    *ret_out_bytes = (size_t)(at - path);
    return name + 1;
}

bool evq_pin_path_saved(const char *path, char *out, size_t out_bytes)
{
    size_t bytes = 0;
    const char *name = pinned_find(path, &bytes);

    if (name == NULL) {
        (void)snprintf(out, out_bytes, "%s", path);
        return false;
    }
    (void)snprintf(out, out_bytes, "%.*s%s%s", (int)bytes, path, bytes > 0 ? "/" : "", name);
    return true;
}

size_t evq_pin_path_bytes(const char *path)
{
    size_t bytes = 0;
    const char *name = pinned_find(path, &bytes);

    return name == NULL ? 0 : (size_t)(name - path) - 1;
}
