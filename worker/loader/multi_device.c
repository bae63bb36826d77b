#include "worker/loader/multi_device.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct multi;

struct lane { // One device, and its part of a batch.
    struct multi *multi;
    void *state;
    pthread_t thread; // Every lane except the first has a thread.
    bool threaded;
    struct evq_batch batch;
    int32_t *starts, *score_rows; // The part's arrays, counted from its own first row.
    size_t starts_max, scores_max;
    struct evq_row_result *results; // They point into the caller's array.
    enum evq_status status;
    struct evq_error err;
};

struct multi {
    const struct evq_backend_ops *ops;
    struct lane lanes[EVQ_MULTI_DEVICE_MAX];
    size_t count;
    struct evq_plan part; // The plan of the devices, with fewer rows.
    int32_t rows_max;
    bool prepared; // The plan is prepared, or memory for it is reserved.
    uint64_t exec_calls;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    uint64_t turn; // Counts batches. A thread that sees another value than its own has work.
    size_t busy;
    bool told; // A thread reported progress that the caller has not passed on yet.
    bool stop;
};

static void lane_run(struct lane *lane)
{
    const struct evq_backend_ops *ops = lane->multi->ops;

    lane->err = (struct evq_error){0};
    lane->status = lane->batch.rows > 0
                       ? ops->exec(lane->state, &lane->batch, lane->results, &lane->err)
                       : EVQ_OK;
}

/* Progress is passed on by the thread that called exec(), so that thread is woken. */
static void lane_tell(void *listener)
{
    struct multi *multi = listener;

    (void)pthread_mutex_lock(&multi->lock);
    multi->told = true;
    (void)pthread_cond_signal(&multi->idle);
    (void)pthread_mutex_unlock(&multi->lock);
}

static void *lane_main(void *context)
{
    struct lane *lane = context;
    struct multi *multi = lane->multi;
    uint64_t seen = 0;

    // This fails only for a broken mutex, as do the calls below.
    (void)pthread_mutex_lock(&multi->lock);
    for (;;) {
        while (!multi->stop && multi->turn == seen) {
            (void)pthread_cond_wait(&multi->wake, &multi->lock);
        }
        if (multi->stop) {
            break;
        }
        seen = multi->turn;
        (void)pthread_mutex_unlock(&multi->lock);
        lane_run(lane);
        (void)pthread_mutex_lock(&multi->lock);
        if (--multi->busy == 0) {
            (void)pthread_cond_signal(&multi->idle);
        }
    }
    (void)pthread_mutex_unlock(&multi->lock);
    return NULL;
}

/* Starts the threads with all signals blocked, because signals are for the program's own threads.
 */
static enum evq_status threads_start(struct multi *multi, struct evq_error *err)
{
    sigset_t all;
    sigset_t before;
    enum evq_status status = EVQ_OK;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    for (size_t i = 1; i < multi->count && status == EVQ_OK; i++) {
        struct lane *lane = &multi->lanes[i];
        lane->threaded = pthread_create(&lane->thread, NULL, lane_main, lane) == 0;
        if (!lane->threaded) {
            status = evq_error_set(err, EVQ_E_NOMEM, "a thread for device %zu", i);
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static void multi_close(void *opened)
{
    struct multi *multi = opened;

    if (multi == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&multi->lock);
    multi->stop = true;
    (void)pthread_cond_broadcast(&multi->wake);
    (void)pthread_mutex_unlock(&multi->lock);
    for (size_t i = 0; i < multi->count; i++) {
        struct lane *lane = &multi->lanes[i];
        if (lane->threaded) {
            (void)pthread_join(lane->thread, NULL);
        }
        multi->ops->close(lane->state);
        free(lane->starts);
        free(lane->score_rows);
    }
    (void)pthread_cond_destroy(&multi->idle);
    (void)pthread_cond_destroy(&multi->wake);
    (void)pthread_mutex_destroy(&multi->lock);
    free(multi);
}

enum evq_status evq_multi_device_open(const struct evq_backend_ops *ops,
                                      const struct evq_backend_config *configs, size_t count,
                                      void **ret_state, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    if (count < 1 || count > EVQ_MULTI_DEVICE_MAX) {
        return evq_error_set(err, EVQ_E_BUG, "%zu devices side by side, expected 1 to %d", count,
                             EVQ_MULTI_DEVICE_MAX);
    }
    struct multi *multi = calloc(1, sizeof(*multi));
    if (multi == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "%zu devices", count);
    }
    multi->ops = ops;
    (void)pthread_mutex_init(&multi->lock, NULL); // None of these fails on Linux.
    (void)pthread_cond_init(&multi->wake, NULL);
    (void)pthread_cond_init(&multi->idle, NULL);
    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        multi->lanes[i].multi = multi;
        status = ops->open(&configs[i], &multi->lanes[i].state, err);
        multi->count += status == EVQ_OK;
    }
    if (status == EVQ_OK) {
        status = threads_start(multi, err);
    }
    if (status != EVQ_OK) {
        multi_close(multi);
        return status;
    }
    *ret_state = multi;
    return EVQ_OK;
}

static void multi_caps(void *opened, struct evq_backend_caps *ret_caps)
{
    const struct multi *multi = opened;
    struct evq_backend_caps caps;

    multi->ops->caps(multi->lanes[0].state, ret_caps);
    for (size_t i = 1; i < multi->count; i++) {
        multi->ops->caps(multi->lanes[i].state, &caps);
        ret_caps->memory_bytes =
            caps.memory_bytes < ret_caps->memory_bytes ? caps.memory_bytes : ret_caps->memory_bytes;
        ret_caps->bf16 = ret_caps->bf16 && caps.bf16;
    }
    if (multi->count > 1) {
        caps = *ret_caps;
        (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "%zu x %.110s", multi->count,
                       caps.device);
    }
}

static enum evq_status multi_alloc(void *opened, size_t bytes, void **ret_host,
                                   struct evq_error *err)
{
    const struct multi *multi = opened;

