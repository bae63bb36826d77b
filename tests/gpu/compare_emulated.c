/*
 * `compare` on the emulator of tests/gpu/emulator/: what a GPU will be held to, held today by the
 * module's own sources on the host.
 *   compare_emulated samples | operations | models
 */
#include <string.h>

#include "tests/gpu/compare.h"

const struct evq_backend_ops *evq_backend_module_v1(void);

static int run(const char *part, const struct sides *sides)
{
    if (strcmp(part, "samples") == 0) {
        return compare_samples(sides);
    }
    return strcmp(part, "operations") == 0 ? compare_ops(sides) : compare_models(sides);
}

int main(int argc, char **argv)
{
    const struct evq_backend_config config = {.device = 0};
    struct sides sides = {.cpu = {.ops = &evq_backend_cpu},
                          .device = {.ops = evq_backend_module_v1()},
                          .seed = 20261121,
                          .small = true,
                          .repeats = 1};
    struct evq_error err = {0};

    lm_must(sides.cpu.ops->open(&config, &sides.cpu.state, &err), &err);
    lm_must(sides.device.ops->open(&config, &sides.device.state, &err), &err);
    const int faults = run(argc > 1 ? argv[1] : "models", &sides);
    sides.cpu.ops->close(sides.cpu.state);
    sides.device.ops->close(sides.device.state);
    return faults == 0 ? 0 : 1;
}
