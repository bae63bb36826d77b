#include "shared/base/man.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
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

/* Prints every use of the command, one per line: "Usage: evalq-worker eval PATH". */
static void help_uses(const struct evq_man *man, FILE *out)
{
    const char *before = "Usage: ";

    for (const char *use = man->usage;; use++) {
        const size_t bytes = strcspn(use, "\n");
        (void)fprintf(out, "%s%s %.*s\n", before, man->command, (int)bytes, use);
        use += bytes;
        if (*use == '\0') {
            return;
        }
        before = "       ";
    }
}

void evq_man_help(const struct evq_man *man, FILE *out)
{
    (void)fprintf(out, "%s: %s\n\n", man->command, man->summary);
    help_uses(man, out);
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

/* Prints text for roff as it is: lines are not filled, and no character becomes another. */
static void page_text(const char *text, FILE *out)
{
    static const char special[] = "\\-'`~^";
    static const char *const escapes[] = {"e", "-", "(aq", "(ga", "(ti", "(ha"};
    bool line_start = true;

    for (; *text != '\0'; text++) {
        const char *at = strchr(special, *text);
        if (line_start && *text == '.') {
            (void)fputs("\\&", out); // Otherwise roff takes the line for a request.
        }
        if (at != NULL) {
            (void)fprintf(out, "\\%s", escapes[at - special]);
        } else {
            (void)fputc(*text, out);
        }
        line_start = *text == '\n';
    }
}

/* The page is the text of --help, under the headings that `man` and `apropos` need. */
static enum evq_status page_print(const struct evq_man *man, FILE *out, struct evq_error *err)
{
    char *help = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&help, &bytes);

    if (memory == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "the manual page of %s", man->name);
    }
    evq_man_help(man, memory);
    if (fclose(memory) != 0) {
        free(help);
        return evq_error_set(err, EVQ_E_NOMEM, "the manual page of %s", man->name);
    }
    (void)fputs(".TH ", out);
    for (const char *at = man->name; *at != '\0'; at++) {
        (void)fputc(toupper((unsigned char)*at), out);
    }
    (void)fprintf(out, " 1 \"\" \"evalq " EVQ_VERSION "\" \"evalq\"\n.SH NAME\n%s \\- ", man->name);
    page_text(man->summary, out);
    (void)fputs("\n.SH DESCRIPTION\n.nf\n", out);
    page_text(help, out);
    (void)fputs(".fi\n", out);
    free(help);
    return EVQ_OK;
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
    const enum evq_status status = page_print(man, out, err);
    const bool failed = ferror(out) != 0;
    if ((fclose(out) != 0 || failed) && status == EVQ_OK) {
        return evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    return status;
}
