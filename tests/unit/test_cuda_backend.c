/* The CUDA backend on the emulator of tests/gpu/emulator/: whole plans against the CPU backend, and
 * what it keeps from one checkpoint to the next. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "tests/gpu/emulator/control.h"
#include "worker/loader/selfcheck.h"

const struct evq_backend_ops *evq_backend_module_v1(void);

static void selfcheck_passes(void **unused)
{
    struct evq_error err = {0};

    (void)unused;
    if (evq_selfcheck(evq_backend_module_v1(), 0, &err) != EVQ_OK) {
        fail_msg("%s", err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selfcheck_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
