#include "shared/samples/comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/statistics/holm.h"

#define ROWS_MAX 4096

static enum evq_status add_row(const struct evq_pairing *pairing,
                               const struct evq_sample_file *file, const char *score,
                               bool bootstrap, struct evq_comparison *to, struct evq_error *err)
{
    struct evq_comparison_row *row = &to->rows[to->count];

    *row = (struct evq_comparison_row){.only_a = pairing->pairs.only_a,
                                       .only_b = pairing->pairs.only_b};
    const enum evq_status status = evq_pairing_compare(
        pairing, score, bootstrap ? EVQ_PAIRED_BOOTSTRAP : EVQ_PAIRED_AUTO, &row->paired, err);
    if (status != EVQ_OK) {
        return evq_error_prefix(err, "%s/%s", file->task, score);
    }
    (void)snprintf(row->suite, sizeof row->suite, "%s", file->suite);
    (void)snprintf(row->task, sizeof row->task, "%s", file->task);
    (void)snprintf(row->score, sizeof row->score, "%s", score);
    const char *a = pairing->pairs.first_only_a;
    const char *b = pairing->pairs.first_only_b;
    (void)snprintf(row->first_only_a, sizeof row->first_only_a, "%s", a != NULL ? a : "");
    (void)snprintf(row->first_only_b, sizeof row->first_only_b, "%s", b != NULL ? b : "");
    row->corrected = row->paired.p;
    to->count++;
    return EVQ_OK;
}

static enum evq_status add_task(const struct evq_sample_file *a, const struct evq_sample_file *b,
                                const struct evq_comparison_options *options,
                                struct evq_comparison *to, struct evq_error *err)
{
    const char *wanted = options->score;
    struct evq_pairing pairing;
    enum evq_status status = evq_pairing_open(a, b, false, options->limits, &pairing, err);

    if (status == EVQ_OK && wanted != NULL) {
        status = evq_pairing_score(&pairing, wanted, &wanted, err);
    }
    for (size_t i = 0; status == EVQ_OK && i < pairing.a->name_count; i++) {
        const char *name = pairing.a->names[i];
        if (evq_samples_set_name(pairing.b, name) == SIZE_MAX ||
            (wanted != NULL && strcmp(wanted, name) != 0)) {
            continue;
        }
        status = to->count < ROWS_MAX
                     ? add_row(&pairing, a, name, options->bootstrap, to, err)
                     : evq_error_set(err, EVQ_E_LIMIT, "more than %d scores", ROWS_MAX);
    }
    evq_pairing_close(&pairing);
    return status;
}

static enum evq_status add_tasks(const struct evq_sample_files *a, const struct evq_sample_files *b,
                                 const struct evq_comparison_options *options,
                                 struct evq_comparison *to, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; status == EVQ_OK && i < a->count; i++) {
        for (size_t k = 0; status == EVQ_OK && k < b->count; k++) {
            if (strcmp(a->files[i].suite, b->files[k].suite) == 0 &&
                strcmp(a->files[i].task, b->files[k].task) == 0) {
                status = add_task(&a->files[i], &b->files[k], options, to, err);
            }
        }
    }
    if (status == EVQ_OK && to->count == 0) {
        status = evq_error_set(err, EVQ_E_NOT_FOUND,
                               "%s and %s have no samples of the same suite and task with the "
                               "same score",
                               a->count > 0 ? a->files[0].job : "the first checkpoint",
                               b->count > 0 ? b->files[0].job : "the second");
    }
    return status;
}

static enum evq_status correct(struct evq_comparison *rows, struct evq_error *err)
{
    double *p = calloc(rows->count, sizeof *p);

    if (p == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu p-values", rows->count);
    }
    for (size_t i = 0; i < rows->count; i++) {
        p[i] = rows->rows[i].paired.p;
    }
    const enum evq_status status = evq_holm_correct(p, rows->count, err);
    for (size_t i = 0; status == EVQ_OK && i < rows->count; i++) {
        rows->rows[i].corrected = p[i];
    }
    free(p);
    return status;
}

enum evq_status evq_comparison_make(const struct evq_sample_files *a,
                                    const struct evq_sample_files *b,
                                    const struct evq_comparison_options *options,
                                    struct evq_comparison *ret, struct evq_error *err)
{
    struct evq_comparison out = {.rows = calloc(ROWS_MAX, sizeof *out.rows)};
    enum evq_status status = out.rows != NULL
                                 ? add_tasks(a, b, options, &out, err)
                                 : evq_error_set(err, EVQ_E_NOMEM, "no memory for the comparison");

    if (status == EVQ_OK) {
        status = correct(&out, err);
    }
    if (status != EVQ_OK) {
        free(out.rows);
        return status;
    }
    *ret = out;
    return EVQ_OK;
}

json_t *evq_comparison_json(const struct evq_comparison *comparison, const char *baseline,
                            const char *candidate)
{
    json_t *list = json_array();

    for (size_t i = 0; i < comparison->count; i++) {
        const struct evq_comparison_row *row = &comparison->rows[i];
        const struct evq_paired *paired = &row->paired;
        json_t *one = json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "suite",
                                row->suite, "task", row->task, "metric", row->score, "baseline",
                                paired->baseline, "candidate", paired->candidate, "difference",
                                paired->difference, "low", paired->low, "high", paired->high, "p",
                                paired->p, "p_corrected", row->corrected);
        // NaN is not JSON: with one item there is no standard error.
        (void)json_object_set_new(
            one, "standard_error",
            isfinite(paired->standard_error) ? json_real(paired->standard_error) : json_null());
        (void)json_object_set_new(one, "higher_is_better",
                                  json_boolean(evq_pairing_higher(row->score)));
        (void)json_object_set_new(one, "method",
                                  json_string(evq_paired_method_name(paired->method)));
        const struct {
            const char *key;
            size_t value;
        } counts[] = {{"items", paired->count},       {"groups", paired->groups},
                      {"wins", paired->wins},         {"losses", paired->losses},
                      {"ties", paired->ties},         {"only_baseline", row->only_a},
                      {"only_candidate", row->only_b}};
        for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
            (void)json_object_set_new(one, counts[k].key,
                                      json_integer((json_int_t)counts[k].value));
        }
        (void)json_array_append_new(list, one);
    }
    return json_pack("{s:s, s:s, s:f, s:s, s:o}", "baseline", baseline, "candidate", candidate,
                     "confidence", EVQ_PAIRING_CONFIDENCE, "correction", "holm", "metrics", list);
}
