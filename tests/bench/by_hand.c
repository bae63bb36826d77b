#include "tests/bench/by_hand.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hiredis/hiredis.h>

enum { BATCH_MAX = 100, SLOTS = 16, WORDS_MAX = 8 + 13 * BATCH_MAX, NUMBER_BYTES = 24 };

struct by_hand {
    redisContext *redis;
    const char *prefix, *worker;
    uint64_t request; // Counts claims.
    int count;
    const char *words[WORDS_MAX];
    size_t bytes[WORDS_MAX];
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "by_hand: %s\n", what);
    exit(1);
}

struct by_hand *by_hand_open(const char *socket, const char *prefix, const char *worker)
{
    struct by_hand *hand = calloc(1, sizeof(*hand));

    if (hand == NULL) {
        fail("out of memory");
        return NULL; // Not reached.
    }
    *hand = (struct by_hand){.redis = redisConnectUnix(socket), .prefix = prefix, .worker = worker};
    if (hand->redis == NULL || hand->redis->err != 0) {
        fail("no connection to Redis");
    }
    return hand;
}

void by_hand_close(struct by_hand *hand)
{
    redisFree(hand->redis);
    free(hand);
}

static void add_bytes(struct by_hand *hand, const void *data, size_t bytes)
{
    hand->words[hand->count] = data;
    hand->bytes[hand->count++] = bytes;
}

static void add(struct by_hand *hand, const char *text)
{
    add_bytes(hand, text, strlen(text));
}

static void begin(struct by_hand *hand, const char *function)
{
    hand->count = 0;
    add(hand, "FCALL");
    add(hand, function);
    add(hand, "1");
    add(hand, hand->prefix);
}

static void send_words(struct by_hand *hand)
{
    if (redisAppendCommandArgv(hand->redis, hand->count, hand->words, hand->bytes) != REDIS_OK) {
        fail(hand->redis->errstr);
    }
}

static redisReply *read_reply(struct by_hand *hand)
{
    void *reply = NULL;

    if (redisGetReply(hand->redis, &reply) != REDIS_OK) {
        fail(hand->redis->errstr);
    }
    if (((redisReply *)reply)->type == REDIS_REPLY_ERROR) {
        fail(((redisReply *)reply)->str);
    }
    return reply;
}

void by_hand_read(struct by_hand *hand, int replies)
{
    for (int i = 0; i < replies; i++) {
        freeReplyObject(read_reply(hand));
    }
}

/* step: 24 bytes that live as long as the words. */
static void add_job(struct by_hand *hand, const struct evq_job *job,
                    const struct evq_buffer *record, char *step)
{
    (void)snprintf(step, NUMBER_BYTES, "%" PRId64, job->step);
    add(hand, job->run);
    add(hand, "1"); // Session.
    add(hand, step);
    add(hand, job->variant);
    add(hand, job->suite);
    add(hand, "all"); // Policy.
    add(hand, "2");   // Band.
    add(hand, "0");   // Keep.
    add(hand, job->fingerprint);
    add(hand, "0"); // No needs are given.
    add(hand, "");
    add(hand, "0"); // Delay, ms.
    add_bytes(hand, record->data, record->bytes);
}

void by_hand_submit(struct by_hand *hand, const struct evq_job *job,
                    const struct evq_buffer *record)
{
    char step[NUMBER_BYTES];

    begin(hand, "evalq_v1_submit");
    add_job(hand, job, record, step);
    send_words(hand);
}

void by_hand_submit_batch(struct by_hand *hand, struct evq_job *const *jobs,
                          const struct evq_buffer *records, int count)
{
    static char steps[BATCH_MAX][NUMBER_BYTES];
    char n[NUMBER_BYTES];

    (void)snprintf(n, sizeof(n), "%d", count);
    begin(hand, "evalq_v1_submit_batch");
    add(hand, n);
    for (int i = 0; i < count; i++) {
        add_job(hand, jobs[i], &records[i], steps[i]);
    }
    send_words(hand);
}

void by_hand_complete(struct by_hand *hand, const char *id, const char *token)
{
    begin(hand, "evalq_v1_complete");
    add(hand, id);
    add(hand, token);
    add(hand, ""); // Part.
    send_words(hand);
}

static void send_claim(struct by_hand *hand, const char *class_text)
{
    char request[NUMBER_BYTES];

    (void)snprintf(request, sizeof(request), "h%" PRIu64, hand->request++);
    begin(hand, "evalq_v1_claim");
    add(hand, hand->worker);
    add(hand, request);
    add(hand, "30000"); // Lease, ms.
    add(hand, "16");
    add(hand, "1");
    add(hand, class_text);
    send_words(hand);
}

/* jobs: a claim's reply, whose rows begin with id and token. */
static void send_completes(struct by_hand *hand, const redisReply *jobs, size_t first)
{
    char n[NUMBER_BYTES];

    (void)snprintf(n, sizeof(n), "%zu", jobs->elements - first);
    begin(hand, "evalq_v1_complete_many");
    add(hand, n);
    for (size_t i = first; i < jobs->elements; i++) {
        const redisReply *row = jobs->element[i];
        if (row->type != REDIS_REPLY_ARRAY || row->elements < 2) {
            fail("a claim without id and token");
        }
        add_bytes(hand, row->element[0]->str, row->element[0]->len);
        add_bytes(hand, row->element[1]->str, row->element[1]->len);
        add(hand, ""); // Part.
    }
    send_words(hand);
}

int by_hand_drain(struct by_hand *hand, uint32_t class_number)
{
    enum { FIRST = 4 }; // Behind the head of claim's reply.
    char class_text[NUMBER_BYTES];
    int all = 0;

    (void)snprintf(class_text, sizeof(class_text), "%" PRIu32, class_number);
    send_claim(hand, class_text);
    redisReply *jobs = read_reply(hand);
    while (jobs->elements > FIRST) {
        send_completes(hand, jobs, FIRST);
        send_claim(hand, class_text);
        redisReply *words = read_reply(hand);
        for (size_t i = 0; i < words->elements; i++) {
            if (strcmp(words->element[i]->str, "done") != 0) {
                fail("a job that was claimed was not completed");
            }
        }
        all += (int)words->elements;
        freeReplyObject(words);
        freeReplyObject(jobs);
        jobs = read_reply(hand);
    }
    freeReplyObject(jobs);
    return all;
}
