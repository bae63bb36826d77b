#include "shared/base/completion.h"

#include <errno.h>
#include <string.h>

struct program { // The arguments of evq_completion_write().
    const char *name;
    const struct evq_man *const *mans;
    size_t count;
};

enum value { VALUE_NONE, VALUE_WORDS, VALUE_FILE, VALUE_DIRECTORY, VALUE_OTHER };

static enum value value_of(const struct evq_option *option)
{
    if (option->kind == EVQ_OPTION_FLAG) {
        return VALUE_NONE;
    }
    if (option->kind == EVQ_OPTION_CHOICE) {
        return VALUE_WORDS;
    }
    if (strcmp(option->value, "FILE") == 0 || strcmp(option->value, "PATH") == 0) {
        return VALUE_FILE;
    }
    return strcmp(option->value, "DIR") == 0 ? VALUE_DIRECTORY : VALUE_OTHER;
}

/* The verb of a page: "submit" for "evalq-submit", "" for the program's own page. */
static const char *word_of(const struct program *program, size_t index)
{
    return index == 0 ? "" : program->mans[index]->name + strlen(program->name) + 1;
}

/* Prints text for single quotes, with a backslash before each character of `special`. */
static void print_quoted(const char *text, const char *special, FILE *out)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            (void)fputs("'\\''", out);
            continue;
        }
        if (strchr(special, *text) != NULL) {
            (void)fputc('\\', out);
        }
        (void)fputc(*text, out);
    }
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

/* The arguments of _arguments for the options of a page. */
static void zsh_options(const struct evq_man *man, FILE *out)
{
    const struct evq_option *o = NULL;

    for (size_t i = 0; (o = option_at(man, i)) != NULL; i++) {
        const enum value value = value_of(o);
        const char *star = o->kind == EVQ_OPTION_LIST ? "*" : "";
        for (int form = 0; form < (o->letter != 0 ? 2 : 1); form++) {
            if (form == 0) {
                (void)fprintf(out, " \\\n        '%s--%s%s[", star, o->name,
                              value != VALUE_NONE ? "=" : "");
            } else {
                (void)fprintf(out, " \\\n        '%s-%c%s[", star, o->letter,
                              value != VALUE_NONE ? "+" : "");
            }
            print_quoted(o->help, "[]\\", out);
            (void)fputc(']', out);
            if (value == VALUE_WORDS) {
                (void)fputs(":value:(", out);
                print_choices(o->value, out);
                (void)fputc(')', out);
            } else if (value != VALUE_NONE) {
                (void)fputs(":value:", out);
                (void)fputs(value == VALUE_FILE        ? "_files"
                            : value == VALUE_DIRECTORY ? "_files -/"
                                                       : " ",
                            out);
            }
            (void)fputc('\'', out);
        }
    }
}

static void zsh_print(const struct program *program, FILE *out)
{
    const struct evq_man *man = program->mans[0];

    (void)fprintf(out, "#compdef %s\n# Completion of %s for zsh, written from its options.\n",
                  program->name, program->name);
    (void)fputs("local curcontext=$curcontext state line\ntypeset -A opt_args\n"
                "_arguments -C",
                out);
    zsh_options(man, out);
    if (man->list == NULL) {
        (void)fputs(" \\\n        '*:file:_files'\n", out);
        return;
    }
    (void)fputs(" \\\n        '1:word:((", out);
    for (const struct evq_man_item *item = man->list; item->name != NULL; item++) {
        (void)fprintf(out, "%s\\:\"", item->name);
        print_quoted(item->text, "\"\\:$`", out);
        (void)fputs("\" ", out);
    }
    (void)fputs("))' \\\n        '*::argument:->rest'\n[[ $state == rest ]] || return\n"
                "case $words[1] in\n",
                out);
    for (size_t m = program->count; m-- > 0;) {
        (void)fprintf(out, "%s)\n    _arguments", m > 0 ? word_of(program, m) : "*");
        zsh_options(program->mans[m], out);
        if (program->mans[m]->words != NULL) {
            (void)fputs(" \\\n        '1:word:(", out);
            print_choices(program->mans[m]->words, out);
            (void)fputs(")'", out);
        }
        (void)fputs(" \\\n        '*:file:_files'\n    ;;\n", out);
    }
    (void)fputs("esac\n", out);
}

