/*
 * Tests evalq up: all programs start and stop, nothing is left behind, and a program that dies is
 * started again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/user.h"

#define PROCESSES_MAX 64

struct place { // The directory in which `up` runs. There is no other Redis.
    char dir[64];
    char data[256]; // The path of .evalq in it.
    struct fixture_program program;
    struct fixture_output output;
};

static int setup(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    if (place == NULL) {
        return -1;
    }
    fixture_dir_make(place->dir);
    (void)snprintf(place->data, sizeof place->data, "%s/.evalq", place->dir);
    place->program = (struct fixture_program){.path = EVQ_TEST_BIN "/evalq", .dir = place->dir};
    char config[1024];
    (void)snprintf(config, sizeof config,
                   "roots:\n  work: .\nworker:\n  scratch: ./scratch\n  drain_seconds: 5\n"
                   "evaluators:\n  script:\n    command: [/bin/sh, %s/evaluate.sh]\n"
                   "suites:\n  quick:\n    evaluator: script\n    tasks:\n      - name: t\n        "
                   "type: any\n",
                   place->dir);
    fixture_file_write(place->dir, "evalq.yaml", config);
    *state = place;
    return 0;
}

static int teardown(void **state)
{
    struct place *place = *state;
    fixture_dir_remove(place->dir);
    free(place);
    return 0;
}

/*
 * Counts processes with a word in their command line. redis-server shows its address, so it is
 * found by its socket.
 */
static int processes_with(const char *word, pid_t *pids)
{
    int count = 0;
    DIR *proc = opendir("/proc");
    for (const struct dirent *entry = NULL; proc != NULL && (entry = readdir(proc)) != NULL;) {
        char path[300];
        char line[4096] = "";
        (void)snprintf(path, sizeof path, "/proc/%s/cmdline", entry->d_name);
        FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "re") : NULL;
        if (file == NULL) {
            continue;
        }
        size_t bytes = fread(line, 1, sizeof line - 1, file);
        (void)fclose(file);
        for (size_t i = 0; i < bytes; i++) {
            line[i] = line[i] == '\0' ? ' ' : line[i];
        }
        if (strstr(line, word) != NULL && atoi(entry->d_name) != getpid() &&
            count < PROCESSES_MAX) {
            pids[count++] = (pid_t)atoi(entry->d_name);
        }
    }
    if (proc != NULL) {
        (void)closedir(proc);
    }
    return count;
}

static int processes_of(const struct place *place)
{
    pid_t pids[PROCESSES_MAX];
    return processes_with(place->dir, pids);
}

/* Returns the loopback port in redis.conf. */
static int port_of(const char *data)
{
    char path[300];
    char line[256];
    int port = 0;
    (void)snprintf(path, sizeof path, "%s/redis.conf", data);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        (void)sscanf(line, "port %d", &port);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return port;
}

static bool port_is_open(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool open = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return open;
}

static bool has(const char *directory, const char *name)
{
    char path[400];
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    return access(path, F_OK) == 0;
}

static void assert_all_gone(const struct place *place)
{
    FIXTURE_UNTIL(processes_of(place) == 0);
    assert_false(port_is_open(port_of(place->data)));
    assert_false(has(place->data, "url"));
    assert_false(has(place->data, "redis.sock"));
}

#define RUN(place, code, ...)                                                                      \
    do {                                                                                           \
        fixture_program_run(&(place)->program, &(place)->output, __VA_ARGS__, (char *)NULL);       \
        if ((place)->output.exit_code != (code)) {                                                 \
            fail_msg("exit code %d, expected %d; out: %.800s; err: %.800s",                        \
                     (place)->output.exit_code, (code), (place)->output.out, (place)->output.err); \
        }                                                                                          \
    } while (0)

