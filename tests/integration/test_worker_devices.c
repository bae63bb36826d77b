/*
 * Tests a worker's use of GPUs on a machine without any. A stand-in module and a stand-in driver
 * library (tests/standin/) are found and loaded in the same way as the real ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/checkpoint/checkpoint.h"
#include "tests/fixture/site.h"

#define MODEL    "mlp_784_512_128_32_10.safetensors"
#define ACCURACY 0.9849
#define LOSS     0.3905516936

static const char site_yaml[] =
    "roots: {ckpt: $DIR/ckpt, mnist: $DATA/mnist}\n"
    "worker: {scratch: $DIR/scratch, slots: 1, gpus: [GPU-a, GPU-b], gpus_per_slot: 2,\n"
    "         lease_ms: 3000, heartbeat_ms: 100, drain_seconds: 1}\n"
    "evaluators:\n"
    "  says: {kind: command, command: [$DIR/says.sh]}\n"
    "  keeps: {kind: persistent, command: [$DIR/keeps.sh]}\n"
    "suites:\n"
    "  digits: {needs: {gpus: 2}, tasks: [{name: digits, type: classification, model: {activation: "
    "relu},\n"
    "    data: {format: idx, inputs: $DATA/mnist/t10k-images-idx3-ubyte.gz,\n"
    "           labels: $DATA/mnist/t10k-labels-idx1-ubyte.gz, scale: 1/255}}]}\n"
    "  says: {evaluator: says, needs: {gpus: 2}, tasks: [{name: t, type: any}]}\n"
    "  keeps: {evaluator: keeps, needs: {gpus: 2}, tasks: [{name: t, type: any}]}\n";

static const char says_sh[] = "#!/bin/sh\n"
                              "echo \"$CUDA_VISIBLE_DEVICES\" > $DIR/said\n"
                              "echo '{\"one\": 1}' > \"$EVALQ_RESULT\"\n";
static const char keeps_sh[] =
    "#!/bin/sh\n"
    "echo \"$CUDA_VISIBLE_DEVICES\" > $DIR/kept\n"
    "echo '{\"type\": \"ready\"}'\n"
    "while read -r line; do\n"
    "  case $line in *'\"type\": \"exit\"'*|*'\"type\":\"exit\"'*) exit 0 ;; esac\n"
    "  echo '{\"type\": \"task\", \"task\": \"t\", \"metrics\": {\"one\": 1}, \"n\": 1}'\n"
    "  echo '{\"type\": \"done\"}'\n"
    "done\n";
static const char gpus[] = "GPU-a 12884901888 85899345920 37 54\n"
                           "GPU-b 0 85899345920 0 41\n"
                           "GPU-c 0 85899345920 0 40\n";

static int setup(void **state)
{
    struct fixture *fx = fixture_open(NULL);
    struct fixture_site *site =
        fixture_site_open(fx, EVQ_TEST_STANDIN "/bin/evalq-worker", EVQ_TEST_DATA, site_yaml);

    fixture_site_write(site, "says.sh", "", says_sh);
    fixture_site_write(site, "keeps.sh", "", keeps_sh);
    fixture_site_write(site, "gpus", "", gpus);
    assert_int_equal(setenv("EVQ_STANDIN", site->dir, 1), 0);
    assert_int_equal(setenv("LD_LIBRARY_PATH", EVQ_TEST_STANDIN "/nvml", 1), 0);
    *state = site;
    return 0;
}

static struct fixture_worker *worker_ready(struct fixture_site *site)
{
    struct fixture_worker *worker = fixture_site_worker(site, NULL);

    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=child_ready"));
    return worker;
}

static void submit(struct fixture_site *site, const char *id, const char *root, const char *path)
{
    struct evq_job *job = fixture_job(id);
    struct evq_error err;
    char fingerprint[33];

    const int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_status_err(evq_checkpoint_fingerprint(fd, path, fingerprint, NULL, &err), EVQ_OK, &err);
    (void)close(fd);
    job->root = "mnist";
    job->path = path;
    job->fingerprint = fingerprint;
    assert_int_equal(fixture_submit_job(site->fx, job).answer, EVQ_SUBMIT_QUEUED);
    evq_job_free(job);
}

static void submit_digits(struct fixture_site *site, const char *id)
{
    submit(site, id, EVQ_TEST_DATA "/mnist", MODEL);
}

static void assert_digits(struct fixture_site *site, const char *id, int32_t attempt)
{
    SITE_STATE_UNTIL(site, id, "done");
    const struct fixture_published loss =
        fixture_site_published(site, id, "digits", "cross_entropy");
    assert_int_equal(loss.tasks, 1);
    assert_int_equal(loss.ends, 1);
    assert_int_equal(loss.attempt, attempt);
    if (!(fabs(loss.value - LOSS) <= 1e-6)) {
        fail_msg("cross-entropy is %.9f, expected %.9f", loss.value, LOSS);
    }
    if (!(fixture_site_published(site, id, "digits", "accuracy").value == ACCURACY)) {
        fail_msg("accuracy is not %g", ACCURACY);
    }
}

struct executed { // What the log of the stand-in contains.
    long rows[3]; // One entry for each device.
    long most;    // The rows of the largest batch.
    int processes;
};

static struct executed executed(struct fixture_site *site)
{
    struct executed sum = {0};
    long pids[16] = {0};
    long pid, device, rows;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/log", site->dir);
    FILE *file = fopen(path, "re");
    while (file != NULL && fscanf(file, "%ld %ld %ld", &pid, &device, &rows) == 3) {
        int known = 0;
        while (known < sum.processes && pids[known] != pid) {
            known++;
        }
        if (known == sum.processes && known < 16) {
            pids[sum.processes++] = pid;
        }
        assert_true(device >= 0 && device < 3);
        sum.rows[device] += rows;
        sum.most = rows > sum.most ? rows : sum.most;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return sum;
}

static void job_runs_on_all_gpus_of_its_slot(void **state)
{
    struct fixture_site *site = *state;
    struct fixture_worker *worker = worker_ready(site);

    assert_true(fixture_worker_logged(worker, "devices=GPU-a,GPU-b"));
    const struct executed before = executed(site); // The self-check has executed these.
    submit_digits(site, "run/1/regular/digits");
    assert_digits(site, "run/1/regular/digits", 1);
    const struct executed after = executed(site);
    assert_int_equal(after.rows[0] - before.rows[0], 10000);
    assert_int_equal(after.rows[1] - before.rows[1], 10000);
    // Each GPU was checked alone, and the second one with the first.
    assert_true(before.rows[0] > 0 && before.rows[0] == before.rows[1]);
    assert_true(fixture_worker_logged(worker, "backend=cuda"));
    fixture_audit(site->fx);
}

static void programs_see_all_gpus_of_their_slot_and_no_other(void **state)
{
    static const char *const suites[] = {"says", "keeps"};
    struct fixture_site *site = *state;
    char id[64];

    (void)worker_ready(site);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(id, sizeof(id), "run/1/regular/%s", suites[i]);
        submit(site, id, EVQ_TEST_DATA "/mnist", MODEL);
        SITE_STATE_UNTIL(site, id, "done");
        assert_int_equal(fixture_site_published(site, id, "t", "one").tasks, 1);
    }
    assert_string_equal(fixture_site_text(site, "said").text, "GPU-a,GPU-b\n");
    assert_string_equal(fixture_site_text(site, "kept").text, "GPU-a,GPU-b\n");
}

static void batches_get_smaller_until_the_device_has_room(void **state)
{
    static const char *const files[] = {"fits", "fits-exec"};
    struct fixture_site *site = *state;
    char id[64];

    struct fixture_worker *worker = worker_ready(site);
    for (int i = 0; i < 2; i++) {
        fixture_site_write(site, files[i], "", "600"); // The device is asked for 8192.
        (void)snprintf(id, sizeof(id), "run/%d/regular/digits", i);
        submit_digits(site, id);
        assert_digits(site, id, 1);
        assert_int_equal(executed(site).most, 512);
    }
    assert_true(
        fixture_worker_logged(worker, "batches of 512 rows instead of 8192: there is no memory"));
}

/* After a CUDA fault, the process is unusable, but a new process works. */
static void fault_of_a_device_ends_the_child_and_not_the_job(void **state)
{
    struct fixture_site *site = *state;
    pid_t before = 0;
    pid_t after = 0;

    struct fixture_worker *worker = worker_ready(site);
    assert_int_equal(fixture_process_children(worker->pid, &before, 1), 1);
    fixture_site_touch(site, "fault");
    submit_digits(site, "run/1/regular/digits");
    assert_digits(site, "run/1/regular/digits", 2);
    assert_true(fixture_worker_logged(worker, "run the plan: an illegal memory"));
    FIXTURE_UNTIL(!fixture_process_lives(before));
    assert_int_equal(fixture_process_children(worker->pid, &after, 1), 1);
    assert_int_not_equal(before, after);
    assert_int_equal(executed(site).processes, 2);
    fixture_audit(site->fx);
}

