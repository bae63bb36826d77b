/*
 * evalq page: prints the address of the page that `evalq up` serves.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

#include "producer/cli/json.h"
#include "producer/cli/up/server.h"
#include "producer/cli/verbs.h"
#include "shared/base/file.h"

/* Whether an `evalq up` runs in the directory. While it runs, it holds this lock. */
static bool is_up(const char *directory)
{
    char path[EVQ_SERVER_PATH_MAX];
    int fd = evq_server_path(directory, "lock", path, NULL) == EVQ_OK
                 ? open(path, O_RDONLY | O_CLOEXEC)
                 : -1;
    const bool up = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;

    evq_file_close(&fd);
    return up;
}

static enum evq_status page_run(struct evq_cli *cli, struct evq_error *err)
{
    const char *directory = evq_option_text(&cli->options, "dir", ".evalq");
    char path[EVQ_SERVER_PATH_MAX];
    char address[512] = "";
    enum evq_status status = evq_server_path(directory, "page", path, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!is_up(directory)) {
        return evq_error_set(err, EVQ_E_NOT_FOUND,
                             "no `evalq up` runs in '%.300s': start one, or name its directory "
                             "with --dir",
                             directory);
    }
    FILE *file = fopen(path, "re");
    if (file == NULL || fgets(address, sizeof address, file) == NULL) {
        status =
            evq_error_set(err, EVQ_E_NOT_FOUND,
                          "the `evalq up` in '%.300s' serves no page: it is still starting, or "
                          "was started with --no-page",
                          directory);
    }
    if (file != NULL) {
        (void)fclose(file); // Opened for reading: a failed close loses nothing.
    }
    address[strcspn(address, "\n")] = '\0';
    if (status == EVQ_OK && cli->terminal.json) {
        status = evq_json_print(json_pack("{s:s}", "page", address), err);
    } else if (status == EVQ_OK) {
        (void)puts(address);
    }
    return status;
}

static const struct evq_option options[] = {
    {"dir", 'd', EVQ_OPTION_TEXT, "DIR", "directory of `evalq up`; default ./.evalq", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};

const struct evq_verb evq_verb_page = {
    .name = "page",
    .arguments = "[--dir DIR]",
    .summary = "Print the address of the page that `evalq up` serves",
    .description =
        "Open the address in a browser on this machine. It ends with a key that allows reading and "
        "changing the queue, so do not share it. The key is valid until this `evalq up` ends. Exit "
        "code 3: no `evalq up` runs in the directory, or it serves no page.\n\n"
        "Example: `evalq page`",
    .options = options,
    .arg_min = 0,
    .arg_max = 0,
    .run = page_run,
};