static void up_runs_a_command_and_leaves_nothing(void **state)
{
    struct place *place = *state;
    struct stat info;
    char path[400];
    RUN(place, 0, "up", "--workers", "1", "--", "/bin/sh", "-c",
        "test -S .evalq/redis.sock && test -s .evalq/url && test \"$EVALQ_URL\" = \"$(cat "
        ".evalq/url)\" && "
        "test -n \"$EVALQ_CONFIG\" && echo in the command");
    assert_holds(place->output.out, "in the command\n");
    assert_all_gone(place);
    (void)snprintf(path, sizeof path, "%s/password", place->data);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    (void)snprintf(path, sizeof path, "%s/redis.conf", place->data);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    RUN(place, 1, "up", "--workers", "1", "--", "/bin/sh", "-c", "exit 7");
    assert_holds(place->output.err, "the command exited with status 7");
    assert_all_gone(place);
    RUN(place, 3, "up", "--workers", "1", "--", "./no-such-program");
    assert_holds(place->output.err, "no-such-program");
    assert_all_gone(place);
}

static void write_checkpoint(const struct place *place, const char *name)
{
    struct site site;
    memcpy(site.dir, place->dir, sizeof site.dir);
    fixture_user_checkpoint(&site, name, 1);
}

static void up_evaluates_what_its_command_submits(void **state)
{
    struct place *place = *state;
    fixture_file_write(place->dir, "evaluate.sh",
                       "echo '{\"accuracy\": 0.5}' > \"$EVALQ_RESULT\"\n");
    write_checkpoint(place, "step-1.safetensors");
    write_checkpoint(place, "step-2.safetensors");
    RUN(place, 0, "up", "--", EVQ_TEST_BIN "/evalq", "scan", ".", "--run", "r", "--suite", "quick");
    assert_holds(place->output.out, "accuracy");
    assert_holds(place->output.out, "Summary");
    assert_holds(place->output.out, "2 checkpoints evaluated");
    assert_holds(place->output.out, "at step 1");
    assert_all_gone(place);
    assert_true(has(place->data, "results"));
    // The exit code shows that a job has failed.
    fixture_file_write(place->dir, "evaluate.sh", "echo no >&2; exit 0\n");
    write_checkpoint(place, "step-3.safetensors");
    RUN(place, 4, "up", "--", EVQ_TEST_BIN "/evalq", "submit", "step-3.safetensors", "--run", "r",
        "--step", "3", "--suite", "quick");
    assert_holds(place->output.out, "dead");
    assert_null(strstr(place->output.out,
                       "2 checkpoints evaluated")); // Jobs of the earlier session do not count.
    assert_all_gone(place);
}

/* After a suite was edited between two sessions, its queued jobs can still be served. */
static void up_accepts_a_suite_that_was_changed(void **state)
{
    struct place *place = *state;
    char changed[512];
    (void)snprintf(changed, sizeof changed,
                   "roots: {work: .}\nworker: {scratch: ./scratch}\n"
                   "evaluators: {script: {command: [/bin/sh, %s/evaluate.sh]}}\n"
                   "suites: {quick: {evaluator: script, tasks: [{name: other}]}}\n",
                   place->dir);
    fixture_file_write(place->dir, "evaluate.sh",
                       "echo '{\"accuracy\": 0.5}' > \"$EVALQ_RESULT\"\n");
    write_checkpoint(place, "step-1.safetensors");
    write_checkpoint(place, "step-2.safetensors");
    RUN(place, 0, "up", "--", EVQ_TEST_BIN "/evalq", "submit", "step-1.safetensors", "--run", "r",
        "--suite", "quick");
    assert_null(strstr(place->output.err, "new definition"));
    fixture_file_write(place->dir, "evalq.yaml", changed);
    RUN(place, 0, "up", "--", EVQ_TEST_BIN "/evalq", "submit", "step-2.safetensors", "--run", "r",
        "--suite", "quick");
    assert_holds(place->output.err, "evalq: the suite 'quick' has a new definition");
    assert_holds(place->output.out, "1 checkpoint evaluated");
    assert_all_gone(place);
}

