/* The loader against a backend that writes down what it is given: every value once, in row order,
 * whatever the layout in the file; and what goes wrong on the way. */
#include "model_fixture.h"
#include "tests/fixture/safetensors.h"

#include "worker/loader/small_tensors.h"

enum { PENDING_MAX = 3 }; // Puts that a late backend may not have copied yet.
enum { VOCABULARY = 40000, HIDDEN = 64, INNER = 4 * HIDDEN, SLOTS_MAX = 32 };

#define TENSORS_MAX 64

struct recorder { // A backend: slots as fp32, as the plan wants them.
    const struct evq_plan *plan;
    float *slots[SLOTS_MAX];
    int32_t rows_put[SLOTS_MAX];
    int32_t puts, settles;
    int32_t fail_at; // This put fails; 0: none.
    int spoil_fd;    // Written to at the third put; -1: none.
    size_t held;     // Host memory given out.
    size_t allocations;
    bool late; // Copies as late as it may, like a device that is busy.
    struct {
        int32_t slot;
        struct evq_weight_blob blob;
    } pending[PENDING_MAX + 1];
    uint32_t pending_count, pending_most;
};

static enum evq_status recorder_alloc(void *state, size_t bytes, void **ret_host,
                                      struct evq_error *err)
{
    struct recorder *recorder = state;

    *ret_host = malloc(bytes);
    recorder->held += bytes;
    recorder->allocations++;
    return *ret_host != NULL ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "memory");
}

static void recorder_free(void *state, void *host)
{
    (void)state;
    free(host);
}

static float value_of(const struct evq_weight_blob *blob, size_t at)
{
    uint16_t half;
    uint32_t bits;
    float value;

    if (blob->type == EVQ_WEIGHT_F32) {
        memcpy(&value, (const float *)blob->values + at, sizeof(value));
        return value;
    }
    assert_int_equal(blob->type, EVQ_WEIGHT_BF16);
    memcpy(&half, (const uint16_t *)blob->values + at, sizeof(half));
    bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void recorder_copy(struct recorder *recorder, int32_t slot,
                          const struct evq_weight_blob *blob)
{
    const struct evq_weight_slot *wanted = &recorder->plan->slots[slot];
    const size_t rows = (size_t)blob->rows;
    const size_t columns = (size_t)wanted->columns;

    assert_true(blob->first_row == recorder->rows_put[slot]); // In row order, none twice.
    assert_true(blob->first_row + blob->rows <= wanted->rows);
    recorder->rows_put[slot] += blob->rows;
    if (recorder->slots[slot] == NULL) {
        recorder->slots[slot] = calloc((size_t)wanted->rows * columns, sizeof(float));
        assert_non_null(recorder->slots[slot]);
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            recorder->slots[slot][((size_t)blob->first_row + r) * columns + c] =
                value_of(blob, blob->transposed ? c * rows + r : r * columns + c);
        }
    }
}

static void pending_copy(struct recorder *recorder, uint32_t most)
{
    uint32_t done = 0;

    while (recorder->pending_count - done > most) {
        recorder_copy(recorder, recorder->pending[done].slot, &recorder->pending[done].blob);
        done++;
    }
    recorder->pending_count -= done;
    memmove(&recorder->pending[0], &recorder->pending[done],
            recorder->pending_count * sizeof(recorder->pending[0]));
}

static enum evq_status recorder_put(void *state, int32_t slot, const struct evq_weight_blob *blob,
                                    struct evq_error *err)
{
    struct recorder *recorder = state;

    recorder->puts++;
    if (recorder->puts == recorder->fail_at) {
        return evq_error_set(err, EVQ_E_DEVICE, "the device fell off");
    }
    if (recorder->puts == 3 && recorder->spoil_fd >= 0) {
        assert_int_equal(pwrite(recorder->spoil_fd, "x", 1, 4096), 1);
        assert_int_equal(fsync(recorder->spoil_fd), 0);
    }
    recorder->pending[recorder->pending_count].slot = slot;
    recorder->pending[recorder->pending_count++].blob = *blob;
    pending_copy(recorder, recorder->late ? PENDING_MAX : 0);
    return EVQ_OK;
}

static enum evq_status recorder_settle(void *state, struct evq_error *err)
{
    struct recorder *recorder = state;

    (void)err;
    recorder->settles++;
    pending_copy(recorder, 0);
    return EVQ_OK;
}

static enum evq_status recorder_catch_up(void *state, uint32_t most, uint32_t *ret_reading,
                                         struct evq_error *err)
{
    struct recorder *recorder = state;

