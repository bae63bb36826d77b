/*
 * The command line of the training programs.
 */
#ifndef EXAMPLE_SETTINGS_H
#define EXAMPLE_SETTINGS_H

#include <stdint.h>

struct settings { // Set to the defaults before settings_parse().
    const char *program;
    const char *usage; // What --help prints.
    const char *input; // Name of the option that names the training data, which is required.
    const char *data;  // Its value.
    const char *out;
    const char *run; // NULL: evalq makes a name.
    const char *suites;
    long steps;
    long every; // Steps between two checkpoints.
    long seed;
};

/* Reads --INPUT, --out, --run, --suites, --steps, --every, --seed and --help. Returns -1 if
 * training can begin, else the exit code. */
int settings_parse(int argc, char **argv, struct settings *settings);

/* Where a pseudo-random sequence begins; never 0. */
uint64_t settings_seed(const struct settings *settings);

#endif
