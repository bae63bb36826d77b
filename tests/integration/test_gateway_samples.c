/*
 * Samples over HTTP: items, differences and comparisons of checkpoints, and which steps of a run
 * differ significantly. Names of a request never lead out of the directory of the samples.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/samples/samples_writer.h"
#include "tests/fixture/http.h"

#define BIN     EVQ_TEST_BIN "/evalq-gateway"
#define DIGEST  "00112233445566778899aabbccddeeff"
#define OTHER   "ffeeddccbbaa99887766554433221100"
#define HOSTILE "<img src=x onerror=alert(1)> \x1b[31mred\x1b[0m \x07\xe2\x80\xae\xc2\x9b end"

static int setup(void **state)
{
    *state = fixture_gateway_open(BIN, "--tokens", "tokens", "--rate", "0", "--threads", "1", NULL);
    return 0;
}

static int teardown(void **state)
{
    fixture_gateway_close(*state);
    return 0;
}

static json_t *get(const struct fixture_gateway *gateway, int code, const char *target)
{
    return fixture_http_json(gateway, code, "GET", target, FIXTURE_TOKEN_READ, NULL);
}

/* The value at a path such as "items.0.id". */
static const json_t *at(const json_t *json, const char *path)
{
    char word[64];
    while (json != NULL && *path != '\0') {
        const size_t bytes = strcspn(path, ".");
        (void)snprintf(word, sizeof word, "%.*s", (int)bytes, path);
        json = json_is_array(json) ? json_array_get(json, (size_t)atoi(word))
                                   : json_object_get(json, word);
        path += bytes + (path[bytes] == '.');
    }
    return json;
}

static const char *text(const json_t *json, const char *path)
{
    const char *value = json_string_value(at(json, path));
    return value != NULL ? value : "";
}

static int integer(const json_t *json, const char *path)
{
    const json_t *value = at(json, path);
    assert_true(json_is_integer(value));
    return (int)json_integer_value(value);
}

