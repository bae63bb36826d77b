/*
 * Checks of the queue and its server. `status` shows the warnings, `doctor` lists all of them. One
 * thread.
 */
#ifndef EVQ_PRODUCER_CLI_INSPECT_HEALTH_H
#define EVQ_PRODUCER_CLI_INSPECT_HEALTH_H

#include "producer/cli/json.h"

enum evq_health_level { EVQ_HEALTH_OK, EVQ_HEALTH_NOTE, EVQ_HEALTH_WARN, EVQ_HEALTH_FAIL };

/* Appends {"check", "level": "ok" | "note" | "warn" | "fail", "text", "advice"} to the array.
 * advice may be "". */
void evq_health_add(json_t *checks, const char *check, enum evq_health_level level,
                    const char *advice, const char *format, ...) EVQ_PRINTF(5, 6);
enum evq_health_level evq_health_level(const json_t *check);

/* Checks the server: version, whether it accepts writes, append-only file, eviction, memory. Needs
 * a connection. A check that this user may not make becomes a note. */
enum evq_status evq_health_server(struct evq_cli *cli, json_t *checks,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* Checks the queue from a view of evq_view_stats(): lost results, jobs without workers, silent
 * workers, sinks, malformed records. */
void evq_health_queue(const json_t *stats, json_t *checks);

#endif
