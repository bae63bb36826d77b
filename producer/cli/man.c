#include "producer/cli/man.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "producer/cli/cli.h"

/* Text for roff: a backslash or hyphen is escaped, an empty line begins a paragraph, no line begins
 * with a request. */
static void print_text(const char *text, FILE *out)
{
    bool line_start = true;
    for (const char *at = text; *at != '\0'; at++) {
        if (at[0] == '\n' && at[1] == '\n') {
            (void)fputs("\n.PP\n", out);
            at++;
            line_start = true;
            continue;
        }
        if (line_start && (*at == '.' || *at == '\'')) {
            (void)fputs("\\&", out);
        }
        if (*at == '\\') {
            (void)fputs("\\e", out);
        } else if (*at == '-') {
            (void)fputs("\\-", out);
        } else {
            (void)fputc(*at, out);
        }
        line_start = *at == '\n';
    }
    (void)fputc('\n', out);
}

static void print_options(const struct evq_option *table, FILE *out)
{
    for (const struct evq_option *o = table; o != NULL && o->name != NULL; o++) {
        (void)fputs(".TP\n", out);
        if (o->letter != 0) {
            (void)fprintf(out, "\\fB\\-%c\\fR, ", o->letter);
        }
        (void)fputs("\\fB\\-\\-", out);
        for (const char *at = o->name; *at != '\0'; at++) {
            (void)fprintf(out, *at == '-' ? "\\-" : "%c", *at);
        }
        (void)fputs("\\fR", out);
        if (o->value != NULL) {
            (void)fprintf(out, " \\fI%s\\fR", o->value);
        }
        (void)fputc('\n', out);
        print_text(o->help, out);
    }
}

static void print_common_end(FILE *out)
{
    (void)fputs(
        ".SH \"EXIT STATUS\"\n"
        "0 success, 1 error, 2 usage, 3 not found, 4 a job failed, 5 Redis cannot be reached, "
        "6 permission denied, 7 function library missing or of another version, "
        "8 configuration, 9 bad checkpoint or data, 124 timed out, 130 interrupted.\n"
        ".SH ENVIRONMENT\n"
        "EVALQ_CONFIG, EVALQ_URL, EVALQ_QUEUE, EVALQ_RUN, EVALQ_REDIS_PASSWORD_FILE, NO_COLOR.\n",
        out);
}

static void print_verb(const struct evq_verb *verb, FILE *out)
{
    (void)fprintf(out, ".TH EVALQ-%s 1 \"\" \"evalq " EVQ_VERSION "\" \"evalq\"\n", verb->name);
    (void)fprintf(out, ".SH NAME\nevalq\\-%s \\- ", verb->name);
    print_text(verb->summary, out);
    (void)fprintf(out, ".SH SYNOPSIS\n\\fBevalq %s\\fR ", verb->name);
    print_text(verb->arguments, out);
    (void)fputs(".SH DESCRIPTION\n", out);
    print_text(verb->description, out);
    (void)fputs(".SH OPTIONS\n", out);
    print_options(verb->options, out);
    (void)fputs(".SS \"Options of every verb\"\n", out);
    print_options(evq_option_global, out);
    print_common_end(out);
    (void)fputs(".SH \"SEE ALSO\"\n\\fBevalq\\fR(1)\n", out);
}

static void print_program(FILE *out)
{
    (void)fputs(
        ".TH EVALQ 1 \"\" \"evalq " EVQ_VERSION "\" \"evalq\"\n"
        ".SH NAME\nevalq \\- evaluate checkpoints elsewhere while training goes on\n"
        ".SH SYNOPSIS\n\\fBevalq\\fR [\\fIOPTION\\fR...] \\fIVERB\\fR [\\fIARGUMENT\\fR...]\n"
        ".SH DESCRIPTION\nTraining writes a checkpoint and goes on; workers evaluate it on another "
        "device or machine, and the metrics arrive in the tracker at the right training step. "
        "Jobs and results live in Redis.\n.SH VERBS\n",
        out);
    for (size_t i = 0; i < evq_cli_verb_count; i++) {
        (void)fprintf(out, ".TP\n\\fBevalq\\-%s\\fR(1)\n", evq_cli_verbs[i]->name);
        print_text(evq_cli_verbs[i]->summary, out);
    }
    (void)fputs(".SH OPTIONS\n", out);
    print_options(evq_option_global, out);
    print_common_end(out);
}

static enum evq_status write_page(const char *directory, const struct evq_verb *verb,
                                  struct evq_error *err)
{
    char path[4096];
    int bytes = snprintf(path, sizeof path, "%s/evalq%s%s.1", directory, verb != NULL ? "-" : "",
                         verb != NULL ? verb->name : "");
    if (bytes < 0 || (size_t)bytes >= sizeof path) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%s' is too long", directory);
    }
    FILE *out = fopen(path, "we");
    if (out == NULL) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    if (verb != NULL) {
        print_verb(verb, out);
    } else {
        print_program(out);
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        return evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    return EVQ_OK;
}

enum evq_status evq_man_write(const char *directory, struct evq_error *err)
{
    enum evq_status status = write_page(directory, NULL, err);
    for (size_t i = 0; status == EVQ_OK && i < evq_cli_verb_count; i++) {
        status = write_page(directory, evq_cli_verbs[i], err);
    }
    return status;
}
