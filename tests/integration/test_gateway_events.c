/*
 * Tests server-sent events: each listener gets each event exactly once, even across restarts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "producer/gateway/api/events.h"
#include "tests/fixture/http.h"

#define BIN EVQ_TEST_BIN "/evalq-gateway"

/* ---- the ring ---- */

/* Reads all events for the listener in pieces of at most `piece` bytes. */
static const char *pull_all(struct evq_listener *listener, size_t piece)
{
    static char text[65536];
    size_t used = 0;
    ssize_t got = 0;
    while (used + piece < sizeof text &&
           (got = evq_listener_pull(listener, text + used, piece)) > 0) {
        used += (size_t)got;
    }
    assert_int_equal(got, 0);
    text[used] = '\0';
    return text;
}

static int count_of(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)) != NULL; text += strlen(word)) {
        count++;
    }
    return count;
}

static struct evq_events *ring(void)
{
    struct evq_events *events = NULL;
    const struct evq_events_config config = {.config = NULL};
    assert_status(evq_events_start(&config, &events, NULL), EVQ_OK);
    // The ring knows no events yet, so a listener that wants to resume is told to reset.
    struct evq_listener *early = evq_events_listen(events, "1-0", "");
    assert_int_equal(count_of(pull_all(early, 4096), "event: reset"), 1);
    evq_listener_close(early);
    evq_events_floor(events, "0-0");
    return events;
}

static void add_numbered(struct evq_events *events, int from, int to)
{
    for (int i = from; i < to; i++) {
        char id[32];
        char data[64];
        (void)snprintf(id, sizeof id, "100-%d", i);
        (void)snprintf(data, sizeof data, "{\"n\": %d}", i);
        evq_events_add(events, id, "result", i % 2 == 0 ? "even" : "odd", data);
    }
}

static void listener_gets_each_event_once_however_it_pulls(void **state)
{
    (void)state;
    struct evq_events *events = ring();
    add_numbered(events, 1, 3); // This event came before, so a new listener does not get it.
    static const size_t pieces[] = {1, 7, 40, 4096};
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        struct evq_listener *listener = evq_events_listen(events, "", "");
        assert_non_null(listener);
        add_numbered(events, 10 + 10 * (int)p, 15 + 10 * (int)p);
        const char *text = pull_all(listener, pieces[p]);
        assert_int_equal(count_of(text, "event: result\n"), 5);
        assert_int_equal(count_of(text, "retry: "), 1);
        assert_int_equal(count_of(text, "id: 100-"), 5);
        char last[64];
        (void)snprintf(last, sizeof last, "id: 100-%d\nevent: result\ndata: {\"n\": %d}\n\n",
                       14 + 10 * (int)p, 14 + 10 * (int)p);
        assert_string_equal(strstr(text, last), last); // The last event is complete.
        evq_listener_close(listener);
    }
    evq_events_free(events);
}

static void listener_resumes_after_the_id_that_it_saw(void **state)
{
    (void)state;
    struct evq_events *events = ring();
    add_numbered(events, 1, 100);
    evq_events_add(events, "", "queue", "", "{}"); // This event has no id, and keeps its place.
    add_numbered(events, 100, 103);
    for (int seen = 1; seen < 103; seen++) {
        char id[32];
        (void)snprintf(id, sizeof id, "100-%d", seen);
        struct evq_listener *listener = evq_events_listen(events, id, "");
        const char *text = pull_all(listener, 4096);
        assert_int_equal(count_of(text, "event: result"), 102 - seen);
        assert_int_equal(count_of(text, "event: queue"), seen < 100 ? 1 : 0);
        assert_int_equal(count_of(text, "event: reset"), 0);
        evq_listener_close(listener);
    }
    struct evq_listener *odd = evq_events_listen(events, "100-0", "odd");
    assert_int_equal(count_of(pull_all(odd, 4096), "event: result"), 51);
    evq_listener_close(odd);
    assert_null(evq_events_listen(events, "100", ""));
    assert_null(evq_events_listen(events, "a-b", ""));
    evq_events_free(events);
}

/*
 * A listener that is too slow, or was away too long, is told to reset, so it knows about the gap.
 */
