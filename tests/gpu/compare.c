/*
 * The CUDA module against the CPU backend and plain loops in double: the same plans, weights and
 * batches.
 *   compare [--device N] [--devices N,N,...] [--seed N] [--small] [--repeats N]
 *           [--dump DIRECTORY] [--part NAME]
 * A device that fails the self-check is held to the rest all the same: that says which operation it
 * is. --devices: those that models are split over; by default --device counts as three. --part: one
 * group of cases alone (samples, products, lookups, norms, ropes, attentions, encoders, options,
 * gates, models, parts), because a fault in one group ends the process before the next ones.
 * exit 0: all within tolerance; 1: not; 2: usage; 77: no GPU here, with the reason.
 */
#include "tests/gpu/compare.h"

#include <stdlib.h>
#include <string.h>

#include "worker/loader/backend.h"
#include "worker/loader/selfcheck.h"

#define EXIT_SKIPPED 77

static bool devices_read(const char *text, struct sides *sides)
{
    char *end = NULL;

    for (sides->device_count = 0; sides->device_count < 8; text = end + 1) {
        sides->devices[sides->device_count++] = (int32_t)strtol(text, &end, 10);
        if (end == text || *end != ',') {
            return end != text && *end == '\0';
        }
    }
    return false;
}

static bool options_read(int argc, char **argv, struct sides *sides, int32_t *ret_device)
{
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--small") == 0) {
            sides->small = true;
        } else if (strcmp(argv[i], "--device") == 0 && more) {
            *ret_device = (int32_t)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--devices") == 0 && more) {
            if (!devices_read(argv[++i], sides)) {
                return false;
            }
        } else if (strcmp(argv[i], "--seed") == 0 && more) {
            sides->seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--repeats") == 0 && more) {
            sides->repeats = (int32_t)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--dump") == 0 && more) {
            sides->dump = argv[++i];
        } else if (strcmp(argv[i], "--part") == 0 && more) {
            sides->part = argv[++i];
        } else {
            return false;
        }
    }
    for (bool listed = sides->device_count > 0; !listed && sides->device_count < 3;) {
        sides->devices[sides->device_count++] = *ret_device;
    }
    sides->seed = sides->seed > 0 ? sides->seed : 1;
    return sides->repeats >= 1 && sides->repeats <= 1000;
}

static void side_open(struct side *side, int32_t device)
{
    const struct evq_backend_config config = {.device = device};
    struct evq_backend_caps caps;
    struct evq_error err = {0};

    lm_must(side->ops->open(&config, &side->state, &err), &err);
    side->ops->caps(side->state, &caps);
    (void)printf("%s: %s\n", side->ops->name, caps.device);
    (void)printf("json {\"backend\": \"%s\", \"device\": \"%s\"}\n", side->ops->name, caps.device);
}

/* Faults. */
static int check_self(const struct sides *sides, int32_t device)
{
    struct evq_error err = {0};

    lm_doing("self-check");
    const bool good = evq_selfcheck(sides->device.ops, &device, 1, &err) == EVQ_OK;
    (void)printf("%s self-check%s%s\n", good ? "ok  " : "FAIL", good ? "" : ": ",
                 good ? "" : err.message);
    (void)printf("json {\"test\": \"self-check\", \"cases\": 1, \"failed\": %d}\n", !good);
    return !good;
}

/* Faults. */
static int compare_all(const struct sides *sides, int32_t device)
{
    const bool all = sides->part == NULL;
    int faults = all ? check_self(sides, device) : 0;

    if (all || strcmp(sides->part, "samples") == 0) {
        faults += compare_samples(sides);
    }
    faults += compare_ops(sides);
    if (all || strcmp(sides->part, "models") == 0) {
        faults += compare_models(sides);
    }
    if (all || strcmp(sides->part, "parts") == 0) {
        faults += compare_parts(sides);
    }
    return faults;
}

int main(int argc, char **argv)
{
    struct sides sides = {.cpu = {.ops = &evq_backend_cpu}, .seed = 20261121, .repeats = 24};
    struct evq_backend cuda;
    int32_t device = 0;
    char note[512];

    if (!options_read(argc, argv, &sides, &device)) {
        (void)fprintf(stderr,
                      "usage: compare [--device N] [--devices N,N,...] [--seed N] [--small] "
                      "[--repeats N] [--dump DIRECTORY] [--part NAME]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); // What was found stays if a kernel hangs or crashes.
    lm_watch();
    evq_backend_find(device, &cuda, note, sizeof(note));
    if (cuda.module == NULL) {
        (void)printf("no device: %s\n", note);
        return EXIT_SKIPPED;
    }
    sides.device.ops = cuda.ops;
    side_open(&sides.cpu, 0);
    side_open(&sides.device, device);
    (void)printf("seed %llu\n", (unsigned long long)sides.seed);
    const int faults = compare_all(&sides, device);
    sides.cpu.ops->close(sides.cpu.state);
    sides.device.ops->close(sides.device.state);
    evq_backend_unload(&cuda);
    return faults == 0 ? 0 : 1;
}
