#include "producer/gateway/options.h"

#include "producer/gateway/http/thread_pool.h"
#include "shared/base/program.h"

static const struct evq_option option_table[] = {
    {"listen", 'l', EVQ_OPTION_TEXT, "ADDRESS:PORT",
     "address to listen on; else gateway.listen, else 127.0.0.1:8000. Port 0: a free port, which "
     "the log names",
     0, 0},
    {"tokens", 't', EVQ_OPTION_TEXT, "FILE",
     "bearer tokens, a line each: NAME ROLE TOKEN; else gateway.tokens. Without a file, nobody can "
     "write",
     0, 0},
    {"lmms-open", 0, EVQ_OPTION_FLAG, NULL,
     "LMMS-Eval's endpoints need no token: everybody who reaches the address can submit "
     "evaluations",
     0, 0},
    {"threads", 0, EVQ_OPTION_INTEGER, "N", "requests that use Redis at a time; default 4", 1,
     EVQ_POOL_THREADS_MAX},
    {"patience", 0, EVQ_OPTION_INTEGER, "SECONDS",
     "how long a client may take to send a request; default 30", 1, 3600},
    {"rate", 0, EVQ_OPTION_INTEGER, "N",
     "requests a second of one client, and twice as many at once; default 200, 0: no limit", 0,
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
        "Serves a web page, the API /v1/... (described by /openapi.json), /healthz, /readyz, "
        "/metrics, and LMMS-Eval's own endpoints. By default other machines cannot reach it. It "
        "speaks HTTP without TLS: put a reverse proxy before it. All state is in Redis, so you can "
        "restart the gateway or run several of them.\n\n"
        "A role is read, write (which includes all others) or lmms. TOKEN is the token, of 16 "
        "bytes "
        "or more, or sha256: and its digest in hex. The file is read again when it changes, and on "
        "SIGHUP. If there is no token file, local programs can read and nobody can write.\n\n"
        "SIGTERM or SIGINT lets requests in progress finish, for ten seconds at most.\n\nExample: "
        "`evalq-gateway --listen 127.0.0.1:8000 --tokens tokens`",
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