static void up_says_which_sink_has_not_taken_the_results(void **state)
{
    struct place *place = *state;
    char config[2048];
    (void)snprintf(config, sizeof config,
                   "roots: {work: .}\nworker: {scratch: ./scratch}\n"
                   "evaluators:\n  script: {command: [/bin/sh, %s/evaluate.sh]}\n"
                   "suites:\n  quick: {evaluator: script, tasks: [{name: t, type: any}]}\n"
                   "logger:\n  sinks:\n    - {name: refuser, kind: exec, command: [/bin/false]}\n",
                   place->dir);
    fixture_file_write(place->dir, "evalq.yaml", config);
    fixture_file_write(place->dir, "evaluate.sh",
                       "echo '{\"accuracy\": 0.5}' > \"$EVALQ_RESULT\"\n");
    write_checkpoint(place, "step-1.safetensors");
    RUN(place, 0, "up", "--", EVQ_TEST_BIN "/evalq", "scan", ".", "--run", "r", "--suite", "quick");
    assert_holds(place->output.out, "1 checkpoint evaluated");
    assert_holds(place->output.err, "the sink 'refuser' has yet to take 2 results");
    assert_null(strstr(place->output.err, "'jsonl'"));
    assert_all_gone(place);
}

static pid_t start(struct place *place, const char *name)
{
    pid_t pid = fixture_program_start(&place->program, name, "up", "--workers", "2", (char *)NULL);
    char messages[64];
    (void)snprintf(messages, sizeof messages, "%s.err", name);
    FIXTURE_UNTIL(fixture_file_holds(place->dir, messages, "Ctrl-C stops everything") == 1 &&
                  fixture_file_holds(place->data, "logger.log", "logger_started") > 0);
    return pid;
}

static void up_refuses_a_second_and_stops_on_sigterm(void **state)
{
    struct place *place = *state;
    pid_t pid = start(place, "first");
    int port = port_of(place->data);
    assert_true(port_is_open(port));
    RUN(place, 1, "up");
    assert_holds(place->output.err, "another `evalq up`");
    RUN(place, 0, "status"); // The client finds the address and the password in ./.evalq.
    RUN(place, 0, "doctor");
    char results[300];
    (void)snprintf(results, sizeof results, "free at %s/results", place->data);
    assert_holds(place->output.out, results);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
    assert_all_gone(place);
    assert_false(port_is_open(port));
    RUN(place, 5, "--url", "unix:///nowhere/at.all", "status");
}

static void up_dies_with_all_its_children_when_killed(void **state)
{
    struct place *place = *state;
    pid_t pid = start(place, "first");
    int port = port_of(place->data);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(fixture_program_wait(pid), -SIGKILL);
    FIXTURE_UNTIL(processes_of(place) == 0);
    FIXTURE_UNTIL(!port_is_open(port));
    // The next `up` continues with the data that this one left.
    pid = start(place, "second");
    RUN(place, 0, "status");
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
    assert_all_gone(place);
}

static void up_stops_its_command_too(void **state)
{
    struct place *place = *state;
    char number[32];
    char word[64];
    (void)snprintf(number, sizeof number, "61%d", (int)getpid());
    (void)snprintf(word, sizeof word, "sleep %s", number);
    pid_t pids[PROCESSES_MAX];
    pid_t pid = fixture_program_start(&place->program, "first", "up", "--workers", "1", "--",
                                      "/bin/sh", "-c", "sleep $0; :", number, (char *)NULL);
    // Wait for the sleep itself: a shell that is about to start it may lose the signal, and then
    // continues.
    FIXTURE_UNTIL(processes_with(word, pids) == 1);
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_int_equal(fixture_program_wait(pid), 130);
    assert_all_gone(place);
    assert_int_equal(processes_with(word, pids), 0);
}

/*
 * Returns whether Redis answers without LOADING. On a busy machine, this takes a moment after the
 * port is open.
 */
static bool redis_has_loaded(struct place *place)
{
    fixture_program_run(&place->program, &place->output, "status", (char *)NULL);
    return strstr(place->output.err, "LOADING") == NULL;
}