static void listener_is_told_to_reset_when_events_are_gone(void **state)
{
    (void)state;
    struct evq_events *events = ring();
    struct evq_listener *slow = evq_events_listen(events, "", "");
    evq_events_floor(events, "99-0");
    struct evq_listener *away = evq_events_listen(events, "98-7", "");
    assert_int_equal(count_of(pull_all(away, 4096), "event: reset"), 1);
    evq_listener_close(away);
    add_numbered(events, 1, 5000); // These are more events than the ring can hold.
    const char *text = pull_all(slow, 4096);
    assert_int_equal(count_of(text, "event: reset"), 1);
    assert_int_equal(count_of(text, "event: result"), 0);
    add_numbered(events, 5000, 5002);
    text = pull_all(slow, 4096);
    assert_int_equal(count_of(text, "event: result"), 2);
    evq_listener_close(slow);
    away = evq_events_listen(events, "100-800", "");
    assert_int_equal(count_of(pull_all(away, 4096), "event: reset"), 1);
    evq_listener_close(away);
    away = evq_events_listen(events, "100-4999", "");
    assert_int_equal(count_of(pull_all(away, 4096), "event: result"), 2);
    evq_listener_close(away);
    // These events are large, because the ring also limits its bytes.
    char *large = malloc((size_t)1 << 20);
    assert_non_null(large);
    memset(large, ' ', ((size_t)1 << 20) - 1);
    large[((size_t)1 << 20) - 1] = '\0';
    for (int i = 0; i < 40; i++) {
        evq_events_add(events, "101-1", "result", "", large);
    }
    free(large);
    away = evq_events_listen(events, "100-5001", "");
    assert_int_equal(count_of(pull_all(away, 4096), "event: reset"), 1);
    evq_listener_close(away);
    evq_events_free(events);
}

/* ---- the gateway ---- */

struct stream {
    int fd;
    char text[262144];
    size_t used;
};

static int setup(void **state)
{
    *state = fixture_gateway_open(BIN, "--tokens", "tokens", NULL);
    return 0;
}

static int teardown(void **state)
{
    fixture_gateway_close(*state);
    return 0;
}

static struct stream *stream_open(const struct fixture_gateway *gateway, const char *query,
                                  const char *last_id)
{
    char head[512];
    struct stream *stream = calloc(1, sizeof *stream);
    assert_non_null(stream);
    stream->fd = fixture_http_connect(gateway);
    const int bytes =
        snprintf(head, sizeof head,
                 "GET /v1/events%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s%s%s\r\n",
                 query, FIXTURE_TOKEN_READ, last_id != NULL ? "Last-Event-ID: " : "",
                 last_id != NULL ? last_id : "", last_id != NULL ? "\r\n" : "");
    fixture_http_send(stream->fd, head, (size_t)bytes);
    return stream;
}

static void stream_close(struct stream *stream)
{
    (void)close(stream->fd);
    free(stream);
}

/* Reads what has arrived. Returns whether the word has come so many times. */
static bool stream_has(struct stream *stream, const char *word, int times)
{
    struct pollfd ready = {.fd = stream->fd, .events = POLLIN};
    while (poll(&ready, 1, 0) > 0) {
        const ssize_t got = recv(stream->fd, stream->text + stream->used,
                                 sizeof stream->text - 1 - stream->used, 0);
        if (got <= 0) {
            break;
        }
        stream->used += (size_t)got;
    }
    return count_of(stream->text, word) >= times;
}

#define UNTIL(stream, word, times) FIXTURE_UNTIL(stream_has((stream), (word), (times)))

/* Returns the id of the last event that was read. */
static void last_id_of(const struct stream *stream, char out[64])
{
    const char *at = NULL;
    for (const char *next = stream->text; (next = strstr(next, "\nid: ")) != NULL; next++) {
        at = next + 5;
    }
    assert_non_null(at);
    (void)snprintf(out, 64, "%.*s", (int)strcspn(at, "\r\n"), at);
}

