/* The emulator of tests/gpu/emulator/ finds the races of kernels, streams and the host, in whatever
 * order it runs threads, and finds none where there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/race_samples.h"

static void races_are_found_and_nothing_else(void **unused)
{
    (void)unused;
    for (int order = EMULATOR_FORWARD; order <= EMULATOR_RANDOM; order++) {
        emulator_order(order, 20261123);
        for (size_t i = 0; i < race_samples_count; i++) {
            const struct race_sample *sample = &race_samples[i];
            for (int ordered = 0; ordered < 2; ordered++) {
                emulator_count_races(true);
                sample->run(ordered == 1);
                const bool races = emulator_races() > 0;
                if (races != (sample->always || ordered == 0)) {
                    fail_msg("%s, %s: %s", sample->name, ordered == 1 ? "in order" : "in none",
                             races ? "a race" : "no race");
                }
            }
        }
    }
    emulator_count_races(false);
}

/* What it says before it ends the program. */
static void end_of(void (*run)(bool), bool argument, char *said, size_t room)
{
    int ends[2];
    size_t length = 0;
    int status = 0;

    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (dup2(ends[1], STDERR_FILENO) >= 0) {
            run(argument);
        }
        _exit(0);
    }
    assert_int_equal(close(ends[1]), 0);
    for (ssize_t got = 1; got > 0; length += got > 0 ? (size_t)got : 0) {
        got = read(ends[0], said + length, room - 1 - length);
    }
    said[length] = '\0';
    assert_int_equal(close(ends[0]), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void race_ends_the_program_and_is_named(void **unused)
{
    char said[1024];

    (void)unused;
    emulator_order(EMULATOR_FORWARD, 1);
    end_of(race_samples[0].run, false, said, sizeof(said));
    assert_non_null(strstr(said, "a race"));
    assert_non_null(strstr(said, ", block 0, thread 1, after 0 barriers: 0x"));
    assert_non_null(strstr(said, ", block 0, thread 0, after 0 barriers: 0x"));
}

static void reading_behind_memory_ends_the_program(void **unused)
{
    char said[1024];

    (void)unused;
    end_of(race_sample_beyond, false, said, sizeof(said));
    assert_non_null(strstr(said, "reads 4 bytes that end behind a block of 4096"));
    end_of(race_sample_beyond, true, said, sizeof(said));
    assert_non_null(strstr(said, "reads 4 bytes that end behind a block of 4096"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(races_are_found_and_nothing_else),
        cmocka_unit_test(race_ends_the_program_and_is_named),
        cmocka_unit_test(reading_behind_memory_ends_the_program),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
