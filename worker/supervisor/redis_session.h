/*
 * The supervisor's connections to Redis: one for commands, which also waits for wake markers while
 * no job runs, and a second one that only waits while jobs run. A failure leads to a later retry,
 * never to an exit. One thread.
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
    struct evq_conn *waiting; // The connection that waits for a marker now; NULL: none.
    int64_t wait_end_ms; // Monotonic. If the reply comes later than this, the connection is lost.
    int64_t call_timeout_ms;
    struct evq_conn_config second_config;
    uint64_t seed;
    struct evq_backoff backoff; // Failures in a row, and when to try again.
    uint32_t logged;            // One bit for each status: this failure was logged.
    uint64_t known;             // Number of the connection for which info was last read.
    char epoch[48];
    bool failed_over; // The last new epoch came from a failover, so most of the data is the same.
    char name[80];
};

/* Creates the connection object and the queue without I/O. name is copied and used for CLIENT
 * SETNAME. */
enum evq_status evq_redis_session_open(struct evq_redis_session *session,
                                       const struct evq_config *config, const char *name,
                                       int64_t lease_ms, struct evq_error *err) EVQ_CHECK_RESULT;
void evq_redis_session_close(struct evq_redis_session *session);

/* Whether a command may be tried now. */
bool evq_redis_session_ready(const struct evq_redis_session *session, int64_t now_ms);

/*
 * Reads info after every reconnect, and always if forced. *ret_new_epoch tells that the keyspace is
 * a new one. Call it before a round of commands.
 */
enum evq_status evq_redis_session_check(struct evq_redis_session *session, bool force,
                                        bool *ret_new_epoch,
                                        struct evq_error *err) EVQ_CHECK_RESULT;

/* Records how a command ended. Returns false if it failed because of an outage: then wait until
 * evq_redis_session_ready(). */
bool evq_redis_session_note(struct evq_redis_session *session, enum evq_status status,
                            const struct evq_error *err);

/*
 * The same for a command that writes nothing. A Redis that refuses all writes (READONLY, MISCONF,
 * NOREPLICAS) still answers reads, so only a successful write ends such an outage.
 */
bool evq_redis_session_note_read(struct evq_redis_session *session, enum evq_status status,
                                 const struct evq_error *err);

/* Starts to wait for a wake marker of the classes. quiet: no other command will use the connection
 * meanwhile. */
enum evq_status evq_redis_session_wait(struct evq_redis_session *session, const uint32_t *classes,
                                       uint32_t class_count, int64_t timeout_ms, bool quiet,
                                       struct evq_error *err) EVQ_CHECK_RESULT;
// File descriptor to poll for reading; -1: not waiting.
int evq_redis_session_wait_fd(const struct evq_redis_session *session);
/* Reads the answer if the descriptor is readable or the answer is overdue. *ret_over: the wait has
 * ended. */
enum evq_status evq_redis_session_wait_end(struct evq_redis_session *session, bool readable,
                                           bool *ret_over, struct evq_error *err) EVQ_CHECK_RESULT;
/* Ends the wait. Call it before commands if the command connection is the one that waits. */
void evq_redis_session_wait_drop(struct evq_redis_session *session);

#endif