static double number(const json_t *json, const char *path)
{
    const json_t *value = at(json, path);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void expect_error(const struct fixture_gateway *gateway, int code, const char *target,
                         const char *sentence)
{
    json_t *answer = get(gateway, code, target);
    assert_holds(text(answer, "detail"), sentence);
    json_decref(answer);
}

struct quiz {              // A samples file of items q0, q1, ...
    const char *directory; // Below the gateway's; NULL: that of the samples.
    const char *job;
    const char *task;         // NULL: quiz.
    const char *suite_digest; // NULL: DIGEST.
    int items;
    int right; // The first ones are right.
    int moved; // So many of the first are wrong, and as many after `right` are right.
    const char *output;
};

static void write_quiz(const struct fixture_gateway *gateway, const struct quiz *quiz)
{
    char directory[256];
    char digest[33];
    int64_t bytes = 0;
    struct evq_samples_writer *writer = NULL;
    struct evq_samples_header header = {.suite_digest = DIGEST};

    (void)snprintf(directory, sizeof directory, "%s/%s", gateway->dir,
                   quiz->directory != NULL ? quiz->directory : "evalq-samples");
    (void)snprintf(header.job, sizeof header.job, "%s", quiz->job);
    (void)snprintf(header.task, sizeof header.task, "%s", quiz->task != NULL ? quiz->task : "quiz");
    (void)snprintf(header.suite_digest, sizeof header.suite_digest, "%s",
                   quiz->suite_digest != NULL ? quiz->suite_digest : DIGEST);
    assert_status(evq_samples_writer_open(directory, &header, &writer, NULL), EVQ_OK);
    for (int i = 0; i < quiz->items; i++) {
        char id[16];
        const bool is_right = i >= quiz->moved && i < quiz->right + quiz->moved;
        const struct evq_sample sample = {
            .id = id,
            .scores = {{"acc", is_right}, {"chars", i + (double)quiz->right / 100}},
            .score_count = 2,
            .output = quiz->output != NULL ? quiz->output
                      : is_right           ? "yes"
                                           : "no",
            .target = "yes",
            .logprob = (double)NAN,
            .tokens = -1};
        (void)snprintf(id, sizeof id, "q%d", i);
        assert_status(evq_samples_writer_add(writer, &sample, NULL), EVQ_OK);
    }
    assert_status(evq_samples_writer_finish(writer, digest, &bytes, NULL), EVQ_OK);
}

static void items_are_filtered_and_come_in_pages(void **state)
{
    struct fixture_gateway *gateway = *state;
    const struct quiz quiz = {.job = "a/5/regular/s", .items = 100, .right = 70};
    char target[256] = "/v1/samples/a/5/items?show=wrong&limit=8";
    int seen = 0;

    write_quiz(gateway, &quiz);
    json_t *tasks = get(gateway, 200, "/v1/samples/a/5");
    assert_string_equal(text(tasks, "tasks.0.suite"), "s");
    assert_string_equal(text(tasks, "tasks.0.job"), "a/5/regular/s");
    assert_true(integer(tasks, "tasks.0.bytes") > 100);
    json_decref(tasks);
    for (int i = 0; i < 10; i++) {
        json_t *page = get(gateway, 200, target);
        const json_t *next = at(page, "next");
        char id[16];
        (void)snprintf(id, sizeof id, "q%d", 70 + seen);
        assert_string_equal(text(page, "samples.0.id"), id); // No page repeats or skips an item.
        assert_int_equal(integer(page, "matched"), 30);
        assert_int_equal(integer(page, "items"), 100);
        assert_int_equal(integer(page, "right"), 70);
        assert_int_equal(integer(page, "wrong"), 30);
        assert_string_equal(text(page, "metric"), "acc");
        seen += (int)json_array_size(at(page, "samples"));
        (void)snprintf(target, sizeof target,
                       "/v1/samples/a/5/items?show=wrong&limit=8&offset=%lld",
                       (long long)json_integer_value(next));
        const bool ends = json_is_null(next);
        json_decref(page);
        if (ends) {
            break;
        }
    }
    assert_int_equal(seen, 30);
    json_t *page = get(gateway, 200, "/v1/samples/a/5/items?show=right&grep=q69");
    assert_int_equal(integer(page, "matched"), 1);
    assert_string_equal(text(page, "samples.0.output"), "yes");
    assert_near(number(page, "samples.0.scores.chars"), 69.7, 1e-12);
    assert_true(json_is_null(at(page, "samples.0.logprob")));
    json_decref(page);
    page = get(gateway, 200, "/v1/samples/a/5/items?grep=q77");
    assert_int_equal(integer(page, "matched"), 1);
    json_decref(page);
    page = get(gateway, 200, "/v1/samples/a/5/items?metric=chars&limit=1");
    assert_true(json_is_null(at(page, "right"))); // Its scores are neither right nor wrong.
    json_decref(page);
    page = get(gateway, 200, "/v1/samples/a/5/items?offset=1000");
    assert_int_equal(json_array_size(at(page, "samples")), 0);
    assert_true(json_is_null(at(page, "next")));
    json_decref(page);
}

/* The length of the reply to a GET, from the reply to a HEAD. */
static long length_of(const struct fixture_gateway *gateway, const char *target)
{
    static const char form[] = "HEAD %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                               "Authorization: Bearer " FIXTURE_TOKEN_READ "\r\n\r\n";
    char head[2048];
    size_t used = 0;
    const int fd = fixture_http_connect(gateway);
    const int bytes = snprintf(head, sizeof head, form, target);

    fixture_http_send(fd, head, (size_t)bytes);
    for (ssize_t got;
         used + 1 < sizeof head && (got = recv(fd, head + used, sizeof head - 1 - used, 0)) > 0;) {
        used += (size_t)got;
    }
    (void)close(fd);
    head[used] = '\0';
    assert_holds(head, "200 OK");
    const char *length = strstr(head, "Content-Length: ");
    assert_non_null(length);
    return strtol(length + 16, NULL, 10);
}

/* A reply is JSON without control characters, and no reply is longer than its limit. */
static void output_of_a_model_is_escaped_and_cut(void **state)
{
    struct fixture_gateway *gateway = *state;
    static struct fixture_http_reply reply;
    const struct quiz quiz = {.job = "a/1/regular/s", .items = 2, .right = 1, .output = HOSTILE};
    const struct quiz euros = {
        .job = "a/2/regular/s", .items = 1, .output = "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"};
    char *large = malloc((1 << 20) + 1);

    write_quiz(gateway, &quiz);
    fixture_http(gateway, "GET", "/v1/samples/a/1/items", FIXTURE_TOKEN_READ, NULL, &reply);
    assert_int_equal(reply.code, 200);
    for (size_t i = 0; i < reply.body_bytes; i++) {
        const unsigned char c = (unsigned char)reply.body[i];
        assert_true((c >= 0x20 && c != 0x7f) || c == '\n');
    }
    assert_holds(reply.head, "Content-Type: application/json");
    assert_holds(reply.head, "nosniff");
    json_t *page = get(gateway, 200, "/v1/samples/a/1/items");
    assert_string_equal(text(page, "samples.0.output"), HOSTILE);
    json_decref(page);
    write_quiz(gateway, &euros); // No character is cut in two.
    page = get(gateway, 200, "/v1/samples/a/2/items?text_bytes=4");
    assert_string_equal(text(page, "samples.0.output"), "\xe2\x82\xac");
    assert_int_equal(integer(page, "samples.0.output_bytes"), 9);
    json_decref(page);
    assert_non_null(large);
    memset(large, 'x', 1 << 20);
    large[1 << 20] = '\0';
    const struct quiz many = {.job = "a/3/regular/s", .items = 20, .output = large};
    write_quiz(gateway, &many);
    page = get(gateway, 200, "/v1/samples/a/3/items"); // Texts are cut.
    assert_int_equal(json_array_size(at(page, "samples")), 20);
    assert_int_equal(strlen(text(page, "samples.19.output")), 4096);
    assert_int_equal(integer(page, "samples.19.output_bytes"), 1 << 20);
    json_decref(page);
    // A page ends once it has 4 MiB.
    assert_true(length_of(gateway, "/v1/samples/a/3/items?text_bytes=8388608") < (6 << 20));
    free(large);
}

static void diff_lists_the_items_that_changed(void **state)
{
    struct fixture_gateway *gateway = *state;
    const struct quiz before = {.job = "a/1/regular/s", .items = 100, .right = 50};
    const struct quiz after = {.job = "a/2/regular/s", .items = 100, .right = 60, .moved = 3};
    static const struct {
        const char *show;
        int matched;
        const char *first;
    } cases[] = {
        {"changed", 16, "q0"}, {"better", 13, "q50"}, {"worse", 3, "q0"}, {"all", 100, "q0"}};
    char target[128];

    write_quiz(gateway, &before);
    write_quiz(gateway, &after);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)snprintf(target, sizeof target, "/v1/diff?a=a@1&b=a@2&show=%s", cases[i].show);
        json_t *diff = get(gateway, 200, target);
        assert_int_equal(integer(diff, "matched"), cases[i].matched);
        assert_string_equal(text(diff, "items.0.id"), cases[i].first);
        assert_int_equal(integer(diff, "better"), 13);
        assert_int_equal(integer(diff, "worse"), 3);
        assert_int_equal(integer(diff, "common"), 100);
        json_decref(diff);
    }
    json_t *diff = get(gateway, 200, "/v1/diff?a=a@1&b=a@2&limit=10&offset=10");
    assert_int_equal(json_array_size(at(diff, "items")), 6);
    assert_string_equal(text(diff, "items.5.id"), "q62");
    assert_string_equal(text(diff, "items.5.output_a"), "no");
    assert_string_equal(text(diff, "items.5.output_b"), "yes");
    assert_true(json_is_true(at(diff, "items.5.better")));
    assert_true(json_is_null(at(diff, "next")));
    json_decref(diff);
    diff = get(gateway, 200, "/v1/diff?a=a@1&b=a@2&metric=chars&grep=q99");
    assert_near(number(diff, "items.0.b") - number(diff, "items.0.a"), 0.1, 1e-9);
    json_decref(diff);
}