    return multi->ops->alloc(multi->lanes[0].state, bytes, ret_host, err);
}

static void multi_free(void *opened, void *host)
{
    const struct multi *multi = opened;

    multi->ops->free(multi->lanes[0].state, host);
}

/* A part ends at the first sequence that begins at or behind its share of the rows, so it exceeds
 * the share by less than one sequence. */
static int32_t part_rows_max(const struct evq_plan *plan, size_t count)
{
    const int64_t share = ((int64_t)plan->rows_max - 1) / (int64_t)count + 1;
    const int64_t rows = share + plan->length_max;

    return count == 1 || rows > plan->rows_max ? plan->rows_max : (int32_t)rows;
}

typedef enum evq_status (*lane_prepare_fn)(void *state, const struct evq_plan *plan,
                                           struct evq_error *err);

static enum evq_status lanes_prepare(struct multi *multi, lane_prepare_fn prepare,
                                     const struct evq_plan *plan, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    multi->prepared = false;
    multi->part = *plan;
    multi->part.rows_max = part_rows_max(plan, multi->count);
    multi->rows_max = plan->rows_max;
    for (size_t i = 0; i < multi->count && status == EVQ_OK; i++) {
        status = prepare(multi->lanes[i].state, &multi->part, err);
    }
    multi->prepared = status == EVQ_OK;
    return status;
}

static enum evq_status multi_prepare(void *opened, const struct evq_plan *plan,
                                     struct evq_error *err)
{
    struct multi *multi = opened;

    return lanes_prepare(multi, multi->ops->prepare, plan, err);
}

static enum evq_status multi_put(void *opened, int32_t slot, const struct evq_weight_blob *blob,
                                 struct evq_error *err)
{
    const struct multi *multi = opened;
    enum evq_status status =
        multi->prepared ? EVQ_OK : evq_error_set(err, EVQ_E_BUG, "put before prepare");

    for (size_t i = 0; i < multi->count && status == EVQ_OK; i++) {
        status = multi->ops->put(multi->lanes[i].state, slot, blob, err);
    }
    return status;
}

/* Waits for all devices, even if one fails, because none may read host memory afterwards. */
static enum evq_status multi_settle(void *opened, struct evq_error *err)
{
    const struct multi *multi = opened;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < multi->count; i++) {
        const enum evq_status one =
            multi->ops->settle(multi->lanes[i].state, status == EVQ_OK ? err : NULL);
        status = status == EVQ_OK ? one : status;
    }
    return status;
}

static enum evq_status multi_catch_up(void *opened, uint32_t most, uint32_t *ret_reading,
                                      struct evq_error *err)
{
    const struct multi *multi = opened;
    enum evq_status status = EVQ_OK;

