/* What the main() of every program does first and last. One thread. */
#ifndef EVQ_SHARED_BASE_PROGRAM_H
#define EVQ_SHARED_BASE_PROGRAM_H

#include <signal.h>

#include "shared/base/man.h"

/*
 * Prepares the process: disables core dumps, because they would hold passwords and weights; ignores
 * SIGPIPE, so that writing to a closed socket is an error; restores SIGCHLD; watches Jansson's
 * memory. Returns true if argv asks for the manual pages (--write-man DIR, used by the build);
 * *ret_code is then the exit code.
 */
bool evq_program_begin(const struct evq_man *man, int argc, char **argv, int *ret_code);
/* Reads the command line of a service: the options of man, and no other words. Opens the log
 * accordingly. EVQ_E_INVALID. */
enum evq_status evq_program_options(const struct evq_man *man, int argc, char **argv,
                                    struct evq_option_set *set,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Prints what --help or --version asks for. False: neither was given. */
bool evq_program_help(const struct evq_man *man, bool help, bool version);
/* Blocks SIGTERM, SIGINT and, with hup, SIGHUP in this thread and in the threads that it starts, so
 * that only signalfd receives them. */
void evq_program_signals(bool hup, sigset_t *ret_signals);
/* Exit code of a service that could not start. An invalid value is an error of the configuration; a
 * timeout means that Redis cannot be reached. */
int evq_program_exit(enum evq_status status);
/* Prints one line on stderr, with control bytes escaped. Returns code. */
int evq_program_fail(const struct evq_man *man, const struct evq_error *err, int code);

#endif
