#include "producer/client/pins/pin_record.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"

#define RECORD_BYTES_MAX ((size_t)1 << 20)

static struct evq_pin_record_job *record_job_of(struct evq_pin_record *record, const char *id)
{
    for (size_t at = 0; at < record->job_count; at++) {
        if (strcmp(record->jobs[at].id, id) == 0) {
            return &record->jobs[at];
        }
    }
    if (record->job_count == EVQ_PIN_JOBS_MAX) {
        return NULL;
    }
    struct evq_pin_record_job *job = &record->jobs[record->job_count++];
    *job = (struct evq_pin_record_job){.id = id};
    return job;
}

static void record_line(struct evq_pin_record *record, char *line)
{
    char *rest = strchr(line, ' ');

    if (rest == NULL) {
        return; // Torn by a crash.
    }
    *rest++ = '\0';
    if (strcmp(line, "queue") == 0) {
        record->queue = rest;
    } else if (strcmp(line, "run") == 0) {
        record->run = rest;
    } else if (strcmp(line, "copied") == 0) {
        record->copied_bytes = strtoll(rest, NULL, 10);
    } else if (strcmp(line, "created") == 0) {
        record->created_ms = strtoll(rest, NULL, 10);
    } else if (strcmp(line, "want") == 0) {
        struct evq_pin_record_job *job = record_job_of(record, rest);
        if (job != NULL) { // It is wanted again, so its earlier state no longer counts.
            job->sent_as = NULL;
            job->refused = false;
        }
    } else if (strcmp(line, "refused") == 0) {
        struct evq_pin_record_job *job = record_job_of(record, rest);
        if (job != NULL) {
            job->refused = true;
        }
    } else if (strcmp(line, "sent") == 0) {
        char *sent_as = strchr(rest, ' ');
        if (sent_as != NULL) {
            *sent_as++ = '\0';
            char *epoch = strchr(sent_as, ' ');
            if (epoch != NULL) {
                *epoch++ = '\0';
            }
            struct evq_pin_record_job *job = record_job_of(record, rest);
            if (job != NULL) {
                job->sent_as = sent_as;
                job->epoch = epoch != NULL ? epoch : "";
            }
        }
    }
}

enum evq_status evq_pin_record_read(const char *directory, struct evq_pin_record *record)
{
    char path[PATH_MAX + 8];

    memset(record, 0, sizeof(*record));
    record->queue = "";
    record->run = "";
    (void)snprintf(path, sizeof(path), "%s/" EVQ_PIN_RECORD_NAME, directory);
    evq_buffer_init(&record->text, 0);
    if (evq_file_read(AT_FDCWD, path, O_NOFOLLOW, RECORD_BYTES_MAX, &record->text, NULL) !=
            EVQ_OK ||
        evq_buffer_string(&record->text) == NULL ||
        strncmp(evq_buffer_string(&record->text), "evalq-pin 1\n", 12) != 0) {
        evq_buffer_free(&record->text);
        return EVQ_E_NOT_FOUND;
    }
    char *line = (char *)record->text.data;
    while (line != NULL) {
        char *end = strchr(line, '\n');
        if (end != NULL) {
            *end = '\0';
            record_line(record, line);
        }
        line = end != NULL ? end + 1 : NULL; // A last line without a newline is torn.
    }
    return EVQ_OK;
}
