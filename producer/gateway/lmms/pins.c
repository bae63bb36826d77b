#include "producer/gateway/lmms/pins.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "producer/client/pins/pin_releaser.h"
#include "shared/base/clock.h"
#include "shared/base/log.h"

#define RUNS_MAX           1024 // Most runs at a time; `evalq gc` handles the others.
#define LOOK_MS            1000
#define CONNECT_TIMEOUT_MS 2000
#define CALL_TIMEOUT_MS    5000

struct note { // A new pin for the thread.
    struct note *next;
    char run[EVQ_JOB_RUN_BYTES_MAX + 1];
    char directory[PATH_MAX];
};

struct run {
    struct evq_pin_releaser releaser;
    char name[EVQ_JOB_RUN_BYTES_MAX + 1];
};

struct evq_pins {
    const struct evq_config *config;
    struct evq_conn *conn; // The thread's own, as are the members down to runs.
    struct evq_queue *queue;
    struct run *runs;
    size_t run_count;
    uint32_t told; // A bit for each status that was logged in this outage.
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct note *notes;
    bool stop;
    bool opened; // lock and more.
    bool started;
    pthread_t thread;
};

/* The directory whose checkpoints are pinned: OUTPUT_DIR of OUTPUT_DIR/.evalq/pins/NAME. */
static void output_of(const char *directory, char out[PATH_MAX])
{
    (void)snprintf(out, PATH_MAX, "%s", directory);
    for (int i = 0; i < 3; i++) {
        char *slash = strrchr(out, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
    }
}

static struct run *run_of(struct evq_pins *pins, const char *name)
{
    for (size_t i = 0; i < pins->run_count; i++) {
        if (strcmp(pins->runs[i].name, name) == 0) {
            return &pins->runs[i];
        }
    }
    if (pins->run_count == RUNS_MAX) {
        return NULL;
    }
    struct run *runs = realloc(pins->runs, (pins->run_count + 1) * sizeof *runs);
    if (runs == NULL) {
        return NULL;
    }
    pins->runs = runs;
    struct run *run = &runs[pins->run_count++];
    memset(run, 0, sizeof *run);
    (void)snprintf(run->name, sizeof run->name, "%s", name);
    return run;
}

static void take_over(struct evq_pins *pins, struct note *note)
{
    char output[PATH_MAX];

    while (note != NULL) {
        struct note *next = note->next;
        struct run *run = run_of(pins, note->run);
        if (run != NULL) {
            output_of(note->directory, output);
            evq_pin_releaser_visit(&run->releaser, output, evq_queue_name(pins->queue), note->run);
            evq_pin_releaser_add(&run->releaser, note->directory, 0);
        }
        free(note);
        note = next;
    }
}

/* Checks the runs that are due and forgets runs without pins. */
static void look(struct evq_pins *pins)
{
    struct evq_error err = {EVQ_OK, ""};
    struct evq_queue_info info = {.build = 0};

    for (size_t i = 0; i < pins->run_count; i++) {
        struct run *run = &pins->runs[i];
        if (run->releaser.due_ms > evq_clock_mono_ms()) {
            continue;
        }
        const bool well = evq_pin_releaser_check(&run->releaser, pins->queue, &info, &err);
        if (!well) {
            const uint32_t kind = UINT32_C(1) << err.status;
            if ((pins->told & kind) == 0) { // Each reason is logged once.
                evq_log(EVQ_LOG_WARN, "pins_wait", "error=%s", err.message);
            }
            pins->told |= kind;
            return; // The other runs need Redis too.
        }
        pins->told = 0;
        if (run->releaser.pin_count == 0) {
            evq_pin_releaser_free(&run->releaser);
            *run = pins->runs[--pins->run_count];
            i--;
        }
    }
}

static void *thread_main(void *context)
{
    struct evq_pins *pins = context;
    bool stop = false;

    while (!stop) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until); // The clock of the condition.
        until.tv_sec += LOOK_MS / 1000;
        (void)pthread_mutex_lock(&pins->lock);
        while (!pins->stop && pins->notes == NULL &&
               (pins->run_count == 0
                    ? pthread_cond_wait(&pins->more, &pins->lock)
                    : pthread_cond_timedwait(&pins->more, &pins->lock, &until)) == 0) {
        }
        struct note *notes = pins->notes;
        pins->notes = NULL;
        stop = pins->stop;
        (void)pthread_mutex_unlock(&pins->lock);
        take_over(pins, notes);
        if (!stop) {
            look(pins);
        }
    }
    return NULL;
}

static enum evq_status open_all(struct evq_pins *pins, struct evq_error *err)
{
    pthread_condattr_t attributes;
    struct evq_conn_config conn = evq_config_conn(pins->config, "evalq-gateway");

