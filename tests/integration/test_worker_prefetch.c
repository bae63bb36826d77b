/*
 * While a worker evaluates, it reads the checkpoint of the next job into the page cache.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fixture/safetensors.h"
#include "tests/fixture/site.h"

#define BIN          EVQ_TEST_BIN "/evalq-worker"
#define WEIGHT_BYTES ((size_t)16 << 20)
#define FIRST        "run/1/regular/gate"
#define SECOND       "run/2/regular/gate"

/* The weights are in the build directory, because a temporary directory may be in memory. */
struct scene {
    struct fixture_site *site;
    char cold[256];
};

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt, cold: %s}\n"
    "worker: {scratch: $DIR/scratch, lease_ms: 3000, heartbeat_ms: 200, drain_seconds: 10%s}\n"
    "evaluators:\n"
    "  gate: {kind: command, command: [$DIR/gate.sh]}\n"
    "suites:\n"
    "  gate: {evaluator: gate, tasks: [{name: t, type: any}]}\n";
static const char gate_sh[] = "#!/bin/sh\n"
                              "echo $$ >> $DIR/started\n"
                              "while [ ! -e $DIR/go ]; do sleep 0.02; done\n"
                              "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";

static void scene_open(struct scene *scene, const char *worker_more)
{
    char body[1024];

    (void)snprintf(scene->cold, sizeof(scene->cold), "%s/ahead.XXXXXX", EVQ_TEST_BIN);
    assert_non_null(mkdtemp(scene->cold));
    (void)snprintf(body, sizeof(body), site_yaml, scene->cold, worker_more);
    scene->site = fixture_site_open(fixture_open(NULL), BIN, EVQ_TEST_DATA, body);
    fixture_site_write(scene->site, "gate.sh", EVQ_TEST_DATA, gate_sh);
}

static void scene_close(struct scene *scene)
{
    struct fixture *fx = scene->site->fx;

    fixture_site_close(scene->site);
    fixture_close(fx);
    fixture_dir_remove(scene->cold);
}

static void path_make(const struct scene *scene, const char *name, char out[512])
{
    (void)snprintf(out, 512, "%s/%s", scene->cold, name);
}

/* Returns which part of a file is in the page cache, from 0 to 1. */
static double resident(const struct scene *scene, const char *name)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char path[512];
    struct stat info;
    size_t there = 0;

    path_make(scene, name, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    const size_t bytes = (size_t)info.st_size;
    const size_t pages = (bytes + page - 1) / page;
    void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(memory != MAP_FAILED);
    unsigned char *which = calloc(pages, 1);
    assert_non_null(which);
    assert_int_equal(mincore(memory, bytes, which), 0);
    for (size_t i = 0; i < pages; i++) {
        there += which[i] & 1U;
    }
    free(which);
    assert_int_equal(munmap(memory, bytes), 0);
    assert_int_equal(close(fd), 0);
    return (double)there / (double)pages;
}

/* Skips the test if the file system keeps its files in memory. */
static void evict(struct scene *scene, const char *name)
{
    char path[512];

    path_make(scene, name, path);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    assert_int_equal(close(fd), 0);
    if (resident(scene, name) > 0.0) {
        print_message("skipped: %s stays in memory after POSIX_FADV_DONTNEED\n", path);
        scene_close(scene);
        skip();
    }
}

static void weights_write(const struct scene *scene, const char *name)
{
    char path[512];

    path_make(scene, name, path);
    void *values = calloc(1, WEIGHT_BYTES);
    assert_non_null(values);
    const struct fixture_tensor tensor = {.name = "weight",
                                          .dtype = EVQ_DTYPE_F32,
                                          .rank = 1,
                                          .shape = {(int64_t)(WEIGHT_BYTES / sizeof(float))},
                                          .data = values};
    fixture_safetensors(path, &tensor, 1);
    free(values);
}

static void cold_submit(const struct scene *scene, const char *id, const char *path)
{
    struct evq_job *job = fixture_job(id);

    job->root = "cold";
    job->path = path;
    job->fingerprint = "";
    assert_int_equal(fixture_submit_job(scene->site->fx, job).answer, EVQ_SUBMIT_QUEUED);
    evq_job_free(job);
}

/* Starts the first job, which waits at its gate. */
static struct fixture_worker *first_begin(struct scene *scene)
{
    fixture_site_submit(scene->site, FIRST);
    struct fixture_worker *worker = fixture_site_worker(scene->site, "--log-level", "debug", NULL);
    FIXTURE_UNTIL(fixture_site_has(scene->site, "started"));
    return worker;
}

static void both_end(struct scene *scene, struct fixture_worker *worker, const char *second)
{
    assert_true(fixture_site_state_is(scene->site, FIRST, "running"));
    fixture_site_touch(scene->site, "go");
    SITE_STATE_UNTIL(scene->site, FIRST, "done");
    SITE_STATE_UNTIL(scene->site, SECOND, second);
    fixture_audit(scene->site->fx);
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
}

/* In a training's folder, only the weights are read ahead, not the other files. */
static void worker_reads_ahead_the_weights_of_the_next_job(void **state)
{
    struct scene scene;
    char path[512];

    (void)state;
    scene_open(&scene, "");
    path_make(&scene, "step-2", path);
    assert_int_equal(mkdir(path, 0755), 0);
    weights_write(&scene, "step-2/model.safetensors");
    weights_write(&scene, "step-2/optimizer.bin");
    evict(&scene, "step-2/model.safetensors");
    evict(&scene, "step-2/optimizer.bin");
    struct fixture_worker *worker = first_begin(&scene);
    // The worker looks for it again while the first job runs.
    cold_submit(&scene, SECOND, "step-2");
    FIXTURE_UNTIL(resident(&scene, "step-2/model.safetensors") >= 1.0);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "outcome=done"));
    assert_true(resident(&scene, "step-2/optimizer.bin") <= 0.0);
    both_end(&scene, worker, "done");
    scene_close(&scene);
}

static void worker_reads_nothing_ahead_that_is_larger_than_allowed(void **state)
{
    struct scene scene;

    (void)state;
    scene_open(&scene, ", read_ahead_bytes: 8MiB");
    weights_write(&scene, "2.safetensors");
    evict(&scene, "2.safetensors");
    struct fixture_worker *worker = first_begin(&scene);
    cold_submit(&scene, SECOND, "2.safetensors");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "outcome=left"));
    assert_true(resident(&scene, "2.safetensors") < 0.5); // Only the header was read.
    both_end(&scene, worker, "done");
    scene_close(&scene);
}

/* Nobody writes to the FIFO, so a reader that opened it would wait forever. */
static void worker_is_not_delayed_by_files_that_cannot_be_read_ahead(void **state)
{
    struct scene scene;
    char path[512];

    (void)state;
    scene_open(&scene, "");
    path_make(&scene, "pipe.safetensors", path);
    assert_int_equal(mkfifo(path, 0644), 0);
    struct fixture_worker *worker = first_begin(&scene);
    cold_submit(&scene, SECOND, "pipe.safetensors");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "outcome=left"));
    assert_true(fixture_site_state_is(scene.site, FIRST, "running"));
    fixture_site_touch(scene.site, "go");
    SITE_STATE_UNTIL(scene.site, FIRST, "done");
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    scene_close(&scene);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_reads_ahead_the_weights_of_the_next_job),
        cmocka_unit_test(worker_reads_nothing_ahead_that_is_larger_than_allowed),
        cmocka_unit_test(worker_is_not_delayed_by_files_that_cannot_be_read_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
