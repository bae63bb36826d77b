/* A configuration file as a user may write it. A refusal says where, in one line; what is accepted
 * holds what it must. */
#include <string.h>

#include "shared/config/config.h"
#include "tests/fuzz/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_config *config = NULL;

    if (evq_config_parse((const char *)data, bytes, "f.yaml", &config, &err) != EVQ_OK) {
        check(config == NULL && strncmp(err.message, "f.yaml", 6) == 0);
        for (const char *c = err.message; *c != '\0'; c++) {
            check((unsigned char)*c >= 0x20 && *c != 0x7f); // It is shown on a terminal.
        }
        return 0;
    }
    check(config->worker.lease_ms >= 3 * config->worker.heartbeat_ms);
    for (size_t i = 0; i < config->root_count; i++) {
        check(config->roots[i].path[0] == '/');
    }
    for (size_t i = 0; i < config->suite_count; i++) {
        const struct evq_suite *suite = &config->suites[i];
        check(strlen(suite->digest) == 32 && suite->definition[0] == '{' && suite->shards >= 1);
        check(evq_config_suite(config, suite->name) == suite);
        check(strcmp(suite->evaluator, "native") == 0 ||
              evq_config_evaluator(config, suite->evaluator) != NULL);
    }
    for (size_t i = 0; i < config->evaluator_count; i++) {
        check(config->evaluators[i].argc > 0 &&
              config->evaluators[i].argv[config->evaluators[i].argc] == NULL);
    }
    evq_config_free(config);
    return 0;
}
