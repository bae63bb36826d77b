#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/arena.h"
#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/evaluators/environment.h"
#include "worker/evaluators/process.h"
#include "worker/evaluators/program_log.h"

struct run {
    struct evq_process process;
    struct evq_program_log output;
};

static void run_start(struct run *run, const struct fixture_folder *folder, const char *const *argv)
{
    static char path[] = "PATH=/usr/local/bin:/usr/bin:/bin";
    static char *const envp[] = {path, NULL};
    struct evq_error err;

    assert_status_err(evq_program_log_open(NULL, 0, &run->output, &err), EVQ_OK, &err);
    const struct evq_process_config config = {.argv = argv,
                                              .envp = envp,
                                              .directory = folder->path,
                                              .stdin_fd = -1,
                                              .stdout_fd = run->output.write_fd,
                                              .stderr_fd = run->output.write_fd};
    assert_status_err(evq_process_start(&config, &run->process, &err), EVQ_OK, &err);
    evq_program_log_started(&run->output);
}

static void run_wait(struct run *run)
{
    FIXTURE_UNTIL(evq_process_check(&run->process));
    FIXTURE_UNTIL(!evq_program_log_read(&run->output));
}

static void assert_ends(struct run *run, const char *how)
{
    char text[256];

    run_wait(run);
    evq_process_describe(&run->process, text, sizeof(text));
    assert_holds(text, how);
    evq_program_log_close(&run->output);
}

static pid_t run_number(struct run *run)
{
    char line[64] = "";

    FIXTURE_UNTIL((evq_program_log_read(&run->output),
                   evq_program_log_line(&run->output, line, sizeof(line)), line[0] != '\0'));
    return (pid_t)atoi(line);
}

static void process_tells_how_a_program_ended(void **state)
{
    static const char *const quits[] = {"sh", "-c", "exit 3", NULL};
    static const char *const dies[] = {"sh", "-c", "kill -SEGV $$", NULL};
    static const char *const missing[] = {"/no/such/program", NULL};
    struct run run;

    run_start(&run, *state, quits);
    assert_ends(&run, "exit status 3");
    run_start(&run, *state, dies);
    assert_ends(&run, "signal 11");
    run_start(&run, *state, missing);
    assert_ends(&run, "cannot be executed: No such file");
    assert_int_not_equal(run.process.exec_errno, 0);
}

static void process_gives_a_session_of_its_own_and_no_input(void **state)
{
    static const char *const argv[] = {
        "sh", "-c",
        "cat; [ \"$(cut -d' ' -f6 /proc/$$/stat)\" = $$ ] && env | sort | tr '\\n' ' '; pwd", NULL};
    struct run run;
    char tail[EVQ_PROGRAM_LOG_TAIL_BYTES + 1];

    run_start(&run, *state, argv);
    run_wait(&run);
    evq_program_log_tail(&run.output, tail, sizeof(tail));
    assert_holds(tail, "PATH=/usr/local/bin:/usr/bin:/bin ");
    assert_null(strstr(tail, "HOME"));
    assert_holds(tail, ((const struct fixture_folder *)*state)->path);
    evq_program_log_close(&run.output);
}

static void process_ends_the_whole_group(void **state)
{
    static const char *const argv[] = {
        "sh", "-c",
        "trap '' TERM; sh -c \"trap '' TERM; while :; do sleep 1; done\" & echo $!; wait; wait",
        NULL};
    struct run run;

    run_start(&run, *state, argv);
    const pid_t grandchild = run_number(&run);
    assert_int_equal(kill(grandchild, 0), 0);
    evq_process_end(&run.process, 100);
    assert_true(run.process.ended);
    assert_true(WIFSIGNALED(run.process.wait_status));
    assert_int_equal(WTERMSIG(run.process.wait_status), SIGKILL);
    FIXTURE_UNTIL(!evq_program_log_read(&run.output)); // Nobody holds the pipe any more.
    evq_program_log_close(&run.output);
}

/* What a program leaves behind in its group does not outlive it. */
static void process_sweeps_the_group_when_the_leader_ends(void **state)
{
    static const char *const argv[] = {"sh", "-c", "sleep 1000 & echo $!", NULL};
    struct run run;

    run_start(&run, *state, argv);
    assert_ends(&run, "exit status 0"); // run_wait: the pipe closed, so the sleep is gone.
}

