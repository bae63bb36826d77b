/*
 * The verbs of `evalq`. Each is defined in its own file, and listed here and in verbs.c.
 */
#ifndef EVQ_PRODUCER_CLI_VERBS_H
#define EVQ_PRODUCER_CLI_VERBS_H

#include "shared/base/man.h"

struct evq_cli;

enum evq_verb_takes { // What a verb's arguments are. They are checked before Redis is asked.
    EVQ_TAKES_ANY,
    EVQ_TAKES_RUN,         // The first: a run.
    EVQ_TAKES_RUNS,        // Each.
    EVQ_TAKES_JOBS,        // Each: a job.
    EVQ_TAKES_RUN_OR_JOBS, // An argument with a slash is a job, one without is a run.
};

struct evq_verb {
    const char *name;
    const char *arguments;   // "PATH --run RUN", as usage shows them.
    const char *summary;     // One line, no full stop.
    const char *description; // Paragraphs separated by an empty line.
    const char *words; // The words that the first argument may be, "a|b". NULL: it may be any word.
    const struct evq_option *options; // NULL: it has no options of its own.
    int arg_min;
    int arg_max; // -1: any number.
    enum evq_verb_takes takes;
    const char *role; // The role in Redis that the verb needs (operate/acl.h). NULL: any role that
                      // may read.
    enum evq_status (*run)(struct evq_cli *cli, struct evq_error *err);
};

extern const struct evq_verb evq_verb_init;
extern const struct evq_verb evq_verb_suite;
extern const struct evq_verb evq_verb_up;
extern const struct evq_verb evq_verb_page;
extern const struct evq_verb evq_verb_submit;
extern const struct evq_verb evq_verb_scan;
extern const struct evq_verb evq_verb_status;
extern const struct evq_verb evq_verb_show;
extern const struct evq_verb evq_verb_logs;
extern const struct evq_verb evq_verb_results;
extern const struct evq_verb evq_verb_watch;
extern const struct evq_verb evq_verb_wait;
extern const struct evq_verb evq_verb_best;
extern const struct evq_verb evq_verb_compare;
extern const struct evq_verb evq_verb_samples;
extern const struct evq_verb evq_verb_diff;
extern const struct evq_verb evq_verb_gate;
extern const struct evq_verb evq_verb_keep;
extern const struct evq_verb evq_verb_cancel;
extern const struct evq_verb evq_verb_retry;
extern const struct evq_verb evq_verb_pause;
extern const struct evq_verb evq_verb_resume;
extern const struct evq_verb evq_verb_dead;
extern const struct evq_verb evq_verb_forget;
extern const struct evq_verb evq_verb_gc;
extern const struct evq_verb evq_verb_doctor;
extern const struct evq_verb evq_verb_admin;

/* Finds the verb of that name. EVQ_E_INVALID: there is none; the message names the nearest one. */
enum evq_status evq_verbs_find(const char *name, const struct evq_verb **ret_verb,
                               struct evq_error *err) EVQ_CHECK_RESULT;

/* Reads the options of a verb, or with NULL those that stand before the verb, with
 * evq_option_parse(). */
enum evq_status evq_verbs_parse(const struct evq_verb *verb, struct evq_option_set *set, int argc,
                                char **argv, struct evq_error *err) EVQ_CHECK_RESULT;

/* Prints the --help text of a verb. NULL: of the program. */
void evq_verbs_help(const struct evq_verb *verb, FILE *out);
/* Writes the manual pages (evalq.1 and an evalq-VERB.1 for each verb) and the bash completion
 * (shared/base/bash_completion.h) into a directory that exists. */
enum evq_status evq_verbs_write_man(const char *directory, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
