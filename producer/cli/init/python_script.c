#include "producer/cli/init/python_script.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/buffer.h"
#include "shared/base/file.h"

#define BYTES_MAX   (1024 * 1024)
#define ENTRIES_MAX 1000

const char *evq_python_script_function(const struct evq_python_script *script)
{
    return script->is_lightning ? "make_validation" : "make_trainer";
}

/* Whether the text after `import ` or `from ` begins with this package: "lightning.pytorch" does
 * for "lightning", "lightning_fabric" does not. */
static bool is_package(const char *at, const char *package)
{
    const size_t bytes = strlen(package);

    return strncmp(at, package, bytes) == 0 && at[bytes] != '_' &&
           !isalnum((unsigned char)at[bytes]);
}

/* Returns the text after the first word of the line if the word is this one; NULL: another word. */
static const char *after_word(const char *line, const char *word)
{
    const size_t bytes = strlen(word);

    line += strspn(line, " \t");
    return strncmp(line, word, bytes) == 0 && line[bytes] == ' '
               ? line + bytes + strspn(line + bytes, " ")
               : NULL;
}

/* Fills in what the text of a Python file says. Returns whether the file counts. */
static bool read_text(struct evq_python_script *script, const char *text)
{
    bool imports = false;
    bool has_trainer = false;
    bool has_validation = false;

    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        const char *package = after_word(line, "from");
        package = package != NULL ? package : after_word(line, "import");
        if (package != NULL) {
            script->is_lightning = script->is_lightning || is_package(package, "lightning") ||
                                   is_package(package, "pytorch_lightning");
            imports = imports || is_package(package, "transformers") || is_package(package, "trl");
        }
        has_trainer = has_trainer || strncmp(line, "def make_trainer(", 17) == 0;
        has_validation = has_validation || strncmp(line, "def make_validation(", 20) == 0;
    }
    script->has_function = script->is_lightning ? has_validation : has_trainer;
    return (imports || script->is_lightning) && strstr(text, "Trainer(") != NULL;
}

/* Whether `import` takes the file's name without ".py". */
static bool is_module(const char *name, size_t bytes)
{
    bool good = bytes > 0 && !isdigit((unsigned char)name[0]);

    for (size_t i = 0; i < bytes; i++) {
        good = good && (name[i] == '_' ||
                        (isascii((unsigned char)name[i]) && isalnum((unsigned char)name[i])));
    }
    return good;
}

static bool read_file(struct evq_python_script *script, const char *name)
{
    const size_t bytes = strlen(name);
    struct evq_buffer text;
    bool counts = false;

    if (bytes < 4 || bytes - 3 >= sizeof script->module || !evq_file_ends_with(name, ".py") ||
        !is_module(name, bytes - 3)) {
        return false;
    }
    *script = (struct evq_python_script){.module = ""};
    memcpy(script->module, name, bytes - 3);
    evq_buffer_init(&text, BYTES_MAX + 1);
    if (evq_file_read(AT_FDCWD, name, 0, BYTES_MAX, &text, NULL) == EVQ_OK) {
        const char *string = evq_buffer_string(&text);
        counts = string != NULL && read_text(script, string);
    }
    evq_buffer_free(&text);
    return counts;
}

static int compare(const void *a, const void *b)
{
    const struct evq_python_script *left = a;
    const struct evq_python_script *right = b;

    return left->has_function != right->has_function
               ? (int)right->has_function - (int)left->has_function
               : strcmp(left->module, right->module);
}

size_t evq_python_script_find(struct evq_python_script *ret_scripts, size_t max)
{
    DIR *stream = opendir(".");
    const struct dirent *entry = NULL;
    size_t count = 0;

    for (int i = 0;
         stream != NULL && i < ENTRIES_MAX && count < max && (entry = readdir(stream)) != NULL;
         i++) {
        count += read_file(&ret_scripts[count], entry->d_name);
    }
    if (stream != NULL) {
        (void)closedir(stream);
    }
    qsort(ret_scripts, count, sizeof *ret_scripts, compare);
    return count;
}
