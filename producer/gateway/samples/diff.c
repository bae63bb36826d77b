/* GET /v1/compare and /v1/diff: two checkpoints item by item. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/samples/samples_request.h"
#include "shared/base/json_memory.h"
#include "shared/samples/comparison.h"

#define TASKS_MAX 200 // Most tasks of one comparison, so that its time is bounded.

/* Reads both checkpoints and the choice. false: the reply says what is wrong. */
static bool read_sides(struct evq_api *api, const struct evq_http_request *request,
                       struct evq_http_reply *reply, struct evq_sample_place places[2],
                       struct evq_sample_choice *choice)
{
    return evq_samples_request_side(request, reply, "a", &places[0]) &&
           evq_samples_request_side(request, reply, "b", &places[1]) &&
           evq_samples_request_choice(api, request, reply, choice);
}

static const char *metric_of(const struct evq_http_request *request)
{
    const char *metric = evq_http_query(request, "metric", "");
    return metric[0] != '\0' ? metric : NULL;
}

void evq_api_compare(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_sample_choice choice;
    struct evq_sample_place places[2];
    struct evq_sample_files files[2] = {{.count = 0}};
    struct evq_comparison comparison = {.rows = NULL};
    const struct evq_comparison_options options = {.score = metric_of(request),
                                                   .limits = &evq_samples_request_limits};
    enum evq_status status = EVQ_OK;
    char *json = NULL;

    if (!read_sides(api, request, reply, places, &choice)) {
        return;
    }
    for (int i = 0; status == EVQ_OK && i < 2; i++) {
        status = evq_samples_find_files(&choice, &places[i], &files[i], &err);
        if (status == EVQ_OK && files[i].count > TASKS_MAX) {
            status = evq_error_set(&err, EVQ_E_LIMIT,
                                   "%s@%" PRId64 " has samples of %zu tasks, and a comparison may "
                                   "have %d: choose a suite or a task",
                                   places[i].run, places[i].step, files[i].count, TASKS_MAX);
        }
    }
    if (status == EVQ_OK) {
        status = evq_comparison_make(&files[0], &files[1], &options, &comparison, &err);
    }
    if (status == EVQ_OK) {
        json_t *document = evq_comparison_json(&comparison, evq_http_query(request, "a", ""),
                                               evq_http_query(request, "b", ""));
        json = evq_json_memory_dumps(document, JSON_COMPACT);
        status = json != NULL ? EVQ_OK
                              : evq_error_set(&err, EVQ_E_NOMEM, "no memory for the comparison");
        json_decref(document);
    }
    if (status == EVQ_OK) {
        evq_http_reply_take(reply, json);
    } else {
        evq_samples_request_fail(reply, status, &err);
    }
    free(comparison.rows);
    free(files[0].files);
    free(files[1].files);
}

enum show { CHANGED, BETTER, WORSE, ALL };

struct diff {
    struct evq_samples_page page;
    enum show show;
    struct evq_pairing pairing;
    const char *score;
    bool higher;
    size_t at_a; // Index of the score on each side.
    size_t at_b;
    size_t better;
    size_t worse;
};

static void write_pair(const struct diff *diff, const struct evq_samples_pair *pair, double off,
                       struct evq_buffer *out)
{
    evq_buffer_text(out, "{\"id\": ");
    evq_buffer_json_text(out, pair->a->id);
    evq_buffer_printf(out, ", \"better\": %s, \"a\": ",
                      off == 0.0                    ? "null"
                      : (off > 0.0) == diff->higher ? "true"
                                                    : "false");
    evq_buffer_json_double(out, pair->a->scores[diff->at_a]);
    evq_buffer_text(out, ", \"b\": ");
    evq_buffer_json_double(out, pair->b->scores[diff->at_b]);
    evq_samples_page_text(&diff->page, "target", pair->a->target, out);
    evq_samples_page_text(&diff->page, "output_a", pair->a->output, out);
    evq_samples_page_text(&diff->page, "output_b", pair->b->output, out);
    evq_buffer_text(out, "}");
}

