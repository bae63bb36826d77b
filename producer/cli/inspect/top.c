/*
 * evalq top: shows `evalq status` again and again, in place.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "producer/cli/inspect/status.h"
#include "producer/cli/submit/waiting.h"
#include "producer/cli/verbs.h"

#define ENTER "\033[?1049h\033[?25l" // The other screen, no cursor.
#define LEAVE "\033[?25h\033[?1049l"
#define HOME  "\033[H"
#define REST  "\033[K" // The end of a line is cleared, not the screen: nothing flickers.
#define BELOW "\033[J"

/* Returns the output of evq_status_show() as text, which the caller frees. */
static enum evq_status captured(struct evq_cli *cli, char **ret_text, struct evq_error *err)
{
    FILE *screen = stdout;
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);

    if (memory == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the screen");
    }
    stdout = memory; // glibc's stdout is a variable; whatever prints, prints there.
    enum evq_status status = evq_status_show(cli, err);
    stdout = screen;
    if (fclose(memory) != 0 && status == EVQ_OK) {
        status = evq_error_set(err, EVQ_E_NOMEM, "no memory for the screen");
    }
    if (status != EVQ_OK) {
        free(text);
        return status;
    }
    *ret_text = text;
    return EVQ_OK;
}

/* Counts the columns of a line, without its colour escapes. */
static size_t columns_of(const char *line, size_t bytes)
{
    size_t columns = 0;

    for (size_t at = 0; at < bytes;) {
        const char *escape = memchr(line + at, '\033', bytes - at);
        const size_t plain = escape != NULL ? (size_t)(escape - line) - at : bytes - at;
        columns += evq_terminal_columns(line + at, plain);
        at += plain;
        while (escape != NULL && at < bytes && line[at++] != 'm') {
        }
    }
    return columns;
}

static void line_end(const struct evq_terminal *terminal, size_t columns)
{
    // At the very end of a full line the cursor still stands on its last character.
    const bool full = terminal->width > 0 && columns > 0 && columns % (size_t)terminal->width == 0;
    (void)fputs(full ? "\n" : REST "\n", stdout);
}

/* Prints as many lines as the screen has, and says if some do not fit. A line that is wider than
 * the screen counts as several. */
static void draw(const struct evq_terminal *terminal, const char *text)
{
    const size_t width = terminal->width > 0 ? (size_t)terminal->width : SIZE_MAX / 2;
    int left = terminal->height - 1;

    (void)fputs(HOME, stdout);
    while (*text != '\0' && left > 0) {
        const size_t bytes = strcspn(text, "\n");
        const size_t columns = columns_of(text, bytes);
        const int rows = columns > width ? (int)((columns + width - 1) / width) : 1;
        const bool more = text[bytes] == '\n' && text[bytes + 1] != '\0';
        if (rows > left || (rows == left && more)) {
            (void)printf("%s... more: evalq status%s" REST "\n",
                         evq_terminal_colour(terminal, EVQ_COLOUR_DIM),
                         evq_terminal_colour(terminal, EVQ_COLOUR_NONE));
            break;
        }
        (void)fwrite(text, 1, bytes, stdout);
        line_end(terminal, columns);
        text += bytes + (text[bytes] == '\n');
        left -= rows;
    }
    (void)fputs(BELOW, stdout);
    (void)fflush(stdout);
}

/* Shows above the last screen that Redis is away. */
static void draw_trouble(const struct evq_terminal *terminal, const struct evq_error *err)
{
    (void)printf(HOME "%sproblem:%s %s" REST "\n", evq_terminal_colour(terminal, EVQ_COLOUR_RED),
                 evq_terminal_colour(terminal, EVQ_COLOUR_NONE), err->message);
    (void)fflush(stdout);
}

/* Waits until the screen is due again. Returns false after Ctrl-C or SIGTERM. */
static bool goes_on(int signal_fd, int interval_ms)
{
    struct pollfd ready = {.fd = signal_fd, .events = POLLIN};
    struct signalfd_siginfo taken;

    const int count = poll(&ready, 1, interval_ms);
    if (count <= 0 || read(signal_fd, &taken, sizeof(taken)) != (ssize_t)sizeof(taken)) {
        return true;
    }
    return taken.ssi_signo == SIGWINCH; // The size changed, so draw at once.
}

static enum evq_status look_again_and_again(struct evq_cli *cli, int signal_fd,
                                            struct evq_error *err)
{
    const int interval_ms = 1000 * (int)evq_option_integer(&cli->options, "interval", 2);
    enum evq_status status = EVQ_OK;
    uint32_t looks = 0;

    do {
        char *text = NULL;
        evq_terminal_resize(&cli->terminal);
        status = captured(cli, &text, err);
        if (status == EVQ_OK) {
            draw(&cli->terminal, text);
        } else if (evq_waiting_passes(status, looks)) {
            draw_trouble(&cli->terminal, err);
        } else {
            return status;
        }
        free(text);
        looks++;
    } while (goes_on(signal_fd, interval_ms));
    return EVQ_OK;
}

static enum evq_status top_run(struct evq_cli *cli, struct evq_error *err)
{
    sigset_t set;

    if (!cli->terminal.is_tty || cli->terminal.json || cli->terminal.plain) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "top draws on a terminal; elsewhere: evalq status [--json|--plain]");
    }
    enum evq_status status = evq_cli_open(cli, err);
    if (status != EVQ_OK) {
        return status;
    }
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGWINCH);
    const int signal_fd =
        sigprocmask(SIG_BLOCK, &set, NULL) == 0 ? signalfd(-1, &set, SFD_CLOEXEC) : -1;
    if (signal_fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "take signals: %s", strerror(errno));
    }
    (void)fputs(ENTER, stdout);
    status = look_again_and_again(cli, signal_fd, err);
    (void)fputs(LEAVE, stdout);
    (void)fflush(stdout);
    (void)close(signal_fd);
    return status;
}

static const struct evq_option options[] = {
    {"interval", 'i', EVQ_OPTION_INTEGER, "SECONDS", "time between two updates; default 2", 1,
     3600},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_top = {
    .name = "top",
    .arguments = "[--interval SECONDS]",
    .summary = "Show the queue, renewed in place, until Ctrl-C",
    .description =
        "Shows what `evalq status` shows, and updates it in place. If Redis does not answer, "
        "the last screen stays, with the reason above it.\n\nExample: `evalq top --interval "
        "5`",
    .options = options,
    .arg_min = 0,
    .arg_max = 0,
    .run = top_run,
};