static void missing_device_leaves_the_slot_to_the_cpu(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_write(site, "devices", "", "0");
    struct fixture_worker *worker = worker_ready(site);
    assert_true(fixture_worker_logged(worker, "evaluating on the CPU: "));
    assert_true(fixture_worker_logged(worker, "no CUDA-capable device is detected"));
    submit_digits(site, "run/1/regular/digits");
    assert_digits(site, "run/1/regular/digits", 1);
    assert_true(fixture_worker_logged(worker, "backend=cpu"));
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
}

static bool status_holds(struct fixture_site *site, const char *option, const char *words)
{
    const char *worker = site->bin;

    site->bin = EVQ_TEST_BIN "/evalq";
    assert_int_equal(
        fixture_site_run(site, "status", "status", "--url", site->fx->redis->url, option, NULL), 0);
    site->bin = worker;
    return fixture_site_holds(site, "status", words);
}

/* The self-check gives wrong numbers. The jobs wait; they are not evaluated on the CPU. */
static void device_with_wrong_numbers_is_out_until_it_is_right(void **state)
{
    struct fixture_site *site = *state;
    char path[128];

    fixture_site_write(site, "lie", "", "93"); // The batches of the self-check have so many rows.
    struct fixture_worker *worker = fixture_site_worker(site, NULL);
    submit_digits(site, "run/1/regular/digits");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=child_start_failed slot=0 reason="
                                                "\"GPU 1 of 2: self-check of a model of tokens"));
    FIXTURE_UNTIL(status_holds(site, NULL, "the device and the CPU disagree"));
    (void)snprintf(path, sizeof(path), "%s/lie", site->dir);
    assert_int_equal(unlink(path), 0);
    assert_digits(site, "run/1/regular/digits", 1);
    assert_true(fixture_worker_logged(worker, "backend=cuda"));
    assert_false(fixture_worker_logged(worker, "backend=cpu"));
    FIXTURE_UNTIL(!status_holds(site, NULL, "disagree")); // The next heartbeat reports it.
}

