/*
 * The helper process that talks to remote stores: `python3 -m evalq.fetch`. Requests and answers
 * are lines on one socket; producer/python/evalq/fetch/__main__.py describes them. The helper ends
 * when its parent ends or closes the socket. Credentials reach the helper through the environment
 * only. One thread per object.
 */
#ifndef EVQ_SHARED_REMOTE_REMOTE_H
#define EVQ_SHARED_REMOTE_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/error.h"

#define EVQ_REMOTE_FINGERPRINT_CHARS 32
#define EVQ_REMOTE_LIST_MS           120000 // Time for a listing, including the helper's start.
#define EVQ_REMOTE_FIELDS_MAX        6

struct evq_remote;

/* One line of an answer. fields[0] is the kind of line, such as "file". The texts are valid until
 * the next call. */
struct evq_remote_line {
    const char *fields[EVQ_REMOTE_FIELDS_MAX]; // A field that the line lacks is "".
};

/* The files of a checkpoint at the time of the listing. */
struct evq_remote_listing {
    char fingerprint[EVQ_REMOTE_FINGERPRINT_CHARS + 1];
    int64_t bytes;
    bool is_file;         // The checkpoint is a file, not a directory.
    const char *manifest; // A line "name TAB bytes" for each file; valid until the next listing.
};

/* Starts the helper with the interpreter `python`; "" means $EVALQ_PYTHON, else python3.
 * EVQ_E_INCOMPLETE: the interpreter cannot be started. EVQ_E_NOMEM, EVQ_E_IO. */
enum evq_status evq_remote_open(const char *python, struct evq_remote **ret_remote,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Ends the helper. Accepts NULL. */
void evq_remote_close(struct evq_remote *remote);

/* Sends one request. No word may contain a tab or a newline (EVQ_E_INVALID). EVQ_E_RETRY: the
 * helper has ended. */
enum evq_status evq_remote_send(struct evq_remote *remote, const char *const *words, size_t count,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Reads the next line of the answer. EVQ_E_TIMEOUT: no line came before deadline_ms (monotonic; 0:
 * do not wait); call again. Every other error ends the request. EVQ_E_GONE: the checkpoint does not
 * exist. EVQ_E_CHANGED: its files changed after the submit. EVQ_E_FULL: the disk is full.
 * EVQ_E_INCOMPLETE: this machine's set-up is at fault, for example a missing package or expired
 * credentials. EVQ_E_INVALID: the address cannot name a checkpoint. EVQ_E_CORRUPT: the digest of
 * the data differs from the digest that the store announced. EVQ_E_RETRY: the store or the helper
 * failed.
 */
enum evq_status evq_remote_next(struct evq_remote *remote, int64_t deadline_ms,
                                struct evq_remote_line *ret_line,
                                struct evq_error *err) EVQ_CHECK_RESULT;

/*
 * Asks for a listing. key is the checkpoint's name on all machines, "root:path". It is part of the
 * fingerprint. Then call evq_remote_list_next() until it returns another status than EVQ_E_TIMEOUT.
 */
enum evq_status evq_remote_list_begin(struct evq_remote *remote, const char *address,
                                      const char *key, struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_remote_list_next(struct evq_remote *remote, int64_t deadline_ms,
                                     struct evq_remote_listing *ret_listing,
                                     struct evq_error *err) EVQ_CHECK_RESULT;
/* Does both, and waits for the listing for at most EVQ_REMOTE_LIST_MS. */
enum evq_status evq_remote_list(struct evq_remote *remote, const char *address, const char *key,
                                struct evq_remote_listing *ret_listing,
                                struct evq_error *err) EVQ_CHECK_RESULT;

#endif
