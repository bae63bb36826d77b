/*
 * A persistent evaluator that does nothing, or waits on a timer: what is left of a job's time is
 * evalq's own. Speaks the lines of docs/evaluators.md, and appends "JOB ATTEMPT PID START_NS
 * END_NS" (CLOCK_MONOTONIC; END_NS 0 at the start, the line comes again at the end) to LOG.
 *
 *     noop_evaluator LOG       Of the job's params: sleep_ms, and of its first attempt
 *                              sleep_first_ms more.
 */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int note(int log, const json_t *job, long long start, long long end)
{
    char line[512];
    const char *id = json_string_value(json_object_get(job, "job"));
    int bytes = snprintf(line, sizeof line, "%s %lld %ld %lld %lld\n", id != NULL ? id : "-",
                         (long long)json_integer_value(json_object_get(job, "attempt")),
                         (long)getpid(), start, end);

    return write(log, line, (size_t)bytes) == bytes ? 0 : -1; // One write: lines stay whole.
}

static void wait_ms(const char *text)
{
    long ms = text != NULL ? strtol(text, NULL, 10) : 0;
    struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (ms > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) != 0) {
    }
}

static int evaluate(int log, const json_t *job)
{
    const json_t *params = json_object_get(job, "params");
    const json_t *task;
    size_t at;
    long long start = now_ns();

    if (note(log, job, start, 0) != 0) {
        return -1;
    }
    wait_ms(json_string_value(json_object_get(params, "sleep_ms")));
    if (json_integer_value(json_object_get(job, "attempt")) == 1) {
        wait_ms(json_string_value(json_object_get(params, "sleep_first_ms")));
    }
    json_array_foreach(json_object_get(job, "tasks"), at, task)
    {
        (void)printf(
            "{\"type\": \"task\", \"task\": \"%s\", \"metrics\": {\"one\": 1}, \"n\": 1}\n",
            json_string_value(json_object_get(task, "name")));
    }
    (void)printf("{\"type\": \"done\"}\n");
    (void)fflush(stdout);
    return note(log, job, start, now_ns());
}

int main(int argc, char **argv)
{
    static char line[1 << 20];
    int log = argc == 2 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

    if (log < 0) {
        (void)fprintf(stderr, "usage: noop_evaluator LOG\n");
        return 2;
    }
    (void)printf("{\"type\": \"ready\"}\n");
    (void)fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        json_t *message = json_loads(line, 0, NULL);
        const char *type = json_string_value(json_object_get(message, "type"));
        if (type == NULL || strcmp(type, "exit") == 0) {
            json_decref(message);
            break;
        }
        int failed = strcmp(type, "job") == 0 ? evaluate(log, message) : 0;
        json_decref(message);
        if (failed != 0) {
            return 1;
        }
    }
    return 0;
}
