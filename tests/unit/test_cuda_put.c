/*
 * Weights on their way to a GPU: kernels/cuda/put.c on a runtime of its own, whose streams are
 * lists of work that go on in any order that CUDA allows. Host memory is written anew as soon as
 * catch_up() gives it back, stages as soon as the code does: a wait that is missing shows as a
 * wrong value under one of the orders.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/state.h"
#include "kernels/cuda/status.h"
#include "tests/fixture/random.h"

enum { ITEMS_MAX = 8192, EVENTS_MAX = 16, STREAMS = 4, SLOTS = 5, PUTS = 300, BUFFERS = 6 };
enum kind { COPY, CONVERT, RECORD, WAIT };

struct event {
    uint64_t recorded, done; // Calls, and of these the ones whose turn has come.
};

struct item {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    struct event *event;
    uint64_t target; // WAIT: until so many records of the event are done.
};

struct stream {
    struct item items[ITEMS_MAX];
    size_t first, count;
};

static struct stream streams[STREAMS];
static struct event events[EVENTS_MAX];
static size_t stream_count, event_count;
static bool out_of_memory, waits_fail;
static uint64_t seed;

static uint32_t next_random(uint32_t below)
{
    return (uint32_t)(fixture_random(&seed) % below);
}

/* One item of a stream, if its turn has come. */
static bool step(struct stream *stream)
{
    if (stream->first == stream->count) {
        return false;
    }
    const struct item *item = &stream->items[stream->first];
    if (item->kind == WAIT && item->event->done < item->target) {
        return false;
    }
    if (item->kind == COPY || item->kind == CONVERT) {
        memcpy(item->to, item->from, item->bytes);
    }
    if (item->kind == RECORD) {
        item->event->done++;
    }
    stream->first++;
    return true;
}

static void steps(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        (void)step(&streams[next_random(STREAMS)]);
    }
}

static struct stream *stream_of(cudaStream_t stream)
{
    return (struct stream *)(void *)stream;
}

static void enqueue(struct stream *stream, const struct item *item)
{
    assert_true(stream->count < ITEMS_MAX);
    stream->items[stream->count++] = *item;
}

static void drain(const struct stream *stream)
{
    for (int i = 0; stream->first < stream->count; i++) {
        assert_true(i < 1000000); // Else the streams wait for each other.
        steps(1);
    }
}

/* ---- the runtime ---- */

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **data, size_t bytes)
{
    *data = out_of_memory ? NULL : malloc(bytes);
    return *data != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *data)
{
    for (size_t i = 0; i < STREAMS; i++) {
        drain(&streams[i]); // As the runtime's does.
    }
    free(data);
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **data, size_t bytes)
{
    *data = malloc(bytes);
    return *data != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *data)
{
    free(data);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    assert_int_equal(flags, cudaStreamNonBlocking);
    assert_true(stream_count < STREAMS);
    *stream = (cudaStream_t)(void *)&streams[stream_count++];
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    assert_int_equal(stream_of(stream)->first, stream_of(stream)->count);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    drain(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    assert_int_equal(kind, cudaMemcpyHostToDevice);
    enqueue(stream_of(stream),
            &(struct item){.kind = COPY, .to = to, .from = from, .bytes = bytes});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    assert_int_equal(flags, cudaEventDisableTiming);
    assert_true(event_count < EVENTS_MAX);
    *event = (cudaEvent_t)(void *)&events[event_count++];
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return event != NULL ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    struct event *mine = (struct event *)(void *)event;

    mine->recorded++;
    enqueue(stream_of(stream), &(struct item){.kind = RECORD, .event = mine});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    struct event *mine = (struct event *)(void *)event;

    assert_int_equal(flags, 0);
    if (waits_fail) {
        return cudaErrorInvalidValue;
    }
    enqueue(stream_of(stream),
            &(struct item){.kind = WAIT, .event = mine, .target = mine->recorded});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const struct event *mine = (const struct event *)(const void *)event;
    const uint64_t target = mine->recorded;

    for (int i = 0; mine->done < target; i++) {
        assert_true(i < 1000000);
        steps(1);
    }
    return cudaSuccess;
}

enum evq_status evq_cuda_status(cudaError_t code, const char *what, struct evq_error *err)
{
    if (code == cudaSuccess) {
        return EVQ_OK;
    }
    return evq_error_set(err, code == cudaErrorMemoryAllocation ? EVQ_E_NOMEM : EVQ_E_DEVICE, "%s",
                         what);
}

/* fp32 only: what conversions do is not the question here. */
enum evq_status evq_cuda_of_device(const struct evq_cuda_state *first,
                                   const struct evq_cuda_state *state, enum evq_status status,
                                   struct evq_error *err)
{
    (void)first;
    (void)state;
    (void)err;
    return status;
}

enum evq_status evq_cuda_weight_convert(struct evq_cuda_state *state,
                                        struct evq_cuda_weight *weight, const void *d_blob,
                                        const struct evq_weight_blob *blob, struct evq_error *err)
{
    const size_t row = (size_t)weight->columns * sizeof(float);

    (void)err;
    enqueue(stream_of(state->stream),
            &(struct item){.kind = CONVERT,
                           .to = (uint8_t *)weight->block.d_data + (size_t)blob->first_row * row,
                           .from = d_blob,
                           .bytes = (size_t)blob->rows * row});
    return EVQ_OK;
}

/* ---- the test ---- */

static const struct evq_weight_slot slots[SLOTS] = {
    {"a", 64, 3}, {"b", 1, 200}, {"c", 17, 17}, {"d", 128, 2}, {"e", 5, 40}};

struct fixture {
    struct evq_cuda_state state, second; // The second device is used if state.next says so.
    struct evq_cuda_weight weights[2][SLOTS];
    struct evq_plan plan;
    float *wanted[SLOTS];
    float buffers[BUFFERS][512]; // Host memory, each used again and again.
    uint64_t puts_read;          // Puts before this number are read no more.
};

static void runtime_begin(void)
{
    memset(streams, 0, sizeof(streams));
    memset(events, 0, sizeof(events));
    stream_count = event_count = 0;
}

/* Gives a device the slots [first, SLOTS), and slot 0 in any case. */
static void device_begin(struct fixture *fx, struct evq_cuda_state *state,
                         struct evq_cuda_weight *weights, int first)
{
    struct evq_error err = {0};

    state->plan = &fx->plan;
    state->weights = weights;
    state->weight_count = SLOTS;
    state->memory_max = SIZE_MAX;
    for (int i = 0; i < SLOTS; i += i == 0 && first > 0 ? first : 1) {
        weights[i].rows = slots[i].rows;
        weights[i].columns = slots[i].columns;
        weights[i].block.d_data =
            calloc((size_t)slots[i].rows * (size_t)slots[i].columns, sizeof(float));
        assert_non_null(weights[i].block.d_data);
    }
    assert_int_equal(cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking), 0);
    assert_int_equal(evq_cuda_copies_open(state, &err), EVQ_OK);
}