/* The worker checks the device again at long intervals. */
static void device_that_stays_wrong_is_checked_rarely(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_write(site, "lie", "", "93");
    struct fixture_worker *worker = fixture_site_worker(site, NULL);
    submit_digits(site, "run/1/regular/digits");
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=slot_out slot=0 devices=GPU-a,GPU-b "
                                                "failures=3 again_ms=30000"));
    FIXTURE_UNTIL(status_holds(site, "--json", "\"state\": \"down\""));
    SITE_STATE_UNTIL(site, "run/1/regular/digits", "queued");
    assert_false(fixture_worker_logged(worker, "event=job_start"));
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    fixture_audit(site->fx);
}

/* ---- what the driver tells ---- */

static void status_shows_what_the_gpus_do(void **state)
{
    struct fixture_site *site = *state;

    (void)worker_ready(site);
    FIXTURE_UNTIL(status_holds(site, "--json", "\"busy_percent\": 37"));
    FIXTURE_UNTIL(status_holds(site, "--json", "\"memory_used_bytes\": 12884901888"));
    FIXTURE_UNTIL(status_holds(site, "--json", "\"memory_bytes\": 85899345920"));
    FIXTURE_UNTIL(status_holds(site, "--json", "\"temperature_c\": 54"));
    assert_false(status_holds(site, "--json", "GPU-c")); // This GPU belongs to no slot.
    FIXTURE_UNTIL(status_holds(site, NULL, "GPUs"));
    FIXTURE_UNTIL(status_holds(site, NULL, "54 C"));
    FIXTURE_UNTIL(status_holds(site, NULL, "37%"));
    fixture_site_write(site, "gpus", "",
                       "GPU-a 12884901888 85899345920 99 71\nGPU-b 0 85899345920 0 41\n");
    FIXTURE_UNTIL(status_holds(site, "--plain", "\t71 C"));
}

/*
 * NVML never answers for one GPU. Jobs continue. This GPU's readings end; the other GPU's readings
 * continue.
 */
