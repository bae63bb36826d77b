/*
 * Removes samples files of a directory, and the directories that are empty then. Other files in it
 * stay. Any thread.
 */
#ifndef EVQ_SHARED_SAMPLES_SAMPLES_REMOVE_H
#define EVQ_SHARED_SAMPLES_SAMPLES_REMOVE_H

#include <stdint.h>
#include <time.h>

/* Removes the samples of a run, or of one step of it (-1: all). Returns how many files were
 * removed. */
int64_t evq_samples_remove(const char *directory, const char *run, int64_t step);

/* Removes the temporary files of a run whose writers are dead. Returns how many. *ret_newest: when
 * the newest of its other files was written; 0: there is none. */
int64_t evq_samples_remove_unfinished(const char *directory, const char *run, time_t *ret_newest);

#endif