/* Every number is the one that `evalq compare --json` prints. */
static void compare_equals_the_command_line(void **state)
{
    struct fixture_gateway *gateway = *state;
    const struct quiz before = {.job = "a/1/regular/s", .items = 100, .right = 50};
    const struct quiz after = {.job = "b/2/regular/s", .items = 120, .right = 60, .moved = 3};
    static struct fixture_output output;
    json_error_t fault;
    const struct fixture_program program = {.path = EVQ_TEST_BIN "/evalq", .dir = gateway->dir};

    write_quiz(gateway, &before);
    write_quiz(gateway, &after);
    json_t *answer = get(gateway, 200, "/v1/compare?a=a@1&b=b@2");
    fixture_program_run(&program, &output, "compare", "a@1", "b@2", "--json", (char *)NULL);
    assert_int_equal(output.exit_code, 0);
    json_t *printed = json_loads(output.out, 0, &fault);
    assert_non_null(printed);
    assert_true(json_equal(answer, printed));
    assert_int_equal(json_array_size(at(answer, "metrics")), 2);
    assert_int_equal(integer(answer, "metrics.0.only_candidate"), 20);
    json_decref(answer);
    json_decref(printed);
}

/* Outside the directory lies a valid samples file, which no request may show. */
static void names_cannot_leave_the_directory(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const char *const targets[] = {
        "/v1/samples/..%2Fsecret/1",
        "/v1/samples/..%2Fsecret/1/items",
        "/v1/samples/%2E%2E/1/items",
        "/v1/samples/a/..%2F..%2Fsecret/items",
        "/v1/samples/a/1%2F..%2F1/items",
        "/v1/samples/a/1/items?variant=..",
        "/v1/samples/a/1/items?variant=..%2F..%2F..%2Fsecret%2F1%2Fregular",
        "/v1/samples/a/1/items?suite=..%2F..%2F..%2F..%2Fsecret%2F1%2Fregular%2Fs",
        "/v1/samples/a/1/items?task=..%2Fs%2Fquiz",
        "/v1/samples/a/1/items?task=%2Fetc%2Fpasswd",
        "/v1/samples/a/1?task=.",
        "/v1/diff?a=..%2Fsecret@1&b=a@1",
        "/v1/diff?a=a@1&b=..@1",
        "/v1/compare?a=a@1&b=%2Fetc@1",
        "/v1/compare?a=a@1%2F..%2F1&b=a@1",
        "/v1/compare?a=a@1&b=a@1&task=..",
        "/v1/runs/..%2Fsecret/significance?metric=acc",
        "/v1/runs/a/significance?metric=acc&variant=..%2F..%2F..%2Fsecret%2F1%2Fregular",
    };
    const struct quiz secret = {.directory = "", .job = "secret/1/regular/s", .items = 1};
    const struct quiz quiz = {.job = "a/1/regular/s", .items = 1};
    char from[256];
    char to[256];

    write_quiz(gateway, &secret);
    write_quiz(gateway, &quiz);
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        json_t *answer = get(gateway, 400, targets[i]);
        assert_true(text(answer, "detail")[0] != '\0');
        json_decref(answer);
    }
    (void)snprintf(from, sizeof from, "%s/secret/1/regular/s/quiz.jsonl.gz", gateway->dir);
    (void)snprintf(to, sizeof to, "%s/evalq-samples/a/1/regular/s/link.jsonl.gz", gateway->dir);
    assert_int_equal(symlink(from, to), 0);
    json_decref(get(gateway, 500, "/v1/samples/a/1/items?task=link")); // No link is followed.
    expect_error(gateway, 400, "/v1/samples/a/1/items", "choose a task and a suite");
}