    (void)err;
    pending_copy(recorder, most);
    *ret_reading = recorder->pending_count;
    recorder->pending_most = recorder->pending_count > recorder->pending_most
                                 ? recorder->pending_count
                                 : recorder->pending_most;
    return EVQ_OK;
}

static const struct evq_backend_ops backend = {.name = "recorder",
                                               .alloc = recorder_alloc,
                                               .free = recorder_free,
                                               .put = recorder_put,
                                               .settle = recorder_settle,
                                               .catch_up = recorder_catch_up};

static void recorder_clear(struct recorder *recorder)
{
    for (int i = 0; i < SLOTS_MAX; i++) {
        free(recorder->slots[i]);
    }
    *recorder = (struct recorder){.spoil_fd = -1};
}

/* The value of tensor number t at index i: no two tensors agree. */
static float pattern(size_t t, size_t i)
{
    return (float)((i * 31 + t * 7919) % 8191) / 64.0f - 60.0f;
}

struct shape {
    const char *name;
    int64_t first, second; // second 0: a vector.
    enum evq_dtype dtype;
};

static const struct shape shapes[] = {
    {"transformer.h.0.attn.bias", 1024, 1024, EVQ_DTYPE_F32}, // A buffer: only for the digest.
    {"transformer.h.0.attn.c_attn.bias", 3 * HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.attn.c_attn.weight", HIDDEN, 3 * HIDDEN, EVQ_DTYPE_F32},
    {"transformer.h.0.attn.c_proj.bias", HIDDEN, 0, EVQ_DTYPE_BF16},
    {"transformer.h.0.attn.c_proj.weight", HIDDEN, HIDDEN, EVQ_DTYPE_BF16},
    {"transformer.h.0.ln_1.bias", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.ln_1.weight", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.ln_2.bias", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.ln_2.weight", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.mlp.c_fc.bias", INNER, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.mlp.c_fc.weight", HIDDEN, INNER, EVQ_DTYPE_F64},
    {"transformer.h.0.mlp.c_proj.bias", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.h.0.mlp.c_proj.weight", INNER, HIDDEN, EVQ_DTYPE_F32},
    {"transformer.ln_f.bias", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.ln_f.weight", HIDDEN, 0, EVQ_DTYPE_F32},
    {"transformer.wpe.weight", 32, HIDDEN, EVQ_DTYPE_F32},
    {"transformer.wte.weight", VOCABULARY, HIDDEN, EVQ_DTYPE_F32}, // Three pieces.
    {"lm_head.weight", VOCABULARY, HIDDEN, EVQ_DTYPE_F32},
};
enum { TENSORS = sizeof(shapes) / sizeof(shapes[0]) };

static void *make_values(size_t t, size_t count)
{
    uint8_t *out = malloc(count * 8);

    assert_non_null(out);
    for (size_t i = 0; i < count; i++) {
        // The head of a tied model may be the same, or not.
        const float value = pattern(t == TENSORS - 1 ? TENSORS - 2 : t, i);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        const uint16_t half = (uint16_t)(bits >> 16);
        const double wide = (double)value;
        switch (shapes[t].dtype) {
        case EVQ_DTYPE_F64:
            memcpy(out + i * 8, &wide, 8);
            break;
        case EVQ_DTYPE_BF16:
            memcpy(out + i * 2, &half, 2);
            break;
        default:
            memcpy(out + i * 4, &value, 4);
            break;
        }
    }
    return out;
}

static const char config_json[] =
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"n_layer\": 1, \"n_head\": 4, \"n_embd\": 64, "
    "\"n_positions\": 32, \"vocab_size\": 40000}";

static void write_model(const struct fixture_folder *folder, bool head_differs)
{
    struct fixture_tensor tensors[TENSORS] = {{0}};
    char path[128];

    for (size_t t = 0; t < TENSORS; t++) {
        const size_t count =
            (size_t)shapes[t].first * (shapes[t].second > 0 ? (size_t)shapes[t].second : 1);
        float *values = make_values(t, count);
        if (t == TENSORS - 1 && head_differs) {
            values[count / 2] += 1.0f;
        }
        tensors[t] = (struct fixture_tensor){.name = shapes[t].name,
                                             .dtype = shapes[t].dtype,
                                             .rank = shapes[t].second > 0 ? 2 : 1,
                                             .shape = {shapes[t].first, shapes[t].second},
                                             .data = values};
    }
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder->path);
    fixture_safetensors(path, tensors, TENSORS);
    for (size_t t = 0; t < TENSORS; t++) {
        const void *data = tensors[t].data;
        free((void *)(uintptr_t)data);
    }
    fixture_folder_write(folder, "config.json", config_json, sizeof(config_json) - 1);
}

/* Against the tensors read one by one. */
static void check_slots(const struct scored *scored, const struct recorder *recorder)
{
    const struct evq_model *model = scored->model;

    for (size_t i = 0; i < model->source_count; i++) {
        const struct evq_source *source = &model->sources[i];
        const struct evq_weight_slot *slot = &model->plan.slots[source->slot];
        const size_t rows = slot->rows == 1 ? 1 : (size_t)source->rows;
        const size_t columns = (size_t)slot->columns;
        float *values = malloc(rows * columns * sizeof(float));
        assert_non_null(values);
        assert_status(evq_checkpoint_read_f32(scored->checkpoint, source->tensor, values,
                                              rows * columns, NULL),
                      EVQ_OK);
        assert_int_equal(recorder->rows_put[source->slot], slot->rows);
        for (size_t r = 0; r < rows; r++) {
            for (size_t c = 0; c < columns; c++) {
                const float want = values[source->transposed ? c * rows + r : r * columns + c];
                const float got = recorder->slots[source->slot][r * columns + c];
                if (!(got == want)) {
                    fail_msg("%s[%zu][%zu] is %g, expected %g", slot->name, r, c, (double)got,
                             (double)want);
                }
            }
        }
        free(values);
    }
}

static void loader_puts_every_value_once_and_forms_the_digest(void **state)
{
    const struct fixture_folder *folder = *state;
    struct recorder recorder = {.spoil_fd = -1};
    struct scored scored;
    struct evq_loader *loader = NULL;
    struct evq_loaded loaded = {0};
    struct evq_error err = {0};
    char digest[33];

    write_model(folder, false);
    assert_status_err(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK, &err);
    recorder.plan = &scored.model->plan;
    assert_status(evq_loader_new(&backend, &recorder, 3, &loader, &err), EVQ_OK);
    assert_status_err(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err),
                      EVQ_OK, &err);
    check_slots(&scored, &recorder);
    assert_true(recorder.puts > (int32_t)scored.model->plan.slot_count); // wte came in pieces.
    assert_int_equal(recorder.pending_count, 0);
    assert_status(evq_checkpoint_digest(scored.checkpoint, digest, &err), EVQ_OK);
    assert_string_equal(loaded.digest, digest);
    assert_false(loaded.tied_differ);
    assert_ptr_equal(scored.model->tied,
                     evq_checkpoint_find(scored.checkpoint, "transformer.wte.weight"));

    // The next checkpoint of the run: the same buffers.
    const size_t held = recorder.held;
    const size_t allocations = recorder.allocations;
    memset(recorder.rows_put, 0, sizeof(recorder.rows_put));
    assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err), EVQ_OK);
    assert_int_equal(recorder.allocations, allocations);
    assert_int_equal(recorder.held, held);
    evq_loader_free(loader);
    recorder_clear(&recorder);
    scored_close(&scored);
}