/* The program dies with its guard, which the kernel sees to; what it started in its group does not.
 */
static void process_takes_over_when_its_guard_is_killed(void **state)
{
    static const char *const argv[] = {"sh", "-c",
                                       "sh -c 'while :; do sleep 1; done' & echo $$; wait", NULL};
    struct run run;

    run_start(&run, *state, argv);
    (void)run_number(&run);
    (void)evq_process_check(&run.process);
    assert_int_equal(kill(run.process.guard, SIGKILL), 0);
    FIXTURE_UNTIL(evq_process_check(&run.process));
    assert_true(run.process.lost);
    FIXTURE_UNTIL(!evq_program_log_read(&run.output));
    evq_program_log_close(&run.output);
}

/* The one who started the program is killed: the guard ends the group, even if it was stopped. */
static void assert_ends_with_its_parent(const struct fixture_folder *folder, bool stop_guard)
{
    static const char *const argv[] = {"sh", "-c", "echo $$; while :; do sleep 1; done", NULL};
    struct evq_program_log output;
    struct evq_error err;
    struct run run;
    char line[64] = "";

    assert_status_err(evq_program_log_open(NULL, 0, &output, &err), EVQ_OK, &err);
    const pid_t pid = fork();
    if (pid == 0) {
        run_start(&run, folder, argv);
        const pid_t program = run_number(&run);
        (void)dprintf(output.write_fd, "%d %d\n", (int)program, (int)run.process.guard);
        for (;;) {
            (void)pause();
        }
    }
    assert_true(pid > 0);
    FIXTURE_UNTIL((evq_program_log_read(&output), evq_program_log_line(&output, line, sizeof(line)),
                   line[0] != '\0'));
    char *rest = NULL;
    const pid_t program = (pid_t)strtol(line, &rest, 10);
    const pid_t guard = (pid_t)strtol(rest, NULL, 10);
    assert_int_equal(kill(program, 0), 0);
    if (stop_guard) {
        assert_int_equal(kill(guard, SIGSTOP), 0);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    FIXTURE_UNTIL(kill(program, 0) != 0 && kill(guard, 0) != 0);
    evq_program_log_close(&output);
}

static void process_ends_with_the_one_who_started_it(void **state)
{
    assert_ends_with_its_parent(*state, false);
}

static void process_ends_with_its_parent_when_its_guard_is_stopped(void **state)
{
    assert_ends_with_its_parent(*state, true);
}

static void output_keeps_its_end_and_bounds_its_file(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_program_log output;
    struct evq_error err;
    char path[256];
    char tail[EVQ_PROGRAM_LOG_TAIL_BYTES + 1];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/log", folder->path);
    assert_status_err(evq_program_log_open(path, 1000, &output, &err), EVQ_OK, &err);
    for (int i = 0; i < 2000; i++) {
        (void)dprintf(output.write_fd, "line %d\n", i);
        (void)evq_program_log_read(&output);
    }
    (void)dprintf(output.write_fd, "half\r\033[31mdone 3/4\r\n");
    (void)evq_program_log_read(&output);
    evq_program_log_tail(&output, tail, sizeof(tail));
    assert_holds(tail, "line 1999\n");
    assert_null(strstr(tail, "line 100\n"));
    assert_null(strchr(tail, '\033'));
    evq_program_log_line(&output, tail, sizeof(tail));
    assert_holds(tail, "done 3/4");
    assert_null(strstr(tail, "half"));
    evq_program_log_close(&output);
    char *log = (char *)fixture_file_load(path, &bytes);
    assert_true(bytes < 1100);
    assert_memory_equal(log, "line 0\n", 7);
    assert_non_null(memmem(log, bytes, "reached its limit", 17));
    free(log);
}

/* What a file of that name held is no word of this attempt, which may be silent. */
static void output_makes_its_file_when_there_is_something_to_write(void **state)
{
    const struct fixture_folder *folder = *state;
    struct evq_program_log output;
    struct evq_error err;
    char path[256];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), "%s/silent", folder->path);
    fixture_folder_write(folder, "silent", "of another", 10);
    assert_status_err(evq_program_log_open(path, 1000, &output, &err), EVQ_OK, &err);
    (void)evq_program_log_read(&output);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_string_equal(evq_program_log_where(&output), "none");
    assert_int_equal(write(output.write_fd, "word\n", 5), 5);
    (void)evq_program_log_read(&output);
    assert_string_equal(evq_program_log_where(&output), path);
    evq_program_log_switch(&output, path); // The next attempt's, and as silent.
    assert_int_not_equal(access(path, F_OK), 0);
    evq_program_log_note(&output, "note\n");
    evq_program_log_close(&output);
    char *log = (char *)fixture_file_load(path, &bytes);
    assert_int_equal(bytes, 5);
    assert_memory_equal(log, "note\n", 5);
    free(log);
}

