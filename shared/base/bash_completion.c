#include "shared/base/bash_completion.h"

#include <errno.h>
#include <string.h>

struct program { // The arguments of evq_bash_completion_write().
    const char *name;
    const struct evq_man *const *mans;
    size_t count;
};

enum value { VALUE_NONE, VALUE_WORDS, VALUE_DIRECTORY, VALUE_OTHER };

static enum value value_of(const struct evq_option *option)
{
    if (option->kind == EVQ_OPTION_FLAG) {
        return VALUE_NONE;
    }
    if (option->kind == EVQ_OPTION_CHOICE) {
        return VALUE_WORDS;
    }
    return strcmp(option->value, "DIR") == 0 ? VALUE_DIRECTORY : VALUE_OTHER;
}

/* The verb of a page: "submit" for "evalq-submit", "" for the program's own page. */
static const char *word_of(const struct program *program, size_t index)
{
    return index == 0 ? "" : program->mans[index]->name + strlen(program->name) + 1;
}

/* Prints "a|b" as "a b". */
static void print_choices(const char *choices, FILE *out)
{
    for (; *choices != '\0'; choices++) {
        (void)fputc(*choices == '|' ? ' ' : *choices, out);
    }
}

/* The index-th option of a page, its own before those it shares; NULL past the last. */
static const struct evq_option *option_at(const struct evq_man *man, size_t index)
{
    const struct evq_option *const *const lists[] = {man->options, man->common};

    for (size_t i = 0; i < 2; i++) {
        for (const struct evq_option *const *table = lists[i]; *table != NULL; table++) {
            for (const struct evq_option *o = *table; o->name != NULL; o++) {
                if (index-- == 0) {
                    return o;
                }
            }
        }
    }
    return NULL;
}

static void print_words(const struct program *program, FILE *out)
{
    const struct evq_man_item *item = program->mans[0]->list;

    for (; item != NULL && item->name != NULL; item++) {
        (void)fprintf(out, "%s%s", item != program->mans[0]->list ? " " : "", item->name);
    }
}

/* Prints a shell pattern for an option after a verb: "submit:--suite | submit:-s". */
static void print_pattern(const struct evq_option *option, const char *before, FILE *out)
{
    (void)fprintf(out, "%s--%s", before, option->name);
    if (option->letter != 0) {
        (void)fprintf(out, " | %s-%c", before, option->letter);
    }
}

/* Prints the possible values of each option of a page. bash itself completes file names. */
static void bash_values(const struct program *program, size_t index, FILE *out)
{
    const struct evq_option *o = NULL;
    char before[64];

    (void)snprintf(before, sizeof before, "%s:", word_of(program, index));
    for (size_t i = 0; (o = option_at(program->mans[index], i)) != NULL; i++) {
        const enum value value = value_of(o);
        if (value == VALUE_NONE) {
            continue;
        }
        (void)fputs("    ", out);
        print_pattern(o, before, out);
        (void)fputs(") ", out);
        if (value == VALUE_WORDS) {
            (void)fputs("mapfile -t COMPREPLY < <(compgen -W '", out);
            print_choices(o->value, out);
            (void)fputs("' -- \"$cur\"); ", out);
        } else if (value == VALUE_DIRECTORY) {
            // With this option bash quotes the names. It fails if the function is called by hand.
            (void)fputs("compopt -o filenames 2>/dev/null; "
                        "mapfile -t COMPREPLY < <(compgen -d -- \"$cur\"); ",
                        out);
        }
        (void)fputs("return ;;\n", out);
    }
}

/* Completes the word after the verb, if its values are known. */
static void bash_second(const struct program *program, FILE *out)
{
    (void)fputs("    elif [[ $at -eq $((COMP_CWORD - 1)) ]]; then\n        case $word in\n", out);
    for (size_t m = 1; m < program->count; m++) {
        if (program->mans[m]->words != NULL) {
            (void)fprintf(out, "        %s) mapfile -t COMPREPLY < <(compgen -W '",
                          word_of(program, m));
            print_choices(program->mans[m]->words, out);
            (void)fputs("' -- \"$cur\") ;;\n", out);
        }
    }
    (void)fputs("        esac\n", out);
}

