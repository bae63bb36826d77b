/* The environment of a child process. */
#ifndef EVQ_SHARED_BASE_CHILD_ENVIRONMENT_H
#define EVQ_SHARED_BASE_CHILD_ENVIRONMENT_H

/*
 * Returns this process' environment without the address and the secrets of Redis (EVALQ_URL,
 * EVALQ_REDIS_*), and with line ("NAME=VALUE") in place of NAME. NULL: no memory. The caller frees
 * the array alone; its strings are line and those of environ. Nobody may change environ meanwhile.
 */
char **evq_child_environment(char *line);

#endif
