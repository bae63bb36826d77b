/*
 * The command line of evalq-logger. One thread.
 */
#ifndef EVQ_LOGGER_OPTIONS_H
#define EVQ_LOGGER_OPTIONS_H

#include "shared/base/man.h"
#include "shared/config/config.h"

struct evq_options { // Strings are argv's.
    struct evq_config_source source;
    const char *directory; // NULL: as the configuration says.
};

struct evq_options evq_options_read(const struct evq_option_set *set);
/* What --help prints and the manual page holds. */
extern const struct evq_man evq_options_man;

#endif
