#include "shared/base/child_environment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* line is "NAME=VALUE". Returns whether entry sets NAME, too. */
static bool same_name(const char *entry, const char *line)
{
    return strncmp(entry, line, strcspn(line, "=") + 1) == 0;
}

static bool is_kept(const char *entry, const char *line)
{
    return !same_name(entry, "EVALQ_URL=") && !same_name(entry, line) &&
           strncmp(entry, "EVALQ_REDIS_", strlen("EVALQ_REDIS_")) != 0;
}

char **evq_child_environment(char *line)
{
    size_t count = 0;
    size_t used = 0;

    while (environ[count] != NULL) {
        count++;
    }
    char **envp = calloc(count + 2, sizeof(*envp));
    for (size_t i = 0; i < count && envp != NULL; i++) {
        if (is_kept(environ[i], line)) {
            envp[used++] = environ[i];
        }
    }
    if (envp != NULL) {
        envp[used] = line;
    }
    return envp;
}
