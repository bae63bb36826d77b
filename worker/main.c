#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "shared/completion.h"
#include "worker/ahead_read.h"
#include "worker/child.h"
#include "worker/eval.h"
#include "worker/inspect.h"
#include "worker/options.h"
#include "worker/supervisor.h"

/* Whatever command runs: no core dumps of weights and secrets, and a peer that left is an error,
 * not a signal. */
static void process_guard(void)
{
    const struct rlimit none = {0, 0};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGPIPE, SIG_IGN);
}

int main(int argc, char **argv)
{
    struct evq_options options;
    struct evq_error err;

    process_guard();
    if (argc == 3 && strcmp(argv[1], "--write-man") == 0) {
        const enum evq_status written = evq_completion_pages(&evq_options_man, argv[2], &err);
        if (written != EVQ_OK) {
            (void)fprintf(stderr, "evalq-worker: %s\n", err.message);
        }
        return (int)evq_status_exit(written);
    }
    if (evq_options_parse(argc, argv, &options, &err) != EVQ_OK) {
        char line[2048]; // Words of the command line may hold anything.
        (void)fprintf(stderr, "evalq-worker: %s\n",
                      evq_error_escape(err.message, strlen(err.message), line, sizeof(line)));
        return EVQ_EXIT_USAGE;
    }
    if (options.help) {
        evq_man_help(&evq_options_man, stdout);
        return EVQ_EXIT_OK;
    }
    if (options.version) {
        (void)printf("evalq-worker %s\n", EVQ_VERSION);
        return EVQ_EXIT_OK;
    }
    switch (options.command) {
    case EVQ_COMMAND_EVAL:
        return (int)evq_eval_main(&options);
    case EVQ_COMMAND_INSPECT:
        return (int)evq_inspect_main(&options);
    case EVQ_COMMAND_CHILD:
        return (int)evq_child_main(&options);
    case EVQ_COMMAND_AHEAD:
        return (int)evq_ahead_read_main(&options);
    default:
        return (int)evq_supervisor_main(&options);
    }
}