static void up_restarts_programs_that_die(void **state)
{
    struct place *place = *state;
    pid_t pids[PROCESSES_MAX];
    char word[128];
    (void)signal(SIGCHLD, SIG_IGN); // A program that starts `up` may ignore SIGCHLD.
    pid_t pid = start(place, "first");
    (void)signal(SIGCHLD, SIG_DFL);
    (void)snprintf(word, sizeof word, "evalq-logger --config %s", place->dir);
    assert_int_equal(processes_with(word, pids), 1);
    pid_t logger = pids[0];
    assert_int_equal(kill(logger, SIGKILL), 0);
    FIXTURE_UNTIL(processes_with(word, pids) == 1 && pids[0] != logger);
    FIXTURE_UNTIL(fixture_file_holds(place->dir, "first.err", "logger was killed by signal 9") ==
                  1);
    // Redis is started again too, with its data.
    write_checkpoint(place, "step-5.safetensors");
    RUN(place, 0, "submit", "step-5.safetensors", "--run", "r", "--step", "5", "--suite",
        "unoffered");
    (void)snprintf(word, sizeof word, "redis-server 127.0.0.1:%d", port_of(place->data));
    assert_int_equal(processes_with(word, pids), 1);
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    FIXTURE_UNTIL(fixture_file_holds(place->dir, "first.err", "redis was killed by signal 9") == 1);
    FIXTURE_UNTIL(port_is_open(port_of(place->data)));
    FIXTURE_UNTIL(redis_has_loaded(place));
    RUN(place, 0, "show", "r/5/regular/unoffered");
    assert_holds(place->output.out, "queued");
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(fixture_program_wait(pid), 0);
    assert_all_gone(place);
}

/* A wrong command name is reported within a second, before anything starts. */
static void up_starts_nothing_for_a_command_that_is_not_there(void **state)
{
    struct place *place = *state;
    RUN(place, 3, "up", "--", "pyhton", "train.py");
    assert_string_equal(place->output.err,
                        "evalq: the command 'pyhton' is not in $PATH: nothing was started\n");
    assert_false(has(place->dir, ".evalq"));
    RUN(place, 3, "up", "--", "./train.sh");
    assert_holds(place->output.err, "the command './train.sh' cannot be executed: No such file");
    fixture_file_write(place->dir, "train.sh", "#!/bin/sh\n");
    RUN(place, 3, "up", "--", "./train.sh");
    assert_string_equal(place->output.err, "evalq: the command './train.sh' cannot be executed: "
                                           "Permission denied; run `chmod +x './train.sh'`\n");
    assert_false(has(place->dir, ".evalq"));
}

static void up_says_why_a_worker_cannot_run(void **state)
{
    struct place *place = *state;
    fixture_file_write(place->dir, "evalq.yaml",
                       "roots:\n  work: .\nsuites:\n  q:\n    taks: []\n");
    RUN(place, 8, "up");
    assert_holds(place->output.err, "taks");
    FIXTURE_UNTIL(processes_of(place) == 0);
    RUN(place, 2, "up", "--workers", "many");
    RUN(place, 2, "--url", "redis://127.0.0.1", "up");
}

/* up must not report a device that does not exist. This machine has no GPU 63. */
static void up_refuses_devices_that_are_not_there(void **state)
{
    struct place *place = *state;
    RUN(place, 8, "up", "--devices", "63", "--", "/bin/sh", "-c", "echo it ran");
    assert_holds(place->output.err, "worker-1 exited with status 8");
    assert_true(strstr(place->output.err, "no NVIDIA driver here") != NULL ||
                strstr(place->output.err, "GPU 63 is not there") != NULL);
    assert_null(strstr(place->output.err, "are up"));
    assert_null(strstr(place->output.out, "it ran"));
    assert_all_gone(place);
}

/* "auto" uses the devices that exist, and prints that it uses the CPU if there is no GPU. */
static void up_says_that_auto_found_no_gpu(void **state)
{
    struct place *place = *state;
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
    RUN(place, 0, "up", "--devices", "auto", "--", "/bin/true");
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    assert_holds(place->output.err, "--devices auto found no GPU here");
    assert_holds(place->output.err, "1 worker and the logger are up");
    assert_all_gone(place);
}