static void bad_requests_get_one_sentence(void **state)
{
    struct fixture_gateway *gateway = *state;
    char from[256];
    char to[256];
    const struct quiz first = {.job = "a/1/regular/s", .items = 10, .right = 5};
    const struct quiz other = {
        .job = "a/2/regular/s", .items = 10, .right = 5, .suite_digest = OTHER};
    const struct quiz third = {.job = "a/3/regular/t", .items = 10, .task = "riddles"};
    static const struct {
        int code;
        const char *target;
        const char *sentence;
    } cases[] = {
        {404, "/v1/samples/a/9", "a@9 has no samples"},
        {404, "/v1/samples/a/1/items?task=none", "a@1 has no samples of task none"},
        {404, "/v1/samples/a/1/items?metric=none", "item 'q0' has no score 'none'"},
        {400, "/v1/samples/a/x/items", "'a@x' is no checkpoint, expected RUN@STEP"},
        {400, "/v1/samples/a/1/items?show=maybe", "expected all, wrong or right"},
        {400, "/v1/samples/a/1/items?show=wrong&metric=chars", "neither right nor wrong"},
        {400, "/v1/samples/a/1/items?limit=0", "limit is '0', expected a whole number of 1 to"},
        {400, "/v1/samples/a/1/items?limit=501", "limit is '501'"},
        {400, "/v1/samples/a/1/items?offset=-1", "offset is '-1'"},
        {400, "/v1/samples/a/1/items?text_bytes=9999999999", "text_bytes is '9999999999'"},
        {400, "/v1/diff?a=a@1", "b is missing, expected a checkpoint RUN@STEP"},
        {400, "/v1/diff?a=a@1&b=a", "'a' is no checkpoint"},
        {400, "/v1/diff?a=a@1&b=a@1&show=flipped", "expected changed, better, worse or all"},
        {404, "/v1/diff?a=a@1&b=a@1&metric=none", "has no score 'none'"},
        {409, "/v1/diff?a=a@1&b=a@2", "different definitions of the suite"},
        {409, "/v1/compare?a=a@1&b=a@2", "different definitions of the suite"},
        {404, "/v1/compare?a=a@1&b=a@3", "no samples of the same suite and task"},
        {400, "/v1/runs/a/significance", "metric is missing"},
        {400, "/v1/runs/a/significance?metric=acc&work_ms=x", "work_ms is 'x'"},
        {404, "/v1/runs/b/significance?metric=acc", "run 'b' has no samples of this task"},
        {404, "/v1/runs/a/significance?metric=none&suite=s", "has no score 'none'"},
    };

    write_quiz(gateway, &first);
    write_quiz(gateway, &other);
    write_quiz(gateway, &third);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_error(gateway, cases[i].code, cases[i].target, cases[i].sentence);
    }
    json_decref(fixture_http_json(gateway, 401, "GET", "/v1/samples/a/1", NULL, NULL));
    json_decref(
        fixture_http_json(gateway, 403, "GET", "/v1/diff?a=a@1&b=a@2", FIXTURE_TOKEN_LMMS, NULL));
    (void)snprintf(from, sizeof from, "%s/evalq-samples/a/1/regular/s/quiz.jsonl.gz", gateway->dir);
    (void)snprintf(to, sizeof to, "%s/evalq-samples/a/2/regular/s/quiz.jsonl.gz", gateway->dir);
    assert_int_equal(rename(from, to), 0);
    expect_error(gateway, 400, "/v1/samples/a/2/items", "it was copied or renamed");
    expect_error(gateway, 400, "/v1/diff?a=a@2&b=a@2", "it was copied or renamed");
    expect_error(gateway, 404, "/v1/runs/a/significance?metric=acc&suite=s", "copied or renamed");
    fixture_file_write(gateway->dir, "evalq-samples/a/1/regular/s/quiz.jsonl.gz", "{\"evalq");
    expect_error(gateway, 400, "/v1/samples/a/1/items", "not JSON");
    expect_error(gateway, 400, "/v1/diff?a=a@1&b=a@1", "not JSON");
}

