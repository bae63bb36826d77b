/*
 * Reads the records of an event file one after another, in little memory. Also lists the event
 * files of a directory. One thread.
 */
#ifndef EVQ_LOGGER_TENSORBOARD_EVENT_READER_H
#define EVQ_LOGGER_TENSORBOARD_EVENT_READER_H

#include <sys/types.h>

#include "logger/tensorboard/tfevent.h"

#define EVQ_EVENT_NAME_PREFIX "events.out.tfevents."
#define EVQ_EVENT_NAME_SUFFIX ".evalq"

struct evq_event_reader {
    int fd;       // The caller's.
    off_t offset; // End of the record that was read last.
    struct evq_buffer text;
    size_t at;             // The same end, in text.
    const uint8_t *record; // The record that was read last, valid until the next call.
    size_t record_bytes;
    struct evq_tfevent event; // The same record, decoded.
};

void evq_event_reader_init(struct evq_event_reader *reader, int fd);
/*
 * Reads the next record. *ret_found is false at the end of the file, and at a torn or damaged
 * record, because TensorBoard reads nothing behind one. Errors: EVQ_E_IO, EVQ_E_NOMEM.
 */
enum evq_status evq_event_reader_next(struct evq_event_reader *reader, bool *ret_found,
                                      struct evq_error *err) EVQ_CHECK_RESULT;
void evq_event_reader_free(struct evq_event_reader *reader); // The file stays open.

/* The names of the event files that evalq wrote to the directory, ascending. The caller frees them
 * with evq_event_names_free(). Errors: EVQ_E_IO, EVQ_E_NOMEM, EVQ_E_LIMIT (over 4,096 files). */
enum evq_status evq_event_names(const char *directory, char ***ret_names, size_t *ret_count,
                                struct evq_error *err) EVQ_CHECK_RESULT;
void evq_event_names_free(char **names, size_t count); // Accepts NULL.

#endif