/* The calls of read() and the like that this process has made. */
static long system_reads(void)
{
    long reads = -1;
    char line[64];

    FILE *file = fopen("/proc/self/io", "re");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL && sscanf(line, "syscr: %ld", &reads) != 1) {
    }
    (void)fclose(file);
    assert_true(reads >= 0);
    return reads;
}

/* Ten vectors in four places of the file; each place is read once, however often one asks. */
static void loader_reads_small_tensors_that_lie_side_by_side_at_once(void **state)
{
    const struct fixture_folder *folder = *state;
    struct scored scored;
    struct evq_load_list list = {0};
    struct evq_digest *digest = NULL;
    struct evq_small_tensors *small = NULL;
    struct evq_error err = {0};
    char formed[33], wanted[33];

    write_model(folder, false);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    assert_status(evq_load_list_make(scored.checkpoint, scored.model, &list, &err), EVQ_OK);
    assert_status(evq_digest_new(scored.checkpoint, &digest, &err), EVQ_OK);
    assert_status(evq_small_tensors_new(scored.checkpoint, &list, digest, &small, &err), EVQ_OK);
    const uint8_t *bytes[TENSORS_MAX] = {NULL};
    const size_t count = scored.checkpoint->tensor_count;
    size_t found = 0;
    assert_in_range(count, 1, TENSORS_MAX);
    const long begun = system_reads();
    const long own = system_reads() - begun; // What system_reads() itself reads.
    for (size_t i = 0; i < 2 * count; i++) {
        const struct evq_tensor *tensor = &scored.checkpoint->tensors[i % count];
        assert_status(evq_small_tensors_find(small, tensor, &bytes[i % count], &err), EVQ_OK);
    }
    assert_int_equal(system_reads() - begun - 2 * own, 4);
    for (size_t i = 0; i < count; i++) {
        const struct evq_tensor *tensor = &scored.checkpoint->tensors[i];
        assert_true((bytes[i] != NULL) == (tensor->rank == 1));
        if (bytes[i] != NULL) {
            uint8_t *alone = malloc((size_t)tensor->bytes);
            assert_non_null(alone);
            assert_status(evq_checkpoint_read_raw(scored.checkpoint, tensor, alone,
                                                  (size_t)tensor->bytes, &err),
                          EVQ_OK);
            assert_memory_equal(bytes[i], alone, tensor->bytes);
            free(alone);
            found++;
        }
    }
    assert_int_equal(found, 10);
    assert_status(evq_digest_finish(digest, formed, &err), EVQ_OK);
    assert_status(evq_checkpoint_digest(scored.checkpoint, wanted, &err), EVQ_OK);
    assert_string_equal(formed, wanted);
    evq_small_tensors_free(small);
    evq_digest_free(digest);
    evq_load_list_free(&list);
    scored_close(&scored);
}

