/*
 * The command line of evalq-gateway. One thread.
 */
#ifndef EVQ_PRODUCER_GATEWAY_OPTIONS_H
#define EVQ_PRODUCER_GATEWAY_OPTIONS_H

#include "shared/base/man.h"
#include "shared/config/config.h"

struct evq_options { // Strings are argv's.
    struct evq_config_source source;
    const char *listen; // NULL: the address in the configuration counts.
    const char *tokens; // NULL: the file in the configuration counts.
    bool lmms_open;
    uint32_t threads;
    int64_t patience_ms; // How long a client may take to send a request.
    uint32_t rate;       // Requests a second of one client; 0: any number.
};

struct evq_options evq_options_read(const struct evq_option_set *set);
/* The text of --help and of the manual page. */
extern const struct evq_man evq_options_man;

#endif
