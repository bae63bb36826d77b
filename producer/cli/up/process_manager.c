#include "producer/cli/up/process_manager.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/queue/function_library.h"

#define LOCK_WAIT_MS   5000  // Time for the redis-server of a killed `up` to end.
#define DRAIN_MS       45000 // Longer than the workers' own drain deadline.
#define GATEWAY_MS     15000 // Longer than its own drain.
#define SERVER_STOP_MS 15000
#define PORT_TRIES     5

static enum evq_status refuse_second(struct evq_process_manager *manager, const char *path,
                                     struct evq_error *err)
{
    char text[32] = "";
    ssize_t got = pread(manager->lock_fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    long pid = strtol(text, NULL, 10);
    return evq_error_set(
        err, EVQ_E_CONFLICT,
        "another `evalq up` (process %ld) works in '%.300s'; stop it with Ctrl-C or "
        "kill, or use --dir",
        pid, path);
}

static enum evq_status take_lock(struct evq_process_manager *manager, struct evq_error *err)
{
    char path[EVQ_SERVER_PATH_MAX];
    int64_t deadline = evq_clock_mono_ms() + LOCK_WAIT_MS;
    enum evq_status status = evq_server_path(manager->directory, "lock", path, err);
    if (status != EVQ_OK) {
        return status;
    }
    manager->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (manager->lock_fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "open '%s': %s", path, strerror(errno));
    }
    while (flock(manager->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        char text[32] = "";
        if (errno != EWOULDBLOCK && errno != EINTR) {
            return evq_error_set(err, EVQ_E_IO, "lock '%s': %s", path, strerror(errno));
        }
        // If the lock's owner is dead, only its redis-server still has the lock. It was told to
        // end, so wait for it.
        bool read_it = pread(manager->lock_fd, text, sizeof text - 1, 0) > 0;
        long pid = read_it ? strtol(text, NULL, 10) : 0;
        bool gone = pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
        if (!gone || evq_clock_mono_ms() > deadline) {
            return refuse_second(manager, manager->directory, err);
        }
        (void)usleep(20000);
    }
    char text[32];
    int bytes = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(manager->lock_fd, 0) != 0 ||
        pwrite(manager->lock_fd, text, (size_t)bytes, 0) != bytes) {
        return evq_error_set(err, EVQ_E_IO, "write '%s': %s", path, strerror(errno));
    }
    return EVQ_OK;
}

enum evq_status evq_process_manager_open(struct evq_process_manager *manager, struct evq_cli *cli,
                                         const char *directory, struct evq_error *err)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGWINCH};
    struct sigaction hangup;
    sigset_t set;

    memset(manager, 0, sizeof *manager);
    manager->cli = cli;
    manager->signal_fd = -1;
    manager->lock_fd = -1;
    manager->command.keep_fd = -1;
    manager->command.output_fd = -1;
    (void)snprintf(manager->directory, sizeof manager->directory, "%s", directory);
    enum evq_status status = take_lock(manager, err);
    if (status != EVQ_OK) {
        return status;
    }
    evq_server_unannounce(directory); // A killed `up` may have left addresses behind.
    (void)sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        (void)sigaddset(&set, signals[i]);
    }
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN) {
        (void)sigdelset(&set,
                        SIGHUP); // nohup ignores SIGHUP; a signalfd would receive it.
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL); // If our parent ignored it, we would not notice a death.
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0 ||
        (manager->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0) {
        return evq_error_set(err, EVQ_E_IO, "take signals: %s", strerror(errno));
    }
    // We become the parent of orphaned grandchildren, so that none is left at the end.
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    return EVQ_OK;
}

enum evq_status evq_process_manager_start_server(struct evq_process_manager *manager,
                                                 struct evq_error *err)
{
    struct evq_server *server = &manager->server;
    enum evq_status status = evq_server_prepare(server, manager->directory, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (setenv("EVALQ_URL", server->url, 1) != 0 ||
        setenv("EVALQ_REDIS_PASSWORD_FILE", server->password_file, 1) != 0 ||
        unsetenv("EVALQ_REDIS_PASSWORD") != 0) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for the environment");
    }
    struct evq_conn_config config = {
        .url = server->url,
        .user = "",
        .password_file = server->password_file,
        .name = "evalq-up",
        .call_timeout_ms = 2000,
    };
    status = evq_conn_open(&config, &manager->cli->conn, err);
    server->service.keep_fd = manager->lock_fd;
    for (int i = 0; status == EVQ_OK && i < PORT_TRIES; i++) {
        status = evq_service_start(&server->service, err);
        if (status != EVQ_OK) {
            return status;
        }
        status = evq_server_await(server, manager->cli->conn, err);
        if (status == EVQ_OK || strstr(err->message, "ddress already in use") == NULL) {
            break;
        }
        status = evq_server_choose_port(server, err); // Another program took the port in between.
    }
    if (status == EVQ_OK) {
        int64_t build = 0;
        status = evq_function_library_install(manager->cli->conn, &build, err);
    }
    return status;
}

