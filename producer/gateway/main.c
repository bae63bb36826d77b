/*
 * evalq-gateway: the queue over HTTP.
 */
#include "producer/gateway/gateway.h"
#include "shared/base/program.h"

static int serve(struct evq_options *options, struct evq_error *err)
{
    struct evq_config *config = NULL;
    sigset_t signals;

    evq_program_signals(true, &signals);
    if (evq_config_load(&options->source, &config, err) != EVQ_OK) {
        return EVQ_EXIT_CONFIG;
    }
    if (options->listen == NULL) {
        options->listen = config->gateway.listen;
    }
    if (options->tokens == NULL && config->gateway.tokens[0] != '\0') {
        options->tokens = config->gateway.tokens;
    }
    options->lmms_open = options->lmms_open || config->gateway.lmms_open;
    const enum evq_status status = evq_gateway_run(config, options, &signals, err);
    evq_config_free(config);
    return evq_program_exit_code(status);
}

int main(int argc, char **argv)
{
    struct evq_option_set set = {.count = 0};
    struct evq_error err = {EVQ_OK, ""};
    int code = EVQ_EXIT_OK;

    if (!evq_program_begin(&evq_options_man, argc, argv, &set, &code)) {
        return code;
    }
    struct evq_options options = evq_options_read(&set);
    code = serve(&options, &err);
    return code == EVQ_EXIT_OK ? code : evq_program_fail(&evq_options_man, &err, code);
}
