/*
 * The verbs of `evalq`, each defined in the file of its noun.
 */
#ifndef EVQ_CLI_VERBS_H
#define EVQ_CLI_VERBS_H

#include "producer/cli/option.h"

extern const struct evq_verb evq_verb_up;
extern const struct evq_verb evq_verb_submit;
extern const struct evq_verb evq_verb_scan;
extern const struct evq_verb evq_verb_status;
extern const struct evq_verb evq_verb_show;
extern const struct evq_verb evq_verb_logs;
extern const struct evq_verb evq_verb_results;
extern const struct evq_verb evq_verb_watch;
extern const struct evq_verb evq_verb_wait;
extern const struct evq_verb evq_verb_best;
extern const struct evq_verb evq_verb_cancel;
extern const struct evq_verb evq_verb_retry;
extern const struct evq_verb evq_verb_pause;
extern const struct evq_verb evq_verb_resume;
extern const struct evq_verb evq_verb_dead;
extern const struct evq_verb evq_verb_forget;
extern const struct evq_verb evq_verb_gc;
extern const struct evq_verb evq_verb_doctor;
extern const struct evq_verb evq_verb_admin;

#endif
