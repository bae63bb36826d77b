#include "worker/loader/loader.h"

#include <stdlib.h>
#include <string.h>

#include "worker/loader/staging_ring.h"

#define TOLD_BYTES ((int64_t)4 << 20) // Bytes that are read between two progress reports.

struct evq_loader {
    const struct evq_backend_ops *backend;
    void *state;
    struct evq_staging_ring *ring;
    const struct evq_progress *progress; // NULL: nobody listens.
};

struct filling { // The state of one evq_loader_fill() call.
    const struct evq_loader *loader;
    int64_t bytes, done, told;
};

enum evq_status evq_loader_new(const struct evq_backend_ops *backend, void *state, int32_t threads,
                               struct evq_loader **ret_loader, struct evq_error *err)
{
    struct evq_loader *loader = calloc(1, sizeof(*loader));

    if (loader == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a loader");
    }
    loader->backend = backend;
    loader->state = state;
    const enum evq_status status =
        evq_staging_ring_new(backend, state, threads, &loader->ring, err);
    if (status != EVQ_OK) {
        free(loader);
        return status;
    }
    *ret_loader = loader;
    return EVQ_OK;
}

void evq_loader_free(struct evq_loader *loader)
{
    if (loader != NULL) {
        evq_staging_ring_free(loader->ring);
        free(loader);
    }
}

void evq_loader_drop(struct evq_loader *loader)
{
    evq_staging_ring_drop(loader->ring);
}

void evq_loader_watch(struct evq_loader *loader, const struct evq_progress *progress)
{
    loader->progress = progress;
}

static enum evq_status tell(struct filling *filling, uint64_t bytes)
{
    const struct evq_progress *progress = filling->loader->progress;

    filling->done += (int64_t)bytes;
    if (progress == NULL || filling->done - filling->told < TOLD_BYTES) {
        return EVQ_OK;
    }
    filling->told = filling->done;
    return progress->tell(progress->context, filling->done, filling->bytes);
}

static enum evq_status put(void *context, const struct evq_load_piece *piece, const void *values,
                           struct evq_error *err)
{
    struct filling *filling = context;
    const struct evq_loader *loader = filling->loader;

    const enum evq_status status = tell(filling, piece->bytes);
    if (status != EVQ_OK || piece->kind == EVQ_LOAD_DIGEST) {
        return status;
    }
    const struct evq_weight_blob blob = {.values = values,
                                         .type = piece->type,
                                         .first_row = piece->first_row,
                                         .rows = piece->rows,
                                         .transposed = piece->source->transposed &&
                                                       piece->kind != EVQ_LOAD_VECTOR};
    return loader->backend->put(loader->state, piece->source->slot, &blob, err);
}

enum evq_status evq_loader_fill(struct evq_loader *loader, const struct evq_checkpoint *checkpoint,
                                const struct evq_model *model, struct evq_loaded *ret_loaded,
                                struct evq_error *err)
{
    struct evq_load_list list = {0};
    struct evq_piece_reader reader = {.checkpoint = checkpoint};
    struct filling filling = {.loader = loader};
    struct evq_loaded loaded = {0};

    enum evq_status status = evq_load_list_make(checkpoint, model, &list, err);
    filling.bytes = (int64_t)list.bytes;
    if (status == EVQ_OK) {
        status = evq_piece_reader_open(checkpoint, &list, &reader, err);
    }
    if (status == EVQ_OK) {
        status = evq_staging_ring_run(loader->ring, &reader, &list, put, &filling, err);
    }
    if (status == EVQ_OK) {
        status = evq_digest_finish(reader.digest, loaded.digest, err);
    }
    if (status == EVQ_OK) {
        status = evq_checkpoint_verify_unchanged(checkpoint, err);
    }
    if (status == EVQ_OK) {
        loaded.bytes = (int64_t)list.bytes;
        loaded.past_cache = reader.direct != NULL;
        loaded.tied_differ =
            model->unused != NULL && !evq_digest_same(reader.digest, model->unused, model->tied);
        *ret_loaded = loaded;
    }
    evq_piece_reader_close(&reader);
    evq_load_list_free(&list);
    return status;
}
