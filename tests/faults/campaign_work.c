/* A worker in C that evaluates nothing: claims many at a time, publishes, completes, and now and
 * then fails, releases, splits. It never asks whether it still holds a job: what it sends late must
 * be refused. */
#include "tests/faults/campaign_load.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/queue/keys.h"
#include "tests/fixture/claim_result.h"

enum { CLAIMS_MAX = 16, SHARDS = 3 };

struct work {
    struct load *load;
    char worker[64];
    uint32_t classes[2];
    uint32_t lease_ms;
    uint64_t requests;
    struct evq_claim *claims[CLAIMS_MAX];
    uint32_t claim_count;
};

static const char *phase_of(enum evq_status status)
{
    return evq_conn_retryable(status) ? "unknown" : status == EVQ_OK ? "ok" : "fail";
}

static const char *detail_of(enum evq_status status)
{
    return status == EVQ_E_LEASE_LOST ? "stale" : evq_status_name(status);
}

static void asked(struct work *work, uint64_t call, const char *op, const struct evq_claim *claim,
                  const char *detail)
{
    history_line(&work->load->history, call, "invoke", op, claim->id, claim->token, detail);
}

static void told(struct work *work, uint64_t call, const char *op, const struct evq_claim *claim,
                 enum evq_status status, const char *detail)
{
    history_line(&work->load->history, call, phase_of(status), op, claim->id, claim->token,
                 detail != NULL ? detail : detail_of(status));
}

static void register_suites(struct work *work)
{
    const char *const names[] = {LOAD_SUITE, LOAD_SHARDED};
    struct evq_error err;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < 2; i++) {
        const struct evq_suite_offer offer = {.name = names[i],
                                              .digest = "00000000000000000000000000000001",
                                              .needs = "",
                                              .shards = i == 0 ? 1 : SHARDS,
                                              .every = 1,
                                              .definition = "{}",
                                              .where = "fault_load"};
        do {
            status =
                evq_queue_suite_register(work->load->queue, &offer, false, &work->classes[i], &err);
        } while (load_again(work->load, status, &err, "suite"));
    }
}

static void note_claims(struct work *work, uint64_t call)
{
    for (uint32_t i = 0; i < work->claim_count; i++) {
        char attempt[16];
        (void)snprintf(attempt, sizeof attempt, "%d", work->claims[i]->attempt);
        told(work, call, "claim", work->claims[i], EVQ_OK, attempt);
    }
    history_flush(&work->load->history);
}

/* What the next claim asks for; request keeps its text. */
static struct evq_claim_request request_of(struct work *work, char request[32])
{
    (void)snprintf(request, 32, "%" PRIu64, ++work->requests);
    return (struct evq_claim_request){.worker = work->worker,
                                      .request = request,
                                      .lease_ms = work->lease_ms,
                                      .claims_max =
                                          1 + (uint32_t)(load_random(work->load) % CLAIMS_MAX),
                                      .classes = work->classes,
                                      .class_count = 2};
}

static void claim(struct work *work)
{
    char text[32];
    struct evq_claimed claimed = {.count = 0};
    struct evq_error err;
    enum evq_status status = EVQ_OK;
    const struct evq_claim_request request = request_of(work, text);

    do {
        status = evq_queue_claim(work->load->queue, &request, work->claims, &claimed, &err);
    } while (load_again(work->load, status, &err, "claim") && !load_stop);
    work->claim_count = status == EVQ_OK ? claimed.count : 0;
    note_claims(work, history_call(&work->load->history));
}

static bool publish(struct work *work, struct evq_claim *claim)
{
    struct load *load = work->load;
    struct evq_error err;
    bool duplicate = false;
    char detail[64];
    enum evq_status status = EVQ_OK;
    const uint64_t mark = load_random(load) >> 24; // 40 bits: exact as a double.
    const struct evq_metric metric = {
        .name = "mark", .value = (double)mark, .higher_is_better = 1, .std_error = 0};
    struct evq_result *result = claim_result(claim, "t");

    result->metrics = &metric;
    result->metric_count = 1;
    result->weights_digest = claim->job->fingerprint;
    result->checkpoint = "ckpt:x";
    (void)snprintf(detail, sizeof detail, "t=%" PRIu64, mark);
    do {
        const uint64_t call = history_call(&load->history);
        asked(work, call, "publish", claim, detail);
        history_flush(&load->history);
        status = evq_queue_publish(load->queue, claim->id, claim->token, result, &duplicate, &err);
        told(work, call, "publish", claim, status,
             status == EVQ_OK ? (duplicate ? "t=duplicate" : "t=ok") : NULL);
    } while (load_again(load, status, &err, "publish"));
    evq_result_free(result);
    return status == EVQ_OK;
}

