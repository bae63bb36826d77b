#include "shared/queue/queue_ticket.h"

#include <stdlib.h>
#include <string.h>

#include "shared/queue/codec.h"
#include "shared/queue/queue_call.h"

enum { // Items of a ticket's reply.
    AT_STATE,
    AT_CREATED,
    AT_POSITION,
    AT_JOB,
    AT_OTHER,
    AT_JOB_STATE,
    AT_OTHER_STATE,
    AT_REASON,
    AT_OTHER_REASON,
    AT_STARTED,
    AT_ENDED,
    AT_DETAIL,
    AT_REQUEST,
    AT_COUNT,
    AT_RESULTS
};

enum { RESULTS_MAX = 100000 };

static bool state_of(const char *word, enum evq_ticket_state *ret_state)
{
    static const struct {
        const char *word;
        enum evq_ticket_state state;
    } words[] = {{"queued", EVQ_TICKET_QUEUED},       {"delayed", EVQ_TICKET_QUEUED},
                 {"running", EVQ_TICKET_RUNNING},     {"done", EVQ_TICKET_DONE},
                 {"dead", EVQ_TICKET_DEAD},           {"skipped", EVQ_TICKET_SKIPPED},
                 {"cancelled", EVQ_TICKET_CANCELLED}, {"gone", EVQ_TICKET_GONE}};

    for (size_t i = 0; word != NULL && i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i].word, word) == 0) {
            *ret_state = words[i].state;
            return true;
        }
    }
    return false;
}

static enum evq_status no_such_ticket(const struct evq_queue *queue, const char *ticket,
                                      struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_NOT_FOUND, "no ticket %.64s in queue '%s'", ticket,
                         queue->name);
}

enum evq_status evq_queue_ticket_put(struct evq_queue *queue, const char *ticket, const char *job,
                                     const char *other, const char *request, size_t request_bytes,
                                     int64_t *ret_position, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    if (request_bytes > EVQ_TICKET_REQUEST_BYTES) {
        return evq_error_set(err, EVQ_E_LIMIT, "a request of %zu bytes, allowed %d", request_bytes,
                             EVQ_TICKET_REQUEST_BYTES);
    }
    evq_queue_call_begin(queue, "ticket_put", false);
    evq_queue_call_text(queue, ticket);
    evq_queue_call_text(queue, job);
    evq_queue_call_text(queue, other);
    evq_queue_call_bytes(queue, request, request_bytes);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!evq_queue_reply_is(reply, "ok") ||
        !evq_queue_reply_within(evq_queue_reply_item(reply, 1), 0, INT64_MAX, ret_position)) {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}

/* Copies a text of the reply into the ticket; NULL: out of memory. */
static const char *text_at(struct evq_ticket *ticket, const struct evq_reply *reply, size_t at)
{
    const char *text = evq_queue_reply_text(evq_queue_reply_item(reply, at));
    return evq_arena_strdup(ticket->arena, text != NULL ? text : "");
}

/* Reads a time or a position that may be "". */
static bool number_at(const struct evq_reply *reply, size_t at, int64_t *ret_number)
{
    const struct evq_reply *item = evq_queue_reply_item(reply, at);
    const char *text = evq_queue_reply_text(item);

    *ret_number = -1;
    return (text != NULL && text[0] == '\0') ||
           evq_queue_reply_within(item, 0, INT64_MAX, ret_number);
}

static int by_task(const void *a, const void *b)
{
    const struct evq_result *const *left = a;
    const struct evq_result *const *right = b;
    return strcmp((*left)->task, (*right)->task);
}

/* Skips records that cannot be read; loggers quarantine them. */
static enum evq_status results_read(struct evq_ticket *ticket, const struct evq_reply *reply,
                                    size_t mine, struct evq_error *err)
{
    const size_t count = reply->item_count - AT_RESULTS;

    ticket->results = evq_arena_array(ticket->arena, count + 1, sizeof(struct evq_result *));
    if (ticket->results == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for %zu results", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct evq_reply *record = reply->items[AT_RESULTS + i];
        struct evq_result *result = NULL;
        if (evq_queue_reply_text(record) == NULL) {
            continue;
        }
        const enum evq_status status =
            evq_codec_result_decode((const uint8_t *)record->text, record->bytes, &result, err);
        if (status == EVQ_E_NOMEM) {
            return status;
        }
        if (status == EVQ_OK) {
            ticket->results[ticket->result_count++] = result;
            ticket->job_results += i < mine ? 1 : 0;
        }
    }
    qsort(ticket->results, ticket->job_results, sizeof(struct evq_result *), by_task);
    qsort(ticket->results + ticket->job_results, ticket->result_count - ticket->job_results,
          sizeof(struct evq_result *), by_task);
    return EVQ_OK;
}

static enum evq_status ticket_read(struct evq_queue *queue, const struct evq_reply *reply,
                                   struct evq_ticket *ticket, struct evq_error *err)
{
    int64_t mine = 0;

