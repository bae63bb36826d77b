/*
 * The ACL file of Redis for evalq's roles: each may call the functions and the commands that these
 * use on its queue's keys, and nothing that administers the server. One thread.
 */
#ifndef EVQ_CLI_ACL_H
#define EVQ_CLI_ACL_H

#include "producer/cli/cli.h"

/*
 * Prints the lines to standard output. role NULL: all, and the default user, off. offline: without
 * asking the server which commands it knows, for Redis 7.0. password_file: lines "ROLE PASSWORD"; a
 * role without one is off. NULL: none.
 */
enum evq_status evq_acl_print(struct evq_cli *cli, const char *role, const char *password_file,
                              bool offline, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
