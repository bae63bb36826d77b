/*
 * Writes Redis' ACL file for evalq's roles. A role may call its functions, and the commands that
 * they use, on the keys of the queue. It may not administer the server. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_OPERATE_ACL_H
#define EVQ_PRODUCER_CLI_OPERATE_ACL_H

#include "producer/cli/cli.h"

/*
 * Prints the lines to standard output. role NULL: all roles, and the default user, which is off.
 * offline: writes for Redis 7.0 and does not ask the server which commands it has. password_file:
 * lines "ROLE PASSWORD"; a role without a line is off. NULL: there is no file.
 */
enum evq_status evq_acl_print(struct evq_cli *cli, const char *role, const char *password_file,
                              bool offline, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
