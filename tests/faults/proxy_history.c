#include "tests/faults/proxy_history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS_MAX = 8192, ITEMS_MAX = 600, FIRST = 4 /* FCALL name 1 prefix */, SUBMIT_WORDS = 13 };

struct proxy_history {
    FILE *file;
    char name[32];
    struct proxy_word words[WORDS_MAX]; // Of one request.
    struct proxy_word items[ITEMS_MAX]; // Of one reply.
};

struct call { // What every line of one call begins with.
    struct proxy_history *history;
    uint64_t link;
    uint64_t number;
    const char *op;
};

/* How a verb names its jobs: in words from FIRST on. */
struct shape {
    const char *verb;
    int id;     // Place of the job's id; -1: none.
    int token;  // Place of the token; -1: none.
    int detail; // Place of what is worth keeping; -1: none.
    int stride; // 0: one job; else the count stands first, then so many words a job.
};

static const struct shape shapes[] = {
    {"submit", -1, -1, -1, 0},      {"submit_batch", -1, -1, -1, SUBMIT_WORDS},
    {"claim", -1, -1, -1, 0},       {"heartbeat", 4, 5, -1, 5},
    {"publish", 0, 1, 2, 0},        {"complete", 0, 1, -1, 0},
    {"complete_many", 1, 2, -1, 3}, {"complete_claim", 0, 1, -1, 0},
    {"fail", 0, 1, 2, 0},           {"release", 0, 1, -1, 0},
    {"split", 0, 1, -1, 0},         {"adopt", 2, 3, -1, 0},
    {"cancel", 0, -1, -1, 0},       {"retry", 0, -1, -1, 0},
};

static const struct shape *shape_of(const char *verb)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (strcmp(shapes[i].verb, verb) == 0) {
            return &shapes[i];
        }
    }
    return NULL;
}

struct proxy_history *proxy_history_open(const char *path, const char *name)
{
    struct proxy_history *history = calloc(1, sizeof *history);

    if (history != NULL) {
        history->file = fopen(path, "ae");
        (void)snprintf(history->name, sizeof history->name, "%s", name);
    }
    if (history == NULL || history->file == NULL) {
        (void)fprintf(stderr, "fault_proxy: the history '%s' cannot be opened\n", path);
        free(history);
        return NULL;
    }
    return history;
}

void proxy_history_close(struct proxy_history *history)
{
    if (history != NULL) {
        (void)fclose(history->file); // Every line was flushed.
        free(history);
    }
}

bool proxy_history_wants(const struct proxy_history *history, const char *verb)
{
    return history != NULL && shape_of(verb) != NULL;
}

static struct proxy_word literal(const char *text)
{
    return (struct proxy_word){text, strlen(text)};
}

static bool same(struct proxy_word word, const char *text)
{
    return word.bytes == strlen(text) && memcmp(word.at, text, word.bytes) == 0;
}

/* A word of a line: never empty, never with a space or a control byte. */
static void put(FILE *file, struct proxy_word word)
{
    (void)fputc(' ', file);
    if (word.bytes == 0) {
        (void)fputc('-', file);
    }
    for (size_t i = 0; i < word.bytes && i < 200; i++) {
        const unsigned char byte = (unsigned char)word.at[i];
        (void)fputc(byte > ' ' && byte < 0x7f ? byte : '_', file);
    }
}

static void line(const struct call *call, const char *phase, struct proxy_word id,
                 struct proxy_word token, struct proxy_word detail)
{
    struct timespec now;
    FILE *file = call->history->file;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)fprintf(file, "%lld%09ld %s/%llu %llu %s %s", (long long)now.tv_sec, now.tv_nsec,
                  call->history->name, (unsigned long long)call->link,
                  (unsigned long long)call->number, phase, call->op);
    put(file, id);
    put(file, token);
    put(file, detail);
    (void)fputc('\n', file);
}

/* RUN/STEP/VARIANT/SUITE of the arguments of one submit, in text. */
static struct proxy_word submit_id(const struct proxy_word *words, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, "%.*s/%.*s/%.*s/%.*s", (int)words[0].bytes, words[0].at,
                   (int)words[2].bytes, words[2].at, (int)words[3].bytes, words[3].at,
                   (int)words[4].bytes, words[4].at);
    return literal(text);
}

/* How many jobs a request names, and the words of the first. */
static size_t jobs_of(const struct shape *shape, const struct proxy_word *words, size_t count,
                      const struct proxy_word **ret_first)
{
    char number[16];
    const size_t at = strcmp(shape->verb, "heartbeat") == 0 ? FIRST + 3u : FIRST;

    *ret_first = words + FIRST;
    if (shape->stride == 0) {
        const int last = shape->detail > shape->token ? shape->detail : shape->token;
        const size_t words_min = strcmp(shape->verb, "submit") == 0 ? SUBMIT_WORDS
                                 : last > shape->id                 ? (size_t)last + 1
                                                                    : (size_t)(shape->id + 1);
        return count >= FIRST + words_min;
    }
    if (count <= at || words[at].bytes >= sizeof number) {
        return 0;
    }
    memcpy(number, words[at].at, words[at].bytes);
    number[words[at].bytes] = '\0';
    const size_t jobs = (size_t)strtoul(number, NULL, 10);
    return at + 1 + jobs * (size_t)shape->stride <= count ? jobs : 0;
}

static struct proxy_word word_of(const struct shape *shape, const struct proxy_word *first,
                                 size_t job, int place)
{
    return place < 0 ? literal("") : first[job * (size_t)shape->stride + (size_t)place];
}

/* Words of the request in history->words; 0 when there are too many or too few. */
static size_t request_words(struct proxy_history *history, struct proxy_word request)
{
    const size_t count = proxy_resp_words(request.at, request.bytes, history->words, WORDS_MAX);

    return count <= WORDS_MAX ? count : 0;
}