static enum evq_status start_one(struct evq_process_manager *manager, size_t index,
                                 const char *name, const char *const *argv, struct evq_error *err)
{
    struct evq_service *service = &manager->services[index];
    char log[64];
    memset(service, 0, sizeof *service);
    (void)snprintf(service->name, sizeof service->name, "%s", name);
    (void)snprintf(log, sizeof log, "%s.log", name);
    enum evq_status status = evq_server_path(manager->directory, log, manager->logs[index], err);
    for (size_t i = 0; argv[i] != NULL && i + 1 < EVQ_SERVICE_ARGS_MAX; i++) {
        service->argv[i] = argv[i];
    }
    service->log_path = manager->logs[index];
    service->keep_fd = -1;
    service->output_fd = -1;
    (void)unlink(service->log_path); // Each start of `up` begins a new log.
    if (status == EVQ_OK) {
        status = evq_service_start(service, err);
    }
    manager->service_count = index + 1;
    return status;
}

/* Sets the paths: all data in one directory, unless the configuration says where results are. */
static enum evq_status place_results(struct evq_process_manager *manager, struct evq_error *err)
{
    const char *results = manager->cli->config->logger.directory;
    if (strcmp(results, EVQ_CONFIG_RESULTS_DEFAULT) == 0) {
        return evq_server_path(manager->directory, "results", manager->results, err);
    }
    (void)snprintf(manager->results, sizeof manager->results, "%s", results);
    return EVQ_OK;
}

/* CPU threads of one slot, so that the workers share the cores; 0: as configured. */
static int threads_per_slot(const struct evq_cli *cli, int workers, int slots)
{
    cpu_set_t set;
    if (cli->config->worker.threads > 0 || workers < 1) {
        return 0;
    }
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int all = workers * (slots > 0                       ? slots
                         : cli->config->worker.slots > 0 ? cli->config->worker.slots
                                                         : 1);
    return cores > all ? cores / all : 1;
}

enum evq_status evq_process_manager_start_workers(struct evq_process_manager *manager, int workers,
                                                  int slots, struct evq_error *err)
{
    const char *config = manager->cli->config->file;
    const char *queue = manager->cli->config->redis.queue;
    size_t index = 0;
    enum evq_status status = evq_service_program("evalq-worker", manager->worker_program,
                                                 sizeof manager->worker_program, err);
    if (status == EVQ_OK) {
        status = evq_service_program("evalq-logger", manager->logger_program,
                                     sizeof manager->logger_program, err);
    }
    if (status == EVQ_OK) {
        status = place_results(manager, err);
    }
    const char *argv[EVQ_SERVICE_ARGS_MAX] = {manager->worker_program,
                                              "--config",
                                              config,
                                              "--queue",
                                              queue,
                                              "--devices",
                                              manager->devices != NULL ? manager->devices : "cpu"};
    size_t count = 7;
    int threads = manager->devices != NULL ? 0 : threads_per_slot(manager->cli, workers, slots);
    if (slots > 0) {
        (void)snprintf(manager->slots, sizeof manager->slots, "%d", slots);
        argv[count++] = "--slots";
        argv[count++] = manager->slots;
    }
    if (threads > 0) {
        (void)snprintf(manager->threads, sizeof manager->threads, "%d", threads);
        argv[count++] = "--threads";
        argv[count++] = manager->threads;
    }
    argv[count++] = "--warm";
    while (status == EVQ_OK && index < (size_t)workers && index < EVQ_PROCESS_MANAGER_WORKERS_MAX) {
        char name[32];
        (void)snprintf(name, sizeof name, "worker-%zu", index + 1);
        status = start_one(manager, index, name, argv, err);
        index++;
    }
    if (status == EVQ_OK) {
        const char *const logger[] = {
            manager->logger_program, "--config",       config, "--queue", queue,
            "--directory",           manager->results, NULL};
        status = start_one(manager, index, "logger", logger, err);
    }
    return status;
}

/* Reports that a service ended. A fault that another start cannot repair ends `up`. While a command
 * runs, such a fault is only reported, less and less often. */
static enum evq_status service_ended(struct evq_process_manager *manager,
                                     const struct evq_service *service, struct evq_error *err)
{
    char end[64];
    char line[384];
    char shown[2 * sizeof line];
    evq_service_end_text(service->wait_status, end, sizeof end);
    evq_service_last_line(service, line, sizeof line);
    const bool for_good = evq_service_ended_for_good(service);
    const bool command_runs = manager->command.pid != 0;
    if (for_good && command_runs && (service->restarts & (service->restarts - 1)) != 0) {
        return EVQ_OK;
    }
    if (for_good && !command_runs && service->restarts <= 3) {
        manager->cli->exit_code = WEXITSTATUS(service->wait_status);
        return evq_error_set(err, EVQ_E_INVALID, "%s %s: %s", service->name, end, line);
    }
    evq_cli_say(manager->cli, "evalq: %s %s; starting it again in %" PRId64 " ms (%s)",
                service->name, end, service->restart_at_ms - evq_clock_mono_ms(),
                evq_error_escape(line, strlen(line), shown, sizeof shown));
    return EVQ_OK;
}

