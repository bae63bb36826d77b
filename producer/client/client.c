#include "producer/client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "producer/client/fork.h"
#include "producer/client/submit_log/ring_directory.h"
#include "shared/base/clock.h"
#include "shared/base/file.h"

#define SPOOL_BYTES_DEFAULT ((int64_t)64 << 20)
#define PIN_BYTES_DEFAULT   ((int64_t)64 << 30)
#define SESSION_MS_MAX      INT64_C(253402300800000) // The year 10000.
#define CLOSE_MS            10000                    // Default time for sending what is ready.
#define CLOSE_SAVE_MS       700 // Time for a save that ends just before the close.
#define CLOSE_LOOK_MS       150 // Time for releasing pins.
#define CLOSE_END_MS        300 // Time for the thread to end.

static const char *text_or(const char *text, const char *fallback)
{
    return text != NULL && text[0] != '\0' ? text : fallback;
}

/* When this process started, unix ms: the same for every client of it. */
static int64_t process_started_ms(void)
{
    char text[4096];
    unsigned long long ticks = 0;
    long long boot = 0;
    FILE *file = fopen("/proc/self/stat", "re");

    if (file != NULL) {
        size_t bytes = fread(text, 1, sizeof(text) - 1, file);
        text[bytes] = '\0';
        (void)fclose(file);                     // Read only.
        const char *after = strrchr(text, ')'); // The name may hold anything but ends here.
        if (after == NULL || sscanf(after + 1,
                                    " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
                                    "%*d %*d %*d %*d %llu",
                                    &ticks) != 1) {
            ticks = 0;
        }
    }
    file = fopen("/proc/stat", "re");
    while (file != NULL && boot == 0 && fgets(text, sizeof(text), file) != NULL) {
        if (sscanf(text, "btime %lld", &boot) != 1) {
            boot = 0;
        }
    }
    if (file != NULL) {
        (void)fclose(file); // Read only.
    }
    long rate = sysconf(_SC_CLK_TCK);
    if (boot <= 0 || ticks == 0 || rate <= 0) {
        return evq_clock_unix_ms();
    }
    return (int64_t)boot * 1000 + (int64_t)(ticks * 1000 / (unsigned long long)rate);
}

/* Writes "DIRECTORY-HASH" of the working directory, the same for all its processes on this host. */
static enum evq_status run_default(char out[EVQ_JOB_RUN_BYTES_MAX + 1], struct evq_error *err)
{
    char directory[PATH_MAX];
    char host[256] = "";
    char name[EVQ_JOB_RUN_BYTES_MAX - 9 + 1];

    if (getcwd(directory, sizeof(directory)) == NULL) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "no run is named and the working directory is not known: %s",
                             strerror(errno));
    }
    (void)gethostname(host, sizeof(host) - 1); // If it fails, only the path identifies the run.
    XXH64_hash_t hash = XXH3_64bits(directory, strlen(directory));
    hash = XXH3_64bits_withSeed(host, strlen(host), hash);
    const char *base = strrchr(directory, '/');
    evq_job_map_name(base != NULL && base[1] != '\0' ? base + 1 : "run", EVQ_JOB_RUN_BYTES_MAX - 9,
                     name);
    (void)snprintf(out, EVQ_JOB_RUN_BYTES_MAX + 1, "%s-%08x", name, (unsigned)(hash & 0xffffffffu));
    return EVQ_OK;
}

/*
 * Opens descriptors 0, 1 and 2 if the trainer has closed them. Otherwise a ring or a connection
 * would get such a number, and printed text would go into it. The replacement refuses every write,
 * as a closed descriptor does.
 */
static void standard_hold(void)
{
    int fd = 0;

    while (fd >= 0 && fd <= STDERR_FILENO) {
        fd = open("/", O_PATH | O_CLOEXEC);
    }
    evq_file_close(&fd);
}

/* Makes the path absolute, because the trainer may change its working directory. */
static enum evq_status directory_absolute(const char *directory, char out[PATH_MAX],
                                          struct evq_error *err)
{
    char here[PATH_MAX] = "";

