#include "producer/gateway/options.h"

#include "producer/gateway/http/thread_pool.h"
#include "shared/base/program.h"

static const struct evq_option option_table[] = {
    {"listen", 'l', EVQ_OPTION_TEXT, "ADDRESS:PORT",
     "where; else gateway.listen, else 127.0.0.1:8000. Port 0: a free one, told in the log", 0, 0},
    {"tokens", 't', EVQ_OPTION_TEXT, "FILE",
     "bearer tokens, a line each: NAME ROLE TOKEN; else gateway.tokens. Without, nobody may write",
     0, 0},
    {"lmms-open", 0, EVQ_OPTION_FLAG, NULL,
     "LMMS-Eval's endpoints need no token: whoever reaches the address may submit evaluations", 0,
     0},
    {"threads", 0, EVQ_OPTION_INTEGER, "N", "requests that are with Redis at a time; default 4", 1,
     EVQ_POOL_THREADS_MAX},
    {"patience", 0, EVQ_OPTION_INTEGER, "SECONDS",
     "how long a client may take to say a request, and to begin one; default 30", 1, 3600},
    {"rate", 0, EVQ_OPTION_INTEGER, "N",
     "requests a second of one client, twice as many at once; default 200, 0: any number", 0,
     1000000},
    {NULL, 0, EVQ_OPTION_FLAG, NULL, NULL, 0, 0},
};
static const struct evq_option *const own_tables[] = {option_table, NULL};
static const struct evq_option *const common_tables[] = {evq_option_log, evq_option_common, NULL};

const struct evq_man evq_options_man = {
    .name = "evalq-gateway",
    .command = "evalq-gateway",
    .usage = "[OPTION...]",
    .summary = "serve the queue over HTTP",
    .description =
        "Answers /v1/... (described by /openapi.json), /healthz and /readyz, and LMMS-Eval's own "
        "endpoints. It listens on this machine alone unless told otherwise, speaks HTTP without "
        "TLS (put a reverse proxy before it), and keeps nothing: all state is in Redis, so it may "
        "be restarted, or run several times, at will.\n\n"
        "A role is read, write (which includes all others) or lmms. TOKEN is the token, of 16 "
        "bytes "
        "or more, or sha256: and its digest in hex. The file is read again when it changes, and on "
        "SIGHUP. Without one, this machine may read, and nobody may write.\n\n"
        "SIGTERM or SIGINT lets requests under way finish, at most ten seconds.",
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
        *ret_options =
            (struct evq_options){.help = evq_option_flag(&set, "help"),
                                 .version = evq_option_flag(&set, "version"),
                                 .source = evq_option_source(&set),
                                 .listen = evq_option_text(&set, "listen", NULL),
                                 .tokens = evq_option_text(&set, "tokens", NULL),
                                 .lmms_open = evq_option_flag(&set, "lmms-open"),
                                 .threads = (uint32_t)evq_option_integer(&set, "threads", 4),
                                 .patience_ms = 1000 * evq_option_integer(&set, "patience", 30),
                                 .rate = (uint32_t)evq_option_integer(&set, "rate", 200)};
    }
    return status;
}
