#include "producer/cli/operate/replay.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/json.h"

/* An entry's id is made at the end of the function that publishes its result, whose time was taken
 * at the beginning. Sinks know what they get twice. */
#define PUBLISH_MS_MAX 60000

struct range { // Server unix ms of publication.
    int64_t from_ms;
    int64_t to_ms;
};

/* The milliseconds of a stream id. */
static int64_t id_ms(const json_t *id)
{
    const char *text = json_string_value(id);

    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

/* What the sink lost, as one range that holds all of them; false: nothing. */
static enum evq_status losses_read(struct evq_cli *cli, const char *sink, struct range *ret_range,
                                   bool *ret_any, struct evq_error *err)
{
    char *text = NULL;
    struct range range = {INT64_MAX, 0};
    bool any = false;
    size_t at;
    json_t *loss;
    enum evq_status status = evq_queue_stats(cli->queue, &text, err);

    if (status != EVQ_OK) {
        return status;
    }
    json_t *stats = json_loads(text, 0, NULL);
    json_array_foreach(json_object_get(stats, "losses"), at, loss)
    {
        const char *name = json_string_value(json_object_get(loss, "sink"));
        if (name == NULL || strcmp(name, sink) != 0) {
            continue;
        }
        int64_t from_ms = id_ms(json_object_get(loss, "from")) - PUBLISH_MS_MAX;
        int64_t to_ms = id_ms(json_object_get(loss, "to"));
        from_ms = from_ms > 0 ? from_ms : 0;
        range.from_ms = from_ms < range.from_ms ? from_ms : range.from_ms;
        range.to_ms = to_ms > range.to_ms ? to_ms : range.to_ms;
        any = true;
    }
    json_decref(stats);
    free(text);
    *ret_range = range;
    *ret_any = any;
    return EVQ_OK;
}

static enum evq_status run_repeat(struct evq_cli *cli, const char *run, const struct range *range,
                                  int64_t *total, struct evq_error *err)
{
    int64_t cursor = 0;
    int64_t count = 0;
    bool more = true;
    enum evq_status status = EVQ_OK;

    while (more && status == EVQ_OK) {
        status = evq_queue_republish(cli->queue, run, range->from_ms, range->to_ms, &cursor, &count,
                                     &more, err);
        *total += status == EVQ_OK ? count : 0;
    }
    return status;
}

/* Of one page of runs; moves the cursor to the next. */
static enum evq_status page_repeat(struct evq_cli *cli, const struct range *range, char cursor[32],
                                   int64_t *total, struct evq_error *err)
{
    char *text = NULL;
    json_t *view = NULL;
    size_t at;
    json_t *row;
    enum evq_status status = evq_queue_runs(cli->queue, cursor, &text, err);

    if (status == EVQ_OK) {
        status = evq_json_take(text, &view, err);
    }
    json_array_foreach(json_object_get(view, "runs"), at, row)
    {
        const char *run = json_string_value(json_object_get(row, "run"));
        if (run != NULL && status == EVQ_OK) {
            status = run_repeat(cli, run, range, total, err);
        }
    }
    (void)snprintf(cursor, 32, "%s", evq_json_text(view, "cursor", ""));
    json_decref(view);
    return status;
}

enum evq_status evq_replay(struct evq_cli *cli, const char *sink, struct evq_error *err)
{
    struct range range;
    char cursor[32] = "";
    bool any = false;
    int64_t total = 0;

    enum evq_status status = losses_read(cli, sink, &range, &any, err);
    if (status == EVQ_OK) {
        status = evq_queue_sink_replay(cli->queue, sink, err);
    }
    do {
        status = status == EVQ_OK && any ? page_repeat(cli, &range, cursor, &total, err) : status;
    } while (status == EVQ_OK && cursor[0] != '\0');
    if (status == EVQ_OK && any) {
        status = evq_queue_loss_forget(cli->queue, sink, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_cli_say(cli, "evalq: the sink '%s' gets everything that is still in the stream again",
                sink);
    if (any) {
        evq_cli_say(cli,
                    "evalq: and %" PRId64 " result%s that the stream had lost, except those past "
                    "retention",
                    total, total == 1 ? "" : "s");
    }
    return EVQ_OK;
}