    *ret_reading = 0;
    for (size_t i = 0; i < multi->count && status == EVQ_OK; i++) {
        uint32_t reading = 0;
        status = multi->ops->catch_up(multi->lanes[i].state, most, &reading, err);
        *ret_reading = reading > *ret_reading ? reading : *ret_reading;
    }
    return status;
}

static bool room_for(int32_t **values, size_t *held, size_t wanted)
{
    if (wanted <= *held) {
        return true;
    }
    int32_t *grown = realloc(*values, wanted * sizeof(**values));
    if (grown == NULL) {
        return false;
    }
    *values = grown;
    *held = wanted;
    return true;
}

/* Cuts the rows [first, end) of the batch for one device. For a batch of tokens, it takes the
 * sequences from *sequence and the scores from *score on, and moves both behind the part. */
static bool part_cut(struct lane *lane, const struct evq_batch *batch, int32_t first, int32_t end,
                     int32_t *sequence, int32_t *score)
{
    const struct evq_plan *plan = &lane->multi->part;
    const struct evq_op *head = &plan->ops[plan->op_count - 1];
    struct evq_batch *part = &lane->batch;
    const size_t row = (size_t)first;
    const int32_t begin = *sequence;
    const int32_t score_begin = *score;

    *part =
        (struct evq_batch){.rows = end - first, .tell = batch->tell, .listener = batch->listener};
    if (batch->tell != NULL && lane->threaded) {
        part->tell = lane_tell;
        part->listener = lane->multi;
    }
    part->inputs =
        batch->inputs != NULL ? batch->inputs + row * (size_t)plan->buffer_columns[0] : NULL;
    part->labels = batch->labels != NULL ? batch->labels + row : NULL;
    part->targets = batch->targets != NULL ? batch->targets + row * (size_t)head->n : NULL;
    if (plan->length_max == 0) {
        return true;
    }
    while (*sequence < batch->sequences && batch->starts[*sequence] < end) {
        ++*sequence;
    }
    while (*score < batch->scores && batch->score_rows[*score] < end) {
        ++*score;
    }
    part->sequences = *sequence - begin;
    part->scores = *score - score_begin;
    if (!room_for(&lane->starts, &lane->starts_max, (size_t)part->sequences + 1) ||
        !room_for(&lane->score_rows, &lane->scores_max, (size_t)part->scores)) {
        return false;
    }
    for (int32_t i = 0; i <= part->sequences; i++) {
        lane->starts[i] = batch->starts[begin + i] - first;
    }
    for (int32_t i = 0; i < part->scores; i++) {
        lane->score_rows[i] = batch->score_rows[score_begin + i] - first;
    }
    part->tokens = batch->tokens != NULL ? batch->tokens + row : NULL;
    part->starts = lane->starts;
    part->score_rows = lane->score_rows;
    part->score_targets = batch->scores > 0 ? batch->score_targets + score_begin : NULL;
    return true;
}

/* Where the parts of the lanes up to number `lane` end; always at the start of a sequence. */
static int32_t part_end(const struct multi *multi, const struct evq_batch *batch, size_t lane,
                        int32_t sequence)
{
    const int64_t share = (int64_t)batch->rows * (int64_t)(lane + 1) / (int64_t)multi->count;

    if (multi->part.length_max == 0 || lane + 1 == multi->count) {
        return (int32_t)share;
    }
    while (sequence < batch->sequences && batch->starts[sequence] < share) {
        sequence++;
    }
    return batch->starts[sequence];
}

static enum evq_status batch_cut(struct multi *multi, const struct evq_batch *batch,
                                 struct evq_row_result *results, struct evq_error *err)
{
    const struct evq_plan *plan = &multi->part;
    const bool scored = plan->ops[plan->op_count - 1].kind == EVQ_OP_SCORE;
    int32_t first = 0;
    int32_t sequence = 0;
    int32_t score = 0;

    for (size_t i = 0; i < multi->count; i++) {
        struct lane *lane = &multi->lanes[i];
        const int32_t end = part_end(multi, batch, i, sequence);
        lane->results = results + (scored ? score : first);
        if (!part_cut(lane, batch, first, end, &sequence, &score)) {
            return evq_error_set(err, EVQ_E_NOMEM, "a part of %d rows", (int)(end - first));
        }
        first = end;
    }
    return EVQ_OK;
}