static struct fixture *fixture_new(bool two)
{
    struct fixture *fx = calloc(1, sizeof(*fx));

    assert_non_null(fx);
    fx->plan = (struct evq_plan){.slots = slots, .slot_count = SLOTS};
    device_begin(fx, &fx->state, fx->weights[0], 0);
    for (int i = 0; i < SLOTS; i++) {
        fx->wanted[i] = calloc((size_t)slots[i].rows * (size_t)slots[i].columns, sizeof(float));
        assert_non_null(fx->wanted[i]);
    }
    if (two) {
        device_begin(fx, &fx->second, fx->weights[1], 3);
        fx->state.next = &fx->second;
        fx->weights[0][4].rows = 0; // The second device alone has it.
    }
    return fx;
}

static void fixture_free(struct fixture *fx)
{
    for (struct evq_cuda_state *state = &fx->state; state != NULL; state = state->next) {
        (void)cudaStreamSynchronize(state->stream);
        evq_cuda_copies_close(state);
        assert_int_equal(state->memory, 0);
    }
    for (int i = 0; i < SLOTS; i++) {
        free(fx->weights[0][i].block.d_data); // Its own, whoever had them meanwhile.
        free(fx->weights[1][i].block.d_data);
        free(fx->wanted[i]);
    }
    free(fx);
}

/* The next part of a slot, of any number of rows, out of the next buffer. */
static void put_part(struct fixture *fx, int32_t slot)
{
    const size_t columns = (size_t)slots[slot].columns;
    const int32_t put_rows = fx->weights[fx->weights[0][slot].rows > 0 ? 0 : 1][slot].rows_put;
    const int32_t first = put_rows == slots[slot].rows ? 0 : put_rows;
    const int32_t fit = (int32_t)(512 / columns);
    const int32_t left = slots[slot].rows - first;
    const int32_t rows = 1 + (int32_t)next_random((uint32_t)(left < fit ? left : fit));
    float *buffer = fx->buffers[fx->state.calls % BUFFERS];
    struct evq_error err = {0};

    for (size_t i = 0; i < (size_t)rows * columns; i++) {
        buffer[i] = (float)(fx->state.calls * 1000 + i);
        fx->wanted[slot][(size_t)first * columns + i] = buffer[i];
    }
    const struct evq_weight_blob blob = {
        .values = buffer, .type = EVQ_WEIGHT_F32, .first_row = first, .rows = rows};
    assert_int_equal(evq_cuda_put(&fx->state, slot, &blob, &err), EVQ_OK);
    steps(next_random(8));
}

