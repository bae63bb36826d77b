#include "logger/tensorboard/event_reader.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

#define FILES_MAX 4096

void evq_event_reader_init(struct evq_event_reader *reader, int fd)
{
    *reader = (struct evq_event_reader){.fd = fd};
    evq_buffer_init(&reader->text, 2 * EVQ_TFEVENT_RECORD_BYTES_MAX);
}

void evq_event_reader_free(struct evq_event_reader *reader)
{
    evq_buffer_free(&reader->text);
}

/* Reads the next block of the file; *ret_bytes is 0 at its end. */
static enum evq_status block_read(struct evq_event_reader *reader, size_t *ret_bytes,
                                  struct evq_error *err)
{
    uint8_t block[65536];

    evq_buffer_consume(&reader->text, reader->at);
    reader->at = 0;
    const ssize_t got =
        pread(reader->fd, block, sizeof(block), reader->offset + (off_t)reader->text.bytes);
    if (got < 0) {
        return evq_error_set(err, EVQ_E_IO, "read an event file: %s", strerror(errno));
    }
    evq_buffer_append(&reader->text, block, (size_t)got);
    *ret_bytes = (size_t)got;
    return reader->text.failed ? evq_error_set(err, EVQ_E_NOMEM, "read an event file") : EVQ_OK;
}

enum evq_status evq_event_reader_next(struct evq_event_reader *reader, bool *ret_found,
                                      struct evq_error *err)
{
    struct evq_error ignored;
    enum evq_status read;

    *ret_found = false;
    for (;;) {
        size_t got;
        read = evq_tfevent_read(reader->text.data + reader->at, reader->text.bytes - reader->at,
                                &reader->event, &reader->record_bytes, &ignored);
        if (read != EVQ_E_INCOMPLETE) {
            break;
        }
        const enum evq_status status = block_read(reader, &got, err);
        if (status != EVQ_OK || got == 0) {
            return status;
        }
    }
    if (read == EVQ_OK) {
        reader->record = reader->text.data + reader->at;
        reader->at += reader->record_bytes;
        reader->offset += (off_t)reader->record_bytes;
        *ret_found = true;
    }
    return EVQ_OK;
}

static bool name_is_ours(const char *name)
{
    return strlen(name) > sizeof(EVQ_EVENT_NAME_PREFIX) + sizeof(EVQ_EVENT_NAME_SUFFIX) &&
           strncmp(name, EVQ_EVENT_NAME_PREFIX, sizeof(EVQ_EVENT_NAME_PREFIX) - 1) == 0 &&
           evq_file_ends_with(name, EVQ_EVENT_NAME_SUFFIX);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void evq_event_names_free(char **names, size_t count)
{
    for (size_t i = 0; names != NULL && i < count; i++) {
        free(names[i]);
    }
    free(names);
}

enum evq_status evq_event_names(const char *directory, char ***ret_names, size_t *ret_count,
                                struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    char **names = calloc(FILES_MAX, sizeof(*names));
    size_t count = 0;
    DIR *handle = opendir(directory);

    if (names == NULL || handle == NULL) {
        status = evq_error_set(err, names == NULL ? EVQ_E_NOMEM : EVQ_E_IO, "list '%s': %s",
                               directory, strerror(errno));
        goto out;
    }
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (!name_is_ours(entry->d_name)) {
            continue;
        }
        if (count == FILES_MAX) {
            status = evq_error_set(err, EVQ_E_LIMIT, "'%s' holds over %d event files", directory,
                                   FILES_MAX);
            goto out;
        }
        names[count] = strdup(entry->d_name);
        if (names[count] == NULL) {
            status = evq_error_set(err, EVQ_E_NOMEM, "list '%s'", directory);
            goto out;
        }
        count++;
    }
    qsort(names, count, sizeof(*names), by_name);
    *ret_names = names;
    *ret_count = count;
    names = NULL;
out:
    evq_event_names_free(names, count);
    if (handle != NULL) {
        (void)closedir(handle); // Opened for reading.
    }
    return status;
}
