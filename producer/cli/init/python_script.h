/*
 * Finds the Python file of the working directory that trains with Transformers or Lightning, for
 * `evalq init` without an option. One thread.
 *
 * A file counts if a line of it begins with `import` or `from` and names transformers, trl,
 * lightning or pytorch_lightning, and if it calls `Trainer(` or a class whose name ends in
 * "Trainer". With Lightning, the suite's function is make_validation(), otherwise make_trainer().
 */
#ifndef EVQ_PRODUCER_CLI_INIT_PYTHON_SCRIPT_H
#define EVQ_PRODUCER_CLI_INIT_PYTHON_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

struct evq_python_script {
    char module[128]; // "train" for train.py.
    bool is_lightning;
    bool has_function; // It defines the suite's function.
};

const char *evq_python_script_function(const struct evq_python_script *script);

/* Finds the files that count, the ones with the suite's function first, then by name; at most max.
 * Returns how many. A file that cannot be read or has over 1 MiB does not count. */
size_t evq_python_script_find(struct evq_python_script *ret_scripts, size_t max);

#endif
