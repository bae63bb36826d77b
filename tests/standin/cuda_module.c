/*
 * Stands in for libevalq_cuda.so where there is no GPU: the same one symbol and table, over CPU
 * backends, as many devices as asked for. What it does wrong is told by files of the directory
 * $EVQ_STANDIN, looked at each time:
 *   devices    how many there are; without the file 2
 *   fits       prepare() is out of memory for more rows than this
 *   fits-exec  so is exec()
 *   gate       a FIFO: exec() waits there for somebody who writes
 *   lie        exec() with at least so many rows adds a thousandth to one loss
 *   wrong      exec() of squared errors moves the values of rows 5 to 8, columns 2 and 3, by 1
 *   broken     so does it make row 7 no number, but none behind it
 *   fault      exec() takes the file away and fails, and from then on so does all that this process
 *              asks of the device: as after a fault in a kernel
 * Each exec() adds "PID DEVICE ROWS" to the file log, once for each device of the state.
 */
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"

struct device {
    int32_t numbers[EVQ_BACKEND_DEVICES_MAX], count;
    int32_t width; // Of the plan's last operation.
    void *cpu;
};

static atomic_bool faulty; // Of the whole process.

static int open_file(const char *name, int flags)
{
    char path[256];
    const char *directory = getenv("EVQ_STANDIN");

    (void)snprintf(path, sizeof(path), "%s/%s", directory != NULL ? directory : "/nowhere", name);
    return open(path, flags | O_CLOEXEC, 0644);
}

static int32_t number_in(const char *name, int32_t otherwise)
{
    char text[16] = "";
    const int fd = open_file(name, O_RDONLY);
    const ssize_t got = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    return got > 0 ? (int32_t)strtol(text, NULL, 10) : otherwise;
}

static bool fault_take(void)
{
    char path[256];
    const char *directory = getenv("EVQ_STANDIN");

    (void)snprintf(path, sizeof(path), "%s/fault", directory != NULL ? directory : "/nowhere");
    if (unlink(path) == 0) {
        atomic_store(&faulty, true);
    }
    return atomic_load(&faulty);
}

static enum evq_status fault(struct evq_error *err)
{
    return evq_error_set(err, EVQ_E_DEVICE,
                         "run the plan: an illegal memory access was encountered");
}

static int32_t standin_probe(struct evq_error *err)
{
    const int32_t devices = number_in("devices", 2);

    if (devices < 1) {
        (void)evq_error_set(err, EVQ_E_DEVICE, "look for GPUs: no CUDA-capable device is detected");
    }
    return devices;
}

static enum evq_status standin_open(const struct evq_backend_config *config, void **ret_state,
                                    struct evq_error *err)
{
    struct device *device = calloc(1, sizeof(*device));

    if (device == NULL) {
        return evq_error_set(err, EVQ_E_NOMEM, "a device");
    }
    device->count = config->device_count > 0 ? config->device_count : 1;
    for (int32_t i = 0; i < device->count; i++) {
        device->numbers[i] = config->device_count > 0 ? config->devices[i] : config->device;
    }
    const enum evq_status status = evq_backend_cpu.open(config, &device->cpu, err);
    if (status != EVQ_OK) {
        free(device);
        return status;
    }
    *ret_state = device;
    return EVQ_OK;
}

static void standin_caps(void *state, struct evq_backend_caps *ret_caps)
{
    const struct device *device = state;

    evq_backend_cpu.caps(device->cpu, ret_caps);
    (void)snprintf(ret_caps->device, sizeof(ret_caps->device), "Stand-in");
}

static enum evq_status standin_alloc(void *state, size_t bytes, void **ret_host,
                                     struct evq_error *err)
{
    const struct device *device = state;

    return atomic_load(&faulty) ? fault(err)
                                : evq_backend_cpu.alloc(device->cpu, bytes, ret_host, err);
}

static void standin_free(void *state, void *host)
{
    const struct device *device = state;

    evq_backend_cpu.free(device->cpu, host);
}

static enum evq_status standin_prepare(void *state, const struct evq_plan *plan,
                                       struct evq_error *err)
{
    struct device *device = state;

    device->width = plan->ops[plan->op_count - 1].n;
    if (plan->rows_max > number_in("fits", INT32_MAX)) {
        return evq_error_set(err, EVQ_E_NOMEM, "activations: out of memory");
    }
    return atomic_load(&faulty) ? fault(err) : evq_backend_cpu.prepare(device->cpu, plan, err);
}