static void bash_print(const struct program *program, FILE *out)
{
    const struct evq_option *o = NULL;

    (void)fprintf(out, "# Completion of %s for bash, written from its options.\n_", program->name);
    for (const char *at = program->name; *at != '\0'; at++) {
        (void)fputc(*at == '-' ? '_' : *at, out);
    }
    (void)fputs("()\n{\n"
                "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
                "word= at options=\n"
                "    COMPREPLY=()\n"
                "    if [[ $cur == \"=\" ]]; then\n        cur=\n"
                "    elif [[ $prev == \"=\" ]]; then\n"
                "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n    fi\n"
                "    for ((at = 1; at < COMP_CWORD; at++)); do\n"
                "        case ${COMP_WORDS[at]} in\n        ",
                out);
    // Skips the values of the program's own options, because none of them is the verb.
    for (size_t i = 0; (o = option_at(program->mans[0], i)) != NULL; i++) {
        if (value_of(o) != VALUE_NONE) {
            print_pattern(o, "", out);
            (void)fputs(
                ") [[ ${COMP_WORDS[at + 1]} != \"=\" ]] && at=$((at + 1)) || at=$((at + 2)) ;;"
                "\n        ",
                out);
        }
    }
    (void)fputs("-*) ;;\n        *) word=${COMP_WORDS[at]}; break ;;\n        esac\n    done\n"
                "    case $word:$prev in\n",
                out);
    for (size_t i = 0; i < program->count; i++) {
        bash_values(program, i, out);
    }
    (void)fputs("    esac\n    case $word in\n", out);
    for (size_t m = program->count; m-- > 0;) {
        (void)fprintf(out, "    %s) options='", m > 0 ? word_of(program, m) : "*");
        for (size_t i = 0; (o = option_at(program->mans[m], i)) != NULL; i++) {
            (void)fprintf(out, "%s--%s", i > 0 ? " " : "", o->name);
        }
        (void)fputs("' ;;\n", out);
    }
    (void)fputs("    esac\n    if [[ $cur == -* ]]; then\n"
                "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$cur\")\n"
                "    elif [[ -z $word ]]; then\n"
                "        mapfile -t COMPREPLY < <(compgen -W '",
                out);
    print_words(program, out);
    (void)fputs("' -- \"$cur\")\n", out);
    bash_second(program, out);
    (void)fputs("    fi\n}\ncomplete -o bashdefault -o default -F _", out);
    for (const char *at = program->name; *at != '\0'; at++) {
        (void)fputc(*at == '-' ? '_' : *at, out);
    }
    (void)fprintf(out, " %s\n", program->name);
}

enum evq_status evq_bash_completion_write(const struct evq_man *const *mans, size_t count,
                                          const char *directory, struct evq_error *err)
{
    const struct program program = {.name = mans[0]->name, .mans = mans, .count = count};
    char path[4096];

    const int bytes = snprintf(path, sizeof path, "%s/%s.bash", directory, program.name);
    if (bytes < 0 || (size_t)bytes >= sizeof path) {
        return evq_error_set(err, EVQ_E_LIMIT, "the path '%s' is too long", directory);
    }
    FILE *out = fopen(path, "we");
    if (out == NULL) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    bash_print(&program, out);
    const bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        return evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    return EVQ_OK;
}

enum evq_status evq_bash_completion_pages(const struct evq_man *man, const char *directory,
                                          struct evq_error *err)
{
    const enum evq_status status = evq_man_write(man, directory, err);

    return status == EVQ_OK ? evq_bash_completion_write(&man, 1, directory, err) : status;
}
