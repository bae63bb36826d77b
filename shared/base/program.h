/*
 * What the main() of every program begins and ends with. One thread.
 */
#ifndef EVQ_PROGRAM_H
#define EVQ_PROGRAM_H

#include <signal.h>

#include "shared/base/man.h"

/*
 * No core dumps, which would hold passwords and weights; a peer that left is an error, not a
 * signal; the death of a child is told; and Jansson's memory is watched. true: argv asked for the
 * manual pages (--write-man DIR, when evalq is built), and *ret_code is the exit code.
 */
bool evq_program_begin(const struct evq_man *man, int argc, char **argv, int *ret_code);
/*
 * The command line of a service: the options of man, and no words; opens the log as they say.
 * EVQ_E_INVALID with a sentence.
 */
enum evq_status evq_program_options(const struct evq_man *man, int argc, char **argv,
                                    struct evq_option_set *set,
                                    struct evq_error *err) EVQ_CHECK_RESULT;
/* Prints what --help or --version asks for; false: neither was given. */
bool evq_program_help(const struct evq_man *man, bool help, bool version);
/* SIGTERM, SIGINT and, where it reads something again, SIGHUP: blocked in this thread and those it
 * starts, so that they come by signalfd alone. */
void evq_program_signals(bool hup, sigset_t *ret_signals);
/* The exit code of a service: what is wrong before it served is the configuration's fault; a Redis
 * that is not there, or stands still, is not. */
int evq_program_exit(enum evq_status status);
/* One line on stderr, whatever bytes the sentence holds; returns code. */
int evq_program_fail(const struct evq_man *man, const struct evq_error *err, int code);

#endif