    conn.connect_timeout_ms = CONNECT_TIMEOUT_MS;
    conn.call_timeout_ms = CALL_TIMEOUT_MS;
    enum evq_status status = evq_conn_open(&conn, &pins->conn, err);
    if (status == EVQ_OK) {
        status = evq_queue_open(pins->conn, pins->config->redis.queue, &pins->queue, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    pins->opened = pthread_condattr_init(&attributes) == 0 &&
                   pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                   pthread_mutex_init(&pins->lock, NULL) == 0 &&
                   pthread_cond_init(&pins->more, &attributes) == 0;
    (void)pthread_condattr_destroy(&attributes); // Holds nothing on Linux.
    pins->started = pins->opened && pthread_create(&pins->thread, NULL, thread_main, pins) == 0;
    return pins->started ? EVQ_OK : evq_error_set(err, EVQ_E_NOMEM, "no room for a thread");
}

enum evq_status evq_pins_start(const struct evq_config *config, struct evq_pins **ret_pins,
                               struct evq_error *err)
{
    struct evq_pins *pins = calloc(1, sizeof *pins);

    if (pins == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "no memory for pins");
    }
    pins->config = config;
    const enum evq_status status = open_all(pins, err);
    if (status != EVQ_OK) {
        evq_pins_stop(pins);
        return status;
    }
    *ret_pins = pins;
    return EVQ_OK;
}

void evq_pins_stop(struct evq_pins *pins)
{
    if (pins == NULL) {
        return;
    }
    if (pins->started) {
        (void)pthread_mutex_lock(&pins->lock);
        pins->stop = true;
        (void)pthread_cond_signal(&pins->more);
        (void)pthread_mutex_unlock(&pins->lock);
        evq_conn_interrupt(pins->conn);
        (void)pthread_join(pins->thread, NULL);
    }
    for (size_t i = 0; i < pins->run_count; i++) {
        evq_pin_releaser_free(&pins->runs[i].releaser);
    }
    free(pins->runs);
    while (pins->notes != NULL) { // Notes are left only if the thread never started.
        struct note *next = pins->notes->next;
        free(pins->notes);
        pins->notes = next;
    }
    evq_queue_close(pins->queue);
    evq_conn_close(pins->conn);
    if (pins->opened) {
        (void)pthread_cond_destroy(&pins->more);
        (void)pthread_mutex_destroy(&pins->lock);
    }
    free(pins);
}

enum evq_status evq_pins_make(struct evq_pins *pins, struct evq_job *job, char directory[PATH_MAX],
                              struct evq_error *err)
{
    char id[EVQ_JOB_ID_BYTES_MAX];
    const char *const ids[] = {id};
    struct evq_pin pin;

    directory[0] = '\0';
    const struct evq_root *root =
        pins != NULL ? evq_config_root_find(pins->config, job->root) : NULL;
    if (root == NULL || !pins->config->gateway.lmms.pin || job->fingerprint[0] == '\0' ||
        !evq_pin_hard_link_safe(job->path, job->step)) {
        return EVQ_OK;
    }
    evq_job_id(job, id);
    const struct evq_pin_request request = {.root_path = root->path,
                                            .path = job->path,
                                            .queue = pins->config->redis.queue,
                                            .run = job->run,
                                            .step = job->step,
                                            .variant = job->variant,
                                            .fingerprint = job->fingerprint,
                                            .jobs = ids,
                                            .job_count = 1,
                                            .reflink = true,
                                            .hard_link = true};
    enum evq_status status = evq_pin_make(&request, &pin, err);
    if (status == EVQ_OK) {
        status = evq_pin_verify(&request, &pin, err);
    }
    const char *path = status == EVQ_OK ? evq_arena_strdup(job->arena, pin.path) : NULL;
    if (path == NULL) {
        return status == EVQ_OK ? evq_error_set(err, EVQ_E_NOMEM, "no memory for a pin") : status;
    }
    job->pin = path;
    (void)snprintf(directory, PATH_MAX, "%s", pin.directory);
    return EVQ_OK;
}

void evq_pins_record(struct evq_pins *pins, struct evq_queue *queue, const struct evq_job *job,
                     const char *directory, const struct evq_submitted *sent)
{
    struct evq_queue_info info = {.epoch = ""};
    struct note *note = calloc(1, sizeof *note);

    if (sent != NULL && evq_queue_info(queue, &info, NULL) != EVQ_OK) {
        info.epoch[0] = '\0'; // Unknown; the releaser asks for the job anyway.
    }
    evq_pin_releaser_record(directory, job, sent, info.epoch);
    if (note == NULL) {
        return; // `evalq gc` releases it.
    }
    (void)snprintf(note->run, sizeof note->run, "%s", job->run);
    (void)snprintf(note->directory, sizeof note->directory, "%s", directory);
    (void)pthread_mutex_lock(&pins->lock);
    note->next = pins->notes;
    pins->notes = note;
    (void)pthread_cond_signal(&pins->more);
    (void)pthread_mutex_unlock(&pins->lock);
}
