/*
 * Finds checkpoints and tools in the working directory, for `evalq init`. One thread.
 */
#ifndef EVQ_PRODUCER_CLI_INIT_PROJECT_H
#define EVQ_PRODUCER_CLI_INIT_PROJECT_H

#include <stdbool.h>
#include <stddef.h>

struct evq_project {
    char directory[1024]; // The directory with the most checkpoints, relative; "": none was found.
    char run[65];         // A run name for it.
    size_t checkpoint_count; // Checkpoints in it.
    bool is_trainer;         // A Transformers Trainer wrote them.
    bool lm_eval;            // The program lm_eval is in $PATH.
};

/* Reads the working directory and the two levels below it. It skips hidden directories and reads at
 * most 1,000 entries of each. */
void evq_project_read(struct evq_project *project);

#endif
