/*
 * The supervisor's way to Redis: one connection for commands, which also blocks for wake markers
 * while nothing runs, and a second that only blocks while something does. Failures turn into
 * waiting, never into an exit. One thread.
 */
#ifndef EVQ_WORKER_SUPERVISOR_REDIS_SESSION_H
#define EVQ_WORKER_SUPERVISOR_REDIS_SESSION_H

#include "shared/config/config.h"
#include "shared/queue/queue.h"
#include "worker/supervisor/causes.h"

struct evq_redis_session {
    struct evq_conn *conn;
    struct evq_queue *queue;
    struct evq_conn *second;  // NULL until it is needed.
    struct evq_conn *waiting; // The one that blocks now; NULL: none.
    int64_t wait_end_ms;      // Monotonic: a reply later than this is a lost connection.
    int64_t call_timeout_ms;
    struct evq_conn_config second_config;
    uint64_t seed;
    struct evq_backoff backoff; // Failures in a row, and when to try again.
    uint32_t logged;            // One bit for each status: this failure was logged.
    uint64_t known;             // Of conn when info was last read.
    char epoch[48];
    bool failed_over; // The last new epoch was a failover: of the same data, most of it.
    char name[80];
};

/* Makes the connection object and the queue; no I/O. name: CLIENT SETNAME, kept. */
enum evq_status evq_redis_session_open(struct evq_redis_session *session,
                                       const struct evq_config *config, const char *name,
                                       int64_t lease_ms, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_redis_session_close(struct evq_redis_session *session);

/* Whether a command may be tried now. */
bool evq_redis_session_ready(const struct evq_redis_session *session, int64_t now_ms);

/*
 * Reads info after every reconnect, and at once when forced: *ret_new_epoch says that the keyspace
 * is another one. Call before a round of commands.
 */
enum evq_status evq_redis_session_check(struct evq_redis_session *session, bool force,
                                        bool *ret_new_epoch,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Notes how a command ended. False for one that failed for a reason that passes: the link is down
 * until a later try. */
bool evq_redis_session_note(struct evq_redis_session *session, enum evq_status status,
                            const struct evq_error *err);

/*
 * The same of what asks for nothing or only reads. A Redis that refuses every change (READONLY,
 * MISCONF, NOREPLICAS) answers it as ever: only a command that may write ends what one began.
 */
bool evq_redis_session_note_read(struct evq_redis_session *session, enum evq_status status,
                                 const struct evq_error *err);

/* Begins to block for a wake marker of the classes; quiet: nothing else will use the connection
 * meanwhile. */
enum evq_status evq_redis_session_wait(struct evq_redis_session *session, const uint32_t *classes,
                                       uint32_t class_count, int64_t timeout_ms, bool quiet,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
int evq_redis_session_wait_fd(
    const struct evq_redis_session *session); // To poll for readability; -1: not waiting.
/* Reads the answer when wait_fd is readable or overdue. *ret_over: not waiting any more. */
enum evq_status evq_redis_session_wait_end(struct evq_redis_session *session, bool readable,
                                           bool *ret_over, struct evq_error *err) EVQ_CHECK_RESULT;
/* Gives the wait up. Before commands, when the command connection is the one that blocks. */
void evq_redis_session_wait_drop(struct evq_redis_session *session);

#endif
