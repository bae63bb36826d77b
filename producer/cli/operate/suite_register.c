#include "producer/cli/operate/suite_register.h"

#include <stdio.h>
#include <unistd.h>

enum evq_status evq_suite_register(struct evq_cli *cli, const struct evq_suite *suite, bool replace,
                                   struct evq_error *err)
{
    char needs[256];
    char host[256] = "";
    char where[1024];
    uint32_t class_number = 0;
    enum evq_status status = evq_needs_text(&suite->needs, needs, sizeof needs, err);
    if (status != EVQ_OK) {
        return status;
    }
    (void)gethostname(host, sizeof host - 1); // Only for people to read.
    (void)snprintf(where, sizeof where, "%.200s:%.800s", host, cli->config->file);
    struct evq_suite_offer offer = {
        .name = suite->name,
        .digest = suite->digest,
        .needs = needs,
        .shards = suite->shards,
        .every = suite->every,
        .definition = suite->definition,
        .where = where,
    };
    return evq_queue_suite_register(cli->queue, &offer, replace, &class_number, err);
}

enum evq_status evq_suite_register_all(struct evq_cli *cli, struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    for (size_t i = 0; status == EVQ_OK && i < cli->config->suite_count; i++) {
        const struct evq_suite *suite = &cli->config->suites[i];
        status = evq_suite_register(cli, suite, false, err);
        if (status == EVQ_E_CONFLICT) {
            status = evq_suite_register(cli, suite, true, err);
            if (status == EVQ_OK) {
                evq_cli_say(cli,
                            "evalq: the suite '%s' has a new definition: do not compare its "
                            "results with earlier ones",
                            suite->name);
            }
        }
    }
    return status;
}