static enum evq_status reap(struct evq_process_manager *manager, struct evq_error *err)
{
    int wait_status = 0;
    pid_t pid = 0;
    enum evq_status status = EVQ_OK;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        if (evq_service_reaped(&manager->command, pid, wait_status)) {
            continue;
        }
        struct evq_service *const lone[] = {&manager->server.service, &manager->gateway};
        for (size_t i = 0; i < sizeof lone / sizeof lone[0]; i++) {
            if (evq_service_reaped(lone[i], pid, wait_status) && manager->stop_count == 0) {
                enum evq_status one = service_ended(manager, lone[i], err);
                status = one != EVQ_OK ? one : status;
            }
        }
        for (size_t i = 0; i < manager->service_count; i++) {
            if (evq_service_reaped(&manager->services[i], pid, wait_status) &&
                manager->stop_count == 0) {
                enum evq_status one = service_ended(manager, &manager->services[i], err);
                status = one != EVQ_OK ? one : status;
            }
        }
    }
    return status;
}

static void restart_due(struct evq_process_manager *manager, struct evq_service *service)
{
    struct evq_error err = {0};
    int64_t now = evq_clock_mono_ms();
    if (service->pid != 0 || service->restart_at_ms == 0 || now < service->restart_at_ms) {
        return;
    }
    if (evq_service_start(service, &err) != EVQ_OK) {
        service->restart_at_ms = now + 10000;
        evq_cli_say(manager->cli, "evalq: %s", err.message);
    }
}

static void take_signals(struct evq_process_manager *manager)
{
    struct signalfd_siginfo info;
    while (read(manager->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGWINCH) {
            evq_terminal_resize(&manager->cli->terminal);
        } else if (info.ssi_signo != SIGCHLD) {
            manager->stop_signal = (int)info.ssi_signo;
            manager->stop_count++;
        }
    }
}

enum evq_status evq_process_manager_step(struct evq_process_manager *manager, int extra_fd,
                                         int timeout_ms, bool *ret_readable, struct evq_error *err)
{
    struct pollfd fds[2] = {{.fd = manager->signal_fd, .events = POLLIN},
                            {.fd = extra_fd, .events = POLLIN}};
    if (poll(fds, extra_fd >= 0 ? 2 : 1, timeout_ms) < 0 && errno != EINTR) {
        return evq_error_set(err, EVQ_E_IO, "poll: %s", strerror(errno));
    }
    if (ret_readable != NULL) {
        *ret_readable = extra_fd >= 0 && (fds[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0;
    }
    take_signals(manager);
    enum evq_status status = reap(manager, err);
    if (status == EVQ_OK && manager->stop_count == 0) {
        restart_due(manager, &manager->server.service);
        restart_due(manager, &manager->gateway);
        for (size_t i = 0; i < manager->service_count; i++) {
            restart_due(manager, &manager->services[i]);
        }
    }
    return status;
}

/* Sends signal_number to all of services and waits until they end; SIGKILL at the deadline or the
 * next stop. */
static void stop_services(struct evq_process_manager *manager, struct evq_service *services,
                          size_t count, int signal_number, int64_t limit_ms)
{
    int asked = manager->stop_count;
    int64_t deadline = evq_clock_mono_ms() + limit_ms;
    for (size_t i = 0; i < count; i++) {
        evq_service_signal(&services[i], signal_number);
    }
    for (;;) {
        size_t running = 0;
        for (size_t i = 0; i < count; i++) {
            running += services[i].pid != 0;
        }
        if (running == 0) {
            return;
        }
        if (evq_clock_mono_ms() > deadline || manager->stop_count > asked) {
            for (size_t i = 0; i < count; i++) {
                evq_service_signal(&services[i], SIGKILL);
            }
        }
        enum evq_status ignored = evq_process_manager_step(manager, -1, 100, NULL, NULL);
        (void)ignored; // These services were told to end.
    }
}

void evq_process_manager_stop(struct evq_process_manager *manager)
{
    manager->stop_count++; // From now on, the end of a service is expected.
    if (manager->signal_fd >= 0) {
        stop_services(manager, &manager->gateway, 1, SIGTERM, GATEWAY_MS);
        size_t workers = manager->service_count > 0 ? manager->service_count - 1 : 0;
        bool has_logger = manager->service_count > 0 &&
                          strcmp(manager->services[manager->service_count - 1].name, "logger") == 0;
        workers += manager->service_count > 0 && !has_logger;
        stop_services(manager, manager->services, workers, SIGTERM, DRAIN_MS);
        stop_services(manager, manager->services + workers, manager->service_count - workers,
                      SIGTERM, DRAIN_MS);
        stop_services(manager, &manager->server.service, 1, SIGTERM, SERVER_STOP_MS);
        evq_service_reap_all();
        (void)close(manager->signal_fd);
        manager->signal_fd = -1;
    }
    if (manager->server.directory[0] != '\0') {
        evq_server_withdraw(&manager->server);
    }
    evq_file_close(&manager->lock_fd); // Releases the lock.
}
