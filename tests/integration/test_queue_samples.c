/* The stream of samples: only the attempt that holds its job adds to it, a file that is begun can
 * be sent to its end, and what is removed makes room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "shared/queue/sample_pieces.h"
#include "tests/fixture/queue.h"

#define STREAM_BYTES 1000

static struct evq_sample_piece piece_of(const struct evq_claim *claim, int64_t bytes, int64_t at,
                                        size_t data_bytes)
{
    static const char data[2000] = "data";

    return (struct evq_sample_piece){.job = claim->id,
                                     .token = claim->token,
                                     .task = "quiz",
                                     .digest = "00112233445566778899aabbccddeeff",
                                     .bytes = bytes,
                                     .at = at,
                                     .data = data,
                                     .data_bytes = data_bytes};
}

static enum evq_status add(struct fixture *fx, const struct evq_claim *claim, int64_t bytes,
                           int64_t at, size_t data_bytes)
{
    const struct evq_sample_piece piece = piece_of(claim, bytes, at, data_bytes);
    struct evq_error err = {EVQ_OK, ""};

    return evq_sample_piece_add(fx->queue, &piece, STREAM_BYTES, &err);
}

static struct evq_claim *claim_of(struct fixture *fx, const char *id)
{
    (void)fixture_submit(fx, id);
    return fixture_claim(fx);
}

static struct evq_sample_pieces read_all(struct fixture *fx)
{
    struct evq_sample_pieces pieces;
    struct evq_error err = {EVQ_OK, ""};

    assert_status_err(evq_sample_pieces_read(fx->queue, "0", 1, &pieces, &err), EVQ_OK, &err);
    return pieces;
}

static void remove_all(struct fixture *fx)
{
    struct evq_sample_pieces pieces = read_all(fx);
    struct evq_piece_entry entries[EVQ_PIECES_READ_MAX];

    for (size_t i = 0; i < pieces.count; i++) {
        memcpy(entries[i].entry, pieces.items[i].entry, sizeof(entries[i].entry));
        entries[i].file_bytes = pieces.items[i].at == 0 ? pieces.items[i].bytes : 0;
    }
    for (int i = 0; i < 2; i++) { // The answer may be lost, and the call repeated.
        assert_int_equal(evq_sample_pieces_remove(fx->queue, entries, pieces.count, NULL), EVQ_OK);
    }
    evq_sample_pieces_free(&pieces);
}

static enum evq_piece_sender sender_of(struct fixture *fx, const struct evq_claim *claim)
{
    enum evq_piece_sender sender = EVQ_SENDER_GONE;

    assert_int_equal(evq_sample_piece_sender(fx->queue, claim->id, claim->token, &sender, NULL),
                     EVQ_OK);
    return sender;
}

static void samples_pieces_come_back_as_they_were_added(void **state)
{
    struct fixture *fx = *state;
    struct evq_claim *claim = claim_of(fx, "r/1/regular/quick");

    assert_int_equal(add(fx, claim, 900, 0, 500), EVQ_OK);
    assert_int_equal(add(fx, claim, 900, 500, 400), EVQ_OK);
    struct evq_sample_pieces pieces = read_all(fx);
    assert_int_equal(pieces.count, 2);
    for (size_t i = 0; i < 2; i++) {
        const struct evq_sample_piece *piece = &pieces.items[i];
        assert_string_equal(piece->job, claim->id);
        assert_string_equal(piece->token, claim->token);
        assert_string_equal(piece->task, "quiz");
        assert_string_equal(piece->digest, "00112233445566778899aabbccddeeff");
        assert_int_equal(piece->bytes, 900);
        assert_int_equal(piece->at, i == 0 ? 0 : 500);
        assert_int_equal(piece->data_bytes, i == 0 ? 500 : 400);
        assert_memory_equal(piece->data, "data", 4);
    }
    evq_sample_pieces_free(&pieces);
    remove_all(fx);
    pieces = read_all(fx);
    assert_int_equal(pieces.count, 0);
    evq_sample_pieces_free(&pieces);
    fixture_audit(fx);
    evq_claim_free(claim);
}

static void samples_of_a_fenced_attempt_are_refused(void **state)
{
    struct fixture *fx = *state;
    struct evq_claim *late = claim_of(fx, "r/1/regular/quick");

    assert_int_equal(add(fx, late, 900, 0, 500), EVQ_OK);
    assert_int_equal(sender_of(fx, late), EVQ_SENDER_HOLDS);
    fixture_lapse_lease(fx, late);
    assert_int_equal(sender_of(fx, late), EVQ_SENDER_HOLDS); // Until another attempt begins.
    struct evq_claim *retry = fixture_claim(fx);
    assert_int_equal(sender_of(fx, late), EVQ_SENDER_ENDED);
    assert_int_equal(add(fx, late, 900, 500, 400), EVQ_E_LEASE_LOST);
    remove_all(fx);
    assert_int_equal(add(fx, retry, 900, 0, 500), EVQ_OK);
    fixture_publish(fx, retry, "quiz", 0.5);
    assert_int_equal(evq_queue_complete(fx->queue, retry->id, retry->token, NULL), EVQ_OK);
    assert_int_equal(sender_of(fx, retry), EVQ_SENDER_ENDED);
    int64_t left = 1;
    while (left > 0) {
        assert_int_equal(evq_queue_forget(fx->queue, "r", &left, NULL), EVQ_OK);
    }
    assert_int_equal(sender_of(fx, retry), EVQ_SENDER_GONE);
    evq_claim_free(late);
    evq_claim_free(retry);
}

static void samples_stream_has_a_cap_and_a_begun_file_fits(void **state)
{
    struct fixture *fx = *state;
    struct evq_claim *one = claim_of(fx, "r/1/regular/quick");
    struct evq_claim *two = claim_of(fx, "r/2/regular/quick");

    assert_int_equal(add(fx, one, 600, 0, 100), EVQ_OK);
    assert_int_equal(add(fx, two, 401, 0, 100), EVQ_E_FULL);
    assert_int_equal(add(fx, two, 400, 0, 100), EVQ_OK);
    // Both files were counted with their first pieces, so neither stops the other.
    assert_int_equal(add(fx, one, 600, 100, 500), EVQ_OK);
    assert_int_equal(add(fx, two, 400, 100, 300), EVQ_OK);
    assert_int_equal(add(fx, one, 1, 0, 1), EVQ_E_FULL);
    remove_all(fx);
    assert_int_equal(add(fx, two, STREAM_BYTES, 0, 1), EVQ_OK);
    remove_all(fx);
    assert_int_equal(add(fx, two, STREAM_BYTES + 1, 0, 1), EVQ_E_FULL);
    evq_claim_free(one);
    evq_claim_free(two);
}

static void samples_entries_written_by_hand_are_no_pieces(void **state)
{
    struct fixture *fx = *state;
    const char *key = fixture_key(fx, "samples");
    static const char digest[] = "00112233445566778899aabbccddeeff";
    const struct {
        const char *job, *task, *digest, *bytes, *at;
    } bad[] = {
        {"../1/regular/s", "t", digest, "9", "0"},  {"r/1/regular/s", "..", digest, "9", "0"},
        {"r/1/regular/s@0", "t", digest, "9", "0"}, {"r/1/regular/s", "t", "x", "9", "0"},
        {"r/1/regular/s", "t", digest, "3", "0"},   {"r/1/regular/s", "t", digest, "9", "-1"},
        {"r/1/regular/s", "t", digest, "x", "0"}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        evq_reply_free(fixture_call(fx->raw, "XADD", key, "*", "job", bad[i].job, "token", "1.a",
                                    "task", bad[i].task, "digest", bad[i].digest, "bytes",
                                    bad[i].bytes, "at", bad[i].at, "data", "four", NULL));
    }
    evq_reply_free(fixture_call(fx->raw, "XADD", key, "*", "hello", "world", NULL));
    struct evq_sample_pieces pieces = read_all(fx);
    assert_int_equal(pieces.count, sizeof bad / sizeof bad[0] + 1);
    for (size_t i = 0; i < pieces.count; i++) {
        assert_null(pieces.items[i].job);
        assert_true(pieces.items[i].entry[0] != '\0');
    }
    evq_sample_pieces_free(&pieces);
    remove_all(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(samples_pieces_come_back_as_they_were_added, fixture_fresh),
        cmocka_unit_test_setup(samples_of_a_fenced_attempt_are_refused, fixture_fresh),
        cmocka_unit_test_setup(samples_stream_has_a_cap_and_a_begun_file_fits, fixture_fresh),
        cmocka_unit_test_setup(samples_entries_written_by_hand_are_no_pieces, fixture_fresh),
    };

    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
