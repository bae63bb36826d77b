#include "worker/loader/staging_ring.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define BUFFERS_MAX 8
// Size of all buffers together, unless a single one is larger.
#define BUFFERS_BYTES ((size_t)256 << 20)
#define INLINE_BYTES  ((uint64_t)4 << 20) // Below this size, threads cost more than they save.
#define READERS_WARM  4
#define READERS_COLD  8 // Disks are faster with several requests at once.

struct buffer {
    void *host;
    size_t bytes;
};

struct evq_staging_ring {
    const struct evq_backend_ops *backend;
    void *state;
    int32_t threads;
    struct buffer buffers[BUFFERS_MAX];
};

struct slot { // What a reader put into a buffer.
    bool ready;
    const void *values;
    enum evq_status status;
    struct evq_error error;
};

struct run { // The state of one load.
    struct evq_staging_ring *ring;
    const struct evq_piece_reader *reader;
    const struct evq_load_list *list;
    size_t buffer_count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t next;     // The piece that the next free reader takes.
    size_t released; // The buffers of pieces before this one are free again.
    size_t puts;     // Number of puts so far. Like put_pieces, only the taking thread uses it.
    // The pieces of the latest puts; number n is at n modulo BUFFERS_MAX.
    size_t put_pieces[BUFFERS_MAX];
    bool stopped;
    struct slot slots[BUFFERS_MAX];
};

enum evq_status evq_staging_ring_new(const struct evq_backend_ops *backend, void *state,
                                     int32_t threads, struct evq_staging_ring **ret_ring,
                                     struct evq_error *err)
{
    struct evq_staging_ring *ring = calloc(1, sizeof(*ring));

    if (ring == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a loader");
    }
    ring->backend = backend;
    ring->state = state;
    ring->threads = threads;
    *ret_ring = ring;
    return EVQ_OK;
}

static void drop_from(struct evq_staging_ring *ring, size_t first)
{
    for (size_t i = first; i < BUFFERS_MAX; i++) {
        if (ring->buffers[i].host != NULL) {
            ring->backend->free(ring->state, ring->buffers[i].host);
        }
        ring->buffers[i] = (struct buffer){0};
    }
}

void evq_staging_ring_drop(struct evq_staging_ring *ring)
{
    drop_from(ring, 0);
}

void evq_staging_ring_free(struct evq_staging_ring *ring)
{
    if (ring != NULL) {
        drop_from(ring, 0);
        free(ring);
    }
}

static enum evq_status grow(struct evq_staging_ring *ring, struct buffer *buffer, size_t bytes,
                            struct evq_error *err)
{
    if (bytes <= buffer->bytes) {
        return EVQ_OK;
    }
    if (buffer->host != NULL) {
        ring->backend->free(ring->state, buffer->host);
        *buffer = (struct buffer){0};
    }
    const enum evq_status status = ring->backend->alloc(ring->state, bytes, &buffer->host, err);
    if (status == EVQ_OK) {
        buffer->bytes = bytes;
    }
    return status;
}

/* Takes as many buffers as the pieces can use, and fewer if they are large. If one piece that
 * cannot be divided fills the limit, there is one buffer and nothing is read ahead. If memory is
 * short, one buffer fewer than fits is taken, because others need memory too. */
static enum evq_status grow_all(struct evq_staging_ring *ring, const struct evq_load_list *list,
                                size_t *ret_count, struct evq_error *err)
{
    const size_t bytes = list->room_max + EVQ_LOAD_SLACK + EVQ_LOAD_ALIGNMENT;
    size_t count = list->count < BUFFERS_MAX ? list->count : BUFFERS_MAX;
    size_t grown = 0;
    enum evq_status status = EVQ_OK;

    while (count > 1 && count * bytes > BUFFERS_BYTES) {
        count--;
    }
    if (list->bytes <= INLINE_BYTES && count > 0) {
        count = 1;
    }
    while (grown < count && status == EVQ_OK) {
        status = grow(ring, &ring->buffers[grown], bytes, err);
        grown += status == EVQ_OK;
    }
    if (status == EVQ_E_NOMEM) {
        count = grown > 1 ? grown - 1 : 1;
        // Buffers of earlier loads behind them are dropped too.
        drop_from(ring, grown > 0 ? count : 0);
        status = grow(ring, &ring->buffers[0], bytes, err);
    }
    *ret_count = count;
    return status;
}

static void *aligned(const struct buffer *buffer)
{
    const uintptr_t start = (uintptr_t)buffer->host;
    const uintptr_t past = start % EVQ_LOAD_ALIGNMENT;

    return (uint8_t *)buffer->host + (past > 0 ? EVQ_LOAD_ALIGNMENT - past : 0);
}

static void read_piece(struct run *run, size_t piece)
{
    struct slot *slot = &run->slots[piece % run->buffer_count];

    slot->error = (struct evq_error){0};
    slot->status = evq_piece_reader_read(run->reader, &run->list->pieces[piece],
                                         aligned(&run->ring->buffers[piece % run->buffer_count]),
                                         &slot->values, &slot->error);
}

static void *reader_main(void *context)
{
    struct run *run = context;

    (void)pthread_mutex_lock(&run->lock); // This fails only for a broken mutex.
    for (;;) {
        while (!run->stopped && run->next < run->list->count &&
               run->next - run->released >= run->buffer_count) {
            (void)pthread_cond_wait(&run->changed, &run->lock);
        }
        if (run->stopped || run->next >= run->list->count) {
            break;
        }
        const size_t piece = run->next++;
        (void)pthread_mutex_unlock(&run->lock);
        read_piece(run, piece);
        (void)pthread_mutex_lock(&run->lock);
        run->slots[piece % run->buffer_count].ready = true;
        (void)pthread_cond_broadcast(&run->changed);
    }
    (void)pthread_mutex_unlock(&run->lock);
    return NULL;
}

