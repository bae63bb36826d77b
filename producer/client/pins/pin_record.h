/*
 * Reads the record of a pin (pin.h shows its place). Private to the files of pins/. Any thread.
 */
#ifndef EVQ_PRODUCER_CLIENT_PINS_PIN_RECORD_H
#define EVQ_PRODUCER_CLIENT_PINS_PIN_RECORD_H

#include "producer/client/pins/pin.h"

#define EVQ_PINS_PATH       ".evalq/pins" // The directory of pins, relative to OUTPUT_DIR.
#define EVQ_PIN_RECORD_NAME ".pin"

struct evq_pin_record_job {
    const char *id;
    const char *sent_as; // NULL: not sent.
    const char *epoch;
    bool refused;
};

struct evq_pin_record {     // Its strings are in text.
    struct evq_buffer text; // Content of the file.
    const char *queue;
    const char *run;
    int64_t copied_bytes;
    int64_t created_ms;
    struct evq_pin_record_job jobs[EVQ_PIN_JOBS_MAX];
    size_t job_count;
};

/* Reads the record. The caller frees ret_record->text. EVQ_E_NOT_FOUND: there is no pin, or another
 * version of evalq wrote it. */
enum evq_status evq_pin_record_read(const char *directory,
                                    struct evq_pin_record *ret_record) EVQ_CHECK_RESULT;

#endif