    if (reply->type != EVQ_REPLY_ARRAY || reply->item_count < AT_RESULTS ||
        reply->item_count > RESULTS_MAX ||
        !state_of(evq_queue_reply_text(reply->items[AT_STATE]), &ticket->state) ||
        !number_at(reply, AT_CREATED, &ticket->created_ms) ||
        !number_at(reply, AT_POSITION, &ticket->position) ||
        !number_at(reply, AT_STARTED, &ticket->started_ms) ||
        !number_at(reply, AT_ENDED, &ticket->ended_ms) ||
        !evq_queue_reply_within(reply->items[AT_COUNT], 0,
                                (int64_t)(reply->item_count - AT_RESULTS), &mine)) {
        return evq_queue_call_malformed(queue, err);
    }
    ticket->job = text_at(ticket, reply, AT_JOB);
    ticket->other = text_at(ticket, reply, AT_OTHER);
    ticket->reason = text_at(ticket, reply, AT_REASON);
    ticket->other_reason = text_at(ticket, reply, AT_OTHER_REASON);
    ticket->detail = text_at(ticket, reply, AT_DETAIL);
    ticket->request = text_at(ticket, reply, AT_REQUEST);
    ticket->other_done = evq_queue_reply_is(reply->items[AT_OTHER_STATE], "done");
    if (ticket->job == NULL || ticket->other == NULL || ticket->reason == NULL ||
        ticket->other_reason == NULL || ticket->detail == NULL || ticket->request == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for a ticket");
    }
    return results_read(ticket, reply, (size_t)mine, err);
}

enum evq_status evq_queue_ticket(struct evq_queue *queue, const char *ticket,
                                 struct evq_ticket **ret_ticket, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "ticket", true);
    evq_queue_call_text(queue, ticket);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (reply->type == EVQ_REPLY_NIL) {
        evq_reply_free(reply);
        return no_such_ticket(queue, ticket, err);
    }
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_ticket *read = arena != NULL ? evq_arena_array(arena, 1, sizeof *read) : NULL;
    if (read == NULL) {
        evq_arena_free(arena);
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for a ticket");
        goto out;
    }
    *read = (struct evq_ticket){.arena = arena};
    status = ticket_read(queue, reply, read, err);
    if (status != EVQ_OK) {
        evq_ticket_free(read);
        goto out;
    }
    *ret_ticket = read;
out:
    evq_reply_free(reply);
    return status;
}

void evq_ticket_free(struct evq_ticket *ticket)
{
    if (ticket != NULL) {
        for (size_t i = 0; i < ticket->result_count; i++) {
            evq_result_free(ticket->results[i]);
        }
        evq_arena_free(ticket->arena); // It holds the ticket itself.
    }
}

enum evq_status evq_queue_ticket_cancel(struct evq_queue *queue, const char *ticket, bool running,
                                        const char *reason, bool *ret_done,
                                        enum evq_ticket_state *ret_state, struct evq_error *err)
{
    struct evq_reply *reply = NULL;

    evq_queue_call_begin(queue, "ticket_cancel", false);
    evq_queue_call_text(queue, ticket);
    evq_queue_call_text(queue, running ? "1" : "0");
    evq_queue_call_text(queue, reason);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    const bool ended = evq_queue_reply_is(reply, "ended");
    if (evq_queue_reply_is(reply, "not_found")) {
        status = no_such_ticket(queue, ticket, err);
    } else if (!state_of(ended ? evq_queue_reply_text(evq_queue_reply_item(reply, 1))
                               : evq_queue_reply_word(reply),
                         ret_state)) {
        status = evq_queue_call_malformed(queue, err);
    } else {
        *ret_done = !ended && *ret_state == EVQ_TICKET_CANCELLED;
    }
    evq_reply_free(reply);
    return status;
}

enum evq_status evq_queue_tickets(struct evq_queue *queue, struct evq_tickets *ret_tickets,
                                  struct evq_error *err)
{
    struct evq_reply *reply = NULL;
    struct evq_tickets *t = ret_tickets;

    evq_queue_call_begin(queue, "tickets", false);
    evq_queue_call_number(queue, EVQ_TICKETS_MAX);
    enum evq_status status = evq_queue_call_send(queue, &reply, err);
    if (status != EVQ_OK) {
        return status;
    }
    t->count = 0;
    bool good = reply->type == EVQ_REPLY_ARRAY && reply->item_count % 2 == 1 &&
                reply->item_count >= 3 && reply->item_count <= 3 + 2 * EVQ_TICKETS_MAX &&
                evq_queue_reply_within(reply->items[0], 0, INT64_MAX, &t->open) &&
                evq_queue_reply_within(reply->items[1], 0, INT64_MAX, &t->done) &&
                evq_queue_reply_within(reply->items[2], 0, INT64_MAX, &t->dead);
    for (size_t i = 3; good && i < reply->item_count; i += 2) {
        enum evq_ticket_state state = EVQ_TICKET_GONE;
        good = evq_queue_reply_copy(reply->items[i], t->list[t->count].name,
                                    sizeof t->list[t->count].name) &&
               state_of(evq_queue_reply_text(reply->items[i + 1]), &state);
        t->list[t->count++].running = state == EVQ_TICKET_RUNNING;
    }
    if (!good) {
        status = evq_queue_call_malformed(queue, err);
    }
    evq_reply_free(reply);
    return status;
}
