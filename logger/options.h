/*
 * What the command line of evalq-logger says.
 */
#ifndef EVQ_LOGGER_OPTIONS_H
#define EVQ_LOGGER_OPTIONS_H

#include "shared/config.h"
#include "shared/log.h"

struct evq_options { // Strings are argv's.
    struct evq_config_source source;
    const char *directory; // NULL: as the configuration says.
    enum evq_log_level level;
    enum evq_log_format format;
};

/* Fills options, which the caller gave defaults. -1: go on; else the exit code, everything said. */
int evq_options_parse(int argc, char **argv, struct evq_options *options);

#endif
