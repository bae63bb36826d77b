/* GET /v1/samples/{run}/{step}...: the tasks that have samples, and their items. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "producer/gateway/samples/samples_request.h"
#include "shared/samples/samples_reader.h"

struct list {
    struct evq_samples_page page;
    const char *metric; // Decides what is right. NULL: the first score, which is not known yet.
    char first[136];    // The name of the first score.
    bool wrong;
    bool right;
    int64_t items;
    int64_t ones;
    int64_t zeros;
    char other[EVQ_SAMPLE_ID_BYTES_MAX + 1]; // An item that is neither right nor wrong; "": none.
};

void evq_api_samples(struct evq_api *api, struct evq_http_request *request,
                     struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_sample_choice choice;
    struct evq_sample_place place;
    struct evq_sample_files found = {.count = 0};

    if (!evq_samples_request_place(request, reply, &place) ||
        !evq_samples_request_choice(api, request, reply, &choice)) {
        return;
    }
    const enum evq_status status = evq_samples_find_files(&choice, &place, &found, &err);
    if (status != EVQ_OK) {
        evq_samples_request_fail(reply, status, &err);
        return;
    }
    evq_buffer_printf(&reply->body,
                      "{\"run\": \"%s\", \"step\": %" PRId64 ", \"variant\": \"%s\", \"tasks\": [",
                      place.run, place.step, choice.variant); // Valid names need no escapes.
    for (size_t i = 0; i < found.count; i++) {
        const struct evq_sample_file *file = &found.files[i];
        struct stat info = {.st_size = 0};
        (void)stat(file->path, &info); // A file that was removed since has the size 0.
        evq_buffer_printf(
            &reply->body,
            "%s{\"suite\": \"%s\", \"task\": \"%s\", \"job\": \"%s\", \"bytes\": %jd}",
            i > 0 ? ", " : "", file->suite, file->task, file->job, (intmax_t)info.st_size);
    }
    evq_buffer_text(&reply->body, "]}\n");
    free(found.files);
}

static void write_sample(const struct list *list, const struct evq_sample *sample,
                         struct evq_buffer *out)
{
    evq_buffer_text(out, "{\"id\": ");
    evq_buffer_json_text(out, sample->id);
    evq_buffer_text(out, ", \"scores\": {");
    for (size_t i = 0; i < sample->score_count; i++) {
        evq_buffer_text(out, i > 0 ? ", " : "");
        evq_buffer_json_text(out, sample->scores[i].name);
        evq_buffer_text(out, ": ");
        evq_buffer_json_double(out, sample->scores[i].value);
    }
    evq_buffer_text(out, "}");
    evq_samples_page_text(&list->page, "output", sample->output, out);
    evq_samples_page_text(&list->page, "target", sample->target, out);
    evq_buffer_text(out, ", \"cluster\": ");
    if (sample->cluster != NULL) {
        evq_buffer_json_text(out, sample->cluster);
    } else {
        evq_buffer_text(out, "null");
    }
    evq_buffer_text(out, ", \"logprob\": ");
    evq_samples_page_number(sample->logprob, out);
    evq_buffer_text(out, ", \"tokens\": ");
    evq_samples_page_number(sample->tokens >= 0 ? (double)sample->tokens : (double)NAN, out);
    evq_buffer_text(out, "}");
}

/* Counts an item and writes it if it is on the page. EVQ_E_NOT_FOUND: it does not have the score.
 */
static enum evq_status take(struct list *list, const struct evq_sample *sample,
                            struct evq_buffer *out, struct evq_error *err)
{
    const struct evq_sample_score *score =
        list->metric != NULL ? evq_sample_score(sample, list->metric) : &sample->scores[0];
    const char *const texts[] = {sample->id, sample->output, sample->target};

