#include "logger/options.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

static void usage(FILE *out)
{
    (void)fputs("Usage: evalq-logger [OPTION]...\n"
                "Forwards evaluation results from Redis to JSONL, TensorBoard, best links and "
                "other sinks.\n\n"
                "  -c, --config FILE        configuration (else $EVALQ_CONFIG, ./evalq.yaml, "
                "/etc/evalq/evalq.yaml)\n"
                "  -u, --url URL            Redis (else $EVALQ_URL, ./.evalq/url, the file)\n"
                "  -q, --queue NAME         queue (else $EVALQ_QUEUE, the file, \"main\")\n"
                "      --directory DIR      where results go (else logger.directory)\n"
                "      --log-level LEVEL    error, warn, info (default) or debug\n"
                "      --log-format FORMAT  logfmt (default) or json\n"
                "  -h, --help               print this\n"
                "  -V, --version            print the version\n\n"
                "Sinks come from logger.sinks; JSONL is always on; with no sinks given also "
                "TensorBoard and best.\n",
                out);
}

int evq_options_parse(int argc, char **argv, struct evq_options *options)
{
    static const struct option table[] = {{"config", required_argument, NULL, 'c'},
                                          {"url", required_argument, NULL, 'u'},
                                          {"queue", required_argument, NULL, 'q'},
                                          {"directory", required_argument, NULL, 'd'},
                                          {"log-level", required_argument, NULL, 'l'},
                                          {"log-format", required_argument, NULL, 'f'},
                                          {"version", no_argument, NULL, 'V'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};

    for (int key; (key = getopt_long(argc, argv, "c:u:q:hV", table, NULL)) != -1;) {
        switch (key) {
        case 'c':
            options->source.file = optarg;
            break;
        case 'u':
            options->source.url = optarg;
            break;
        case 'q':
            options->source.queue = optarg;
            break;
        case 'd':
            options->directory = optarg;
            break;
        case 'l':
            if (evq_log_level_parse(optarg, &options->level) != EVQ_OK) {
                (void)fprintf(
                    stderr, "evalq-logger: --log-level '%s', expected error, warn, info or debug\n",
                    optarg);
                return EVQ_EXIT_USAGE;
            }
            break;
        case 'f':
            if (strcmp(optarg, "json") != 0 && strcmp(optarg, "logfmt") != 0) {
                (void)fprintf(stderr, "evalq-logger: --log-format '%s', expected logfmt or json\n",
                              optarg);
                return EVQ_EXIT_USAGE;
            }
            options->format = strcmp(optarg, "json") == 0 ? EVQ_LOG_JSON : EVQ_LOG_LOGFMT;
            break;
        case 'V':
            (void)puts("evalq-logger " EVQ_VERSION);
            return EVQ_EXIT_OK;
        case 'h':
            usage(stdout);
            return EVQ_EXIT_OK;
        default:
            return EVQ_EXIT_USAGE; // getopt_long() has said why.
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "evalq-logger: unexpected argument '%s'; see --help\n", argv[optind]);
        return EVQ_EXIT_USAGE;
    }
    return -1;
}