/* Buffers are read into again only when the backend has done with them, and it may lag behind. */
static void loader_waits_for_a_backend_that_copies_late(void **state)
{
    const struct fixture_folder *folder = *state;
    struct scored scored;
    struct evq_error err = {0};

    write_model(folder, false);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    for (int32_t threads = 1; threads <= 4; threads++) {
        struct recorder recorder = {.plan = &scored.model->plan, .spoil_fd = -1, .late = true};
        struct evq_loader *loader = NULL;
        struct evq_loaded loaded = {0};
        assert_status(evq_loader_new(&backend, &recorder, threads, &loader, &err), EVQ_OK);
        for (int again = 0; again < 2; again++) {
            memset(recorder.rows_put, 0, sizeof(recorder.rows_put));
            assert_status_err(
                evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err), EVQ_OK,
                &err);
            assert_int_equal(recorder.pending_count, 0);
            check_slots(&scored, &recorder);
        }
        assert_true(recorder.pending_most > 0); // It did lag.
        evq_loader_free(loader);
        recorder_clear(&recorder);
    }
    scored_close(&scored);
}

static void loader_tells_a_tied_head_that_differs(void **state)
{
    const struct fixture_folder *folder = *state;
    struct recorder recorder = {.spoil_fd = -1};
    struct scored scored;
    struct evq_loader *loader = NULL;
    struct evq_loaded loaded = {0};
    struct evq_error err = {0};

    write_model(folder, true);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    recorder.plan = &scored.model->plan;
    assert_status(evq_loader_new(&backend, &recorder, 2, &loader, &err), EVQ_OK);
    assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err), EVQ_OK);
    assert_true(loaded.tied_differ);
    assert_string_equal(scored.model->unused->name, "lm_head.weight");
    evq_loader_free(loader);
    recorder_clear(&recorder);
    scored_close(&scored);
}

static void loader_ends_with_the_first_failure(void **state)
{
    const struct fixture_folder *folder = *state;
    struct scored scored;
    struct evq_error err = {0};

    write_model(folder, false);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    for (int32_t fail_at = 1; fail_at < 18; fail_at += 3) {
        struct recorder recorder = {
            .plan = &scored.model->plan, .fail_at = fail_at, .spoil_fd = -1};
        struct evq_loader *loader = NULL;
        struct evq_loaded loaded = {0};
        assert_status(evq_loader_new(&backend, &recorder, 2, &loader, &err), EVQ_OK);
        assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err),
                      EVQ_E_DEVICE);
        assert_int_equal(recorder.puts, fail_at); // Nothing is put behind it.
        assert_string_equal(loaded.digest, "");
        evq_loader_free(loader);
        recorder_clear(&recorder);
    }
    scored_close(&scored);
}

struct listener {
    int32_t told, stop_at; // The telling that is answered by a stop; 0: none.
    int64_t done, total;
};

static enum evq_status listen_to(void *context, int64_t done, int64_t total)
{
    struct listener *listener = context;

    assert_true(done > listener->done && done <= total); // It goes on, and never past the end.
    listener->done = done;
    listener->total = total;
    return ++listener->told == listener->stop_at ? EVQ_E_STOPPED : EVQ_OK;
}

