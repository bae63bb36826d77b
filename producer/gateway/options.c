#include "producer/gateway/options.h"

#include "producer/gateway/http/thread_pool.h"
#include "shared/config/config.h"

static const struct evq_option option_table[] = {
    {"listen", 'l', EVQ_OPTION_TEXT, "ADDRESS:PORT",
     "address to listen on; default: gateway.listen, or 127.0.0.1:8000. Port 0: a free port, which "
     "the log names",
     0, 0},
    {"tokens", 't', EVQ_OPTION_TEXT, "FILE",
     "file with the tokens; default: gateway.tokens of the configuration", 0, 0},
    {"lmms-open", 0, EVQ_OPTION_FLAG, NULL,
     "ask for no token at LMMS-Eval's endpoints: everybody who reaches the address can submit "
     "evaluations",
     0, 0},
    {"threads", 0, EVQ_OPTION_INTEGER, "N",
     "number of requests that use Redis at the same time; default 4", 1, EVQ_POOL_THREADS_MAX},
    {"patience", 0, EVQ_OPTION_INTEGER, "SECONDS",
     "time that a client has to send a request; default 30", 1, 3600},
    {"rate", 0, EVQ_OPTION_INTEGER, "N",
     "requests per second that one client can send, with bursts of twice as many; default 200; 0: "
     "no limit",
     0, 1000000},
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
        "Serves the web page, the API /v1/... (described by /openapi.json), /healthz, "
        "/readyz, /metrics, and LMMS-Eval's own endpoints. By default only this machine can "
        "reach it. For other machines put a reverse proxy with TLS before it, because the "
        "gateway speaks plain HTTP. All state is in Redis, so you can restart the gateway or "
        "run several of them.\n\nThe token file has one line per user: NAME ROLE TOKEN. ROLE "
        "is read, write (which includes read and lmms) or lmms. TOKEN is the token, of 16 "
        "bytes or more, or sha256: and its digest in hex. The gateway reads the file again "
        "when it changes, and on SIGHUP. If there is no token file, local programs can read "
        "and nobody can write.\n\nAfter SIGTERM or SIGINT, requests in progress have ten "
        "seconds to finish.\n\nExample: `evalq-gateway --listen 127.0.0.1:8000 --tokens "
        "tokens`",
    .options = own_tables,
    .common = common_tables,
    .environment = "EVALQ_CONFIG, EVALQ_URL, EVALQ_QUEUE, EVALQ_REDIS_PASSWORD_FILE.",
};

struct evq_options evq_options_read(const struct evq_option_set *set)
{
    return (struct evq_options){.source = evq_config_source_of(set),
                                .listen = evq_option_text(set, "listen", NULL),
                                .tokens = evq_option_text(set, "tokens", NULL),
                                .lmms_open = evq_option_flag(set, "lmms-open"),
                                .threads = (uint32_t)evq_option_integer(set, "threads", 4),
                                .patience_ms = 1000 * evq_option_integer(set, "patience", 30),
                                .rate = (uint32_t)evq_option_integer(set, "rate", 200)};
}