/* A file of more than 128 MiB is refused after so many bytes. */
static void long_files_are_refused(void **state)
{
    struct fixture_gateway *gateway = *state;
    char *large = malloc((4 << 20) + 1);

    assert_non_null(large);
    memset(large, 'x', 4 << 20);
    large[4 << 20] = '\0';
    const struct quiz quiz = {.job = "a/1/regular/s", .items = 33, .output = large};
    write_quiz(gateway, &quiz);
    free(large);
    expect_error(gateway, 413, "/v1/samples/a/1/items", "more than 128 MiB of samples");
    expect_error(gateway, 413, "/v1/diff?a=a@1&b=a@1", "more than 128 MiB of samples");
}

/* Samples have threads of their own: they come while every other thread waits for Redis. */
static void samples_do_not_wait_for_redis(void **state)
{
    struct fixture_gateway *gateway = *state;
    const struct quiz quiz = {.job = "a/1/regular/s", .items = 10, .right = 5};
    static struct fixture_http_reply reply;
    const char *request =
        "GET /v1/queue HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " FIXTURE_TOKEN_READ
        "\r\nConnection: close\r\n\r\n";

    write_quiz(gateway, &quiz);
    fixture_redis_suspend(gateway->fx->redis);
    const int fd = fixture_http_connect(gateway);
    fixture_http_send(fd, request, strlen(request));
    json_decref(get(gateway, 200, "/v1/samples/a/1/items"));
    struct pollfd answered = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&answered, 1, 0), 0); // The other request still waits.
    fixture_redis_resume(gateway->fx->redis);
    assert_true(fixture_http_read(fd, &reply));
    assert_int_equal(reply.code, 200);
    (void)close(fd);
}