/* Gives the buffer of the next put back, and spoils all that came back. */
static void buffers_free(struct fixture *fx)
{
    uint32_t reading = 99;
    struct evq_error err = {0};

    const uint32_t most = next_random(BUFFERS);
    assert_int_equal(evq_cuda_catch_up(&fx->state, most, &reading, &err), EVQ_OK);
    assert_true(reading <= most && reading <= fx->state.calls);
    for (; fx->puts_read < fx->state.calls - reading; fx->puts_read++) {
        memset(fx->buffers[fx->puts_read % BUFFERS], 0xff, sizeof(fx->buffers[0]));
    }
}

static void check_weights(const struct evq_cuda_state *state, const struct fixture *fx)
{
    for (int i = 0; i < SLOTS; i++) {
        const size_t count = (size_t)state->weights[i].rows * (size_t)slots[i].columns;
        const float *got = state->weights[i].block.d_data;
        for (size_t v = 0; v < count; v++) {
            if (!(got[v] == fx->wanted[i][v])) {
                fail_msg("%s[%zu] is %g, expected %g", slots[i].name, v, (double)got[v],
                         (double)fx->wanted[i][v]);
            }
        }
    }
}

static void put_is_right_in_whatever_order_streams_go_on(void **state)
{
    struct evq_error err = {0};

    (void)state;
    for (uint64_t turn = 1; turn <= 60; turn++) {
        seed = turn;
        runtime_begin();
        struct fixture *fx = fixture_new(turn % 2 == 0);
        for (int i = 0; i < PUTS; i++) {
            put_part(fx, (int32_t)next_random(SLOTS));
            buffers_free(fx);
        }
        assert_int_equal(evq_cuda_settle(&fx->state, &err), EVQ_OK);
        for (const struct evq_cuda_state *at = &fx->state; at != NULL; at = at->next) {
            check_weights(at, fx);
        }
        fixture_free(fx);
    }
}

/* A second checkpoint: stages are all as large as the largest blob needs. */
static void put_allocates_nothing_for_the_same_blobs(void **state)
{
    struct evq_error err = {0};
    static const float values[256] = {0};

    (void)state;
    seed = 1;
    runtime_begin();
    struct fixture *fx = fixture_new(false);
    for (int again = 0; again < 3; again++) {
        out_of_memory = again > 0;
        for (int32_t slot = 0; slot < 3; slot++) { // No multiple of the stages.
            const struct evq_weight_blob blob = {
                .values = values, .type = EVQ_WEIGHT_F32, .rows = slot == 0 ? 64 : 1};
            assert_int_equal(evq_cuda_put(&fx->state, slot, &blob, &err), EVQ_OK);
        }
    }
    assert_int_equal(evq_cuda_settle(&fx->state, &err), EVQ_OK);
    out_of_memory = false;
    fixture_free(fx);
}

static void put_without_memory_puts_nothing(void **state)
{
    struct evq_error err = {0};
    uint32_t reading = 99;
    static const float values[256] = {0};
    const struct evq_weight_blob blob = {.values = values, .type = EVQ_WEIGHT_F32, .rows = 64};

    (void)state;
    runtime_begin();
    struct fixture *fx = fixture_new(false);
    out_of_memory = true;
    assert_int_equal(evq_cuda_put(&fx->state, 0, &blob, &err), EVQ_E_NOMEM);
    out_of_memory = false;
    assert_int_equal(fx->weights[0][0].rows_put, 0);
    assert_int_equal(evq_cuda_catch_up(&fx->state, 0, &reading, &err), EVQ_OK);
    assert_int_equal(reading, 0);
    assert_int_equal(evq_cuda_put(&fx->state, 0, &blob, &err), EVQ_OK);
    assert_int_equal(evq_cuda_catch_up(&fx->state, 7, &reading, &err), EVQ_OK);
    assert_int_equal(reading, 1);
    assert_int_equal(evq_cuda_settle(&fx->state, &err), EVQ_OK);
    fixture_free(fx);
}

/* Its copy is on its way all the same, and no stream waits for it. */
static void put_that_failed_half_way_is_settled(void **state)
{
    struct evq_error err = {0};
    static const float values[256] = {0};
    const struct evq_weight_blob blob = {.values = values, .type = EVQ_WEIGHT_F32, .rows = 64};

    (void)state;
    runtime_begin();
    struct fixture *fx = fixture_new(false);
    const struct stream *copies = stream_of(fx->state.copies);
    waits_fail = true;
    assert_int_equal(evq_cuda_put(&fx->state, 0, &blob, &err), EVQ_E_DEVICE);
    waits_fail = false;
    assert_true(copies->first < copies->count);
    assert_int_equal(evq_cuda_settle(&fx->state, &err), EVQ_OK);
    assert_true(copies->first == copies->count);
    fixture_free(fx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(put_is_right_in_whatever_order_streams_go_on),
        cmocka_unit_test(put_allocates_nothing_for_the_same_blobs),
        cmocka_unit_test(put_without_memory_puts_nothing),
        cmocka_unit_test(put_that_failed_half_way_is_settled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
