/* What was pinned is what was asked for, or there is no pin: the trainer may have written
 * meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "producer/client/pins/pin.h"
#include "producer/client/pins/tree_copy.h"
#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/check.h"
#include "tests/fixture/redis.h"

static void checkpoint_write(const char *path)
{
    static const char header[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    const uint64_t bytes = strlen(header);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fwrite(&bytes, sizeof(bytes), 1, file), 1);
    assert_true(fprintf(file, "%s1", header) > 0);
    assert_int_equal(fclose(file), 0);
}

static void pin_goes_again_when_its_checkpoint_changed_meanwhile(void **state)
{
    const char *const jobs[] = {"digits/100/regular/quick"};
    char directory[64];
    char path[128];
    char fingerprint[33];
    struct evq_error err;
    struct evq_pin pin;

    (void)state;
    fixture_dir_make(directory);
    (void)snprintf(path, sizeof(path), "%s/step-100.safetensors", directory);
    checkpoint_write(path);
    const int root = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_status_err(
        evq_checkpoint_fingerprint(root, "step-100.safetensors", fingerprint, NULL, &err), EVQ_OK,
        &err);
    struct evq_pin_request request = {.root_path = directory,
                                      .path = "step-100.safetensors",
                                      .queue = "main",
                                      .run = "digits",
                                      .step = 100,
                                      .variant = "regular",
                                      .fingerprint = fingerprint,
                                      .jobs = jobs,
                                      .job_count = 1,
                                      .reflink = true,
                                      .hard_link = true,
                                      .copy_bytes_max = 1 << 20};
    assert_status_err(evq_pin_make(&request, &pin, &err), EVQ_OK, &err);
    assert_status_err(evq_pin_verify(&request, &pin, &err), EVQ_OK, &err);
    assert_int_equal(access(pin.directory, F_OK), 0);
    request.fingerprint = "00112233445566778899aabbccddeeff"; // As it was before.
    assert_status_err(evq_pin_make(&request, &pin, &err), EVQ_OK, &err);
    assert_int_equal(access(pin.directory, F_OK), 0);
    assert_status(evq_pin_verify(&request, &pin, &err), EVQ_E_CHANGED);
    assert_holds(err.message, "changed while it was pinned");
    assert_int_not_equal(access(pin.directory, F_OK), 0);
    (void)close(root);
    assert_status(evq_tree_remove(AT_FDCWD, directory, NULL), EVQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pin_goes_again_when_its_checkpoint_changed_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