static void steps_that_differ_from_the_best_are_named(void **state)
{
    struct fixture_gateway *gateway = *state;
    static const int right[] = {100, 185, 200, 198};
    const char *target = "/v1/runs/a/significance?metric=acc&suite=s&task=quiz";
    char job[32];

    for (int i = 0; i < 4; i++) {
        const struct quiz quiz = {.job = job, .items = 300, .right = right[i]};
        (void)snprintf(job, sizeof job, "a/%d/regular/s", i + 1);
        write_quiz(gateway, &quiz);
    }
    json_t *curve = get(gateway, 200, target);
    assert_true(json_is_true(at(curve, "complete")));
    assert_int_equal(integer(curve, "best_step"), 3);
    assert_int_equal(json_array_size(at(curve, "steps")), 4);
    assert_near(number(curve, "steps.0.mean"), 100.0 / 300.0, 1e-12);
    assert_near(number(curve, "steps.0.low"), 0.28242, 1e-4); // Wilson's interval of 100 of 300.
    assert_near(number(curve, "steps.0.high"), 0.38853, 1e-4);
    assert_true(json_is_true(at(curve, "steps.0.differs")));
    assert_near(number(curve, "steps.0.difference"), -100.0 / 300.0, 1e-12);
    assert_true(json_is_true(at(curve, "steps.1.differs"))); // 15 to 0: p = 6.1e-5.
    assert_near(number(curve, "steps.1.p_corrected"), 2 * ldexp(1, -14), 1e-9);
    assert_true(json_is_null(at(curve, "steps.2.differs"))); // The best is not compared.
    assert_true(json_is_false(at(curve, "steps.3.differs")));
    json_decref(curve);
    const struct quiz better = {.job = "a/4/regular/s", .items = 300, .right = 250};
    write_quiz(gateway, &better); // A file that was replaced is read again.
    const struct quiz foreign = {
        .job = "a/5/regular/s", .items = 300, .right = 10, .suite_digest = OTHER};
    write_quiz(gateway, &foreign);
    curve = get(gateway, 200, target);
    assert_int_equal(integer(curve, "best_step"), 4);
    assert_true(json_is_true(at(curve, "steps.2.differs")));
    assert_true(json_is_null(at(curve, "steps.4.differs")));
    assert_holds(text(curve, "steps.4.error"), "different definitions of the suite");
    json_decref(curve);
}

/* Each request reads at least one file, and the next one goes on where it ended. */
static void significance_goes_on_where_it_ended(void **state)
{
    struct fixture_gateway *gateway = *state;
    const char *target = "/v1/runs/a/significance?metric=chars&work_ms=0";
    bool complete = false;
    int requests = 0;
    char job[32];

    for (int i = 0; i < 4; i++) {
        const struct quiz quiz = {.job = job, .items = 50, .right = i};
        (void)snprintf(job, sizeof job, "a/%d/regular/s", i + 1);
        write_quiz(gateway, &quiz);
    }
    for (; !complete && requests < 100; requests++) {
        json_t *curve = get(gateway, 200, target);
        complete = json_is_true(at(curve, "complete"));
        assert_true(complete || json_is_null(at(curve, "best_step")));
        json_decref(curve);
    }
    // Four means and three comparisons. The last comparison is complete, so 7 requests are enough.
    assert_true(requests > 1 && requests <= 7);
    json_t *curve = get(gateway, 200, target); // Everything is remembered.
    assert_true(json_is_true(at(curve, "complete")));
    assert_int_equal(integer(curve, "best_step"), 4);
    json_decref(curve);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(items_are_filtered_and_come_in_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(output_of_a_model_is_escaped_and_cut, setup, teardown),
        cmocka_unit_test_setup_teardown(diff_lists_the_items_that_changed, setup, teardown),
        cmocka_unit_test_setup_teardown(compare_equals_the_command_line, setup, teardown),
        cmocka_unit_test_setup_teardown(names_cannot_leave_the_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(bad_requests_get_one_sentence, setup, teardown),
        cmocka_unit_test_setup_teardown(long_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(samples_do_not_wait_for_redis, setup, teardown),
        cmocka_unit_test_setup_teardown(steps_that_differ_from_the_best_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(significance_goes_on_where_it_ended, setup, teardown),
    };
    return cmocka_run_group_tests_name("gateway_samples", tests, NULL, NULL);
}
