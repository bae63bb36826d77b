#include "logger/options.h"

#include "shared/base/program.h"

static const struct evq_option option_table[] = {
    {"directory", 0, EVQ_OPTION_TEXT, "DIR", "where results go; else logger.directory", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};
static const struct evq_option *const own_tables[] = {option_table, NULL};
static const struct evq_option *const common_tables[] = {evq_option_log, evq_option_common, NULL};

const struct evq_man evq_options_man = {
    .name = "evalq-logger",
    .command = "evalq-logger",
    .usage = "[OPTION...]",
    .summary = "forward evaluation results from Redis to trackers",
    .description = "Sinks come from logger.sinks of the configuration; JSONL is always on; with "
                   "none given TensorBoard and best links are too. Each sink keeps its own place, "
                   "so one that is down delays no other.\n\n"
                   "SIGTERM or SIGINT ends it once each sink holds what it was given.",
    .options = own_tables,
    .common = common_tables,
    .environment = "EVALQ_CONFIG, EVALQ_URL, EVALQ_QUEUE, EVALQ_REDIS_PASSWORD_FILE.",
};

enum evq_status evq_options_parse(int argc, char **argv, struct evq_options *ret_options,
                                  struct evq_error *err)
{
    struct evq_option_set set = {.count = 0};
    const enum evq_status status = evq_program_options(&evq_options_man, argc, argv, &set, err);

    if (status == EVQ_OK) {
        *ret_options = (struct evq_options){.help = evq_option_flag(&set, "help"),
                                            .version = evq_option_flag(&set, "version"),
                                            .source = evq_option_source(&set),
                                            .directory = evq_option_text(&set, "directory", NULL)};
    }
    return status;
}
