/*
 * The CUDA module against the CPU backend and plain loops in double: the same plans, weights and
 * batches.
 *   compare [--device N] [--seed N] [--small] [--repeats N] [--dump DIRECTORY]
 * exit 0: all within tolerance; 1: not; 2: usage; 77: no GPU here, with the reason.
 */
#include "tests/gpu/compare.h"

#include <stdlib.h>
#include <string.h>

#include "worker/loader/loader.h"

#define EXIT_SKIPPED 77

static bool options_read(int argc, char **argv, struct sides *sides, int32_t *ret_device)
{
    for (int i = 1; i < argc; i++) {
        const bool more = i + 1 < argc;
        if (strcmp(argv[i], "--small") == 0) {
            sides->small = true;
        } else if (strcmp(argv[i], "--device") == 0 && more) {
            *ret_device = (int32_t)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0 && more) {
            sides->seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--repeats") == 0 && more) {
            sides->repeats = (int32_t)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--dump") == 0 && more) {
            sides->dump = argv[++i];
        } else {
            return false;
        }
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

int main(int argc, char **argv)
{
    struct sides sides = {.cpu = {.ops = &evq_backend_cpu}, .seed = 20261121, .repeats = 24};
    struct evq_backend cuda;
    struct evq_error err = {0};
    int32_t device = 0;
    char note[512];

    if (!options_read(argc, argv, &sides, &device)) {
        (void)fprintf(stderr, "usage: compare [--device N] [--seed N] [--small] [--repeats N] "
                              "[--dump DIRECTORY]\n");
        return 2;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); // What was found stays if a kernel hangs or crashes.
    if (evq_backend_load(device, 1, &cuda, note, sizeof(note), &err) != EVQ_OK) {
        (void)printf("FAIL %s\n", err.message); // Wrong numbers are no reason to skip.
        return 1;
    }
    if (cuda.devices == 0) {
        (void)printf("no device: %s\n", note);
        return EXIT_SKIPPED;
    }
    sides.device.ops = cuda.ops;
    side_open(&sides.cpu, 0);
    side_open(&sides.device, device);
    (void)printf("seed %llu\n", (unsigned long long)sides.seed);
    int faults = compare_samples(&sides);
    faults += compare_ops(&sides);
    faults += compare_models(&sides);
    sides.cpu.ops->close(sides.cpu.state);
    sides.device.ops->close(sides.device.state);
    evq_backend_unload(&cuda);
    return faults == 0 ? 0 : 1;
}