    if (score == NULL) {
        return evq_error_set(err, EVQ_E_NOT_FOUND, "item '%s' has no score '%s'", sample->id,
                             list->metric);
    }
    if (list->metric == NULL) {
        (void)snprintf(list->first, sizeof list->first, "%s", score->name);
        list->metric = list->first;
    }
    list->items++;
    list->ones += score->value == 1.0;
    list->zeros += score->value == 0.0;
    if (score->value != 0.0 && score->value != 1.0) {
        (void)snprintf(list->other, sizeof list->other, "%s", sample->id);
    }
    const bool wanted = (!list->wrong || score->value == 0.0) &&
                        (!list->right || score->value == 1.0) &&
                        evq_samples_page_finds(&list->page, texts, 3);
    if (wanted && evq_samples_page_take(&list->page, out)) {
        write_sample(list, sample, out);
    }
    return EVQ_OK;
}

static enum evq_status read_items(struct list *list, const struct evq_sample_file *file,
                                  struct evq_buffer *out, struct evq_error *err)
{
    struct evq_samples_header header;
    struct evq_samples_reader *reader = NULL;
    enum evq_status status = evq_samples_reader_open(file->path, &header, &reader, err);

    if (status == EVQ_OK) {
        status = evq_samples_find_check(file, &header, err);
    }
    if (status == EVQ_OK) {
        evq_samples_reader_limit(reader, &evq_samples_request_limits);
    }
    while (status == EVQ_OK) {
        struct evq_sample sample;
        bool end = false;
        status = evq_samples_reader_next(reader, &sample, &end, err);
        if (status != EVQ_OK || end) {
            break;
        }
        status = take(list, &sample, out, err);
    }
    evq_samples_reader_close(reader);
    if (status == EVQ_OK && (list->wrong || list->right) && list->other[0] != '\0') {
        status = evq_error_set(err, EVQ_E_INVALID,
                               "item '%s' has a score %s that is neither 0 nor 1, so it is neither "
                               "right nor wrong: choose another metric",
                               list->other, list->metric);
    }
    return status;
}

/* Reads the query parameters of the list. false: the reply says what is wrong. */
static bool read_list(const struct evq_http_request *request, struct evq_http_reply *reply,
                      struct list *ret)
{
    const char *show = evq_http_query(request, "show", "all");
    const char *metric = evq_http_query(request, "metric", "");

    *ret = (struct list){.metric = metric[0] != '\0' ? metric : NULL,
                         .wrong = strcmp(show, "wrong") == 0,
                         .right = strcmp(show, "right") == 0};
    if (!ret->wrong && !ret->right && strcmp(show, "all") != 0) {
        evq_http_reply_error(reply, 400, "invalid", "show is '%.40s', expected all, wrong or right",
                             show);
        return false;
    }
    return evq_samples_page_read(request, reply, &ret->page);
}

void evq_api_samples_items(struct evq_api *api, struct evq_http_request *request,
                           struct evq_http_reply *reply)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_sample_choice choice;
    struct evq_sample_place place;
    struct evq_sample_file file;
    struct list list;
    struct evq_buffer *out = &reply->body;

    if (!evq_samples_request_place(request, reply, &place) ||
        !evq_samples_request_choice(api, request, reply, &choice) ||
        !read_list(request, reply, &list)) {
        return;
    }
    enum evq_status status = evq_samples_find_one(&choice, &place, &file, &err);
    if (status == EVQ_OK) {
        evq_buffer_printf(out,
                          "{\"job\": \"%s\", \"suite\": \"%s\", \"task\": \"%s\", \"samples\": [",
                          file.job, file.suite, file.task); // Valid names need no escapes.
        status = read_items(&list, &file, out, &err);
    }
    if (status != EVQ_OK) {
        evq_samples_request_fail(reply, status, &err);
        return;
    }
    evq_buffer_text(out, "]");
    evq_samples_page_end(&list.page, out);
    evq_buffer_text(out, ", \"metric\": ");
    evq_buffer_json_text(out, list.metric != NULL ? list.metric : "");
    evq_buffer_printf(out, ", \"items\": %" PRId64, list.items);
    if (list.other[0] == '\0') {
        evq_buffer_printf(out, ", \"right\": %" PRId64 ", \"wrong\": %" PRId64 "}\n", list.ones,
                          list.zeros);
    } else {
        evq_buffer_text(out, ", \"right\": null, \"wrong\": null}\n");
    }
}