static void results_come_as_they_are_published_and_resume(void **state)
{
    struct fixture_gateway *gateway = *state;
    char id[64];
    struct stream *stream = stream_open(gateway, "", NULL);
    UNTIL(stream, "retry: 2000", 1);
    assert_holds(stream->text, "200 OK");
    assert_holds(stream->text, "text/event-stream");
    fixture_finish(gateway->fx, "a/1/regular/quick", 0.5);
    UNTIL(stream, "event: end", 1);
    assert_int_equal(count_of(stream->text, "event: result"), 1);
    assert_holds(stream->text, "\"result_id\":");
    last_id_of(stream, id);
    stream_close(stream);

    fixture_finish(gateway->fx, "a/2/regular/quick", 0.5); // There is no listener.
    stream = stream_open(gateway, "", id);
    UNTIL(stream, "event: end", 1);
    assert_int_equal(count_of(stream->text, "event: result"), 1);
    assert_holds(stream->text, "a/2/regular/quick");
    assert_null(strstr(stream->text, "a/1/regular/quick#"));
    stream_close(stream);

    // The gateway restarts, and results arrive meanwhile.
    assert_int_equal(fixture_gateway_stop(gateway), 0);
    fixture_finish(gateway->fx, "b/3/regular/quick", 0.5);
    fixture_gateway_start(gateway, "--tokens", "tokens", NULL);
    fixture_finish(gateway->fx, "b/4/regular/quick", 0.5);
    stream = stream_open(gateway, "", id);
    UNTIL(stream, "event: end", 3);
    assert_int_equal(count_of(stream->text, "event: result"), 3);
    assert_int_equal(count_of(stream->text, "event: reset"), 0);
    stream_close(stream);
    stream = stream_open(gateway, "?run=b", id);
    UNTIL(stream, "event: end", 2);
    assert_int_equal(count_of(stream->text, "event: result"), 2);
    stream_close(stream);
}

/* Returns whether /metrics has the line. */
static bool scraped(const struct fixture_gateway *gateway, const char *line)
{
    static struct fixture_http_reply reply; // It is static, because it is large.

    fixture_http(gateway, "GET", "/metrics", FIXTURE_TOKEN_READ, NULL, &reply);
    return reply.code == 200 && strstr(reply.body, line) != NULL;
}

/* For Prometheus, all of them would seem to have come when the gateway started. */
static void results_before_the_start_are_not_counted(void **state)
{
    struct fixture_gateway *gateway = *state;

    assert_int_equal(fixture_gateway_stop(gateway), 0);
    fixture_finish(gateway->fx, "a/1/regular/quick", 0.5);
    fixture_gateway_start(gateway, "--tokens", "tokens", NULL);
    FIXTURE_UNTIL(scraped(gateway, "run=\"a\",variant=\"regular\",suite=\"quick\""));
    assert_true(scraped(gateway, "suite=\"quick\",state=\"done\"} 0\n"));
    fixture_finish(gateway->fx, "a/2/regular/quick", 0.5);
    FIXTURE_UNTIL(scraped(gateway, "suite=\"quick\",state=\"done\"} 1\n"));
}

/* The stream holds no result that all sinks have, so the gateway must find its metric elsewhere. */
static void metrics_of_results_that_left_the_stream_are_there_after_a_restart(void **state)
{
    struct fixture_gateway *gateway = *state;
    assert_int_equal(fixture_gateway_stop(gateway), 0);
    fixture_finish(gateway->fx, "a/2/regular/quick", 0.5);
    fixture_finish(gateway->fx, "a/1/regular/quick", 0.25);
    fixture_finish(gateway->fx, "b/7/regular/quick", 0.75);
    evq_reply_free(fixture_call(gateway->fx->raw, "XTRIM", fixture_key(gateway->fx, "results"),
                                "MAXLEN", "0", NULL));
    fixture_gateway_start(gateway, "--tokens", "tokens", NULL);
    FIXTURE_UNTIL(scraped(gateway, "run=\"a\",variant=\"regular\",suite=\"quick\""));
    FIXTURE_UNTIL(scraped(gateway, "run=\"b\",variant=\"regular\",suite=\"quick\""));
    assert_true(scraped(gateway, "better=\"higher\"} 0.5\n"));
    assert_true(scraped(gateway, "better=\"higher\"} 0.75\n"));
    assert_false(scraped(gateway, "better=\"higher\"} 0.25\n"));
    assert_true(scraped(gateway, "suite=\"quick\",state=\"done\"} 0\n"));
}

