/*
 * A process's own history file: what it asks and what it is told, for the checker (history.py has
 * the format). Whole lines are appended, those of one flush by one write. One thread.
 */
#ifndef EVQ_TESTS_FAULTS_HISTORY_H
#define EVQ_TESTS_FAULTS_HISTORY_H

#include <stddef.h>
#include <stdint.h>

struct history {
    int fd;
    char process[64];
    uint64_t calls;
    char *text;
    size_t bytes;
    size_t room;
};

/* Exits with a sentence when it cannot be opened. process gets this process's pid after its name.
 */
void history_open(struct history *history, const char *path, const char *process);

void history_close(struct history *history); // Flushes.

/* A new call's number. */
uint64_t history_call(struct history *history);

/* One line, kept until the flush; "" or NULL words become "-". */
void history_line(struct history *history, uint64_t call, const char *phase, const char *op,
                  const char *id, const char *token, const char *detail);
void history_flush(struct history *history); // Exits when it cannot be written.

/* How many lines of the file begin their phase, op as told: " ok submit ". Of all processes that
 * wrote to it. */
uint64_t history_count(const char *path, const char *words);

#endif
