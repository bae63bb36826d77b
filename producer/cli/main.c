/*
 * evalq: the command-line program. It finds the verb, reads the options, runs the verb, and turns
 * the verb's status into an exit code.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "producer/cli/cli.h"
#include "shared/base/json_memory.h"

static int fail(const struct evq_error *err, int exit_code)
{
    char shown[2 * sizeof err->message];
    (void)fprintf(stderr, "evalq: %s\n",
                  evq_error_escape(err->message, strlen(err->message), shown, sizeof shown));
    return exit_code;
}

/* Whether the reader of our output closed it, as `head` does after its last line. */
static bool reader_left(void)
{
    struct pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

/* Reads global options, the verb and its options. *ret_done: --help or --version was answered. */
static enum evq_status read_command_line(struct evq_cli *cli, int argc, char **argv, bool *ret_done,
                                         struct evq_error *err)
{
    enum evq_status status = evq_verbs_parse(NULL, &cli->options, argc, argv, err);
    if (status != EVQ_OK) {
        return status;
    }
    char **rest = cli->options.args;
    int rest_count = cli->options.arg_count;
    if (evq_option_flag(&cli->options, "version")) {
        (void)puts("evalq " EVQ_VERSION);
        *ret_done = true;
        return EVQ_OK;
    }
    if (rest_count == 0) {
        if (evq_option_flag(&cli->options, "help")) {
            evq_verbs_help(NULL, stdout);
            *ret_done = true;
            return EVQ_OK;
        }
        return evq_error_set(err, EVQ_E_INVALID, "no verb given; --help lists the verbs");
    }
    status = evq_verbs_find(rest[0], &cli->verb, err);
    if (status == EVQ_OK) {
        status = evq_verbs_parse(cli->verb, &cli->options, rest_count, rest, err);
    }
    if (status == EVQ_OK && evq_option_flag(&cli->options, "help")) {
        evq_verbs_help(cli->verb, stdout);
        *ret_done = true;
        return EVQ_OK;
    }
    return status;
}

int main(int argc, char **argv)
{
    struct evq_cli cli = {0};
    struct evq_error err = {0};
    bool done = false;

    evq_json_memory_watch();
    if (argc == 3 && strcmp(argv[1], "--write-man") == 0) {
        return evq_verbs_write_man(argv[2], &err) == EVQ_OK ? EVQ_EXIT_OK
                                                            : fail(&err, EVQ_EXIT_ERROR);
    }
    enum evq_status status = read_command_line(&cli, argc, argv, &done, &err);
    if (status != EVQ_OK) {
        return fail(&err, EVQ_EXIT_USAGE);
    }
    if (!done) {
        evq_terminal_probe(&cli.terminal, evq_option_text(&cli.options, "color", "auto"));
        cli.terminal.json = evq_option_flag(&cli.options, "json");
        cli.terminal.plain = evq_option_flag(&cli.options, "plain");
        cli.terminal.quiet = evq_option_flag(&cli.options, "quiet");
        status = cli.options.arg_count < cli.verb->arg_min ||
                         (cli.verb->arg_max >= 0 && cli.options.arg_count > cli.verb->arg_max)
                     ? evq_cli_wrong_arguments(&cli, &err)
                     : evq_cli_check_args(&cli, &err);
        status = status == EVQ_OK ? cli.verb->run(&cli, &err) : status;
        evq_cli_close(&cli);
    }
    if (status == EVQ_OK && evq_json_memory_failed()) {
        status = evq_error_set(&err, EVQ_E_NOMEM, "what was printed may lack something");
        cli.exit_code = EVQ_EXIT_ERROR;
    }
    int exit_code = cli.exit_code != 0 ? cli.exit_code : (int)evq_status_exit_code(status);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        if (reader_left()) {
            return exit_code; // The reader has all that it wanted.
        }
        (void)evq_error_set(&err, EVQ_E_IO, "write to standard output: %s", strerror(errno));
        return fail(&err, EVQ_EXIT_ERROR);
    }
    if (status == EVQ_E_AUTH) {
        evq_cli_name_role(&cli, &err);
    }
    return status == EVQ_OK ? exit_code : fail(&err, exit_code);
}
