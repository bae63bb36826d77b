/*
 * The command line of evalq-logger. One thread.
 */
#ifndef EVQ_LOGGER_OPTIONS_H
#define EVQ_LOGGER_OPTIONS_H

#include "shared/base/man.h"
#include "shared/config/config.h"

struct evq_options { // Strings are argv's.
    bool help;
    bool version;
    struct evq_config_source source;
    const char *directory; // NULL: as the configuration says.
};

/* Opens the log as the options say. EVQ_E_INVALID with a sentence. */
enum evq_status evq_options_parse(int argc, char **argv, struct evq_options *ret_options,
                                  struct evq_error *err) EVQ_CHECK_RESULT;
/* What --help prints and the manual page holds. */
extern const struct evq_man evq_options_man;

#endif
