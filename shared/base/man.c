#include "shared/base/man.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

static const char exit_codes[] =
    "0 success, 1 error, 2 usage, 3 not found, 4 a job failed, 5 Redis cannot be reached, "
    "6 permission denied, 7 function library missing or of another version, 8 configuration, "
    "9 bad checkpoint or data, 124 timed out, 130 interrupted.";

/* Prints text in lines of at most 78 columns, each after the first indented. */
static void help_text(const char *text, int column, int indent, FILE *out)
{
    while (*text != '\0') {
        size_t bytes = strcspn(text, " \n");
        if (column > indent && column + (int)bytes + 1 > 78) {
            (void)fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (column > indent) {
            (void)fputc(' ', out);
            column++;
        }
        (void)fprintf(out, "%.*s", (int)bytes, text);
        column += (int)bytes;
        text += bytes;
        if (text[0] == '\n' && text[1] == '\n') {
            (void)fprintf(out, "\n\n%*s", indent, "");
            column = indent;
        }
        text += strspn(text, " \n");
    }
    (void)fputc('\n', out);
}

static void help_options(const struct evq_option *table, FILE *out)
{
    for (const struct evq_option *o = table; o->name != NULL; o++) {
        char left[96];
        int bytes = snprintf(left, sizeof left, "  %c%c%s--%s%s%s", o->letter ? '-' : ' ',
                             o->letter ? o->letter : ' ', o->letter ? ", " : "  ", o->name,
                             o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
        (void)fputs(left, out);
        if (bytes > 28) {
            (void)fprintf(out, "\n%*s", 30, "");
        } else {
            (void)fprintf(out, "%*s", 30 - bytes, "");
        }
        help_text(o->help, 30, 30, out);
    }
}

static void help_character(char character, FILE *out)
{
    (void)fputc(character, out);
}

/* Prints every use of the command, one per line: "Usage: evalq-worker eval PATH". */
static void print_uses(const struct evq_man *man, const char *first, const char *next,
                       const char *after, void (*character)(char, FILE *), FILE *out)
{
    const char *before = first;

    for (const char *use = man->usage;; use++) {
        const size_t bytes = strcspn(use, "\n");
        (void)fprintf(out, "%s%s%s", before, man->command, after);
        for (size_t i = 0; i < bytes; i++) {
            character(use[i], out);
        }
        (void)fputc('\n', out);
        use += bytes;
        if (*use == '\0') {
            return;
        }
        before = next;
    }
}

void evq_man_help(const struct evq_man *man, FILE *out)
{
    (void)fprintf(out, "%s: %s\n\n", man->command, man->summary);
    print_uses(man, "Usage: ", "       ", " ", help_character, out);
    (void)fputs("\n  ", out);
    help_text(man->description, 2, 2, out);
    if (man->list != NULL) {
        (void)fprintf(out, "\n%s:\n", man->list_title);
        for (const struct evq_man_item *item = man->list; item->name != NULL; item++) {
            (void)fprintf(out, "  %-10s  ", item->name);
            help_text(item->text, 14, 14, out);
        }
    }
    if (man->options[0] != NULL) {
        (void)fputs("\nOptions:\n", out);
    }
    for (size_t i = 0; man->options[i] != NULL; i++) {
        help_options(man->options[i], out);
    }
    (void)fputs("\nCommon options:\n", out);
    for (size_t i = 0; man->common[i] != NULL; i++) {
        help_options(man->common[i], out);
    }
    (void)fputs("\nEnvironment:\n  ", out);
    help_text(man->environment, 2, 2, out);
    (void)fputs("\nExit codes:\n  ", out);
    help_text(exit_codes, 2, 2, out);
}

/* Escapes a character that roff would print differently, so that it can be copied and typed. */
static void page_character(char character, FILE *out)
{
    static const char special[] = "\\-'`~^";
    static const char *const escapes[] = {"e", "-", "(aq", "(ga", "(ti", "(ha"};
    const char *at = strchr(special, character);

    if (at != NULL && character != '\0') {
        (void)fprintf(out, "\\%s", escapes[at - special]);
    } else {
        (void)fputc(character, out);
    }
}

/*
 * Prints text for roff: an empty line begins a paragraph, and no line begins with a roff request.
 */
static void page_text(const char *text, FILE *out)
{
    bool line_start = true;
    for (const char *at = text; *at != '\0'; at++) {
        if (at[0] == '\n' && at[1] == '\n') {
            (void)fputs("\n.PP\n", out);
            at++;
            line_start = true;
            continue;
        }
        if (line_start && *at == '.') {
            (void)fputs("\\&", out);
        }
        page_character(*at, out);
        line_start = *at == '\n';
    }
    (void)fputc('\n', out);
}

static void page_options(const struct evq_option *table, FILE *out)
{
    for (const struct evq_option *o = table; o->name != NULL; o++) {
        (void)fputs(".TP\n", out);
        if (o->letter != 0) {
            (void)fprintf(out, "\\fB\\-%c\\fR, ", o->letter);
        }
        (void)fputs("\\fB\\-\\-", out);
        for (const char *at = o->name; *at != '\0'; at++) {
            page_character(*at, out);
        }
        (void)fputs("\\fR", out);
        if (o->value != NULL) {
            (void)fprintf(out, " \\fI%s\\fR", o->value);
        }
        (void)fputc('\n', out);
        page_text(o->help, out);
    }
}

static void page_print(const struct evq_man *man, FILE *out)
{
    (void)fputs(".TH ", out);
    for (const char *at = man->name; *at != '\0'; at++) {
        (void)fputc(toupper((unsigned char)*at), out);
    }
    // Names of options and variables are not hyphenated.
    (void)fputs(" 1 \"\" \"evalq " EVQ_VERSION "\" \"evalq\"\n.nh\n.ad l\n.SH NAME\n", out);
    (void)fprintf(out, "%s \\- ", man->name);
    page_text(man->summary, out);
    (void)fputs(".SH SYNOPSIS\n", out);
    print_uses(man, "\\fB", ".br\n\\fB", "\\fR ", page_character, out);
    (void)fputs(".SH DESCRIPTION\n", out);
    page_text(man->description, out);
    if (man->list != NULL) {
        (void)fprintf(out, ".SH \"%s\"\n", man->list_title);
        for (const struct evq_man_item *item = man->list; item->name != NULL; item++) {
            (void)fprintf(out, ".TP\n\\fB%s\\fR\n", item->name);
            page_text(item->text, out);
        }
    }
    (void)fputs(".SH OPTIONS\n", out);
    for (size_t i = 0; man->options[i] != NULL; i++) {
        page_options(man->options[i], out);
    }
    (void)fputs(".SS \"Common options\"\n", out);
    for (size_t i = 0; man->common[i] != NULL; i++) {
        page_options(man->common[i], out);
    }
    (void)fputs(".SH ENVIRONMENT\n", out);
    page_text(man->environment, out);
    (void)fputs(".SH \"EXIT STATUS\"\n", out);
    page_text(exit_codes, out);
    (void)fputs(".SH \"SEE ALSO\"\n"
                "\\fBevalq\\fR(1), \\fBevalq\\-worker\\fR(1), \\fBevalq\\-logger\\fR(1), "
                "\\fBevalq\\-gateway\\fR(1)\n",
                out);
}

enum evq_status evq_man_write(const struct evq_man *man, const char *directory,
                              struct evq_error *err)
{
    char path[4096];
    const int bytes = snprintf(path, sizeof path, "%s/%s.1", directory, man->name);

    if (bytes < 0 || (size_t)bytes >= sizeof path) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%s' is too long", directory);
    }
    FILE *out = fopen(path, "we");
    if (out == NULL) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    page_print(man, out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        return evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    return EVQ_OK;
}
