#include "producer/cli/verbs.h"

#include <string.h>

#include "shared/base/bash_completion.h"
#include "shared/base/nearest.h"

static const struct evq_verb *const verbs[] = {
    &evq_verb_init,   &evq_verb_suite,  &evq_verb_up,   &evq_verb_page,    &evq_verb_submit,
    &evq_verb_scan,   &evq_verb_status, &evq_verb_show, &evq_verb_logs,    &evq_verb_results,
    &evq_verb_watch,  &evq_verb_wait,   &evq_verb_best, &evq_verb_compare, &evq_verb_samples,
    &evq_verb_diff,   &evq_verb_gate,   &evq_verb_keep, &evq_verb_cancel,  &evq_verb_retry,
    &evq_verb_pause,  &evq_verb_resume, &evq_verb_dead, &evq_verb_forget,  &evq_verb_gc,
    &evq_verb_doctor, &evq_verb_admin,
};
#define VERB_COUNT (sizeof verbs / sizeof verbs[0])

static const struct evq_option no_options[] = {{NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0}};

static const struct evq_option global_options[] = {
    {"json", 0, EVQ_OPTION_FLAG, NULL, "print one JSON document", 0, 0},
    {"plain", 0, EVQ_OPTION_FLAG, NULL,
     "print tab-separated rows without a header, and cut nothing", 0, 0},
    {"color", 0, EVQ_OPTION_CHOICE, "auto|always|never",
     "use colours; auto: only on a terminal, and not if NO_COLOR is set", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

static const struct evq_option *const global_tables[] = {global_options, evq_option_common, NULL};

enum evq_status evq_verbs_find(const char *name, const struct evq_verb **ret_verb,
                               struct evq_error *err)
{
    const char *names[VERB_COUNT];
    char shown[128];

    for (size_t i = 0; i < VERB_COUNT; i++) {
        if (strcmp(verbs[i]->name, name) == 0) {
            *ret_verb = verbs[i];
            return EVQ_OK;
        }
        names[i] = verbs[i]->name;
    }
    const char *near = evq_nearest_word(name, names, VERB_COUNT);
    evq_error_escape(name, strlen(name), shown, sizeof shown);
    if (near != NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "unknown verb '%s'; did you mean '%s'?", shown,
                             near);
    }
    return evq_error_set(err, EVQ_E_INVALID, "unknown verb '%s'; --help lists the verbs", shown);
}

enum evq_status evq_verbs_parse(const struct evq_verb *verb, struct evq_option_set *set, int argc,
                                char **argv, struct evq_error *err)
{
    const struct evq_option *const tables[] = {
        global_options, evq_option_common,
        verb != NULL && verb->options != NULL ? verb->options : no_options, NULL};

    return evq_option_parse(set, tables, argc, argv, verb == NULL, err);
}

struct page { // Points into itself.
    struct evq_man man;
    char name[64];
    char command[64];
    const struct evq_option *options[2];
    struct evq_man_item list[VERB_COUNT + 1];
};

/* Fills in the manual page of the program (verb NULL) or of a verb. */
static const struct evq_man *page_fill(const struct evq_verb *verb, struct page *page)
{
    static const struct evq_option *const none[] = {NULL};

    *page = (struct page){
        .man = {.name = "evalq",
                .command = "evalq",
                .usage = "[OPTION...] VERB [ARGUMENT...]",
                .summary = "evaluate checkpoints elsewhere while the training goes on",
                .description =
                    "A training writes a checkpoint and goes on. Workers evaluate the checkpoint "
                    "on another device or machine, and the metrics appear in the tracker at the "
                    "right training step. Jobs and results live in Redis.\n\n"
                    "`evalq VERB --help` explains one verb.\n\nExamples: `evalq init`, `evalq up "
                    "-- python train.py`",
                .options = none,
                .common = global_tables,
                .environment = "EVALQ_CONFIG, EVALQ_URL, EVALQ_QUEUE, EVALQ_RUN, "
                               "EVALQ_REDIS_PASSWORD_FILE, NO_COLOR."}};
    if (verb == NULL) {
        for (size_t i = 0; i < VERB_COUNT; i++) {
            page->list[i] = (struct evq_man_item){verbs[i]->name, verbs[i]->summary};
        }
        page->man.list_title = "Verbs";
        page->man.list = page->list;
        return &page->man;
    }
    (void)snprintf(page->name, sizeof page->name, "evalq-%s", verb->name);
    (void)snprintf(page->command, sizeof page->command, "evalq %s", verb->name);
    page->options[0] = verb->options; // NULL ends the list.
    page->man.name = page->name;
    page->man.command = page->command;
    page->man.usage = verb->arguments;
    page->man.summary = verb->summary;
    page->man.description = verb->description;
    page->man.words = verb->words;
    page->man.options = page->options;
    return &page->man;
}

void evq_verbs_help(const struct evq_verb *verb, FILE *out)
{
    struct page page;

    evq_man_help(page_fill(verb, &page), out);
}

enum evq_status evq_verbs_write_man(const char *directory, struct evq_error *err)
{
    struct page pages[VERB_COUNT + 1];
    const struct evq_man *mans[VERB_COUNT + 1];
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; status == EVQ_OK && i <= VERB_COUNT; i++) {
        mans[i] = page_fill(i > 0 ? verbs[i - 1] : NULL, &pages[i]);
        status = evq_man_write(mans[i], directory, err);
    }
    return status == EVQ_OK ? evq_bash_completion_write(mans, VERB_COUNT + 1, directory, err)
                            : status;
}