static enum evq_status slot_status(const struct slot *slot, struct evq_error *err)
{
    if (slot->status != EVQ_OK && err != NULL) {
        *err = slot->error;
    }
    return slot->status;
}

static enum evq_status run_inline(struct run *run, evq_load_take take, void *context,
                                  struct evq_error *err)
{
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < run->list->count && status == EVQ_OK; i++) {
        const struct slot *slot = &run->slots[i % run->buffer_count];
        read_piece(run, i);
        status = slot_status(slot, err);
        if (status == EVQ_OK) {
            status = take(context, &run->list->pieces[i], slot->values, err);
        }
        if (status == EVQ_OK) {
            status = run->ring->backend->settle(run->ring->state, err);
        }
    }
    return status;
}

static void release(struct run *run, size_t released)
{
    (void)pthread_mutex_lock(&run->lock); // This fails only for a broken mutex.
    for (size_t i = run->released; i < released; i++) {
        run->slots[i % run->buffer_count].ready = false;
    }
    run->released = released;
    (void)pthread_cond_broadcast(&run->changed);
    (void)pthread_mutex_unlock(&run->lock);
}

/* Piece i was taken. At most half of the buffers wait for the backend's copies, so that the backend
 * always has a next piece. The other half is for the readers. */
static enum evq_status catch_up(struct run *run, size_t i, struct evq_error *err)
{
    // The latest pieces, whose buffers may still be in use.
    const size_t held = run->buffer_count / 2;
    uint32_t most = 0;
    uint32_t reading = 0;

    if (run->list->pieces[i].kind != EVQ_LOAD_DIGEST) {
        run->put_pieces[run->puts++ % BUFFERS_MAX] = i;
    }
    while (most < run->puts && most < held && i + 1 < run->list->count &&
           run->put_pieces[(run->puts - most - 1) % BUFFERS_MAX] + held > i) {
        most++;
    }
    const enum evq_status status =
        run->ring->backend->catch_up(run->ring->state, most, &reading, err);
    if (status == EVQ_OK) {
        release(run, reading == 0 ? i + 1 : run->put_pieces[(run->puts - reading) % BUFFERS_MAX]);
    }
    return status;
}

static enum evq_status take_all(struct run *run, evq_load_take take, void *context,
                                struct evq_error *err)
{
    const size_t count = run->list->count;
    enum evq_status status = EVQ_OK;

    for (size_t i = 0; i < count && status == EVQ_OK; i++) {
        struct slot *slot = &run->slots[i % run->buffer_count];
        (void)pthread_mutex_lock(&run->lock); // This fails only for a broken mutex.
        while (!slot->ready) {
            (void)pthread_cond_wait(&run->changed, &run->lock);
        }
        (void)pthread_mutex_unlock(&run->lock);
        status = slot_status(slot, err);
        if (status == EVQ_OK) {
            status = take(context, &run->list->pieces[i], slot->values, err);
        }
        if (status == EVQ_OK) {
            status = catch_up(run, i, err);
        }
    }
    return status;
}

static size_t reader_count(const struct run *run)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t threads = run->ring->threads > 0 ? run->ring->threads : cores > 0 ? cores : 1;
    const int64_t wanted = run->reader->direct != NULL ? READERS_COLD
                           : threads < READERS_WARM    ? threads
                                                       : READERS_WARM;

    return (size_t)wanted < run->buffer_count ? (size_t)wanted : run->buffer_count;
}

static enum evq_status run_threads(struct run *run, evq_load_take take, void *context,
                                   struct evq_error *err)
{
    pthread_t readers[READERS_COLD];
    const size_t wanted = reader_count(run);
    size_t started = 0;
    enum evq_status status = EVQ_OK;

    while (started < wanted && pthread_create(&readers[started], NULL, reader_main, run) == 0) {
        started++;
    }
    if (started == 0) {
        return run_inline(run, take, context, err);
    }
    status = take_all(run, take, context, err);
    (void)pthread_mutex_lock(&run->lock); // This fails only for a broken mutex.
    run->stopped = true;
    (void)pthread_cond_broadcast(&run->changed);
    (void)pthread_mutex_unlock(&run->lock);
    for (size_t i = 0; i < started; i++) {
        (void)pthread_join(readers[i], NULL); // This cannot fail for our own threads.
    }
    return status;
}

enum evq_status evq_staging_ring_run(struct evq_staging_ring *ring,
                                     const struct evq_piece_reader *reader,
                                     const struct evq_load_list *list, evq_load_take take,
                                     void *context, struct evq_error *err)
{
    struct run *run = calloc(1, sizeof(*run));

    if (run == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a load");
    }
    run->ring = ring;
    run->reader = reader;
    run->list = list;
    (void)pthread_mutex_init(&run->lock, NULL); // Neither fails on Linux.
    (void)pthread_cond_init(&run->changed, NULL);
    enum evq_status status = grow_all(ring, list, &run->buffer_count, err);
    if (status == EVQ_OK) {
        status = run->buffer_count > 1 ? run_threads(run, take, context, err)
                                       : run_inline(run, take, context, err);
    }
    if (status != EVQ_OK) {
        (void)ring->backend->settle(ring->state, NULL); // The backend may still read what was put.
    }
    (void)pthread_cond_destroy(&run->changed);
    (void)pthread_mutex_destroy(&run->lock);
    free(run);
    return status;
}
