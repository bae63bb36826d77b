/*
 * A child that cannot say how a job ended leaves, so that its death says it: the supervisor would
 * wait for the word until the job's limit, and give it no other job.
 */
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/fixture/memory.h"
#include "tests/fixture/queue.h"
#include "worker/child/channel.h"
#include "worker/child/child.h"

#define ID "run/1/regular/echo"

static const char site_yaml[] =
    "roots: {ckpt: %s}\n"
    "worker: {scratch: %s/scratch}\n"
    "evaluators: {echo: {kind: command, command: [/bin/false]}}\n"
    "suites: {echo: {evaluator: echo, tasks: [{name: t, type: any}]}}\n";

struct scene {
    char directory[64];
    char file[96];
    struct evq_config *config; // As the supervisor has it.
    struct evq_channel channel;
    pid_t pid;
};

static const char *unsaid; // For want of memory, in the child: notes of this type.

/* The linker's names: tests/links/memory.cmake. */
enum evq_status __real_evq_channel_send(struct evq_channel *channel, const char *type,
                                        const struct evq_field *fields, size_t field_count,
                                        struct evq_error *err);
enum evq_status __wrap_evq_channel_send(struct evq_channel *channel, const char *type,
                                        const struct evq_field *fields, size_t field_count,
                                        struct evq_error *err);

enum evq_status __wrap_evq_channel_send(struct evq_channel *channel, const char *type,
                                        const struct evq_field *fields, size_t field_count,
                                        struct evq_error *err)
{
    if (unsaid != NULL && strcmp(type, unsaid) == 0) {
        fixture_memory_refuse(0, SIZE_MAX - 1);
    }
    const enum evq_status status = __real_evq_channel_send(channel, type, fields, field_count, err);
    (void)fixture_memory_give();
    return status;
}

static int setup(void **state)
{
    struct scene *scene = calloc(1, sizeof *scene);
    struct evq_config_source source = {0};

    assert_non_null(scene);
    fixture_dir_make(scene->directory);
    (void)snprintf(scene->file, sizeof scene->file, "%s/evalq.yaml", scene->directory);
    FILE *file = fopen(scene->file, "w");
    assert_non_null(file);
    (void)fprintf(file, site_yaml, scene->directory, scene->directory);
    assert_int_equal(fclose(file), 0);
    source.file = scene->file;
    assert_status(evq_config_load(&source, &scene->config, NULL), EVQ_OK);
    *state = scene;
    return 0;
}

static int teardown(void **state)
{
    struct scene *scene = *state;

    if (scene->pid > 0) { // A test that failed left it.
        (void)kill(scene->pid, SIGKILL);
        (void)waitpid(scene->pid, NULL, 0);
    }
    evq_channel_close(&scene->channel);
    evq_config_free(scene->config);
    fixture_dir_remove(scene->directory);
    free(scene);
    return 0;
}

/* A child that has no memory for notes of that type. */
static void child_start(struct scene *scene, const char *type)
{
    struct evq_options options = {.command = EVQ_COMMAND_CHILD, .threads = 1};
    int pair[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    (void)fflush(NULL);
    scene->pid = fork();
    assert_true(scene->pid >= 0);
    if (scene->pid == 0) {
        options.source.file = scene->file;
        unsaid = type;
        (void)close(pair[0]);
        if (pair[1] != EVQ_CHILD_FD) {
            (void)dup2(pair[1], EVQ_CHILD_FD);
            (void)close(pair[1]);
        }
        _exit((int)evq_child_main(&options));
    }
    (void)close(pair[1]);
    evq_channel_open(&scene->channel, pair[0]);
}

static void job_give(struct scene *scene, const char *digest, const char *tasks_done)
{
    struct evq_job *job = fixture_job(ID);
    struct evq_buffer record;

    evq_buffer_init(&record, 0);
    assert_status(evq_codec_job_encode(job, &record, NULL), EVQ_OK);
    const struct evq_field fields[] = {
        evq_channel_text("id", ID),         evq_channel_text("suite", "echo"),
        evq_channel_text("digest", digest), evq_channel_bytes("record", record.data, record.bytes),
        evq_channel_integer("attempt", 1),  evq_channel_text("tasks_done", tasks_done)};
    assert_status(
        evq_channel_send(&scene->channel, "job", fields, sizeof(fields) / sizeof(fields[0]), NULL),
        EVQ_OK);
    evq_buffer_free(&record);
    evq_job_free(job);
}

/* The type of the child's next note; "" when there will be none any more. */
static struct fixture_text child_says(struct scene *scene)
{
    const int64_t end_ms = fixture_now_ms() + fixture_patience_ms();
    struct fixture_text said = {""};
    struct evq_note *note = NULL;

    for (;;) {
        struct pollfd item = {.fd = scene->channel.fd, .events = POLLIN};
        evq_channel_fill(&scene->channel);
        assert_status(evq_channel_next(&scene->channel, &note, NULL), EVQ_OK);
        if (note != NULL || scene->channel.ended) {
            break;
        }
        assert_true(fixture_now_ms() < end_ms);
        (void)poll(&item, 1, 1000);
    }
    if (note != NULL) {
        (void)snprintf(said.text, sizeof said.text, "%s", note->type);
    }
    evq_codec_note_free(note);
    return said;
}

/* Two jobs are given, of the first of which it cannot tell the end: nothing is heard of either. */
static void child_leaves(struct scene *scene, const char *digest, const char *tasks_done)
{
    int wait_status = 0;

    assert_string_equal(child_says(scene).text, "hello");
    // It stands still until it has both: it may leave before the second is given.
    assert_int_equal(kill(scene->pid, SIGSTOP), 0);
    assert_int_equal(waitpid(scene->pid, &wait_status, WUNTRACED), scene->pid);
    assert_true(WIFSTOPPED(wait_status));
    job_give(scene, digest, tasks_done);
    job_give(scene, "another", "");
    assert_int_equal(kill(scene->pid, SIGCONT), 0);
    assert_string_equal(child_says(scene).text, "");
    assert_int_equal(waitpid(scene->pid, &wait_status, 0), scene->pid);
    scene->pid = 0;
    assert_true(WIFEXITED(wait_status)); // In order: what it keeps warm is ended, too.
    assert_int_equal(WEXITSTATUS(wait_status), EVQ_EXIT_OK);
}

static void child_that_cannot_tell_a_done_leaves(void **state)
{
    struct scene *scene = *state;

    child_start(scene, "done");
    child_leaves(scene, scene->config->suites[0].digest, "t\n");
}

static void child_that_cannot_tell_an_error_leaves(void **state)
{
    struct scene *scene = *state;

    child_start(scene, "error");
    child_leaves(scene, "of another configuration", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(child_that_cannot_tell_a_done_leaves, setup, teardown),
        cmocka_unit_test_setup_teardown(child_that_cannot_tell_an_error_leaves, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