static void fail_or_release(struct work *work, struct evq_claim *claim, enum evq_fail_kind kind,
                            const char *word)
{
    struct load *load = work->load;
    struct evq_error err;
    enum evq_job_state state = EVQ_JOB_QUEUED;
    enum evq_status status = EVQ_OK;
    const char *op = word == NULL ? "release" : "fail";

    do {
        const uint64_t call = history_call(&load->history);
        asked(work, call, op, claim, word);
        history_flush(&load->history);
        status = word == NULL ? evq_queue_release(load->queue, claim->id, claim->token, &err)
                              : evq_queue_fail(load->queue, claim->id, claim->token, kind,
                                               "as the seed says", "", &state, &err);
        told(work, call, op, claim, status,
             status == EVQ_OK && word != NULL ? evq_job_state_name(state) : NULL);
    } while (load_again(load, status, &err, op));
}

/* Several attempts of this worker, in one heartbeat. */
static void beat(struct work *work)
{
    struct load *load = work->load;
    struct evq_beat beats[CLAIMS_MAX];
    struct evq_error err;
    int64_t version = 0;
    enum evq_status status = EVQ_OK;

    for (uint32_t i = 0; i < work->claim_count; i++) {
        beats[i] = (struct evq_beat){.id = work->claims[i]->id,
                                     .token = work->claims[i]->token,
                                     .done = (int64_t)i,
                                     .total = -1};
    }
    do {
        const uint64_t call = history_call(&load->history);
        status = evq_queue_heartbeat(load->queue, work->worker, "{}", work->lease_ms, beats,
                                     work->claim_count, &version, &err);
        for (uint32_t i = 0; i < work->claim_count; i++) {
            told(work, call, "heartbeat", work->claims[i],
                 status == EVQ_OK && beats[i].answer == EVQ_BEAT_STALE ? EVQ_E_LEASE_LOST : status,
                 NULL);
        }
    } while (load_again(load, status, &err, "heartbeat"));
}

static void split_or_part(struct work *work, struct evq_claim *claim)
{
    struct load *load = work->load;
    struct evq_error err;
    enum evq_status status = EVQ_OK;
    const bool part = claim->shard >= 0;
    const char *op = part ? "complete" : "split";

    do {
        const uint64_t call = history_call(&load->history);
        asked(work, call, op, claim, NULL);
        history_flush(&load->history);
        status =
            part ? evq_queue_complete_shard(load->queue, claim->id, claim->token, "part", 4, &err)
                 : evq_queue_split(load->queue, claim->id, claim->token, SHARDS, &err);
        told(work, call, op, claim, status, NULL);
    } while (load_again(load, status, &err, op));
}

static void merge(struct work *work, struct evq_claim *claim)
{
    struct evq_reply *parts = NULL;
    struct evq_error err;
    enum evq_status status = EVQ_OK;

    do {
        status = evq_queue_shard_parts(work->load->queue, claim->id, claim->token, &parts, &err);
    } while (load_again(work->load, status, &err, "parts"));
    if (status == EVQ_OK && parts->item_count != SHARDS) {
        (void)fprintf(stderr, "fault_load: %s: %zu parts\n", claim->id, parts->item_count);
        exit(1);
    }
    evq_reply_free(parts);
}

/* Whether it is to be completed. */
static bool handle(struct work *work, struct evq_claim *claim)
{
    const uint64_t dice = load_random(work->load) % 1000;

    if (claim->job == NULL) {
        (void)fprintf(stderr, "fault_load: %s: %s\n", claim->id, claim->record_error);
        exit(1);
    }
    if (dice < 15) {
        fail_or_release(work, claim, EVQ_FAIL_RETRY, NULL);
    } else if (dice < 18) {
        fail_or_release(work, claim, EVQ_FAIL_CRASH, "crash");
    } else if (dice < 20) {
        fail_or_release(work, claim, EVQ_FAIL_FATAL, "fatal");
    } else if (dice < 22) {
        fail_or_release(work, claim, EVQ_FAIL_VANISHED, "vanished");
    } else if (claim->shard >= 0 ||
               (strcmp(claim->job->suite, LOAD_SHARDED) == 0 && !claim->merge)) {
        split_or_part(work, claim);
    } else {
        if (claim->merge) {
            merge(work, claim);
        }
        return publish(work, claim);
    }
    return false;
}

static void complete_one(struct work *work, struct evq_claim *claim)
{
    struct load *load = work->load;
    struct evq_error err;
    enum evq_status status = EVQ_OK;

    do {
        const uint64_t call = history_call(&load->history);
        asked(work, call, "complete", claim, NULL);
        history_flush(&load->history);
        status = evq_queue_complete(load->queue, claim->id, claim->token, &err);
        told(work, call, "complete", claim, status, NULL);
    } while (load_again(load, status, &err, "complete"));
}

