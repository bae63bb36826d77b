#include "worker/evaluators/sample_store.h"

#include <stdlib.h>
#include <string.h>

#include "shared/samples/samples_reader.h"
#include "shared/samples/samples_writer.h"

struct evq_sample_store {
    const struct evq_eval_request *request;
    struct evq_samples_header header;
    struct evq_samples_writer *writer; // NULL: no sample yet, or a fault.
    struct evq_error fault;            // The first one; status EVQ_OK: none.
};

bool evq_sample_store_wanted(const struct evq_eval_request *request)
{
    return request->suite->samples && request->id != NULL && request->shard < 0;
}

void evq_sample_store_directory(const struct evq_config *config, const char *scratch,
                                char out[EVQ_SAMPLES_PATH_BYTES])
{
    if (config->samples.send) { // A path that is cut is refused as too long later.
        (void)snprintf(out, EVQ_SAMPLES_PATH_BYTES, "%s/samples-to-send", scratch);
    } else {
        (void)snprintf(out, EVQ_SAMPLES_PATH_BYTES, "%s", config->samples.directory);
    }
}

struct evq_sample_store *evq_sample_store_new(const struct evq_eval_request *request,
                                              const char *task, const char *data_digest,
                                              const char *weighted)
{
    struct evq_sample_store *store =
        evq_sample_store_wanted(request) ? calloc(1, sizeof *store) : NULL;

    if (store != NULL) {
        struct evq_samples_header *header = &store->header;
        store->request = request;
        (void)snprintf(header->job, sizeof header->job, "%s", request->id);
        (void)snprintf(header->task, sizeof header->task, "%s", task);
        (void)snprintf(header->suite_digest, sizeof header->suite_digest, "%s",
                       request->suite->digest);
        (void)snprintf(header->data_digest, sizeof header->data_digest, "%s", data_digest);
        (void)snprintf(header->weighted, sizeof header->weighted, "%s", weighted);
        header->limit = request->suite->samples_limit;
    }
    return store;
}

void evq_sample_store_free(struct evq_sample_store *store)
{
    if (store != NULL) {
        evq_samples_writer_free(store->writer);
        free(store);
    }
}

const char *evq_sample_store_task(const struct evq_sample_store *store)
{
    return store != NULL ? store->header.task : "";
}

void evq_sample_store_fault(struct evq_sample_store *store, const struct evq_error *fault)
{
    if (store != NULL && store->fault.status == EVQ_OK) {
        store->fault = *fault;
        evq_samples_writer_free(store->writer);
        store->writer = NULL;
    }
}

void evq_sample_store_add(struct evq_sample_store *store, const struct evq_sample *sample)
{
    struct evq_error fault = {.status = EVQ_OK};
    enum evq_status status = EVQ_OK;

    if (store == NULL || store->fault.status != EVQ_OK) {
        return;
    }
    if (store->writer == NULL) {
        char directory[EVQ_SAMPLES_PATH_BYTES];
        evq_sample_store_directory(store->request->config, store->request->scratch, directory);
        status = evq_samples_writer_open(directory, &store->header, &store->writer, &fault);
    }
    if (status == EVQ_OK) {
        status = evq_samples_writer_add(store->writer, sample, &fault);
    }
    if (status != EVQ_OK) {
        evq_sample_store_fault(store, &fault);
    }
}

void evq_sample_store_add_json(struct evq_sample_store *store, const json_t *object)
{
    struct evq_sample sample;
    struct evq_error fault;

    if (store == NULL || store->fault.status != EVQ_OK) {
        return;
    }
    if (evq_sample_read(object, &sample, &fault) != EVQ_OK) {
        evq_sample_store_fault(store, &fault);
        return;
    }
    evq_sample_store_add(store, &sample);
}

void evq_sample_store_add_file(struct evq_sample_store *store, const char *path)
{
    struct evq_samples_reader *reader = NULL;
    struct evq_error fault;
    bool end = false;

    if (store == NULL || store->fault.status != EVQ_OK) {
        return;
    }
    enum evq_status status = evq_samples_reader_open(path, NULL, &reader, &fault);
    if (status == EVQ_E_NOT_FOUND) {
        return;
    }
    while (status == EVQ_OK && store->fault.status == EVQ_OK) {
        struct evq_sample sample;
        status = evq_samples_reader_next(reader, &sample, &end, &fault);
        if (status != EVQ_OK || end) {
            break;
        }
        evq_sample_store_add(store, &sample);
    }
    evq_samples_reader_close(reader);
    if (status != EVQ_OK) {
        evq_sample_store_fault(store, &fault);
    }
}

/* Puts a sentence behind the result's note. Without memory the note stays as it is. */
static void add_note(struct evq_result *result, const struct evq_error *fault)
{
    const char *before = result->note != NULL ? result->note : "";
    const char *note = evq_arena_printf(result->arena, "%s%ssamples were not kept: %s", before,
                                        before[0] != '\0' ? "; " : "", fault->message);

    result->note = note != NULL ? note : before;
}

void evq_sample_store_finish(struct evq_sample_store *store, struct evq_result *result)
{
    struct evq_error fault;
    char digest[33];
    int64_t bytes = 0;

    if (store == NULL) {
        return;
    }
    if (store->writer != NULL) {
        struct evq_samples_writer *writer = store->writer;
        store->writer = NULL; // It is freed in any case.
        if (evq_samples_writer_finish(writer, digest, &bytes, &fault) != EVQ_OK) {
            evq_sample_store_fault(store, &fault);
        } else {
            const char *copy = evq_arena_strdup(result->arena, digest);
            result->samples_digest = copy != NULL ? copy : "";
            result->samples_bytes = bytes;
        }
    }
    if (store->fault.status != EVQ_OK) {
        add_note(result, &store->fault);
    }
    evq_sample_store_free(store);
}
