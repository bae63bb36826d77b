/*
 * What the benchmarks of the queue say to tests/bench/table.py: one line a figure, "row", name,
 * value, unit and over how many, with tabs between. Include after cmocka.h and
 * tests/fixture/queue.h.
 */
#ifndef EVQ_TESTS_BENCH_ROW_H
#define EVQ_TESTS_BENCH_ROW_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void bench_row(const char *name, double value, const char *unit, int64_t n)
{
    (void)printf("row\t%s\t%.6g\t%s\t%lld\n", name, value, unit, (long long)n);
    (void)fflush(stdout);
}

static inline int64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int bench_by_value(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a;
    int64_t right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

/* Sorts ns[count] and tells NAME p50, p99 and max in the unit, which is scale nanoseconds. */
static inline void bench_quantiles(const char *name, int64_t *ns, size_t count, const char *unit,
                                   double scale)
{
    static const char *const names[] = {"p50", "p99", "max"};
    char text[192];

    qsort(ns, count, sizeof *ns, bench_by_value);
    const size_t at[] = {count / 2, count * 99 / 100, count - 1};
    for (size_t i = 0; count > 0 && i < 3; i++) {
        (void)snprintf(text, sizeof text, "%.180s %s", name, names[i]);
        bench_row(text, (double)ns[at[i]] / scale, unit, (int64_t)count);
    }
}

/* Options of a redis-server with the append-only file off, everysec or always; as many connections
 * as the benchmarks open. NULL: no such mode. */
static inline const char *const *bench_redis_options(const char *mode)
{
    static const char *const off[] = {"--appendonly", "no",    "--save", "",
                                      "--maxclients", "10500", NULL};
    static const char *const everysec[] = {"--appendonly", "yes",    "--appendfsync",
                                           "everysec",     "--save", "",
                                           "--maxclients", "10500",  NULL};
    static const char *const always[] = {"--appendonly", "yes",    "--appendfsync",
                                         "always",       "--save", "",
                                         "--maxclients", "10500",  NULL};

    return strcmp(mode, "off") == 0        ? off
           : strcmp(mode, "everysec") == 0 ? everysec
           : strcmp(mode, "always") == 0   ? always
                                           : NULL;
}

#endif