static void write_pairs(struct diff *diff, struct evq_buffer *out)
{
    const struct evq_samples_pairs *pairs = &diff->pairing.pairs;

    for (size_t i = 0; i < pairs->count; i++) {
        const struct evq_samples_pair *pair = &pairs->pairs[i];
        const char *const texts[] = {pair->a->id, pair->a->target, pair->a->output,
                                     pair->b->output};
        const double off = pair->b->scores[diff->at_b] - pair->a->scores[diff->at_a];
        const bool better = off != 0.0 && (off > 0.0) == diff->higher;
        const bool worse = off != 0.0 && !better;
        const bool shows[] = {
            [CHANGED] = off != 0.0, [BETTER] = better, [WORSE] = worse, [ALL] = true};
        diff->better += better;
        diff->worse += worse;
        if (shows[diff->show] && evq_samples_page_finds(&diff->page, texts, 4) &&
            evq_samples_page_take(&diff->page, out)) {
            write_pair(diff, pair, off, out);
        }
    }
}

/* Reads the query parameters of the list. false: the reply says what is wrong. */
static bool read_show(const struct evq_http_request *request, struct evq_http_reply *reply,
                      enum show *ret)
{
    static const char *const words[] = {
        [CHANGED] = "changed", [BETTER] = "better", [WORSE] = "worse", [ALL] = "all"};
    const char *show = evq_http_query(request, "show", "changed");

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i], show) == 0) {
            *ret = (enum show)i;
            return true;
        }
    }
    evq_http_reply_error(reply, 400, "invalid",
                         "show is '%.40s', expected changed, better, worse or all", show);
    return false;
}

static enum evq_status write_diff(struct diff *diff, const struct evq_http_request *request,
                                  const struct evq_sample_file files[2], struct evq_buffer *out,
                                  struct evq_error *err)
{
    enum evq_status status = evq_pairing_open(&files[0], &files[1], true,
                                              &evq_samples_request_limits, &diff->pairing, err);

    if (status == EVQ_OK) {
        status = evq_pairing_score(&diff->pairing, metric_of(request), &diff->score, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    diff->higher = evq_pairing_higher(diff->score);
    diff->at_a = evq_samples_set_name(diff->pairing.a, diff->score);
    diff->at_b = evq_samples_set_name(diff->pairing.b, diff->score);
    evq_buffer_text(out, "{\"metric\": ");
    evq_buffer_json_text(out, diff->score);
    evq_buffer_printf(out,
                      ", \"higher_is_better\": %s, \"suite\": \"%s\", \"task\": \"%s\", "
                      "\"job_a\": \"%s\", \"job_b\": \"%s\", \"items\": [",
                      diff->higher ? "true" : "false", files[0].suite, files[0].task, files[0].job,
                      files[1].job); // Valid names need no escapes.
    write_pairs(diff, out);
    evq_buffer_text(out, "]");
    evq_samples_page_end(&diff->page, out);
    evq_buffer_printf(out,
                      ", \"better\": %zu, \"worse\": %zu, \"common\": %zu, \"only_a\": %zu, "
                      "\"only_b\": %zu}\n",
                      diff->better, diff->worse, diff->pairing.pairs.count,
                      diff->pairing.pairs.only_a, diff->pairing.pairs.only_b);
    return EVQ_OK;
}

void evq_api_diff(struct evq_api *api, struct evq_http_request *request,
                  struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_sample_choice choice;
    struct evq_sample_place places[2];
    struct evq_sample_file files[2];
    struct diff diff = {.show = CHANGED};
    enum evq_status status = EVQ_OK;

    if (!read_sides(api, request, reply, places, &choice) ||
        !read_show(request, reply, &diff.show) ||
        !evq_samples_page_read(request, reply, &diff.page)) {
        return;
    }
    for (int i = 0; status == EVQ_OK && i < 2; i++) {
        status = evq_samples_find_one(&choice, &places[i], &files[i], &err);
    }
    if (status == EVQ_OK) {
        status = write_diff(&diff, request, files, &reply->body, &err);
    }
    evq_pairing_close(&diff.pairing);
    if (status != EVQ_OK) {
        evq_samples_request_fail(reply, status, &err);
    }
}