    if (directory[0] != '/' && getcwd(here, sizeof(here)) == NULL) {
        return evq_error_set(err, EVQ_E_INVALID, "ring_directory '%s': working directory: %s",
                             directory, strerror(errno));
    }
    if (snprintf(out, PATH_MAX, "%s%s%s", here, here[0] != '\0' ? "/" : "", directory) >=
        PATH_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "ring_directory '%.100s...' is too long",
                             directory);
    }
    return EVQ_OK;
}

/* The options with their defaults. */
struct settings {
    char ring_directory[PATH_MAX];
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    struct evq_sender_options sender;
    size_t ring_bytes;
};

static enum evq_status settings_fill(const struct evalq_options *options,
                                     const struct evq_config *config, struct settings *settings,
                                     struct evq_error *err)
{
    enum evq_status status = EVQ_OK;
    const char *run = text_or(options->run, getenv("EVALQ_RUN"));
    size_t ring_bytes = options->ring_bytes == 0 ? EVQ_RING_BYTES_DEFAULT : options->ring_bytes;

    if (run != NULL && run[0] != '\0') {
        evq_job_map_name(run, EVQ_JOB_RUN_BYTES_MAX, settings->run);
    } else {
        status = run_default(settings->run, err);
    }
    if (status == EVQ_OK && options->ring_directory != NULL && options->ring_directory[0] != '\0') {
        status = directory_absolute(options->ring_directory, settings->ring_directory, err);
    } else if (status == EVQ_OK) {
        unsigned at = 0;
        // Twice the ring, for what is spooled while Redis is away.
        status = evq_ring_directory_find(&at, 2 * (int64_t)ring_bytes, settings->ring_directory,
                                         sizeof(settings->ring_directory), err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    if (options->session_ms > SESSION_MS_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "session_ms is %lld, expected unix milliseconds",
                             (long long)options->session_ms);
    }
    const char *host = text_or(text_or(options->snapshot_host, getenv("EVALQ_SNAPSHOT_HOST")), "");
    if (strlen(host) > EVQ_SNAPSHOT_HOST_BYTES_MAX) {
        return evq_error_set(err, EVQ_E_INVALID, "snapshot_host has more than %d bytes",
                             EVQ_SNAPSHOT_HOST_BYTES_MAX);
    }
    int64_t pin_bytes = options->pin_bytes_max == 0 ? PIN_BYTES_DEFAULT : options->pin_bytes_max;
    settings->ring_bytes = ring_bytes;
    settings->sender = (struct evq_sender_options){
        .ring_directory = settings->ring_directory,
        .queue = config->redis.queue,
        .run = settings->run,
        .spool_bytes_max =
            options->spool_bytes_max <= 0 ? SPOOL_BYTES_DEFAULT : options->spool_bytes_max,
        .pin_bytes_max = pin_bytes < 0 ? 0 : pin_bytes,
        .pin = options->pin_disabled == 0,
        .snapshot_host = host};
    return EVQ_OK;
}

static struct evalq_client *client_new(void)
{
    struct evalq_client *client = calloc(1, sizeof(*client));
    pthread_mutexattr_t kind;

    if (client != NULL) {
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ERRORCHECK);
        pthread_mutex_init(&client->results_lock, &kind);
        pthread_mutexattr_destroy(&kind);
    }
    return client;
}

static void client_free(struct evalq_client *client)
{
    if (client != NULL) {
        pthread_mutex_destroy(&client->results_lock);
        free(client);
    }
}

static enum evq_status config_read(const struct evalq_options *options,
                                   struct evq_config **ret_config, struct evq_error *err)
{
    struct evq_config_source source = {.file = text_or(options->config, NULL),
                                       .url = text_or(options->url, NULL),
                                       .queue = text_or(options->queue, NULL),
                                       .library = true};

    return evq_config_load(&source, ret_config, err);
}