static void up_without_suites_stays_up_and_says_so(void **state)
{
    struct place *place = *state;
    fixture_file_write(place->dir, "evalq.yaml", "roots: {work: .}\n");
    RUN(place, 0, "up", "--", EVQ_TEST_BIN "/evalq", "status");
    assert_holds(place->output.err,
                 "has no suites, so no worker was started: jobs wait. `evalq init` shows the lines "
                 "to add; docs/evaluators.md explains them\n");
    assert_holds(place->output.err, "0 workers and the logger are up");
    assert_all_gone(place);
}

static void up_writes_a_configuration_where_there_is_none(void **state)
{
    struct place *place = *state;
    char path[400];
    (void)snprintf(path, sizeof path, "%s/evalq.yaml", place->dir);
    assert_int_equal(unlink(path), 0);
    write_checkpoint(place, "step-1.safetensors");
    RUN(place, 0, "up", "--workers", "0", "--wait", "0", "--", "/bin/true");
    assert_true(has(place->data, "evalq.yaml"));
    assert_holds(place->output.err, "nothing is evaluated: `evalq init` writes one");
    RUN(place, 0, "up", "--workers", "0", "--", "/bin/sh", "-c",
        EVQ_TEST_BIN "/evalq submit step-1.safetensors --run r --step 1 --suite s && " EVQ_TEST_BIN
                     "/evalq cancel r/1/regular/s");
    assert_holds(place->output.out, "r/1/regular/s  queued");
    assert_all_gone(place);
}

static void find_server(char server[400])
{
    char *words = strdup(getenv("PATH"));
    char *rest = words;
    server[0] = '\0';
    assert_non_null(words);
    for (char *at = NULL; server[0] == '\0' && (at = strsep(&rest, ":")) != NULL;) {
        (void)snprintf(server, 400, "%s/redis-server", at);
        server[0] = access(server, X_OK) == 0 ? server[0] : '\0';
    }
    free(words);
    assert_true(server[0] == '/');
}

/*
 * Some releases have only Valkey, so there is no redis-server. The test calls the real server by
 * Valkey's name.
 */
static void up_takes_valkey_where_there_is_no_redis(void **state)
{
    struct place *place = *state;
    char server[400];
    char link[128];
    char *path = strdup(getenv("PATH"));
    assert_non_null(path);
    find_server(server);
    assert_int_equal(setenv("PATH", place->dir, 1), 0);
    RUN(place, 3, "up", "--", "/bin/true");
    assert_holds(place->output.err, "neither 'redis-server' nor 'valkey-server' is beside evalq");
    (void)snprintf(link, sizeof link, "%s/valkey-server", place->dir);
    assert_int_equal(symlink(server, link), 0);
    RUN(place, 0, "up", "--", "/bin/true");
    assert_int_equal(setenv("PATH", path, 1), 0);
    free(path);
    assert_all_gone(place);
}

/* Newer servers do not start if the locale is not installed. The command keeps its own locale. */
static void up_starts_in_a_locale_that_is_not_installed(void **state)
{
    struct place *place = *state;
    char server[400];
    char script[512];
    char path[128];
    char *before = strdup(getenv("PATH"));
    assert_non_null(before);
    find_server(server);
    (void)snprintf(script, sizeof script,
                   "#!/bin/sh\necho \"in $LC_ALL\" >locale\nexec %s \"$@\"\n", server);
    // A run's directory may have such a name.
    (void)snprintf(path, sizeof path, "%s/lr=0.1", place->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof path, "%s/lr=0.1/redis-server", place->dir);
    fixture_file_write(place->dir, "lr=0.1/redis-server", script);
    assert_int_equal(chmod(path, 0700), 0);
    (void)snprintf(script, sizeof script, "%s/lr=0.1:%.400s", place->dir, before);
    assert_int_equal(setenv("PATH", script, 1), 0);
    assert_int_equal(setenv("LC_ALL", "xx_XX.UTF-8", 1), 0);
    RUN(place, 0, "up", "--workers", "0", "--", "/bin/sh", "-c",
        "cat locale; echo \"then $LC_ALL\"");
    assert_int_equal(unsetenv("LC_ALL"), 0);
    assert_int_equal(setenv("PATH", before, 1), 0);
    free(before);
    assert_holds(place->output.out, "in C\nthen xx_XX.UTF-8\n");
    assert_all_gone(place);
}

