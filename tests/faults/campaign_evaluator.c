/*
 * fault_evaluator: an evaluator of one number, a mark that is new for each evaluation, and a
 * history of its starts and ends in $FAULT_HISTORY. Persistent when it gets jobs on its standard
 * input, a command when $EVALQ_RESULT names a file. $FAULT_WORK_MS: at most so long it takes.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/clock.h"
#include "tests/faults/history.h"

struct evaluator {
    struct history history;
    uint64_t work_ms;
};

static void work(const struct evaluator *evaluator)
{
    if (evaluator->work_ms > 0) {
        const uint64_t ms = evq_clock_random() % evaluator->work_ms;
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(ms / 1000),
                                           .tv_nsec = (long)(ms % 1000) * 1000000},
                        NULL);
    }
}

/* Evaluates one task: its mark. Written down before anybody is told. */
static uint64_t evaluate(struct evaluator *evaluator, const char *id, const char *task,
                         int64_t attempt)
{
    char detail[96];
    const uint64_t call = history_call(&evaluator->history);
    const uint64_t mark = evq_clock_random() >> 24; // 40 bits: exact as a double.

    (void)snprintf(detail, sizeof detail, "attempt=%" PRId64, attempt);
    history_line(&evaluator->history, call, "invoke", "start", id, NULL, detail);
    history_flush(&evaluator->history);
    work(evaluator);
    (void)snprintf(detail, sizeof detail, "%s=%" PRIu64, task, mark);
    history_line(&evaluator->history, call, "ok", "finish", id, NULL, detail);
    history_flush(&evaluator->history);
    return mark;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static void answer(struct evaluator *evaluator, const json_t *job)
{
    const json_int_t turn = json_integer_value(json_object_get(job, "turn"));
    const json_t *tasks = json_object_get(job, "tasks");

    for (size_t i = 0; i < json_array_size(tasks); i++) {
        const char *task = text_of(json_array_get(tasks, i), "name");
        const uint64_t mark = evaluate(evaluator, text_of(job, "job"), task,
                                       json_integer_value(json_object_get(job, "attempt")));
        (void)printf("{\"type\": \"task\", \"task\": \"%s\", \"turn\": %lld, "
                     "\"metrics\": {\"mark\": %" PRIu64 "}, \"n\": 1}\n",
                     task, (long long)turn, mark);
        (void)fflush(stdout);
    }
    (void)printf("{\"type\": \"done\", \"turn\": %lld}\n", (long long)turn);
    (void)fflush(stdout);
}

static int persistent(struct evaluator *evaluator)
{
    char *line = NULL;
    size_t room = 0;
    bool on = true;

    (void)puts("{\"type\": \"ready\"}");
    (void)fflush(stdout);
    while (on && getline(&line, &room, stdin) > 0) {
        json_t *message = json_loads(line, 0, NULL);
        const char *type = text_of(message, "type");
        if (strcmp(type, "job") == 0) {
            answer(evaluator, message);
        }
        on = message != NULL && strcmp(type, "exit") != 0;
        json_decref(message);
    }
    free(line);
    return 0;
}

static int command(struct evaluator *evaluator, const char *job_path, const char *result_path)
{
    json_t *job = json_load_file(job_path, 0, NULL);
    const json_t *task = json_array_get(json_object_get(job, "tasks"), 0);
    FILE *file = fopen(result_path, "we");

    if (job == NULL || task == NULL || file == NULL) {
        return 1;
    }
    const uint64_t mark = evaluate(evaluator, text_of(job, "job"), text_of(task, "name"),
                                   json_integer_value(json_object_get(job, "attempt")));
    (void)fprintf(file, "{\"mark\": %" PRIu64 "}\n", mark);
    json_decref(job);
    return fclose(file) == 0 ? 0 : 1;
}

int main(void)
{
    struct evaluator evaluator = {.work_ms = 0};
    const char *path = getenv("FAULT_HISTORY");
    const char *result = getenv("EVALQ_RESULT");
    const char *job = getenv("EVALQ_JOB");
    const char *work_ms = getenv("FAULT_WORK_MS");

    if (path == NULL) {
        (void)fprintf(stderr, "fault_evaluator: FAULT_HISTORY is not set\n");
        return 2;
    }
    history_open(&evaluator.history, path, "evaluator");
    evaluator.work_ms = work_ms != NULL ? strtoull(work_ms, NULL, 10) : 0;
    const int code =
        result != NULL && job != NULL ? command(&evaluator, job, result) : persistent(&evaluator);
    history_close(&evaluator.history);
    return code;
}
