/* What the main() of every program does first and last. One thread. */
#ifndef EVQ_SHARED_BASE_PROGRAM_H
#define EVQ_SHARED_BASE_PROGRAM_H

#include <signal.h>

#include "shared/base/man.h"

/*
 * Prepares the process: disables core dumps, because they would hold passwords and weights; ignores
 * SIGPIPE, so that writing to a closed socket is an error; restores SIGCHLD; watches Jansson's
 * memory. Then reads the options of man, and words if man has a list of them, and opens the log.
 * Returns false if the program must end with *ret_code: the options are wrong, --help or --version
 * was answered, or the build asked for the manual page (--write-man DIR).
 */
bool evq_program_begin(const struct evq_man *man, int argc, char **argv, struct evq_option_set *set,
                       int *ret_code);
/* Blocks SIGTERM, SIGINT and, with hup, SIGHUP in this thread and in the threads that it starts, so
 * that only signalfd receives them. */
void evq_program_signals(bool hup, sigset_t *ret_signals);
/* Exit code of a service that could not start. An invalid value is an error of the configuration; a
 * timeout means that Redis cannot be reached. */
int evq_program_exit_code(enum evq_status status);
/* Prints one line on stderr, with control bytes escaped. Returns code. */
int evq_program_fail(const struct evq_man *man, const struct evq_error *err, int code);

#endif