/* A paused job delays only the command that submitted it. */
static void up_waits_for_the_jobs_of_its_own_command(void **state)
{
    struct place *place = *state;
    write_checkpoint(place, "step-1.safetensors");
    RUN(place, 124, "up", "--workers", "1", "--wait", "0", "--", "/bin/sh", "-c",
        EVQ_TEST_BIN "/evalq pause run r && " EVQ_TEST_BIN
                     "/evalq submit step-1.safetensors --run r --step 1 --suite quick");
    assert_holds(place->output.err, "1 job was still open");
    assert_all_gone(place);
    RUN(place, 0, "up", "--workers", "1", "--wait", "60", "--", "/bin/true");
    assert_all_gone(place);
}

/* The Redis of `up` is private, so no other worker will run a job that no worker here can run. */
static void up_does_not_wait_for_a_job_that_no_worker_here_can_run(void **state)
{
    struct place *place = *state;
    fixture_file_write(place->dir, "evaluate.sh",
                       "echo '{\"accuracy\": 0.5}' > \"$EVALQ_RESULT\"\n");
    write_checkpoint(place, "step-1.safetensors");
    RUN(place, 4, "up", "--workers", "1", "--", EVQ_TEST_BIN "/evalq", "submit",
        "step-1.safetensors", "--run", "r", "--step", "1", "--suite", "unoffered,quick");
    assert_holds(place->output.err, "evalq: 1 job waits: no worker offers suite unoffered\n");
    assert_holds(place->output.err,
                 "evalq: 1 job is still open, and no worker here can run it: no worker offers "
                 "suite unoffered. Correct the configuration ");
    assert_holds(place->output.out, "Summary  1 checkpoint evaluated"); // The other suite ran.
    assert_all_gone(place);
}

/*
 * The path of a socket has at most 107 bytes. In a deeper directory, up puts the socket into its
 * own directory in /tmp.
 */
static void up_works_in_a_deep_directory(void **state)
{
    struct place *place = *state;
    char deep[300];
    (void)snprintf(deep, sizeof deep, "%s/%0100d", place->dir, 7);
    assert_int_equal(mkdir(deep, 0700), 0);
    RUN(place, 0, "up", "--workers", "0", "--dir", deep, "--", "/bin/sh", "-c",
        "echo \"at $EVALQ_URL\"");
    assert_holds(place->output.out, "at unix:///tmp/evalq-");
    char *end = strstr(place->output.out, "/redis.sock");
    assert_non_null(end);
    *end = '\0';
    assert_int_not_equal(access(strstr(place->output.out, "/tmp/evalq-"), F_OK), 0);
    FIXTURE_UNTIL(processes_of(place) == 0);
}

int main(void)
{
#define UP_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        UP_TEST(up_runs_a_command_and_leaves_nothing),
        UP_TEST(up_evaluates_what_its_command_submits),
        UP_TEST(up_accepts_a_suite_that_was_changed),
        UP_TEST(up_says_which_sink_has_not_taken_the_results),
        UP_TEST(up_refuses_a_second_and_stops_on_sigterm),
        UP_TEST(up_dies_with_all_its_children_when_killed),
        UP_TEST(up_stops_its_command_too),
        UP_TEST(up_restarts_programs_that_die),
        UP_TEST(up_starts_nothing_for_a_command_that_is_not_there),
        UP_TEST(up_says_why_a_worker_cannot_run),
        UP_TEST(up_refuses_devices_that_are_not_there),
        UP_TEST(up_says_that_auto_found_no_gpu),
        UP_TEST(up_without_suites_stays_up_and_says_so),
        UP_TEST(up_writes_a_configuration_where_there_is_none),
        UP_TEST(up_takes_valkey_where_there_is_no_redis),
        UP_TEST(up_starts_in_a_locale_that_is_not_installed),
        UP_TEST(up_waits_for_the_jobs_of_its_own_command),
        UP_TEST(up_does_not_wait_for_a_job_that_no_worker_here_can_run),
        UP_TEST(up_works_in_a_deep_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
