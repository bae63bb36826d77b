/*
 * One line per event on standard error: time, level, program, event, key=value pairs. Any thread.
 * Called by the programs' loops alone; shared/ and kernels/ return errors and never log.
 * Never pass a payload or a secret.
 */
#ifndef EVQ_SHARED_BASE_LOG_H
#define EVQ_SHARED_BASE_LOG_H

#include "shared/base/error.h"

enum evq_log_level { EVQ_LOG_ERROR, EVQ_LOG_WARN, EVQ_LOG_INFO, EVQ_LOG_DEBUG };
enum evq_log_format { EVQ_LOG_LOGFMT, EVQ_LOG_JSON };

/* program is kept, not copied. Under systemd (JOURNAL_STREAM) lines begin with <N>. Call before
 * threads start. */
void evq_log_open(const char *program, enum evq_log_level level, enum evq_log_format format);
enum evq_status evq_log_level_parse(const char *word,
                                    enum evq_log_level *ret_level) EVQ_CHECK_RESULT;

/*
 * pairs is a printf format of the form "key=%s other=%d"; every %s value is escaped and, when it
 * holds a space or quote, quoted. evq_log(EVQ_LOG_INFO, "job_done", "job=%s ms=%d", id, ms).
 */
void evq_log(enum evq_log_level level, const char *event, const char *pairs, ...) EVQ_PRINTF(3, 4);

#endif
