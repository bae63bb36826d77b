/* Where pins lie: beside the checkpoint, except where what trains would stumble over them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "producer/client/pins/pin.h"
#include "producer/client/pins/tree_copy.h"
#include "shared/checkpoint/pin_path.h"
#include "tests/fixture/check.h"
#include "tests/fixture/redis.h"

static void assert_output(const char *path, const char *output)
{
    const size_t bytes = evq_pin_output_bytes(path);

    assert_int_equal(bytes, strlen(output));
    assert_memory_equal(path, output, bytes);
}

static void pin_lies_beside_the_checkpoint_or_above_what_accelerate_counts(void **state)
{
    (void)state;
    assert_output("out/step-7.pt", "out");
    assert_output("step-7.pt", "");
    assert_output("a/checkpoints/checkpoint_7", "a");
    assert_output("checkpoints/checkpoint_7", "");
    assert_output("a/b/checkpoints/checkpoint_0", "a/b");
    assert_output("a/checkpoints/checkpoint-7", "a/checkpoints"); // Transformers, Lightning.
    assert_output("a/checkpoints/checkpoint_7.pt", "a/checkpoints");
    assert_output("a/checkpoints/checkpoint_", "a/checkpoints");
    assert_output("a/my-checkpoints/checkpoint_7", "a/my-checkpoints");
    assert_output("a/checkpoints/checkpoint_7/model.safetensors", "a/checkpoints/checkpoint_7");
}

/* Its name says where the training saved it, and nothing is left when it goes. */
static void pin_of_accelerate_leaves_its_directory_alone(void **state)
{
    static const char path[] = "run/checkpoints/checkpoint_7";
    const char *const jobs[] = {"digits/700/regular/quick"};
    char directory[64];
    char file[PATH_MAX + 128];
    char saved[256];
    struct evq_error err;
    struct evq_pin pin;

    (void)state;
    fixture_dir_make(directory);
    for (const char *end = strchr(path, '/'); end != NULL; end = strchr(end + 1, '/')) {
        (void)snprintf(file, sizeof(file), "%s/%.*s", directory, (int)(end - path), path);
        assert_int_equal(mkdir(file, 0755), 0);
    }
    (void)snprintf(file, sizeof(file), "%s/%s", directory, path);
    assert_int_equal(mkdir(file, 0755), 0);
    (void)snprintf(file, sizeof(file), "%s/%s/model.safetensors", directory, path);
    assert_int_equal(close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0644)), 0);
    struct evq_pin_request request = {.root_path = directory,
                                      .path = path,
                                      .queue = "main",
                                      .run = "digits",
                                      .step = 700,
                                      .variant = "regular",
                                      .fingerprint = "",
                                      .jobs = jobs,
                                      .job_count = 1,
                                      .reflink = true,
                                      .hard_link = true};
    assert_status_err(evq_pin_make(&request, &pin, &err), EVQ_OK, &err);
    assert_holds(pin.path, "run/.evalq/pins/700-regular-");
    assert_true(evq_pin_path_saved(pin.path, saved, sizeof(saved)));
    assert_string_equal(saved, path);
    (void)snprintf(file, sizeof(file), "%s/%s/model.safetensors", directory, pin.path);
    assert_int_equal(access(file, R_OK), 0);
    (void)snprintf(file, sizeof(file), "%s/run/checkpoints/.evalq", directory);
    assert_int_not_equal(access(file, F_OK), 0);
    assert_status(evq_pin_release(pin.directory, NULL), EVQ_OK);
    assert_int_not_equal(access(pin.directory, F_OK), 0);

    (void)snprintf(file, sizeof(file), "%s/run/checkpoints", directory);
    request.root_path = file;
    request.path = "checkpoint_7";
    assert_status(evq_pin_make(&request, &pin, &err), EVQ_E_UNSUPPORTED);
    assert_holds(err.message, "make that one the root");
    assert_status(evq_tree_remove(AT_FDCWD, directory, NULL), EVQ_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pin_lies_beside_the_checkpoint_or_above_what_accelerate_counts),
        cmocka_unit_test(pin_of_accelerate_leaves_its_directory_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