static enum evq_status client_start(struct evalq_client *client,
                                    const struct evalq_options *options, struct evq_error *err)
{
    struct settings settings;
    struct evq_warner warner = {.fd = -1};
    struct evq_config *config = NULL;
    struct evq_ring *ring = NULL;
    bool watched = false;
    enum evq_status status = config_read(options, &config, err);

    if (status == EVQ_OK) {
        status = settings_fill(options, config, &settings, err);
    }
    if (status == EVQ_OK) {
        status = evq_warner_open(&warner, text_or(options->log_path, ""), options->quiet != 0, err);
    }
    if (status == EVQ_OK) {
        status = evq_ring_open(settings.ring_directory, settings.sender.queue, settings.run,
                               settings.ring_bytes, &ring, err);
    }
    if (status == EVQ_OK) {
        status = evq_fork_watch(evq_ring_fd(ring), err);
        watched = status == EVQ_OK;
    }
    if (status == EVQ_OK) {
        status = evq_sender_start(&settings.sender, ring, config, &warner, &client->sender, err);
    }
    if (status != EVQ_OK) {
        if (watched) {
            evq_fork_forget(evq_ring_fd(ring));
        }
        evq_ring_close(ring, true);
        evq_warner_close(&warner);
        evq_config_free(config);
    }
    return status;
}

int evalq_client_open(const struct evalq_options *options, struct evalq_client **ret_client)
{
    static const struct evalq_options defaults;
    struct evq_error error = {.status = EVQ_OK};

    evq_client_error_clear();
    if (ret_client == NULL) {
        (void)evq_error_set(&error, EVQ_E_INVALID, "ret_client is NULL");
        return evq_client_fail(&error);
    }
    *ret_client = NULL;
    options = options == NULL ? &defaults : options;
    struct evalq_client *client = client_new();
    if (client == NULL) {
        (void)evq_error_set(&error, EVQ_E_NOMEM, "no memory for a client");
        return evq_client_fail(&error);
    }
    standard_hold();
    client->fork_depth = evq_fork_depth();
    client->close_ms = options->close_ms > 0 ? options->close_ms : CLOSE_MS;
    client->session_ms = options->session_ms > 0 ? options->session_ms : process_started_ms();
    if (client_start(client, options, &error) != EVQ_OK) {
        client_free(client);
        return evq_client_fail(&error);
    }
    *ret_client = client;
    return EVALQ_OK;
}

/* Warns about unsent submits. Nobody else may notice that they are missing. */
static void warn_unsent(struct evq_sender *sender)
{
    const uint64_t unsent = atomic_load(&sender->waiting) + atomic_load(&sender->spooled);

    if (unsent > 0) {
        evq_warn(
            &sender->warner, EVQ_WARN_UNSENT,
            "run '%s' ends with %llu of its submits unsent: they stay in %s until `evalq scan` "
            "or the run's next client sends them",
            sender->run, (unsigned long long)unsent, sender->ring_directory);
    }
}

void evalq_client_close(struct evalq_client *client)
{
    if (client == NULL || client->fork_depth != evq_fork_depth()) {
        return; // A forked child has only a copy, without the thread.
    }
    const int64_t start = evq_clock_mono_ms();
    if (evq_sender_flush(client->sender, start + client->close_ms, start + CLOSE_SAVE_MS, false) ==
        EVQ_OK) {
        evq_sender_check_pins(client->sender, evq_clock_mono_ms() + CLOSE_LOOK_MS);
    } else {
        warn_unsent(client->sender);
    }
    evq_sender_stop(client->sender, evq_clock_mono_ms() + CLOSE_END_MS);
    evq_results_close(client);
    client_free(client);
}

static int64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); // Cannot fail for this clock.
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void submit_account(struct evalq_client *client, int64_t start_ns)
{
    int64_t spent = now_ns() - start_ns;
    int_fast64_t most = atomic_load_explicit(&client->submit_ns_max, memory_order_relaxed);

    atomic_fetch_add_explicit(&client->submit_ns_total, spent, memory_order_relaxed);
    while (spent > most &&
           !atomic_compare_exchange_weak_explicit(&client->submit_ns_max, &most, spent,
                                                  memory_order_relaxed, memory_order_relaxed)) {
    }
}

