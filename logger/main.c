/* evalq-logger: forwards results from Redis to the sinks of evalq.yaml, each on its own thread, and
 * stores the samples that workers send. */
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "logger/directory_lock.h"
#include "logger/forward.h"
#include "logger/options.h"
#include "logger/samples_receiver.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/program.h"

#define LOCK_NAME ".logger.lock"
#define TICK_MS   200
#define TRIM_MS   60000

/* Returns memory to the system that a burst of results needed. The allocator would keep it. */
static void memory_trim(int64_t *due_ms)
{
#ifdef __GLIBC__
    if (evq_clock_mono_ms() >= *due_ms) {
        *due_ms = evq_clock_mono_ms() + TRIM_MS;
        (void)malloc_trim(0); // Whether there was anything.
    }
#else
    (void)due_ms;
#endif
}

/* Runs until a signal, or until a sink fails for good. Returns its status. */
static enum evq_status sinks_run(const struct evq_config *config, const sigset_t *signals,
                                 struct evq_error *err)
{
    const struct evq_sink_config *sinks[EVQ_SINKS_MAX];
    struct evq_forward *forwards[EVQ_SINKS_MAX];
    struct evq_samples_receiver *samples = NULL;
    size_t count = evq_sink_collect(config, sinks);
    size_t started = 0;
    int signal_fd = signalfd(-1, signals, SFD_CLOEXEC);
    if (signal_fd < 0) {
        return evq_error_set(err, EVQ_E_IO, "signalfd failed");
    }
    enum evq_status status = evq_forward_register(config, sinks, count, err);
    if (status != EVQ_OK) {
        (void)close(signal_fd);
        return status;
    }
    for (; started < count && status == EVQ_OK; started += status == EVQ_OK) {
        status = evq_forward_start(config, sinks, count, started, &forwards[started], err);
    }
    if (status == EVQ_OK && config->samples.send) {
        status = evq_samples_receiver_start(config, &samples, err);
    }
    bool stop = status != EVQ_OK;
    int64_t trim_ms = 0;
    if (!stop) {
        evq_log(EVQ_LOG_INFO, "logger_started", "queue=%s directory=%s sinks=%d",
                config->redis.queue, config->logger.directory, (int)count);
    }
    while (!stop) {
        struct pollfd ready = {.fd = signal_fd, .events = POLLIN};
        stop = poll(&ready, 1, TICK_MS) > 0;
        memory_trim(&trim_ms);
        for (size_t i = 0; i < started; i++) {
            stop = stop || evq_forward_ended(forwards[i]);
        }
    }
    for (size_t i = 0; i < started; i++) {
        evq_forward_stop(forwards[i]);
    }
    evq_samples_receiver_stop(samples);
    for (size_t i = 0; i < started; i++) {
        struct evq_error each = {0};
        enum evq_status ended = evq_forward_join(forwards[i], &each);
        if (status == EVQ_OK && ended != EVQ_OK) {
            status = ended;
            *err = each;
        }
    }
    (void)close(signal_fd);
    evq_log(EVQ_LOG_INFO, "logger_stopped", "queue=%s", config->redis.queue);
    return status;
}

/* Locks the directory and runs the sinks. Returns the exit code. */
static int logger_run(const struct evq_config *config, const sigset_t *signals,
                      struct evq_error *err)
{
    int lock_fd = -1;

    if (evq_file_make_directories(config->logger.directory, 0755, err) != EVQ_OK) {
        return EVQ_EXIT_CONFIG;
    }
    // One lock for all sinks. With one lock for each, two loggers could each get some and both give
    // up.
    enum evq_status status =
        evq_directory_lock_take(config->logger.directory, LOCK_NAME, &lock_fd, err);
    if (status != EVQ_E_CONFLICT) { // On a full or read-only disk the sinks wait, and say why.
        status = sinks_run(config, signals, err);
    }
    evq_file_close(&lock_fd);
    return evq_program_exit_code(status);
}

int main(int argc, char **argv)
{
    struct evq_option_set set = {.count = 0};
    struct evq_config *config = NULL;
    struct evq_error err = {0};
    sigset_t signals;
    int code = EVQ_EXIT_OK;

    if (!evq_program_begin(&evq_options_man, argc, argv, &set, &code)) {
        return code;
    }
    const struct evq_options options = evq_options_read(&set);
    evq_program_signals(false, &signals);
    if (evq_config_load(&options.source, &config, &err) != EVQ_OK) {
        return evq_program_fail(&evq_options_man, &err, EVQ_EXIT_CONFIG);
    }
    if (options.directory != NULL) {
        config->logger.directory = options.directory;
    }
    code = logger_run(config, &signals, &err);
    evq_config_free(config);
    return code == EVQ_EXIT_OK ? code : evq_program_fail(&evq_options_man, &err, code);
}
