#include "settings.h"

#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

static bool number_parse(const struct settings *settings, const char *name, long least,
                         long *ret_number)
{
    char *end = NULL;

    errno = 0;
    const long number = strtol(optarg, &end, 10);
    if (errno != 0 || end == optarg || *end != '\0' || number < least || number > 100000000) {
        fprintf(stderr, "%s: --%s is '%s', expected a number from %ld on\n", settings->program,
                name, optarg, least);
        return false;
    }
    *ret_number = number;
    return true;
}

static int usage(const struct settings *settings, FILE *to, int code)
{
    fputs(settings->usage, to);
    return code;
}

int settings_parse(int argc, char **argv, struct settings *settings)
{
    const struct option options[] = {{settings->input, required_argument, NULL, 'd'},
                                     {"out", required_argument, NULL, 'o'},
                                     {"run", required_argument, NULL, 'r'},
                                     {"suites", required_argument, NULL, 's'},
                                     {"steps", required_argument, NULL, 'n'},
                                     {"every", required_argument, NULL, 'v'},
                                     {"seed", required_argument, NULL, 'x'},
                                     {"help", no_argument, NULL, 'h'},
                                     {NULL, 0, NULL, 0}};
    bool right = true;
    int option = 0;

    while (right && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'd':
            settings->data = optarg;
            break;
        case 'o':
            settings->out = optarg;
            break;
        case 'r':
            settings->run = optarg;
            break;
        case 's':
            settings->suites = optarg;
            break;
        case 'n':
            right = number_parse(settings, "steps", 1, &settings->steps);
            break;
        case 'v':
            right = number_parse(settings, "every", 1, &settings->every);
            break;
        case 'x':
            right = number_parse(settings, "seed", 0, &settings->seed);
            break;
        case 'h':
            return usage(settings, stdout, 0);
        default:
            return usage(settings, stderr, 2);
        }
    }
    return !right || optind != argc || settings->data == NULL ? usage(settings, stderr, 2) : -1;
}

uint64_t settings_seed(const struct settings *settings)
{
    return (uint64_t)settings->seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
}