/* A paused job, or one at a cap, needs no worker, so an alert about it would never end. */
static void paused_and_capped_jobs_are_not_unserved(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct fixture *fx = gateway->fx;
    const char *const unserved = "suite=\"quick\",needs=\"\"} 1\n# HELP evalq_jobs_submitted_total";

    (void)fixture_submit(fx, "a/1/regular/quick");
    assert_true(scraped(gateway, unserved)); // No worker offers the suite.
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", true, NULL), EVQ_OK);
    assert_false(scraped(gateway, unserved));
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, "", true, NULL), EVQ_OK);
    assert_false(scraped(gateway, unserved));
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_QUEUE, "", false, NULL), EVQ_OK);
    assert_status(evq_queue_pause(fx->queue, EVQ_PAUSE_SUITE, "quick", false, NULL), EVQ_OK);
    assert_true(scraped(gateway, unserved));
    assert_status(evq_queue_limit(fx->queue, "cap_suite", "quick", 1, NULL), EVQ_OK);
    struct evq_claim *claim = fixture_claim(fx);
    (void)fixture_submit(fx, "a/2/regular/quick");
    assert_false(scraped(gateway, unserved));
    evq_claim_free(claim);
}

static void changes_of_state_are_sent_while_somebody_listens(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct fixture *fx = gateway->fx;
    struct stream *stream = stream_open(gateway, "", NULL);
    (void)fixture_submit(fx, "a/1/regular/quick");
    UNTIL(stream, "\"queued\":1", 1);
    struct evq_claim *claim = fixture_claim(fx);
    UNTIL(stream, "\"state\":\"running\"", 1);
    assert_holds(stream->text, "\"worker\":\"worker-1\"");
    // Whoever has this token could write as the worker.
    assert_null(strstr(stream->text, claim->token));
    assert_status(evq_queue_release(fx->queue, claim->id, claim->token, NULL), EVQ_OK);
    UNTIL(stream, "\"state\":\"queued\"", 1);
    evq_claim_free(claim);
    stream_close(stream);
}

static void stream_continues_when_redis_is_killed_or_flushed(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct evq_queue_info info;
    struct stream *stream = stream_open(gateway, "", NULL);
    UNTIL(stream, "retry: 2000", 1);
    fixture_finish(gateway->fx, "a/1/regular/quick", 0.5);
    UNTIL(stream, "event: end", 1);
    fixture_redis_kill(gateway->fx->redis);
    fixture_redis_restart(gateway->fx->redis); // Redis restarts without its data.
    assert_status(evq_queue_info(gateway->fx->queue, &info, NULL), EVQ_E_IO);
    fixture_reset(gateway->fx);
    fixture_finish(gateway->fx, "a/2/regular/quick", 0.5);
    UNTIL(stream, "event: end", 2);
    UNTIL(stream, "event: reset", 1);
    stream_close(stream);
}

static void stop_ends_streams_at_once(void **state)
{
    struct fixture_gateway *gateway = *state;
    struct stream *streams[20];
    for (size_t i = 0; i < 20; i++) {
        streams[i] = stream_open(gateway, "", NULL);
        UNTIL(streams[i], "retry: 2000", 1);
    }
    assert_int_equal(fixture_gateway_stop(gateway), 0);
    // The gateway does not wait for streams; for requests it waits up to ten seconds.
    assert_int_equal(fixture_file_holds(gateway->dir, "gateway.err", "cut_off=0"), 1);
    for (size_t i = 0; i < 20; i++) {
        stream_close(streams[i]);
    }
}

static void wrong_requests_are_refused(void **state)
{
    struct fixture_gateway *gateway = *state;
    json_decref(
        fixture_http_json(gateway, 400, "GET", "/v1/events?after=x", FIXTURE_TOKEN_READ, NULL));
    json_decref(
        fixture_http_json(gateway, 400, "GET", "/v1/events?run=a%20b", FIXTURE_TOKEN_READ, NULL));
    json_decref(fixture_http_json(gateway, 401, "GET", "/v1/events", NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listener_gets_each_event_once_however_it_pulls),
        cmocka_unit_test(listener_resumes_after_the_id_that_it_saw),
        cmocka_unit_test(listener_is_told_to_reset_when_events_are_gone),
        cmocka_unit_test_setup_teardown(results_come_as_they_are_published_and_resume, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(results_before_the_start_are_not_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(
            metrics_of_results_that_left_the_stream_are_there_after_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(paused_and_capped_jobs_are_not_unserved, setup, teardown),
        cmocka_unit_test_setup_teardown(changes_of_state_are_sent_while_somebody_listens, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(stream_continues_when_redis_is_killed_or_flushed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(stop_ends_streams_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_requests_are_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
