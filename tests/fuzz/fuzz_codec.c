/*
 * Bytes as they come from Redis or a child. The first byte chooses the record; what is decoded must
 * encode again, and decode to the same bytes a second time.
 */
#include <string.h>

#include "shared/queue/codec.h"
#include "tests/fuzz/check.h"

static void fuzz_job(const uint8_t *data, size_t bytes)
{
    struct evq_job *job = NULL;
    struct evq_job *again = NULL;
    struct evq_buffer first;
    struct evq_buffer second;

    if (evq_codec_job_decode(data, bytes, &job, NULL) != EVQ_OK) {
        return;
    }
    evq_buffer_init(&first, 0);
    evq_buffer_init(&second, 0);
    // It may be refused as too long: a whole number given for a double takes eight bytes more when
    // written.
    if (evq_codec_job_encode(job, &first, NULL) == EVQ_OK) {
        check(evq_codec_job_decode(first.data, first.bytes, &again, NULL) == EVQ_OK);
        check(evq_codec_job_encode(again, &second, NULL) == EVQ_OK);
        check(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    }
    evq_job_free(again);
    evq_job_free(job);
    evq_buffer_free(&first);
    evq_buffer_free(&second);
}

static void fuzz_result(const uint8_t *data, size_t bytes)
{
    struct evq_result *result = NULL;
    struct evq_result *again = NULL;
    struct evq_buffer first;
    struct evq_buffer second;

    if (evq_codec_result_decode(data, bytes, &result, NULL) != EVQ_OK) {
        return;
    }
    evq_buffer_init(&first, 0);
    evq_buffer_init(&second, 0);
    evq_result_json(result, &first);
    check(!first.failed);
    evq_buffer_clear(&first);
    if (evq_codec_result_encode(result, &first, NULL) == EVQ_OK) {
        check(evq_codec_result_decode(first.data, first.bytes, &again, NULL) == EVQ_OK);
        check(evq_codec_result_encode(again, &second, NULL) == EVQ_OK);
        check(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    }
    evq_result_free(again);
    evq_result_free(result);
    evq_buffer_free(&first);
    evq_buffer_free(&second);
}

static void fuzz_note(const uint8_t *data, size_t bytes)
{
    struct evq_note *note = NULL;
    struct evq_buffer out;

    if (evq_codec_note_decode(data, bytes, &note, NULL) != EVQ_OK) {
        return;
    }
    evq_buffer_init(&out, 0);
    check(evq_codec_note_encode(note->type, note->fields, note->field_count, &out, NULL) == EVQ_OK);
    evq_codec_note_free(note);
    evq_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes == 0) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        fuzz_job(data + 1, bytes - 1);
        break;
    case 1:
        fuzz_result(data + 1, bytes - 1);
        break;
    default:
        fuzz_note(data + 1, bytes - 1);
        break;
    }
    return 0;
}