/* A load that takes minutes says so while it lasts, and can be stopped. */
static void loader_tells_how_far_it_is_and_stops_when_told(void **state)
{
    const struct fixture_folder *folder = *state;
    struct scored scored;
    struct evq_error err = {0};

    write_model(folder, false);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    for (int32_t stop_at = 0; stop_at <= 2; stop_at++) {
        struct recorder recorder = {.plan = &scored.model->plan, .spoil_fd = -1};
        struct listener listener = {.stop_at = stop_at};
        const struct evq_progress progress = {listen_to, &listener};
        struct evq_loader *loader = NULL;
        struct evq_loaded loaded = {0};
        assert_status(evq_loader_new(&backend, &recorder, 2, &loader, &err), EVQ_OK);
        evq_loader_watch(loader, &progress);
        assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err),
                      stop_at == 0 ? EVQ_OK : EVQ_E_STOPPED);
        assert_true(stop_at == 0 ? listener.told >= 4 : listener.told == stop_at);
        assert_true(listener.total > (int64_t)20 << 20);
        evq_loader_watch(loader, NULL);
        memset(recorder.rows_put, 0, sizeof(recorder.rows_put));
        assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err),
                      EVQ_OK); // Nobody listens, and nothing is left of the one that was stopped.
        evq_loader_free(loader);
        recorder_clear(&recorder);
    }
    scored_close(&scored);
}

static void loader_refuses_files_that_change_or_shrink_meanwhile(void **state)
{
    const struct fixture_folder *folder = *state;
    struct recorder recorder = {.spoil_fd = -1};
    struct scored scored;
    struct evq_loader *loader = NULL;
    struct evq_loaded loaded = {0};
    struct evq_error err = {0};
    char path[128];

    write_model(folder, false);
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", folder->path);
    assert_status(scored_build(&scored, folder->path, ".", NULL, 0, 0, &err), EVQ_OK);
    recorder.plan = &scored.model->plan;
    recorder.spoil_fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_status(evq_loader_new(&backend, &recorder, 2, &loader, &err), EVQ_OK);
    assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err),
                  EVQ_E_CHANGED);
    memset(recorder.rows_put, 0, sizeof(recorder.rows_put));
    assert_int_equal(ftruncate(recorder.spoil_fd, 1 << 20), 0);
    assert_status(evq_loader_fill(loader, scored.checkpoint, scored.model, &loaded, &err),
                  EVQ_E_CHANGED);
    (void)close(recorder.spoil_fd);
    evq_loader_free(loader);
    recorder_clear(&recorder);
    scored_close(&scored);
}

/* Two checkpoints of a run on the real backend: its memory stays what it is. */
static void loader_repeats_without_new_memory(void **state)
{
    struct scored scored;
    struct evq_error err = {0};
    struct evq_backend_stats stats;

    (void)state;
    assert_status(scored_build(&scored, EVQ_TEST_DATA "/models", "qwen3", NULL, 0, 0, &err),
                  EVQ_OK);
    assert_status_err(scored_load(&scored, &err), EVQ_OK, &err);
    evq_backend_cpu.stats(scored.state, &stats);
    const size_t memory = stats.memory_bytes;
    struct evq_model *first = scored.model;
    const struct evq_task_config task = {.name = "t"};
    const struct evq_model_request request = {.checkpoint = scored.checkpoint,
                                              .task = &task,
                                              .head = {.kind = EVQ_OP_SCORE},
                                              .rows_max = TOKENS_MAX};
    assert_status(evq_model_build(&request, &scored.model, &err), EVQ_OK);
    assert_true(evq_model_same_weights(first, scored.model));
    assert_status_err(scored_load(&scored, &err), EVQ_OK, &err);
    evq_backend_cpu.stats(scored.state, &stats);
    assert_true(memory > 0);
    assert_int_equal(stats.memory_bytes, memory);
    evq_model_free(first);
    scored_close(&scored);
}

int main(void)
{
#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(loader_puts_every_value_once_and_forms_the_digest),
        IN_FOLDER(loader_reads_small_tensors_that_lie_side_by_side_at_once),
        IN_FOLDER(loader_waits_for_a_backend_that_copies_late),
        IN_FOLDER(loader_tells_a_tied_head_that_differs),
        IN_FOLDER(loader_ends_with_the_first_failure),
        IN_FOLDER(loader_tells_how_far_it_is_and_stops_when_told),
        IN_FOLDER(loader_refuses_files_that_change_or_shrink_meanwhile),
        cmocka_unit_test(loader_repeats_without_new_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
