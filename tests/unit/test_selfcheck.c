/* A device that gives wrong numbers is found out before it evaluates anything. The device here is
 * the CPU backend, wrapped so that it lies. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "worker/loader/selfcheck.h"

enum lie {
    HONEST,
    OFF_BY_LITTLE,
    NOT_A_NUMBER,
    OTHER_PREDICTION,
    NOTHING,
    FAILS,
    NO_TOKENS,
    ROUNDS // In place of bf16, which not every processor has: fp32 with losses off by `spread`.
};

static enum lie lie;
static bool lie_on_tokens; // Else on samples.
static int32_t executed;
static double spread;
static const struct evq_plan *prepared;
static struct evq_plan exact;

static enum evq_status lying_prepare(void *state, const struct evq_plan *plan,
                                     struct evq_error *err)
{
    prepared = plan;
    if (lie == NO_TOKENS && plan->length_max > 0) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED, "no tokens here");
    }
    if (lie == ROUNDS) {
        exact = *plan;
        exact.compute = EVQ_COMPUTE_F32;
        return evq_backend_cpu.prepare(state, &exact, err);
    }
    return evq_backend_cpu.prepare(state, plan, err);
}

static enum evq_status lying_exec(void *state, const struct evq_batch *batch,
                                  struct evq_row_result *results, struct evq_error *err)
{
    executed++;
    const bool lies = (prepared->length_max > 0) == lie_on_tokens;
    if (lies && lie == NOTHING) {
        return EVQ_OK; // Like a kernel that was never launched.
    }
    if (lies && lie == FAILS) {
        return evq_error_set(err, EVQ_E_DEVICE, "an illegal address");
    }
    const enum evq_status status = evq_backend_cpu.exec(state, batch, results, err);
    if (lies && lie == OFF_BY_LITTLE) {
        results[batch->rows - 1].loss += 0.01;
    } else if (lies && lie == NOT_A_NUMBER) {
        results[batch->rows / 2].loss = NAN;
    } else if (lies && lie == OTHER_PREDICTION) {
        results[0].predicted += 1;
    }
    for (int32_t i = 0; lie == ROUNDS && prepared->compute == EVQ_COMPUTE_BF16 && i < batch->scores;
         i++) {
        results[i].loss += (i % 2 == 0 ? spread : -spread) * (1.0 + results[i].loss);
    }
    return status;
}

static enum evq_status check(enum lie how, bool tokens, struct evq_error *err)
{
    static const int32_t devices[] = {0};
    struct evq_backend_ops ops = evq_backend_cpu;

    ops.prepare = lying_prepare;
    ops.exec = lying_exec;
    lie = how;
    lie_on_tokens = tokens;
    executed = 0;
    return evq_selfcheck(&ops, devices, 1, err);
}

static void selfcheck_passes_a_device_that_is_right(void **state)
{
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(check(HONEST, true, &err), EVQ_OK);
    assert_true(executed >= 3); // Tokens, classes and errors; bf16 where the processor has it.
}

static void selfcheck_refuses_a_device_that_lies(void **state)
{
    static const enum lie lies[] = {OFF_BY_LITTLE, NOT_A_NUMBER, OTHER_PREDICTION, NOTHING, FAILS};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(lies) / sizeof(lies[0]); i++) {
        struct evq_error err = {0};
        assert_int_equal(check(lies[i / 2], i % 2 == 0, &err), EVQ_E_DEVICE);
        assert_non_null(strstr(err.message, i % 2 == 0 ? "tokens" : "classifier"));
        assert_non_null(strstr(err.message, lies[i / 2] == FAILS ? "illegal address" : "disagree"));
        assert_null(strchr(err.message, '\n'));
    }
}

static void selfcheck_tells_rounding_from_another_number(void **state)
{
    struct evq_error err = {0};

    (void)state;
    spread = 0.0018;
    assert_int_equal(check(ROUNDS, true, &err), EVQ_OK);
    spread = 0.0022;
    assert_int_equal(check(ROUNDS, true, &err), EVQ_E_DEVICE);
    assert_non_null(strstr(err.message, "tokens in bf16"));
}

static void selfcheck_passes_over_what_a_device_refuses(void **state)
{
    struct evq_error err = {0};

    (void)state;
    assert_int_equal(check(NO_TOKENS, true, &err), EVQ_OK);
    assert_int_equal(executed, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selfcheck_passes_a_device_that_is_right),
        cmocka_unit_test(selfcheck_refuses_a_device_that_lies),
        cmocka_unit_test(selfcheck_tells_rounding_from_another_number),
        cmocka_unit_test(selfcheck_passes_over_what_a_device_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