static struct proxy_word asked_id(const struct shape *shape, const struct proxy_word *first,
                                  size_t job, char *text, size_t bytes)
{
    if (strncmp(shape->verb, "submit", 6) == 0) {
        const size_t skip = shape->stride > 0 ? 1 : 0; // The count.
        return submit_id(first + skip + job * SUBMIT_WORDS, text, bytes);
    }
    return word_of(shape, first, job, shape->id);
}

void proxy_history_asked(struct proxy_history *history, uint64_t link, uint64_t call_number,
                         const char *verb, struct proxy_word request)
{
    const struct shape *shape = shape_of(verb);
    const struct call call = {history, link, call_number, verb};
    const struct proxy_word *first = NULL;
    char text[256];

    const size_t count = request_words(history, request);
    const size_t jobs = jobs_of(shape, history->words, count, &first);
    if (strcmp(verb, "claim") == 0) {
        return; // A claim names no job yet.
    }
    for (size_t job = 0; job < jobs; job++) {
        line(&call, "invoke", asked_id(shape, first, job, text, sizeof text),
             word_of(shape, first, job, shape->token), word_of(shape, first, job, shape->detail));
    }
    (void)fflush(history->file);
}

static void claimed(const struct call *call, struct proxy_word reply)
{
    struct proxy_word items[64 + 4];
    struct proxy_word words[4];
    const size_t count = proxy_resp_items(reply.at, reply.bytes, items, 64 + 4);

    for (size_t i = 4; i < count && i < 64 + 4; i++) {
        if (proxy_resp_words(items[i].at, items[i].bytes, words, 4) >= 4) {
            line(call, "ok", words[0], words[1], words[3]);
        }
    }
}

/* The first word of a reply or of one item of it. */
static struct proxy_word first_word(struct proxy_word item)
{
    struct proxy_word word = literal("");

    if (item.bytes > 0 && item.at[0] == '-') {
        return literal("error");
    }
    (void)proxy_resp_words(item.at, item.bytes, &word, 1);
    return word;
}

static const char *phase_of(struct proxy_word word)
{
    const bool error = word.bytes >= 5 && memcmp(word.at, "error", 5) == 0;

    return error || same(word, "stale") || same(word, "refused") || same(word, "not_found") ? "fail"
                                                                                            : "ok";
}

static void answered_one(const struct call *call, const struct shape *shape,
                         const struct proxy_word *first, size_t job, struct proxy_word item)
{
    char text[256];
    char detail[160];
    struct proxy_word parts[2] = {{"", 0}, {"", 0}};
    struct proxy_word id = asked_id(shape, first, job, text, sizeof text);
    const struct proxy_word word = first_word(item);

    if (strncmp(shape->verb, "submit", 6) == 0 && item.bytes > 0 && item.at[0] == '*' &&
        !same(word, "refused")) {
        (void)proxy_resp_words(item.at, item.bytes, parts, 2);
        id = parts[1]; // May end in ~N.
    }
    if (strcmp(shape->verb, "publish") == 0) { // TASK=WORD
        const struct proxy_word task = word_of(shape, first, job, shape->detail);
        (void)snprintf(detail, sizeof detail, "%.*s=%.*s", (int)task.bytes, task.at,
                       (int)word.bytes, word.at);
        line(call, phase_of(word), id, word_of(shape, first, job, shape->token), literal(detail));
        return;
    }
    line(call, phase_of(word), id, word_of(shape, first, job, shape->token), word);
}

/* Items of the reply, one a job. */
static size_t answers_of(struct proxy_history *history, const struct shape *shape,
                         struct proxy_word reply, const struct proxy_word **ret_items)
{
    size_t count = proxy_resp_items(reply.at, reply.bytes, history->items, ITEMS_MAX);

    *ret_items = history->items;
    if (strcmp(shape->verb, "heartbeat") == 0) { // now, classes_version, then the answers.
        *ret_items += 2;
        return count > 2 ? count - 2 : 0;
    }
    return count;
}

void proxy_history_answered(struct proxy_history *history, uint64_t link, uint64_t call_number,
                            const char *verb, struct proxy_word request, struct proxy_word reply)
{
    const struct shape *shape = shape_of(verb);
    struct call call = {history, link, call_number, verb};
    const struct proxy_word *first = NULL;
    const struct proxy_word *items = NULL;
    struct proxy_word halves[2];
    char text[256];

    const size_t jobs = jobs_of(shape, history->words, request_words(history, request), &first);
    if (strcmp(verb, "claim") == 0) {
        claimed(&call, reply);
    } else if (reply.bytes == 0 || reply.at[0] == '-') {
        for (size_t job = 0; job < jobs; job++) {
            line(&call, reply.bytes == 0 ? "unknown" : "fail",
                 asked_id(shape, first, job, text, sizeof text),
                 word_of(shape, first, job, shape->token),
                 literal(reply.bytes == 0 ? "no_reply" : "error"));
        }
    } else if (shape->stride > 0) {
        const size_t answers = answers_of(history, shape, reply, &items);
        for (size_t job = 0; job < jobs && job < answers; job++) {
            answered_one(&call, shape, first, job, items[job]);
        }
    } else if (strcmp(verb, "complete_claim") == 0 &&
               proxy_resp_items(reply.at, reply.bytes, halves, 2) == 2) {
        answered_one(&call, shape, first, 0, halves[0]);
        call.op = "claim";
        claimed(&call, halves[1]);
    } else if (jobs > 0) {
        answered_one(&call, shape, first, 0, reply);
    }
    (void)fflush(history->file);
}
