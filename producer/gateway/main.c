/*
 * evalq-gateway: the queue over HTTP.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "producer/gateway/service.h"
#include "shared/completion.h"

static int fail(const struct evq_error *err, int code)
{
    char line[2048]; // Words of the command line may hold anything.
    (void)fprintf(stderr, "evalq-gateway: %s\n",
                  evq_error_escape(err->message, strlen(err->message), line, sizeof line));
    return code;
}

/* What is wrong before anything was served is the configuration's fault; a Redis that is not there
 * is not. */
static int exit_of(enum evq_status status)
{
    if (status == EVQ_E_TIMEOUT) {
        return EVQ_EXIT_UNREACHABLE; // Redis stands still: nobody waited for a job.
    }
    return status == EVQ_E_INVALID ? EVQ_EXIT_CONFIG : (int)evq_status_exit(status);
}

static int serve(struct evq_options *options, struct evq_error *err)
{
    struct evq_config *config = NULL;
    sigset_t signals;

    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    // Threads inherit it: signals come by signalfd alone.
    (void)pthread_sigmask(SIG_BLOCK, &signals, NULL);
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
    const enum evq_status status = evq_service_run(config, options, &signals, err);
    evq_config_free(config);
    return exit_of(status);
}

int main(int argc, char **argv)
{
    const struct rlimit no_core = {0, 0};
    struct evq_options options;
    struct evq_error err = {EVQ_OK, ""};

    if (argc == 3 && strcmp(argv[1], "--write-man") == 0) {
        const bool good = evq_completion_pages(&evq_options_man, argv[2], &err) == EVQ_OK;
        return good ? EVQ_EXIT_OK : fail(&err, EVQ_EXIT_ERROR);
    }
    if (evq_options_parse(argc, argv, &options, &err) != EVQ_OK) {
        return fail(&err, EVQ_EXIT_USAGE);
    }
    if (options.help) {
        evq_man_help(&evq_options_man, stdout);
        return EVQ_EXIT_OK;
    }
    if (options.version) {
        (void)puts("evalq-gateway " EVQ_VERSION);
        return EVQ_EXIT_OK;
    }
    (void)setrlimit(RLIMIT_CORE, &no_core); // A core would hold passwords and tokens.
    (void)signal(SIGPIPE, SIG_IGN);         // Cannot fail for this signal.
    const int code = serve(&options, &err);
    return code == EVQ_EXIT_OK ? code : fail(&err, code);
}