static void driver_that_hangs_delays_nobody(void **state)
{
    struct fixture_site *site = *state;
    char path[128];

    struct fixture_worker *worker = worker_ready(site);
    FIXTURE_UNTIL(status_holds(site, "--json", "\"busy_percent\": 37"));
    (void)snprintf(path, sizeof(path), "%s/hang-GPU-a", site->dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    FIXTURE_UNTIL(!status_holds(site, "--json", "\"busy_percent\": 37"));
    fixture_site_write(site, "gpus", "", "GPU-a 0 85899345920 37 54\nGPU-b 0 85899345920 58 41\n");
    FIXTURE_UNTIL(status_holds(site, "--json", "\"busy_percent\": 58"));
    assert_false(status_holds(site, "--json", "\"busy_percent\": 37"));
    submit_digits(site, "run/1/regular/digits");
    assert_digits(site, "run/1/regular/digits", 1);
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
}

/* If the driver reports one GPU as lost, the other GPUs are used. */
static void lost_gpu_is_left_out(void **state)
{
    static const char config[] =
        "roots: {mnist: $DATA/mnist}\n"
        "worker: {scratch: $DIR/scratch, slots: 1, gpus_per_slot: 2, heartbeat_ms: 100}\n"
        "suites:\n"
        "  digits: {tasks: [{name: digits, type: classification, model: {activation: relu}, data: "
        "{format: idx,\n"
        "    inputs: $DATA/mnist/t10k-images-idx3-ubyte.gz,\n"
        "    labels: $DATA/mnist/t10k-labels-idx1-ubyte.gz}}]}\n";
    struct fixture_site *site = *state;

    fixture_site_write(site, "evalq.yaml", EVQ_TEST_DATA, config);
    fixture_site_write(site, "gpus", "",
                       "GPU-a 0 85899345920 37 54\nGPU-lost 0 85899345920 0 41\n"
                       "GPU-c 0 85899345920 7 40\n");
    struct fixture_worker *worker = fixture_site_worker(site, "--devices", "auto", NULL);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "GPU 1 does not answer: it is left out"));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "devices=GPU-a,GPU-c"));
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    // This is the only finding.
    fixture_site_write(site, "gpus", "", "GPU-lost 0 85899345920 0 41\n");
    worker = fixture_site_worker(site, "--devices", "auto", NULL);
    assert_int_not_equal(fixture_worker_wait(worker), 0);
    assert_true(fixture_worker_logged(worker, "no GPU answers: GPU 0 does not answer"));
}

static bool doctor_holds(struct fixture_site *site, const char *words)
{
    const char *worker = site->bin;

    site->bin = EVQ_TEST_BIN "/evalq";
    (void)fixture_site_run(site, "doctor", "doctor", "--url", site->fx->redis->url, NULL);
    site->bin = worker; // doctor also has findings about the test's server.
    return fixture_site_holds(site, "doctor", words);
}

/* The worker warns about a GPU that no slot uses, because it costs money. */
static void gpus_without_a_slot_are_reported(void **state)
{
    struct fixture_site *site = *state;

    fixture_site_write(site, "gpus", "",
                       "GPU-cut-a 0 85899345920 0 40\nMIG-one 0 10737418240 0 0\n"
                       "MIG-two 0 5368709120 0 0\nGPU-c 0 85899345920 7 40\n");
    fixture_site_write(site, "evalq.yaml", EVQ_TEST_DATA,
                       "roots: {mnist: $DATA/mnist}\n"
                       "worker: {scratch: $DIR/scratch, heartbeat_ms: 100}\n"
                       "evaluators: {says: {kind: command, command: [$DIR/says.sh]}}\n"
                       "suites: {says: {evaluator: says, tasks: [{name: t, type: any}]}}\n");
    struct fixture_worker *worker =
        fixture_site_worker(site, "--devices", "auto", "--slots", "1", NULL);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=gpus_unused slots=1 gpus=1 of=3 reason="
                                                "\"worker.slots and worker.gpus_per_slot"));
    FIXTURE_UNTIL(doctor_holds(site, " take 1 of the 3 GPUs that they see"));
    struct fixture_worker *second =
        fixture_site_worker(site, "--devices", "auto", "--slots", "2", NULL);
    FIXTURE_UNTIL(doctor_holds(site, "2 alive"));
    assert_false(doctor_holds(site, "GPUs that they see")); // Together, the slots take all GPUs.
    fixture_worker_signal(second, SIGTERM);
    assert_int_equal(fixture_worker_wait(second), 0);
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    worker = fixture_site_worker(site, "--devices", "MIG-two,MIG-one", "--slots", "1", NULL);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "event=gpus_unused slots=1 gpus=1 of=2 reason=\"a "
                                                "slot uses only one MIG instance"));
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    worker = fixture_site_worker(site, "--devices", "auto", NULL);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "slot=2 devices=GPU-c"));
    assert_false(fixture_worker_logged(worker, "event=gpus_unused"));
    assert_false(doctor_holds(site, "GPUs that they see"));
}

