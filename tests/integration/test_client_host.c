/*
 * Tests libevalq in unusual processes: with closed descriptors, low limits, another working
 * directory, and much thread-local memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "producer/client/sender.h"
#include "shared/base/clock.h"
#include "tests/fixture/client.h"

// A C++ trainer may have so much thread-local memory in its executable. It uses space on each
// thread's stack.
static _Thread_local volatile char scratch[(size_t)512 << 10];

static void client_reaches_host_by_name_when_much_is_thread_local(void **state)
{
    const struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;
    char url[64];

    scratch[0] = 1;
    snprintf(url, sizeof(url), "redis://localhost:%d/0", fixture_free_port());
    options.url = url;
    assert_int_equal(evalq_client_open(&options, &client), EVALQ_OK);
    assert_int_equal(evalq_client_best(client, "", NULL, NULL, NULL, 0, 5000), EVALQ_UNAVAILABLE);
    assert_null(strstr(evalq_client_error(client), "thread"));
    evalq_client_close(client);
}

static void assert_child_ends_well(pid_t child)
{
    int status = 0;

    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status)); // The child was not killed by a signal.
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* If the ring or the connection had descriptor 2, the next error message would overwrite it. */
static void client_takes_no_standard_descriptor_when_they_are_closed(void **state)
{
    const struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;

    checkpoint_write(scene, "step-1.safetensors", 1);
    const pid_t child = fork();
    if (child == 0) {
        for (int fd = 0; fd <= STDERR_FILENO; fd++) {
            close(fd);
        }
        bool right = evalq_client_open(&options, &client) == EVALQ_OK &&
                     submit(scene, client, "step-1.safetensors", 1) == EVALQ_OK &&
                     evalq_client_flush(client, (int)fixture_patience_ms()) == EVALQ_OK;
        for (int fd = 0; fd <= STDERR_FILENO; fd++) {
            right = right && write(fd, "loss 0.1\n", 9) == -1 && errno == EBADF;
        }
        evalq_client_close(client);
        _exit(right ? 0 : 1);
    }
    assert_child_ends_well(child);
}

static void client_refuses_when_its_ring_is_past_the_limit_of_a_file(void **state)
{
    const struct scene *scene = *state;
    const struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;

    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = 4096, .rlim_max = 4096};
        signal(SIGXFSZ, SIG_DFL);
        bool right = setrlimit(RLIMIT_FSIZE, &limit) == 0 &&
                     evalq_client_open(&options, &client) == EVALQ_INVALID &&
                     strstr(evalq_client_error(NULL), "File too large") != NULL;
        _exit(right ? 0 : 1);
    }
    assert_child_ends_well(child);
}

static void client_keeps_its_directory_when_the_trainer_goes_elsewhere(void **state)
{
    struct scene *scene = *state;
    struct evalq_options options = scene_options(scene);
    struct evalq_client *client = NULL;
    char here[4096];
    char spool[160];

    options.ring_directory = "rings";
    assert_non_null(getcwd(here, sizeof(here)));
    assert_int_equal(chdir(scene->directory), 0);
    const int opened = evalq_client_open(&options, &client);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(opened, EVALQ_OK);
    fixture_redis_suspend(scene->fx->redis);
    submit_step(scene, client, 1);
    snprintf(spool, sizeof(spool), "%s/main@digits.spool", scene->rings);
    FIXTURE_UNTIL(access(spool, F_OK) == 0);
    fixture_redis_resume(scene->fx->redis);
    assert_flushed(client);
    evalq_client_close(client);
    assert_int_not_equal(access(spool, F_OK), 0);
    assert_int_equal(jobs_in(scene, EVQ_JOB_QUEUED), 1);
}

/* Checks how the background thread handles a submit that it could not check for half a minute. */
static void prepare_late(const struct scene *scene, struct evq_config *config, int log_fd)
{
    struct evq_sender *sender = calloc(1, sizeof(*sender));
    struct evq_pending item = {.since_ms = evq_clock_mono_ms() - 60000};
    struct evq_submit_log log = {.first = NULL};
    uint8_t data[1024];
    size_t bytes = 0;
    char path[160];

    assert_non_null(sender);
    snprintf(path, sizeof(path), "%s/out/step-1.safetensors", scene->directory);
    const struct evalq_checkpoint checkpoint = {.path = path, .step = 1, .suites = "quick"};
    assert_status(evq_submit_record_pack(&checkpoint, 1, 1, data, sizeof(data), &bytes, NULL),
                  EVQ_OK);
    assert_status(evq_submit_record_unpack(data, bytes, &item.request, NULL), EVQ_OK);
    snprintf(sender->run, sizeof(sender->run), "digits");
    sender->config = config;
    sender->warner.fd = log_fd;
    sender->pin = true; // The sender has no checkpoint to pin.
    log.first = log.last = &item;
    (void)evq_prepare_due(sender, &log);
    assert_true(item.ready);
    evq_job_free(item.jobs[0]);
    free(sender);
}

static void checkpoint_is_not_called_missing_when_no_descriptor_is_left(void **state)
{
    const struct scene *scene = *state;
    const struct evq_config_source source = {.file = scene->config};
    struct evq_config *config = NULL;
    struct rlimit before;

    checkpoint_write(scene, "step-1.safetensors", 1);
    assert_status(evq_config_load(&source, &config, NULL), EVQ_OK);
    const int log = open(scene->log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const int next = dup(log);
    assert_true(log >= 0 && next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const struct rlimit none = {.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    prepare_late(scene, config, log);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    close(log);
    assert_int_equal(warnings_with(scene, "is not there"), 0);
    assert_int_equal(warnings_with(scene, "Too many open files"), 1);
    assert_int_equal(warnings_with(scene, "pinned"), 0);
    evq_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SCENE_TEST(client_reaches_host_by_name_when_much_is_thread_local),
        SCENE_TEST(client_takes_no_standard_descriptor_when_they_are_closed),
        SCENE_TEST(client_refuses_when_its_ring_is_past_the_limit_of_a_file),
        SCENE_TEST(checkpoint_is_not_called_missing_when_no_descriptor_is_left),
        SCENE_TEST(client_keeps_its_directory_when_the_trainer_goes_elsewhere),
    };
    scene_clear_environment();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
