/*
 * The helper process that talks to remote stores: `python3 -m evalq.fetch`. It takes requests and
 * answers with lines over one socket; producer/python/evalq/fetch/__main__.py describes them. The
 * helper ends when its parent ends or closes the socket. Credentials reach it through the
 * environment only. One thread per object.
 */
#ifndef EVQ_SHARED_REMOTE_REMOTE_H
#define EVQ_SHARED_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_REMOTE_FINGERPRINT_CHARS 32
#define EVQ_REMOTE_LIST_MS           120000 // Time for a listing, with the start of the helper.
#define EVQ_REMOTE_FIELDS_MAX        6

struct evq_remote;

/* One line of an answer: its word, such as "file", and its fields. The texts are valid until the
 * next call. */
struct evq_remote_line {
    const char *fields[EVQ_REMOTE_FIELDS_MAX]; // fields[0] is the word. Missing ones are "".
};

/* What a checkpoint holds now. */
struct evq_remote_listing {
    char fingerprint[EVQ_REMOTE_FINGERPRINT_CHARS + 1];
    int64_t bytes;
    bool is_file;         // The checkpoint is one file, and not a directory.
    const char *manifest; // A line "name TAB bytes" for each file; valid until the next listing.
};

/* Starts the helper with this interpreter. "": $EVALQ_PYTHON, else python3. EVQ_E_INCOMPLETE: the
 * interpreter cannot be started. EVQ_E_NOMEM, EVQ_E_IO. */
enum evq_status evq_remote_open(const char *python, struct evq_remote **ret_remote,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Ends the helper. Accepts NULL. */
void evq_remote_close(struct evq_remote *remote);

/* Sends one request. No word may contain a tab or a newline (EVQ_E_INVALID). EVQ_E_RETRY: the
 * helper has ended. */
enum evq_status evq_remote_send(struct evq_remote *remote, const char *const *words, size_t count,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Reads the next line of the answer. EVQ_E_TIMEOUT: none came before deadline_ms (monotonic; 0: do
 * not wait). Other errors end the request: EVQ_E_GONE: the checkpoint does not exist.
 * EVQ_E_CHANGED: it is another one. EVQ_E_FULL: the disk is full. EVQ_E_INCOMPLETE: this machine's
 * set-up is at fault, for example a missing package or expired credentials. EVQ_E_INVALID: the
 * address cannot name a checkpoint. EVQ_E_CORRUPT: the data
 * has another digest than the store announced. EVQ_E_RETRY: the store or the helper failed.
 */
enum evq_status evq_remote_next(struct evq_remote *remote, int64_t deadline_ms,
                                struct evq_remote_line *ret_line,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Asks for a listing. key names the checkpoint for all machines ("root:path"); it is part of the
 * fingerprint. Then repeat evq_remote_list_next() until it returns another status than
 * EVQ_E_TIMEOUT.
 */
enum evq_status evq_remote_list_begin(struct evq_remote *remote, const char *address,
                                      const char *key, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_remote_list_next(struct evq_remote *remote, int64_t deadline_ms,
                                     struct evq_remote_listing *ret_listing,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
/* Both, for a caller that waits. */
enum evq_status evq_remote_list(struct evq_remote *remote, const char *address, const char *key,
                                struct evq_remote_listing *ret_listing,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
