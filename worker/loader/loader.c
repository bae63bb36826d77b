#include "worker/loader/loader.h"

#include <stdlib.h>
#include <string.h>

#include "worker/loader/ring.h"

struct evq_loader {
    const struct evq_backend_ops *backend;
    void *state;
    struct evq_load_ring *ring;
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
    const enum evq_status status = evq_load_ring_new(backend, state, threads, &loader->ring, err);
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
        evq_load_ring_free(loader->ring);
        free(loader);
    }
}

uint64_t evq_loader_allocations(const struct evq_loader *loader)
{
    return evq_load_ring_allocations(loader->ring);
}

static enum evq_status put(void *context, const struct evq_load_piece *piece, const void *values,
                           struct evq_error *err)
{
    const struct evq_loader *loader = context;

    if (piece->kind == EVQ_LOAD_DIGEST) {
        return EVQ_OK;
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
    struct evq_load_reader reader = {.checkpoint = checkpoint};
    struct evq_loaded loaded = {0};

    enum evq_status status = evq_load_list_make(checkpoint, model, &list, err);
    if (status == EVQ_OK) {
        status = evq_load_reader_open(checkpoint, &list, &reader, err);
    }
    if (status == EVQ_OK) {
        status = evq_load_ring_run(loader->ring, &reader, &list, put, loader, err);
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
    evq_load_reader_close(&reader);
    evq_load_list_free(&list);
    return status;
}
