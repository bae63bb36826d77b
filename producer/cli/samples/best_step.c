#include "producer/cli/samples/best_step.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"
#include "producer/cli/samples/sample_files.h"
#include "shared/samples/pairing.h"
#include "shared/statistics/holm.h"

#define STEPS_MAX 4096

struct step {
    struct evq_sample_file file;
    int64_t step;
    double mean;
    double p; // The p-value of its difference from the best; NaN: it is not compared.
};

struct steps {
    struct evq_cli *cli;
    const char *run;
    char score[136];
    struct step *steps; // By rising step.
    size_t count;
    size_t best;
};

/* Lists the steps of the run that have samples. */
static enum evq_status list(struct steps *to, struct evq_error *err)
{
    const char *directory = to->cli->config->samples.directory;
    struct evq_sample_place place;
    int64_t *steps = calloc(STEPS_MAX, sizeof *steps);
    enum evq_status status = EVQ_OK;

    if (steps == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the steps");
    }
    (void)snprintf(place.run, sizeof place.run, "%s", to->run);
    const size_t count = evq_samples_find_steps(directory, to->run, steps, STEPS_MAX);
    for (size_t i = 0; status == EVQ_OK && i < count; i++) {
        struct step *one = &to->steps[to->count];
        place.step = steps[i];
        *one = (struct step){.step = place.step, .p = (double)NAN};
        status = evq_sample_files_one(to->cli, &place, &one->file, err);
        to->count += status == EVQ_OK;
        if (status == EVQ_E_NOT_FOUND) {
            status = EVQ_OK; // Another task or suite has samples of this step.
        }
    }
    free(steps);
    if (status == EVQ_OK && to->count == 0) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "run '%s' has no such samples in '%s': a suite keeps them with "
                             "samples: true",
                             to->run, directory);
    }
    return status;
}

/* The mean of the score at one step: over all its items, weighted as the comparison is. */
static enum evq_status read_mean(struct steps *to, struct step *one, const char *score,
                                 struct evq_error *err)
{
    struct evq_samples_set *set = NULL;
    struct evq_pairing self = {.a = NULL};
    struct evq_pairing_items arrays = {.baseline = NULL};
    enum evq_status status = evq_pairing_read(&one->file, false, NULL, &set, err);

    if (status == EVQ_OK) {
        status = evq_pairing_make(set, set, &self, err);
    }
    if (status == EVQ_OK) {
        status = evq_pairing_score(&self, score, &score, err);
    }
    if (status == EVQ_OK) {
        (void)snprintf(to->score, sizeof to->score, "%s", score);
        status = evq_pairing_items(&self, score, &arrays, err);
    }
    if (status == EVQ_OK) {
        one->mean = evq_pairing_mean(&arrays, arrays.baseline);
    }
    evq_pairing_items_free(&arrays);
    evq_pairing_close(&self);
    evq_samples_set_free(set);
    return status;
}

static enum evq_status find_best(struct steps *to, const char *score, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; status == EVQ_OK && i < to->count; i++) {
        status = read_mean(to, &to->steps[i], score, err);
        const double best = to->steps[to->best].mean;
        const bool better =
            evq_pairing_higher(to->score) ? to->steps[i].mean > best : to->steps[i].mean < best;
        to->best = better ? i : to->best;
    }
    return status;
}

/* Compares each earlier step with the best one and corrects the p-values. */
static enum evq_status compare_earlier(struct steps *to, struct evq_error *err)
{
    double *p = calloc(to->best + 1, sizeof *p);
    enum evq_status status =
        p != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "no memory for the steps");

    for (size_t i = 0; status == EVQ_OK && i < to->best; i++) {
        struct evq_pairing pairing;
        struct evq_paired paired;
        status = evq_pairing_open(&to->steps[to->best].file, &to->steps[i].file, false, NULL,
                                  &pairing, err);
        if (status == EVQ_OK) {
            status = evq_pairing_compare(&pairing, to->score, EVQ_PAIRED_AUTO, &paired, err);
        }
        if (status == EVQ_OK) {
            p[i] = paired.p;
        }
        evq_pairing_close(&pairing);
    }
    if (status == EVQ_OK) {
        status = evq_holm_correct(p, to->best, err);
    }
    for (size_t i = 0; status == EVQ_OK && i < to->best; i++) {
        to->steps[i].p = p[i];
    }
    free(p);
    return status;
}

static enum evq_status print(const struct steps *to, struct evq_error *err)
{
    const struct step *best = &to->steps[to->best];
    const struct step *first = best;

    for (size_t i = 0; i < to->best && first == best; i++) {
        if (to->steps[i].p >= 1.0 - EVQ_PAIRING_CONFIDENCE) {
            first = &to->steps[i];
        }
    }
    if (to->cli->terminal.json) {
        return evq_json_print(json_pack("{s:s, s:s, s:I, s:f, s:I, s:f, s:o, s:I}", "run", to->run,
                                        "metric", to->score, "step", (json_int_t)first->step,
                                        "value", first->mean, "best_step", (json_int_t)best->step,
                                        "best_value", best->mean, "p_corrected",
                                        isnan(first->p) ? json_null() : json_real(first->p),
                                        "compared", (json_int_t)to->best),
                              err);
    }
    if (first == best) {
        (void)printf("step %" PRId64 "  %s %.8g  best; all %zu earlier steps are worse\n",
                     best->step, to->score, best->mean, to->best);
    } else {
        (void)printf("step %" PRId64 "  %s %.8g  not told apart from the best, step %" PRId64
                     " with %.8g (p %.3g, %zu comparisons)\n",
                     first->step, to->score, first->mean, best->step, best->mean, first->p,
                     to->best);
    }
    return EVQ_OK;
}

enum evq_status evq_best_step_run(struct evq_cli *cli, const char *run, const char *score,
                                  struct evq_error *err)
{
    struct steps to = {.cli = cli, .run = run};
    enum evq_status status = evq_cli_config(cli, err);

    if (status == EVQ_OK) {
        to.steps = calloc(STEPS_MAX + 1, sizeof *to.steps);
        status = to.steps != NULL ? list(&to, err)
                                  : evq_error_set(err, EVQ_E_NOMEM, "no memory for the steps");
    }
    if (status == EVQ_OK) {
        status = find_best(&to, score, err);
    }
    if (status == EVQ_OK) {
        status = compare_earlier(&to, err);
    }
    if (status == EVQ_OK) {
        status = print(&to, err);
    }
    free(to.steps);
    return status;
}