static const char *value_of(char *const *envp, const char *name)
{
    const size_t bytes = strlen(name);
    const char *found = NULL;

    for (; *envp != NULL; envp++) {
        if (strncmp(*envp, name, bytes) == 0 && (*envp)[bytes] == '=') {
            assert_null(found); // Each name once.
            found = *envp + bytes + 1;
        }
    }
    return found;
}

static void environment_holds_what_was_named_and_no_more(void **state)
{
    static const char *const pass[] = {"EVQ_TEST_PASSED", "SLURM_JOB_ID", "RANK",
                                       "EVQ_TEST_ABSENT", "EVQ_MANY_*",   "SLURM*"};
    static const struct evq_pair given[] = {{"LANG", "C"}, {"MASTER_ADDR", "10.0.0.1"}, {"X", "1"}};
    static const struct evq_pair extra[] = {{"EVALQ_JOB", "/j"}, {"X", "2"}};
    const struct evq_evaluator evaluator = {
        .env_pass = pass, .env_pass_count = 6, .env = given, .env_count = 3};
    struct evq_arena *arena = evq_arena_new(0);

    (void)state;
    assert_int_equal(setenv("EVQ_TEST_PASSED", "yes", 1) | setenv("SLURM_JOB_ID", "7", 1) |
                         setenv("RANK", "3", 1) | setenv("EVALQ_REDIS_PASSWORD", "secret", 1) |
                         setenv("LANG", "de_DE", 1) | setenv("EVQ_MANY_A", "a", 1) |
                         setenv("EVQ_MANY_", "b", 1) | setenv("EVQ_MAN", "c", 1),
                     0);
    char *const *envp = evq_environment_build(&evaluator, "2,3", extra, 2, arena);
    assert_non_null(envp);
    assert_string_equal(value_of(envp, "EVQ_TEST_PASSED"), "yes");
    assert_null(value_of(envp, "SLURM_JOB_ID"));
    assert_null(value_of(envp, "RANK"));
    assert_null(value_of(envp, "EVQ_TEST_ABSENT"));
    assert_null(value_of(envp, "EVALQ_REDIS_PASSWORD"));
    assert_string_equal(value_of(envp, "EVQ_MANY_A"), "a");
    assert_string_equal(value_of(envp, "EVQ_MANY_"), "b");
    assert_null(value_of(envp, "EVQ_MAN"));
    assert_string_equal(value_of(envp, "LANG"), "C");
    assert_string_equal(value_of(envp, "X"), "2");
    assert_string_equal(value_of(envp, "CUDA_VISIBLE_DEVICES"), "2,3");
    assert_string_equal(value_of(envp, "MASTER_ADDR"), "10.0.0.1"); // The operator's word stands.
    const int port = atoi(value_of(envp, "MASTER_PORT"));
    assert_true(port > 1023 && port < 65536);
    evq_arena_free(arena);
}

int main(void)
{
#define TEST(name)                                                                                 \
    cmocka_unit_test_setup_teardown(name, fixture_folder_setup, fixture_folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(process_tells_how_a_program_ended),
        TEST(process_gives_a_session_of_its_own_and_no_input),
        TEST(process_ends_the_whole_group),
        TEST(process_sweeps_the_group_when_the_leader_ends),
        TEST(process_takes_over_when_its_guard_is_killed),
        TEST(process_ends_with_the_one_who_started_it),
        TEST(process_ends_with_its_parent_when_its_guard_is_stopped),
        TEST(output_keeps_its_end_and_bounds_its_file),
        TEST(output_makes_its_file_when_there_is_something_to_write),
        TEST(environment_holds_what_was_named_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
