#include "logger/options.h"

#include "shared/config/config.h"

static const struct evq_option option_table[] = {
    {"directory", 0, EVQ_OPTION_TEXT, "DIR",
     "directory of the results; default: logger.directory of the configuration", 0, 0},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};
static const struct evq_option *const own_tables[] = {option_table, NULL};
static const struct evq_option *const common_tables[] = {evq_option_log, evq_option_common, NULL};

const struct evq_man evq_options_man = {
    .name = "evalq-logger",
    .command = "evalq-logger",
    .usage = "[OPTION...]",
    .summary = "forward evaluation results from Redis to trackers",
    .description =
        "Writes results to the sinks that logger.sinks of the configuration names, and "
        "always to JSONL files. If logger.sinks is missing, it also writes TensorBoard files "
        "and links to the best checkpoints. A sink that fails does not delay the others, "
        "because each has its own position in the stream of results.\n\nAfter SIGTERM or "
        "SIGINT the logger ends as soon as each sink has stored the results that it has "
        "received.\n\nExample: `evalq-logger --directory results`",
    .options = own_tables,
    .common = common_tables,
    .environment = "EVALQ_CONFIG, EVALQ_URL, EVALQ_QUEUE, EVALQ_REDIS_PASSWORD_FILE.",
};

struct evq_options evq_options_read(const struct evq_option_set *set)
{
    return (struct evq_options){.source = evq_config_source_of(set),
                                .directory = evq_option_text(set, "directory", NULL)};
}