static enum evq_status standin_put(void *state, int32_t slot, const struct evq_weight_blob *blob,
                                   struct evq_error *err)
{
    const struct device *device = state;

    return atomic_load(&faulty) ? fault(err) : evq_backend_cpu.put(device->cpu, slot, blob, err);
}

static enum evq_status standin_settle(void *state, struct evq_error *err)
{
    const struct device *device = state;

    return atomic_load(&faulty) ? fault(err) : evq_backend_cpu.settle(device->cpu, err);
}

static enum evq_status standin_catch_up(void *state, uint32_t most, uint32_t *ret_reading,
                                        struct evq_error *err)
{
    const struct device *device = state;

    return atomic_load(&faulty) ? fault(err)
                                : evq_backend_cpu.catch_up(device->cpu, most, ret_reading, err);
}

/* A value and its target that moves the other way are as far apart as a value that moves. NULL:
 * what is told is true. */
static float *targets_moved(const struct device *device, const struct evq_batch *batch)
{
    const bool lies = number_in("wrong", 0) > 0;
    const size_t width = (size_t)device->width;

    if (batch->targets == NULL || batch->rows < 9 || (!lies && number_in("broken", 0) == 0)) {
        return NULL;
    }
    float *targets = malloc((size_t)batch->rows * width * sizeof(*targets));
    if (targets == NULL) {
        return NULL;
    }
    memcpy(targets, batch->targets, (size_t)batch->rows * width * sizeof(*targets));
    for (size_t at = 0; at < (size_t)batch->rows * width; at++) {
        const size_t row = at / width;
        const size_t column = at % width;
        const bool here = row >= 5 && row <= 8 && (column == 2 || column == 3);
        targets[at] -= lies && here ? 1.0f : 0.0f;
    }
    return targets;
}

static enum evq_status standin_exec(void *state, const struct evq_batch *batch,
                                    struct evq_row_result *results, struct evq_error *err)
{
    const struct device *device = state;
    char line[64];

    if (fault_take()) {
        return fault(err);
    }
    if (batch->rows > number_in("fits-exec", INT32_MAX)) {
        return evq_error_set(err, EVQ_E_NOMEM, "scores: out of memory");
    }
    const int gate = open_file("gate", O_RDONLY);
    if (gate >= 0) {
        (void)close(gate);
    }
    for (int32_t i = 0; i < device->count; i++) {
        const int bytes = snprintf(line, sizeof(line), "%ld %d %d\n", (long)getpid(),
                                   (int)device->numbers[i], (int)batch->rows);
        const int fd = open_file("log", O_WRONLY | O_CREAT | O_APPEND);
        if (fd < 0 || write(fd, line, (size_t)bytes) != bytes || close(fd) != 0) {
            return evq_error_set(err, EVQ_E_IO, "the stand-in cannot write its log");
        }
    }
    float *targets = targets_moved(device, batch);
    struct evq_batch moved = *batch;
    moved.targets = targets != NULL ? targets : batch->targets;
    const enum evq_status status = evq_backend_cpu.exec(device->cpu, &moved, results, err);
    if (status == EVQ_OK && targets != NULL && number_in("broken", 0) > 0) {
        results[7].abs_loss = results[7].loss = (double)NAN;
    }
    free(targets);
    if (status == EVQ_OK && batch->rows >= number_in("lie", INT32_MAX)) {
        results[0].loss += 1e-3 * (1.0 + results[0].loss);
    }
    return status;
}

static void standin_stats(void *state, struct evq_backend_stats *ret_stats)
{
    const struct device *device = state;

    evq_backend_cpu.stats(device->cpu, ret_stats);
}

static void standin_close(void *state)
{
    struct device *device = state;

    if (device != NULL) {
        evq_backend_cpu.close(device->cpu);
        free(device);
    }
}

static const struct evq_backend_ops standin = {
    .abi_version = EVQ_BACKEND_ABI,
    .name = "cuda",
    .probe = standin_probe,
    .open = standin_open,
    .caps = standin_caps,
    .alloc = standin_alloc,
    .free = standin_free,
    .prepare = standin_prepare,
    .put = standin_put,
    .settle = standin_settle,
    .catch_up = standin_catch_up,
    .exec = standin_exec,
    .stats = standin_stats,
    .close = standin_close,
};

const struct evq_backend_ops *evq_backend_module_v1(void);

__attribute__((visibility("default"))) const struct evq_backend_ops *evq_backend_module_v1(void)
{
    return &standin;
}
