/*
 * What the verbs of the queue make of a reply of any shape: EVQ_OK with what was promised, or a
 * status with a sentence. The first byte chooses the verb; the rest is the reply, in the words of
 * reply_text.h. The connection is this file's own: it answers every call with that reply.
 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "shared/queue/queue.h"
#include "shared/queue/queue_ticket.h"
#include "shared/queue/sample_pieces.h"
#include "shared/redis/conn_reader.h"
#include "tests/fuzz/check.h"
#include "tests/fuzz/reply_text.h"

struct evq_conn {
    struct evq_buffer reply; // Of the first call; a later one gets "ok".
    int calls;
};
static struct evq_conn wire; // The one there is.

enum evq_status evq_conn_call(struct evq_conn *conn, size_t arg_count, const char *const *args,
                              const size_t *arg_bytes, int64_t deadline_ms,
                              struct evq_reply **ret_reply, struct evq_error *err)
{
    struct evq_conn_reader *reader = evq_conn_reader_new();
    const char *data = conn->calls == 0 ? (const char *)conn->reply.data : "+ok\r\n";
    char text[256] = "";

    (void)deadline_ms;
    check(reader != NULL && arg_count > 0 && args[0] != NULL && (arg_bytes == NULL || *arg_bytes));
    const size_t bytes = conn->calls++ == 0 ? conn->reply.bytes : 5;
    enum evq_status status = evq_conn_reader_feed(reader, data, bytes, err);
    if (status == EVQ_OK) {
        status = evq_conn_reader_next(reader, ret_reply, text, sizeof(text), err);
    }
    if (status == EVQ_OK && *ret_reply == NULL) {
        status = evq_error_set(err, EVQ_E_IO, "half a reply");
    }
    evq_conn_reader_free(reader);
    return status;
}

enum evq_status evq_conn_append(struct evq_conn *conn, size_t arg_count, const char *const *args,
                                const size_t *arg_bytes, struct evq_error *err)
{
    (void)conn, (void)err;
    check(arg_count > 0 && args[0] != NULL && (arg_bytes == NULL || *arg_bytes));
    return EVQ_OK;
}

enum evq_status evq_conn_read(struct evq_conn *conn, int64_t deadline_ms,
                              struct evq_reply **ret_reply, struct evq_error *err)
{
    const char *const words[] = {"read"};

    return evq_conn_call(conn, 1, words, NULL, deadline_ms, ret_reply, err);
}

bool evq_conn_is_outage(enum evq_status status)
{
    return status == EVQ_E_IO || status == EVQ_E_TIMEOUT || status == EVQ_E_RETRY ||
           status == EVQ_E_VERSION || status == EVQ_E_AUTH || status == EVQ_E_STOPPED;
}

int64_t evq_conn_deadline_ms(const struct evq_conn *conn, int64_t block_ms)
{
    (void)conn;
    return block_ms;
}

void evq_conn_drop(struct evq_conn *conn)
{
    (void)conn;
}

const char *evq_conn_where(const struct evq_conn *conn)
{
    (void)conn;
    return "redis://fuzz";
}

const char *evq_conn_failover(const struct evq_conn *conn)
{
    (void)conn;
    return "0123456789abcdef";
}

static void claims_free(struct evq_claim **claims, const struct evq_claimed *claimed)
{
    check(claimed->count <= 4);
    for (uint32_t i = 0; i < claimed->count; i++) {
        check(claims[i]->id[0] != '\0' && claims[i]->token[0] != '\0');
        check(claims[i]->job != NULL || claims[i]->record_error[0] != '\0');
        evq_claim_free(claims[i]);
    }
}

static const uint32_t classes[] = {1, 2};
static const struct evq_claim_request claim_request = {.worker = "w",
                                                       .request = "q",
                                                       .lease_ms = 1000,
                                                       .claims_max = 4,
                                                       .classes = classes,
                                                       .class_count = 2};

static enum evq_status try_claim(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_claim *claims[4] = {NULL};
    struct evq_claimed claimed = {0};
    const enum evq_status status = evq_queue_claim(queue, &claim_request, claims, &claimed, err);

    claims_free(claims, &claimed);
    return status;
}

static enum evq_status try_complete_and_claim(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_claim *claims[4] = {NULL};
    struct evq_claimed claimed = {0};
    enum evq_status completed = EVQ_OK;
    const enum evq_status status = evq_queue_complete_and_claim(
        queue, "r/1/regular/s", "t", &claim_request, &completed, claims, &claimed, err);

    claims_free(claims, &claimed);
    return status;
}

static enum evq_status try_many_and_claim(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_completion done[] = {{.id = "r/1/regular/s", .token = "t"},
                                    {.id = "r/2/regular/s", .token = "u"}};
    struct evq_claim *claims[4] = {NULL};
    struct evq_claimed claimed = {0};
    enum evq_status completed = EVQ_E_BUG;
    const enum evq_status status = evq_queue_complete_many_and_claim(
        queue, done, 2, &claim_request, &completed, claims, &claimed, err);

    check(completed != EVQ_E_BUG);
    claims_free(claims, &claimed);
    return completed != EVQ_OK ? completed : status;
}

static enum evq_status try_submit(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_job job = *evq_job_defaults();
    struct evq_submitted submitted = {.id = ""};

    job.run = "r";
    job.step = 1;
    job.suite = "quick";
    job.root = "c";
    job.path = "p";
    const enum evq_status status = evq_queue_submit(queue, &job, 0, &submitted, err);
    check(status != EVQ_OK || submitted.answer <= EVQ_SUBMIT_SKIPPED);
    return status;
}

static enum evq_status try_batch(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_job job = *evq_job_defaults();
    const struct evq_job *const jobs[] = {&job, &job};
    struct evq_submitted submitted[2];
    enum evq_status statuses[2];

    job.run = "r";
    job.suite = "quick";
    job.root = "c";
    job.path = "p";
    return evq_queue_submit_batch(queue, jobs, 2, submitted, statuses, err);
}

static enum evq_status try_heartbeat(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_beat beats[] = {{.id = "r/1/regular/s", .token = "t"},
                               {.id = "r/2/regular/s", .token = "u"}};
    int64_t version = 0;

    return evq_queue_heartbeat(queue, "w", "{}", 1000, beats, 2, &version, err);
}

static void on_result(void *context, const struct evq_result *result)
{
    (void)context;
    check(result->job[0] != '\0');
}

static enum evq_status try_results(struct evq_queue *queue, struct evq_error *err)
{
    int64_t cursor = 0;
    const enum evq_status status = evq_queue_run_results(queue, "r", &cursor, on_result, NULL, err);

    check(cursor >= 0);
    return status;
}

static enum evq_status try_sink(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_entry entries[8];
    uint32_t count = 0;
    const enum evq_status status =
        evq_queue_sink_read(queue, "sink", "0", true, 0, entries, 8, &count, err);

    check(count <= 8 && (status == EVQ_OK || count == 0));
    for (uint32_t i = 0; i < count; i++) {
        evq_result_free(entries[i].result);
    }
    return status;
}

static enum evq_status try_ticket(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_ticket *ticket = NULL;
    const enum evq_status status = evq_queue_ticket(queue, "t", &ticket, err);

    if (status == EVQ_OK) {
        check(ticket->job != NULL && ticket->other != NULL && ticket->request != NULL);
        check(ticket->job_results <= ticket->result_count);
    }
    evq_ticket_free(ticket);
    return status;
}

static enum evq_status try_tickets(struct evq_queue *queue, struct evq_error *err)
{
    static struct evq_tickets tickets; // Large.
    const enum evq_status status = evq_queue_tickets(queue, &tickets, err);

    check(status != EVQ_OK || tickets.count <= EVQ_TICKETS_MAX);
    return status;
}

static enum evq_status try_views(struct evq_queue *queue, struct evq_error *err)
{
    char *json = NULL;
    const enum evq_status status = evq_queue_stats(queue, &json, err);

    check((status == EVQ_OK) == (json != NULL));
    free(json);
    return status;
}

static enum evq_status try_info(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_queue_info info;
    struct evq_class found[EVQ_QUEUE_CLASSES_MAX];
    uint32_t count = 0;
    int64_t version = 0;
    const enum evq_status status = evq_queue_info(queue, &info, err);

    if (status == EVQ_OK) {
        return status;
    }
    wire.calls = 0;
    const enum evq_status second = evq_queue_classes(queue, found, &count, &version, err);
    check(count <= EVQ_QUEUE_CLASSES_MAX);
    return second;
}

static enum evq_status try_best(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_best best;
    const enum evq_status status = evq_queue_best_get(queue, "r", "m", &best, err);

    check(status != EVQ_OK || memchr(best.checkpoint, '\0', sizeof(best.checkpoint)) != NULL);
    if (status == EVQ_OK) {
        return status;
    }
    wire.calls = 0;
    char other[EVQ_SINK_PLACE_BYTES_MAX];
    const enum evq_status second = evq_queue_sink_serve(queue, "s", "l", "here", other, err);
    check(second != EVQ_OK || memchr(other, '\0', sizeof(other)) != NULL);
    return second;
}

static enum evq_status try_counts(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_run_counts counts;
    const enum evq_status status = evq_queue_run_counts(queue, "r", &counts, err);

    check(status != EVQ_OK || counts.open >= 0);
    return status;
}

static enum evq_status try_gpus(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_gpu_lease leases[] = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
    const struct evq_gpu_request request = {"w", "boot", 1000, 2, 1};

    return evq_queue_gpus_lease(queue, &request, leases, 2, err);
}

static enum evq_status try_idle(struct evq_queue *queue, struct evq_error *err)
{
    const char *const suites[] = {"quick", "long"};
    uint64_t bits = 0;
    const enum evq_status status =
        evq_queue_free_workers_take(queue, "r", NULL, suites, 2, &bits, err);

    check(status != EVQ_OK || bits < 4);
    return status;
}

static enum evq_status try_end(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_completion done[] = {{.id = "r/1/regular/s", .token = "t"},
                                    {.id = "r/2/regular/s", .token = "u"}};
    enum evq_job_state state = EVQ_JOB_QUEUED;
    const enum evq_status status = evq_queue_complete_many(queue, done, 2, err);

    if (status == EVQ_OK) {
        return status;
    }
    wire.calls = 0;
    const enum evq_status second =
        evq_queue_fail(queue, "r/1/regular/s", "t", EVQ_FAIL_RETRY, "why", "", &state, err);
    check(state < EVQ_JOB_STATE_COUNT);
    return second;
}

static enum evq_status try_operate(struct evq_queue *queue, struct evq_error *err)
{
    char id[EVQ_JOB_ID_BYTES_MAX];
    enum evq_job_state state = EVQ_JOB_QUEUED;
    int64_t left = 0;

    if (evq_queue_retry(queue, "r/1/regular/s", "", id, err) == EVQ_OK) {
        check(id[0] != '\0');
        return EVQ_OK;
    }
    wire.calls = 0;
    if (evq_queue_forget(queue, "r", &left, err) == EVQ_OK) {
        check(left >= 0);
        return EVQ_OK;
    }
    wire.calls = 0;
    return evq_queue_cancel(queue, "r/1/regular/s", "why", &state, err);
}

static enum evq_status try_suite(struct evq_queue *queue, struct evq_error *err)
{
    const struct evq_suite_offer offer = {"quick", "d", "", 1, 1, "{}", "here"};
    uint32_t class = 0;
    const enum evq_status status = evq_queue_suite_register(queue, &offer, false, &class, err);

    check(status != EVQ_OK || (class >= 1 && class <= EVQ_QUEUE_CLASSES_MAX));
    return status;
}

static enum evq_status try_parts(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    const enum evq_status status = evq_queue_shard_parts(queue, "r/1/regular/s", "t", &reply, err);

    check((status == EVQ_OK) == (reply != NULL));
    evq_reply_free(reply);
    return status;
}

static enum evq_status try_pieces(struct evq_queue *queue, struct evq_error *err)
{
    struct evq_sample_pieces pieces;
    enum evq_piece_sender sender = EVQ_SENDER_HOLDS;
    const enum evq_status status = evq_sample_pieces_read(queue, "0", 1, &pieces, err);

    if (status != EVQ_OK) {
        wire.calls = 0;
        return evq_sample_piece_sender(queue, "r/1/regular/s", "t", &sender, err);
    }
    for (size_t i = 0; i < pieces.count; i++) {
        const struct evq_sample_piece *piece = &pieces.items[i];
        check(strlen(piece->entry) < sizeof(piece->entry));
        if (piece->job == NULL) {
            continue;
        }
        check(evq_job_name_valid(piece->task, EVQ_JOB_NAME_BYTES_MAX) && piece->token[0] != '\0');
        check(strlen(piece->digest) == 32 && piece->at >= 0 && piece->data_bytes >= 1);
        check((int64_t)piece->data_bytes <= piece->bytes - piece->at);
    }
    evq_sample_pieces_free(&pieces);
    return EVQ_OK;
}

static enum evq_status (*const tries[])(struct evq_queue *, struct evq_error *) = {
    try_claim,     try_complete_and_claim,
    try_submit,    try_batch,
    try_heartbeat, try_results,
    try_sink,      try_ticket,
    try_tickets,   try_views,
    try_info,      try_best,
    try_counts,    try_gpus,
    try_idle,      try_end,
    try_operate,   try_suite,
    try_parts,     try_many_and_claim,
    try_pieces};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    wire.calls = 0;
    struct evq_queue *queue = NULL;
    struct evq_error err = {EVQ_OK, ""};

    if (bytes < 2) {
        return 0;
    }
    struct reply_input input = {data + 1, data + bytes};
    evq_buffer_init(&wire.reply, 0);
    reply_write(&input, 0, &wire.reply);
    check(evq_queue_open(&wire, NULL, &queue, NULL) == EVQ_OK);
    if (tries[data[0] % (sizeof(tries) / sizeof(tries[0]))](queue, &err) != EVQ_OK) {
        check(err.message[0] != '\0');
    }
    evq_queue_close(queue);
    evq_buffer_free(&wire.reply);
    return 0;
}