/* CUDA lets a process use only one MIG instance. Each instance is its own device. */
static void instances_of_a_gpu_are_devices(void **state)
{
    static const char config[] =
        "roots: {mnist: $DATA/mnist}\n"
        "worker: {scratch: $DIR/scratch, gpus_per_slot: %d, heartbeat_ms: 100}\n"
        "suites:\n"
        "  digits: {needs: {gpus: 1, gpu_memory: 9GiB}, tasks: [{name: digits,\n"
        "    type: classification, model: {activation: relu}, data: {format: idx,\n"
        "    inputs: $DATA/mnist/t10k-images-idx3-ubyte.gz,\n"
        "    labels: $DATA/mnist/t10k-labels-idx1-ubyte.gz}}]}\n";
    struct fixture_site *site = *state;
    char text[1024];

    fixture_site_write(site, "gpus", "",
                       "GPU-cut-a 0 85899345920 0 40\nMIG-one 0 10737418240 0 0\n"
                       "MIG-two 0 5368709120 0 0\nGPU-cut-b 0 85899345920 0 40\n"
                       "GPU-c 0 85899345920 7 40\n");
    (void)snprintf(text, sizeof(text), config, 1);
    fixture_site_write(site, "evalq.yaml", EVQ_TEST_DATA, text);
    struct fixture_worker *worker = fixture_site_worker(site, "--devices", "auto", NULL);
    FIXTURE_UNTIL(fixture_worker_logged(worker, "GPU 1 is cut up (MIG), and none of its"));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "slot=0 devices=MIG-one"));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "slot=1 devices=MIG-two"));
    FIXTURE_UNTIL(fixture_worker_logged(worker, "slot=2 devices=GPU-c"));
    FIXTURE_UNTIL(status_holds(site, "--json", "\"memory_bytes\": 5368709120"));
    fixture_worker_signal(worker, SIGTERM);
    assert_int_equal(fixture_worker_wait(worker), 0);
    (void)snprintf(text, sizeof(text), config, 2);
    fixture_site_write(site, "evalq.yaml", EVQ_TEST_DATA, text);
    worker = fixture_site_worker(site, "--devices", "auto", NULL);
    assert_int_not_equal(fixture_worker_wait(worker), 0);
    assert_true(fixture_worker_logged(
        worker, "CUDA gives a process only one MIG instance such as MIG-one"));
}

static void without_a_driver_nothing_is_logged_about_gpus(void **state)
{
    struct fixture_site *site = *state;
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/gpus", site->dir);
    assert_int_equal(unlink(path), 0);
    struct fixture_worker *worker = worker_ready(site);
    submit_digits(site, "run/1/regular/digits");
    assert_digits(site, "run/1/regular/digits", 1);
    assert_false(status_holds(site, "--json", "readings"));
    assert_false(status_holds(site, NULL, "GPUs"));
    assert_false(fixture_worker_logged(worker, "level=error"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_site_teardown)
    const struct CMUnitTest tests[] = {
        TEST(job_runs_on_all_gpus_of_its_slot),
        TEST(programs_see_all_gpus_of_their_slot_and_no_other),
        TEST(batches_get_smaller_until_the_device_has_room),
        TEST(fault_of_a_device_ends_the_child_and_not_the_job),
        TEST(missing_device_leaves_the_slot_to_the_cpu),
        TEST(device_with_wrong_numbers_is_out_until_it_is_right),
        TEST(device_that_stays_wrong_is_checked_rarely),
        TEST(status_shows_what_the_gpus_do),
        TEST(driver_that_hangs_delays_nobody),
        TEST(lost_gpu_is_left_out),
        TEST(gpus_without_a_slot_are_reported),
        TEST(instances_of_a_gpu_are_devices),
        TEST(without_a_driver_nothing_is_logged_about_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
