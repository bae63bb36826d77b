#include "logger/sample_upload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/hex.h"
#include "shared/samples/samples_writer.h"

struct evq_sample_upload {
    char job[EVQ_JOB_ID_BYTES_MAX];
    char task[EVQ_JOB_NAME_BYTES_MAX + 1];
    char token[65];
    char digest[33];
    int64_t bytes;
    int64_t have; // So many bytes from the beginning were written.
    bool broken;  // It can never be whole.
    char path[EVQ_SAMPLES_PATH_BYTES];
    struct evq_temporary_file file;
    XXH3_state_t *hash;
    struct evq_piece_entry *entries;
    size_t count;
    size_t room;
};

enum evq_status evq_sample_upload_new(const char *directory, const struct evq_sample_piece *piece,
                                      struct evq_sample_upload **ret_upload, struct evq_error *err)
{
    struct evq_sample_upload *upload = calloc(1, sizeof(*upload));

    if (upload != NULL) {
        upload->file.fd = -1;
        upload->hash = XXH3_createState();
    }
    if (upload == NULL || upload->hash == NULL) {
        free(upload);
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the samples of job %s", piece->job);
    }
    (void)XXH3_128bits_reset(upload->hash);
    (void)snprintf(upload->job, sizeof(upload->job), "%s", piece->job);
    (void)snprintf(upload->task, sizeof(upload->task), "%s", piece->task);
    (void)snprintf(upload->token, sizeof(upload->token), "%s", piece->token);
    (void)snprintf(upload->digest, sizeof(upload->digest), "%s", piece->digest);
    upload->bytes = piece->bytes;
    const enum evq_status status =
        evq_samples_path(directory, upload->job, upload->task, upload->path, err);
    if (status != EVQ_OK) {
        evq_sample_upload_free(upload);
        return status;
    }
    *ret_upload = upload;
    return EVQ_OK;
}

void evq_sample_upload_free(struct evq_sample_upload *upload)
{
    if (upload != NULL) {
        evq_temporary_file_drop(&upload->file);
        XXH3_freeState(upload->hash);
        free(upload->entries);
        free(upload);
    }
}

bool evq_sample_upload_has(const struct evq_sample_upload *upload,
                           const struct evq_sample_piece *piece)
{
    return strcmp(upload->token, piece->token) == 0 && strcmp(upload->job, piece->job) == 0 &&
           strcmp(upload->task, piece->task) == 0;
}

static enum evq_status entry_note(struct evq_sample_upload *upload,
                                  const struct evq_sample_piece *piece, struct evq_error *err)
{
    if (upload->count == upload->room) {
        const size_t room = upload->room == 0 ? 16 : 2 * upload->room;
        struct evq_piece_entry *entries =
            reallocarray(upload->entries, room, sizeof(*upload->entries));
        if (entries == NULL) {
            return evq_error_set(err, EVQ_E_NOMEM, "no memory for the samples of job %s",
                                 upload->job);
        }
        upload->entries = entries;
        upload->room = room;
    }
    struct evq_piece_entry *entry = &upload->entries[upload->count++];
    memcpy(entry->entry, piece->entry, sizeof(entry->entry));
    entry->file_bytes = piece->at == 0 ? piece->bytes : 0;
    return EVQ_OK;
}

enum evq_status evq_sample_upload_add(struct evq_sample_upload *upload,
                                      const struct evq_sample_piece *piece, struct evq_error *err)
{
    enum evq_status status = entry_note(upload, piece, err);

    upload->broken = upload->broken || piece->at > upload->have || piece->bytes != upload->bytes ||
                     strcmp(piece->digest, upload->digest) != 0;
    if (status != EVQ_OK || upload->broken || piece->at < upload->have) {
        return status; // A worker that gets no answer sends its piece again.
    }
    if (upload->file.fd < 0) {
        status = evq_temporary_file_open(upload->path, &upload->file, err);
    }
    if (status == EVQ_OK) {
        status =
            evq_file_write(upload->file.fd, piece->data, piece->data_bytes, upload->file.path, err);
    }
    if (status == EVQ_OK) {
        (void)XXH3_128bits_update(upload->hash, piece->data, piece->data_bytes);
        upload->have += (int64_t)piece->data_bytes;
    }
    return status;
}

bool evq_sample_upload_whole(const struct evq_sample_upload *upload)
{
    return !upload->broken && upload->have == upload->bytes;
}

enum evq_status evq_sample_upload_store(struct evq_sample_upload *upload, struct evq_error *err)
{
    const XXH128_hash_t hash = XXH3_128bits_digest(upload->hash);
    char digest[33];

    evq_hex_128(hash.high64, hash.low64, digest);
    if (strcmp(digest, upload->digest) != 0) {
        return evq_error_set(err, EVQ_E_CORRUPT,
                             "the samples of task %s of job %s arrived with the digest %s, "
                             "expected %s",
                             upload->task, upload->job, digest, upload->digest);
    }
    // After a power failure, Redis may no longer have the pieces.
    const enum evq_status status = evq_file_sync(upload->file.fd, upload->file.path, err);
    return status == EVQ_OK ? evq_temporary_file_finish(&upload->file, upload->path, err) : status;
}

const char *evq_sample_upload_job(const struct evq_sample_upload *upload)
{
    return upload->job;
}

const char *evq_sample_upload_task(const struct evq_sample_upload *upload)
{
    return upload->task;
}

const char *evq_sample_upload_token(const struct evq_sample_upload *upload)
{
    return upload->token;
}

const struct evq_piece_entry *evq_sample_upload_entries(const struct evq_sample_upload *upload,
                                                        size_t *ret_count)
{
    *ret_count = upload->count;
    return upload->entries;
}
