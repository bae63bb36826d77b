/* Makes the environment for a child process. One thread. */
#ifndef EVQ_SHARED_BASE_CHILD_ENVIRONMENT_H
#define EVQ_SHARED_BASE_CHILD_ENVIRONMENT_H

/*
 * Returns this process' environment without the address and the secrets of Redis (EVALQ_URL,
 * EVALQ_REDIS_*), and with line ("NAME=VALUE") in place of NAME. NULL: no memory. The caller frees
 * only the array, because its strings are line and those of environ. No thread may change environ
 * until then.
 */
char **evq_child_environment(char *line);

#endif