/* Checks what the division of the batch relies on. The devices check the rest. */
static enum evq_status batch_check(const struct multi *multi, const struct evq_batch *batch,
                                   struct evq_error *err)
{
    if (!multi->prepared) {
        return evq_error_set(err, EVQ_E_BUG, "exec before prepare");
    }
    if (batch->rows < 0 || batch->rows > multi->rows_max) {
        return evq_error_set(err, EVQ_E_BUG, "batch of %d rows for a plan of %d", (int)batch->rows,
                             (int)multi->rows_max);
    }
    bool good = multi->part.length_max == 0 || batch->rows == 0 ||
                (batch->starts != NULL && batch->sequences >= 1 && batch->starts[0] == 0 &&
                 batch->starts[batch->sequences] == batch->rows);
    good = good && (batch->scores == 0 || (batch->scores > 0 && batch->score_rows != NULL &&
                                           batch->score_targets != NULL));
    for (int32_t i = 0; good && multi->part.length_max > 0 && i < batch->sequences; i++) {
        const int64_t length = (int64_t)batch->starts[i + 1] - batch->starts[i];
        good = length >= 1 && length <= multi->part.length_max;
    }
    for (int32_t i = 0; good && i < batch->scores; i++) {
        good = batch->score_rows[i] < batch->rows &&
               batch->score_rows[i] >= (i > 0 ? batch->score_rows[i - 1] : 0);
    }
    return good ? EVQ_OK
                : evq_error_set(err, EVQ_E_BUG, "batch that does not fit its %d rows",
                                (int)batch->rows);
}

static void lanes_wait(struct multi *multi, const struct evq_batch *batch)
{
    (void)pthread_mutex_lock(&multi->lock);
    while (multi->busy > 0) {
        if (multi->told) {
            multi->told = false;
            (void)pthread_mutex_unlock(&multi->lock);
            batch->tell(batch->listener);
            (void)pthread_mutex_lock(&multi->lock);
            continue;
        }
        (void)pthread_cond_wait(&multi->idle, &multi->lock);
    }
    multi->told = false; // The next batch may have no listener.
    (void)pthread_mutex_unlock(&multi->lock);
}

/* If several devices fail, the failure of the first device is reported. */
static enum evq_status multi_exec(void *opened, const struct evq_batch *batch,
                                  struct evq_row_result *results, struct evq_error *err)
{
    struct multi *multi = opened;

    enum evq_status status = batch_check(multi, batch, err);
    if (status == EVQ_OK && batch->rows > 0) {
        status = batch_cut(multi, batch, results, err);
    }
    if (status != EVQ_OK || batch->rows == 0) {
        multi->exec_calls += status == EVQ_OK;
        return status;
    }
    (void)pthread_mutex_lock(&multi->lock);
    multi->turn++;
    multi->busy = multi->count - 1;
    (void)pthread_cond_broadcast(&multi->wake);
    (void)pthread_mutex_unlock(&multi->lock);
    lane_run(&multi->lanes[0]);
    lanes_wait(multi, batch);
    for (size_t i = 0; i < multi->count; i++) {
        const struct lane *lane = &multi->lanes[i];
        if (lane->status != EVQ_OK) {
            return multi->count == 1 ? evq_error_set(err, lane->status, "%s", lane->err.message)
                                     : evq_error_set(err, lane->status, "device %zu of %zu: %s", i,
                                                     multi->count, lane->err.message);
        }
    }
    multi->exec_calls++;
    return EVQ_OK;
}

static void multi_stats(void *opened, struct evq_backend_stats *ret_stats)
{
    const struct multi *multi = opened;

    *ret_stats = (struct evq_backend_stats){.exec_calls = multi->exec_calls};
    for (size_t i = 0; i < multi->count; i++) {
        struct evq_backend_stats stats;
        multi->ops->stats(multi->lanes[i].state, &stats);
        ret_stats->rows += stats.rows;
        ret_stats->flops += stats.flops;
        ret_stats->memory_bytes += stats.memory_bytes;
    }
}

const struct evq_backend_ops evq_multi_device_backend = {
    .abi_version = EVQ_BACKEND_ABI,
    .name = "several",
    .caps = multi_caps,
    .alloc = multi_alloc,
    .free = multi_free,
    .prepare = multi_prepare,
    .put = multi_put,
    .settle = multi_settle,
    .catch_up = multi_catch_up,
    .exec = multi_exec,
    .stats = multi_stats,
    .close = multi_close,
};
