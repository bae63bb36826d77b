#include "producer/cli/operate/replay.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/cli/view.h"

/* A result's time is taken before its stream entry gets its id, so a lost range begins this much
 * earlier. Sinks drop results that they receive twice. */
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

/* Finds one range that holds everything the sink lost. *ret_any: it lost something. */
static enum evq_status losses_read(struct evq_cli *cli, const char *sink, struct range *ret_range,
                                   bool *ret_any, struct evq_error *err)
{
    json_t *stats = NULL;
    struct range range = {INT64_MAX, 0};
    bool any = false;
    size_t at;
    json_t *loss;
    enum evq_status status = evq_view_stats(cli, &stats, err);

    if (status != EVQ_OK) {
        return status;
    }
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
    *ret_range = range;
    *ret_any = any;
    return EVQ_OK;
}

struct replay {
    struct evq_cli *cli;
    struct range range;
    int64_t result_count; // How many results were published again.
};

static enum evq_status replay_run(void *context, const char *run, struct evq_error *err)
{
    struct replay *replay = context;
    int64_t cursor = 0;
    int64_t count = 0;
    bool more = true;
    enum evq_status status = EVQ_OK;

    while (more && status == EVQ_OK) {
        status = evq_queue_republish(replay->cli->queue, run, replay->range.from_ms,
                                     replay->range.to_ms, &cursor, &count, &more, err);
        replay->result_count += status == EVQ_OK ? count : 0;
    }
    return status;
}

enum evq_status evq_replay(struct evq_cli *cli, const char *sink, struct evq_error *err)
{
    struct replay replay = {.cli = cli};
    bool any = false;

    enum evq_status status = losses_read(cli, sink, &replay.range, &any, err);
    if (status == EVQ_OK) {
        status = evq_queue_sink_replay(cli->queue, sink, err);
    }
    if (status == EVQ_OK && any) {
        status = evq_view_each_run(cli, replay_run, &replay, err);
    }
    if (status == EVQ_OK && any) {
        status = evq_queue_loss_forget(cli->queue, sink, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_cli_say(cli,
                "evalq: the sink '%s' will receive everything that is still in the stream again",
                sink);
    if (any) {
        evq_cli_say(cli,
                    "evalq: %" PRId64 " lost result%s will be delivered too; older ones were "
                    "removed by the retention limit",
                    replay.result_count, replay.result_count == 1 ? "" : "s");
    }
    return EVQ_OK;
}
