/*
 * What is right and wrong with the queue and its server, as `status` warns of it and `doctor` lists
 * it. One thread.
 */
#ifndef EVQ_CLI_HEALTH_H
#define EVQ_CLI_HEALTH_H

#include "producer/cli/json.h"

enum evq_health_level { EVQ_HEALTH_OK, EVQ_HEALTH_NOTE, EVQ_HEALTH_WARN, EVQ_HEALTH_FAIL };

/* Appends {"check", "level": "ok" | "note" | "warn" | "fail", "text", "advice"} to the array.
 * advice may be "". */
void evq_health_add(json_t *checks, const char *check, enum evq_health_level level,
                    const char *advice, const char *format, ...) EVQ_PRINTF(5, 6);
enum evq_health_level evq_health_level(const json_t *check);

/* The server: version, whether it takes changes, append-only file, eviction, memory. Needs a
 * connection; what it may not ask is a note. */
enum evq_status evq_health_server(struct evq_cli *cli, json_t *checks,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* The queue, from what evq_view_stats() gave: loss, waiting without workers, silent workers, sinks,
 * bad records. */
void evq_health_queue(const json_t *stats, json_t *checks);

#endif