static void complete_many(struct work *work, struct evq_claim **claims, uint32_t count)
{
    struct load *load = work->load;
    struct evq_completion completions[CLAIMS_MAX];
    struct evq_error err;
    enum evq_status status = EVQ_OK;

    do {
        const uint64_t call = history_call(&load->history);
        for (uint32_t i = 0; i < count; i++) {
            completions[i] =
                (struct evq_completion){.id = claims[i]->id, .token = claims[i]->token};
            asked(work, call, "complete_many", claims[i], NULL);
        }
        history_flush(&load->history);
        status = evq_queue_complete_many(load->queue, completions, count, &err);
        for (uint32_t i = 0; i < count; i++) {
            told(work, call, "complete_many", claims[i],
                 status == EVQ_OK ? completions[i].status : status, NULL);
        }
    } while (load_again(load, status, &err, "complete_many"));
}

/* Completes one and claims the next in one call; what it gets is given back at once. */
static void complete_and_claim(struct work *work, struct evq_claim *claim)
{
    struct load *load = work->load;
    struct evq_claim *next[CLAIMS_MAX] = {NULL};
    struct evq_claimed claimed = {.count = 0};
    struct evq_error err;
    char text[32];
    char attempt[16];
    enum evq_status own = EVQ_OK;
    enum evq_status status = EVQ_OK;
    struct evq_claim_request request = request_of(work, text);

    request.claims_max = 1;
    do {
        const uint64_t call = history_call(&load->history);
        asked(work, call, "complete_claim", claim, NULL);
        history_flush(&load->history);
        status = evq_queue_complete_and_claim(load->queue, claim->id, claim->token, &request, &own,
                                              next, &claimed, &err);
        told(work, call, "complete_claim", claim, status == EVQ_OK ? own : status, NULL);
    } while (load_again(load, status, &err, "complete_claim"));
    for (uint32_t i = 0; i < claimed.count; i++) {
        (void)snprintf(attempt, sizeof attempt, "%d", next[i]->attempt);
        told(work, history_call(&load->history), "claim", next[i], EVQ_OK, attempt);
        if (handle(work, next[i])) {
            complete_one(work, next[i]);
        }
        evq_claim_free(next[i]);
    }
}

static void complete(struct work *work, struct evq_claim **claims, uint32_t count)
{
    const uint64_t how = load_random(work->load) % 8;

    if (how == 0 || count == 1) {
        for (uint32_t i = 0; i < count; i++) {
            complete_one(work, claims[i]);
        }
    } else if (how == 1) {
        for (uint32_t i = 0; i < count; i++) {
            complete_and_claim(work, claims[i]);
        }
    } else if (count > 0) {
        complete_many(work, claims, count);
    }
}

static void wait_for_more(struct work *work)
{
    char keys[2][EVQ_KEYS_BYTES_MAX];
    const char *const words[] = {"BZPOPMIN", keys[0], keys[1], "0.3"};
    struct evq_conn *conn = work->load->conn;
    struct evq_error err;
    struct evq_reply *reply = NULL;

    for (size_t i = 0; i < 2; i++) {
        evq_keys_wake(evq_queue_prefix(work->load->queue), work->classes[i], keys[i]);
    }
    const enum evq_status status =
        evq_conn_call(conn, 4, words, NULL, evq_conn_deadline_ms(conn, 300), &reply, &err);
    evq_reply_free(reply);
    (void)load_again(work->load, status, &err, "wait"); // Whatever it says, a claim follows.
}

int load_work(struct load *load, uint32_t lease_ms)
{
    struct work work = {.load = load, .lease_ms = lease_ms};
    struct evq_error err;
    enum evq_status status = EVQ_OK;

    (void)snprintf(work.worker, sizeof work.worker, "%s.%ld", load->name, (long)getpid());
    register_suites(&work);
    while (!load_stop) {
        struct evq_claim *finished[CLAIMS_MAX];
        uint32_t finished_count = 0;
        claim(&work);
        if (work.claim_count > 0 && load_chance(load, 100)) {
            beat(&work);
        }
        for (uint32_t i = 0; i < work.claim_count; i++) {
            if (handle(&work, work.claims[i])) {
                finished[finished_count++] = work.claims[i];
            }
        }
        complete(&work, finished, finished_count);
        for (uint32_t i = 0; i < work.claim_count; i++) {
            evq_claim_free(work.claims[i]);
        }
        if (work.claim_count == 0) {
            wait_for_more(&work);
        }
    }
    do {
        status = evq_queue_worker_leave(load->queue, work.worker, &err);
    } while (load_again(load, status, &err, "leave"));
    return 0;
}
