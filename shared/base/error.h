/* Status codes and error messages of the whole project. Any thread; an evq_error belongs to its
 * caller. */
#ifndef EVQ_SHARED_BASE_ERROR_H
#define EVQ_SHARED_BASE_ERROR_H

#include <stddef.h>

#define EVQ_CHECK_RESULT                __attribute__((warn_unused_result))
#define EVQ_PRINTF(format_at, first_at) __attribute__((format(printf, format_at, first_at)))

enum evq_status {
    EVQ_OK = 0,
    EVQ_E_INVALID,     // The input is wrong; the message names what, where and what was expected.
    EVQ_E_CORRUPT,     // Bytes do not follow their format.
    EVQ_E_UNSUPPORTED, // Well-formed, but evalq does not handle it.
    EVQ_E_LIMIT,       // Larger than a stated limit.
    EVQ_E_NOT_FOUND,   // The named thing does not exist.
    EVQ_E_CONFLICT,    // Another definition or owner is in the way.
    EVQ_E_NOMEM,
    EVQ_E_IO,         // A system call or connection failed: reopen, then repeat.
    EVQ_E_RETRY,      // Redis asks to wait (LOADING, OOM, READONLY, ...): wait, then repeat.
    EVQ_E_AUTH,       // Redis refuses this user or password, or the user lacks a permission.
    EVQ_E_VERSION,    // The function library in Redis is missing, too old, or another major.
    EVQ_E_LEASE_LOST, // The token is stale: the job belongs to another attempt, or ended.
    EVQ_E_TIMEOUT,    // A deadline passed.
    EVQ_E_STOPPED,    // Asked to stop while waiting.
    EVQ_E_FULL,       // A bounded buffer has no room now.
    EVQ_E_GONE,       // The checkpoint was removed.
    EVQ_E_CHANGED,    // The checkpoint changed while it was read.
    EVQ_E_INCOMPLETE, // The checkpoint is not completely written yet.
    EVQ_E_DEVICE,     // A GPU or its driver failed.
    EVQ_E_BUG,        // Our own mistake.
    EVQ_STATUS_COUNT
};

struct evq_error {
    enum evq_status status;
    char message[512];
};

/*
 * Fills err (may be NULL) with status and a printf-style sentence, cut at 511 bytes; returns
 * status. Control bytes in the sentence are escaped (evq_error_escape()), so it may quote any
 * input. With EVQ_E_NOMEM, "out of memory: " is put before a sentence that does not mention memory.
 */
enum evq_status evq_error_set(struct evq_error *err, enum evq_status status, const char *format,
                              ...) EVQ_PRINTF(3, 4);

/* Puts "text: " before the present message; err may be NULL. Returns err's status (EVQ_E_BUG if
 * NULL). */
enum evq_status evq_error_prefix(struct evq_error *err, const char *format, ...) EVQ_PRINTF(2, 3);

/* A stable lower-case word such as "not_found"; never NULL. */
const char *evq_status_name(enum evq_status status);

/* Process exit codes, documented in docs/troubleshooting.md. */
enum evq_exit {
    EVQ_EXIT_OK = 0,
    EVQ_EXIT_ERROR = 1,
    EVQ_EXIT_USAGE = 2,
    EVQ_EXIT_NOT_FOUND = 3,
    EVQ_EXIT_JOB_FAILED = 4,
    EVQ_EXIT_UNREACHABLE = 5,
    EVQ_EXIT_PERMISSION = 6,
    EVQ_EXIT_VERSION = 7,
    EVQ_EXIT_CONFIG = 8,
    EVQ_EXIT_BAD_INPUT = 9, // A checkpoint or data file is missing, malformed or unsupported.
    EVQ_EXIT_TIMEOUT = 124,
    EVQ_EXIT_INTERRUPTED = 130
};

enum evq_exit evq_status_exit_code(enum evq_status status);

/* Writes text into out (cut to fit, always terminated) with control bytes, ESC, DEL and characters
 * that change the direction of text (U+202E and its like) as \xNN. Returns out. */
char *evq_error_escape(const char *text, size_t text_bytes, char *out, size_t out_bytes);

/*
 * Writes a message into out (cut to fit, always terminated) with its paths at the end, so that a
 * later cut removes a path first: "open '/a/b': no such file" becomes "open: no such file
 * ('/a/b')". Returns out.
 */
char *evq_error_cause_first(const char *text, char *out, size_t out_bytes);

/* Position of the first control byte or DEL in text, counted from 1; 0: there is none. */
size_t evq_error_control(const char *text);

#endif