int evalq_client_submit(struct evalq_client *client, const struct evalq_checkpoint *checkpoint)
{
    EVQ_SUBMIT_BUFFER uint8_t payload[EVQ_RING_PAYLOAD_BYTES_MAX];
    struct evq_error error = {.status = EVQ_OK};
    size_t bytes = 0;
    int64_t start = now_ns();
    int usable = evq_client_usable(client);

    if (usable == EVALQ_FORKED) { // For example a program that forked into the background.
        evq_warn(&client->sender->warner, EVQ_WARN_FORKED, "nothing is submitted: %s",
                 evalq_client_error(client));
    }
    if (usable != EVALQ_OK) {
        return usable;
    }
    if (checkpoint == NULL) {
        (void)evq_error_set(&error, EVQ_E_INVALID, "checkpoint is NULL");
        return evq_client_fail(&error);
    }
    enum evq_status status =
        evq_submit_record_pack(checkpoint, client->session_ms, evq_clock_unix_ms(), payload,
                               sizeof(payload), &bytes, &error);
    if (status == EVQ_OK) {
        atomic_fetch_add_explicit(&client->sender->waiting, 1, memory_order_relaxed);
        status = evq_ring_push(client->sender->ring, payload, bytes);
        if (status != EVQ_OK) {
            atomic_fetch_sub_explicit(&client->sender->waiting, 1, memory_order_relaxed);
        }
        if (status == EVQ_E_FULL) {
            atomic_store(&client->sender->full_seen, true);
            (void)evq_error_set(&error, status, "the ring is full: step %lld is dropped",
                                (long long)checkpoint->step);
        } else if (status != EVQ_OK) {
            status = evq_error_set(&error, EVQ_E_BUG, "a request of %zu bytes does not fit", bytes);
        }
    }
    if (status == EVQ_OK) {
        atomic_fetch_add_explicit(&client->submitted, 1, memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&client->dropped, 1, memory_order_relaxed);
    }
    submit_account(client, start);
    return status == EVQ_OK ? EVALQ_OK : evq_client_fail(&error);
}

int evalq_client_flush(struct evalq_client *client, int timeout_ms)
{
    struct evq_error error = {.status = EVQ_OK};
    int usable = evq_client_usable(client);

    if (usable != EVALQ_OK) {
        return usable;
    }
    int64_t deadline = timeout_ms < 0 ? INT64_MAX : evq_clock_mono_ms() + timeout_ms;
    enum evq_status status = evq_sender_flush(client->sender, deadline, INT64_MAX, true);
    if (status == EVQ_OK) {
        return EVALQ_OK;
    }
    (void)evq_error_set(&error, status, "%s",
                        status == EVQ_E_IO
                            ? "Redis is away: submits are kept and sent when it is back"
                            : "the timeout passed before everything was sent");
    return evq_client_fail(&error);
}

void evalq_client_stats(struct evalq_client *client, struct evalq_stats *ret_stats)
{
    if (ret_stats == NULL) {
        return;
    }
    memset(ret_stats, 0, sizeof(*ret_stats));
    if (client == NULL) {
        return;
    }
    const struct evq_sender *sender = client->sender;
    ret_stats->submitted = atomic_load(&client->submitted);
    ret_stats->dropped = atomic_load(&client->dropped) + atomic_load(&sender->lost);
    ret_stats->submit_ns_total = atomic_load(&client->submit_ns_total);
    ret_stats->submit_ns_max = atomic_load(&client->submit_ns_max);
    ret_stats->sent = atomic_load(&sender->sent);
    ret_stats->refused = atomic_load(&sender->refused);
    ret_stats->unpinned = atomic_load(&sender->unpinned);
    if (client->fork_depth == evq_fork_depth()) { // In a forked child the ring is not mapped.
        ret_stats->connected = atomic_load(&sender->connected);
        ret_stats->pending = atomic_load(&sender->waiting) + atomic_load(&sender->spooled);
    }
}

const char *evalq_client_run(const struct evalq_client *client)
{
    return client != NULL ? client->sender->run : "";
}

const char *evalq_client_version(void)
{
    return EVQ_VERSION;
}