static void fish_options(const struct program *program, size_t index, FILE *out)
{
    const struct evq_option *o = NULL;
    const char *word = word_of(program, index);
    // Options that all verbs share belong to the program, not to a verb.
    const bool own = index > 0;

    for (size_t i = 0; (o = option_at(program->mans[index], i)) != NULL; i++) {
        const enum value value = value_of(o);
        const struct evq_option *shared = NULL;
        for (size_t s = 0; own && (shared = option_at(program->mans[0], s)) != NULL; s++) {
            if (shared == o) {
                break;
            }
        }
        if (shared != NULL) {
            continue;
        }
        (void)fprintf(out, "complete -c %s", program->name);
        if (own) {
            (void)fprintf(out, " -n '__fish_seen_subcommand_from %s'", word);
        }
        (void)fprintf(out, " -l %s", o->name);
        if (o->letter != 0) {
            (void)fprintf(out, " -s %c", o->letter);
        }
        if (value == VALUE_WORDS) {
            (void)fputs(" -x -a '", out);
            print_choices(o->value, out);
            (void)fputc('\'', out);
        } else if (value == VALUE_DIRECTORY) {
            (void)fputs(" -x -a '(__fish_complete_directories)'", out);
        } else if (value != VALUE_NONE) {
            (void)fputs(value == VALUE_FILE ? " -r" : " -x", out);
        }
        (void)fputs(" -d \"", out);
        for (const char *at = o->help; *at != '\0'; at++) {
            (void)fprintf(out, strchr("\"\\$", *at) != NULL ? "\\%c" : "%c", *at);
        }
        (void)fputs("\"\n", out);
    }
}

static void fish_print(const struct program *program, FILE *out)
{
    const struct evq_man_item *item = program->mans[0]->list;

    (void)fprintf(out, "# Completion of %s for fish, written from its options.\n", program->name);
    for (; item != NULL && item->name != NULL; item++) {
        (void)fprintf(out, "complete -c %s -n __fish_use_subcommand -f -a %s -d '", program->name,
                      item->name);
        for (const char *at = item->text; *at != '\0'; at++) {
            (void)fprintf(out, strchr("'\\", *at) != NULL ? "\\%c" : "%c", *at);
        }
        (void)fputs("'\n", out);
    }
    for (size_t i = 0; i < program->count; i++) {
        const char *words = program->mans[i]->words;
        if (words != NULL) {
            (void)fprintf(out,
                          "complete -c %s -n '__fish_seen_subcommand_from %s; and not "
                          "__fish_seen_subcommand_from ",
                          program->name, word_of(program, i));
            print_choices(words, out);
            (void)fputs("' -f -a '", out);
            print_choices(words, out);
            (void)fputs("'\n", out);
        }
        fish_options(program, i, out);
    }
}

enum evq_status evq_completion_write(const struct evq_man *const *mans, size_t count,
                                     const char *directory, struct evq_error *err)
{
    static const struct {
        const char *before;
        const char *after;
        void (*print)(const struct program *program, FILE *out);
    } shells[] = {{"", ".bash", bash_print}, {"_", "", zsh_print}, {"", ".fish", fish_print}};
    const struct program program = {.name = mans[0]->name, .mans = mans, .count = count};
    char path[4096];

    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
        const int bytes = snprintf(path, sizeof path, "%s/%s%s%s", directory, shells[i].before,
                                   program.name, shells[i].after);
        if (bytes < 0 || (size_t)bytes >= sizeof path) {
            return evq_error_set(err, EVQ_E_LIMIT, "the path '%s' is too long", directory);
        }
        FILE *out = fopen(path, "we");
        if (out == NULL) {
            return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
        }
        shells[i].print(&program, out);
        const bool failed = ferror(out) != 0;
        if (fclose(out) != 0 || failed) {
            return evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
        }
    }
    return EVQ_OK;
}

enum evq_status evq_completion_pages(const struct evq_man *man, const char *directory,
                                     struct evq_error *err)
{
    const enum evq_status status = evq_man_write(man, directory, err);

    return status == EVQ_OK ? evq_completion_write(&man, 1, directory, err) : status;
}
