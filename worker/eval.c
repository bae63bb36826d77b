#include "worker/eval.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/buffer.h"
#include "shared/base/clock.h"
#include "worker/child/runner.h"
#include "worker/child/scratch.h"
#include "worker/devices/devices.h"
#include "worker/evaluators/checkpoint_location.h"

static volatile sig_atomic_t stop_signal;

static void stop_on_signal(int number)
{
    stop_signal = number;
}

struct printer { // Prints what the evaluator reports to standard output.
    struct evq_buffer out;
    bool json;
    bool tty;
    size_t task_count;
    int64_t began_us;
    int64_t shown_ms;
};

static enum evq_status printer_progress(void *context, int64_t done, int64_t total,
                                        const char *status)
{
    struct printer *printer = context;
    const int64_t now_ms = evq_clock_mono_ms();

    if (printer->tty && now_ms - printer->shown_ms >= 200) {
        printer->shown_ms = now_ms;
        if (done >= 0 && total > 0) {
            (void)fprintf(stderr, "\r\033[K%lld of %lld %s", (long long)done, (long long)total,
                          status != NULL ? status : "");
        } else {
            (void)fprintf(stderr, "\r\033[K%s", status != NULL ? status : "");
        }
    }
    return stop_signal != 0 ? EVQ_E_STOPPED : EVQ_OK;
}

static double result_seconds(struct printer *printer, const struct evq_result *result)
{
    const int64_t now_us = evq_clock_mono_us();
    const int64_t told_us = result->timing.load_us + result->timing.compute_us;
    const int64_t passed_us = now_us - printer->began_us;

    printer->began_us = now_us;
    return (double)(told_us > 0 ? told_us : passed_us) / 1e6;
}

static void task_json(struct printer *printer, const struct evq_result *result)
{
    struct evq_buffer *out = &printer->out;

    evq_buffer_text(out, printer->task_count > 0 ? ", " : "");
    evq_buffer_json_text(out, result->task);
    evq_buffer_text(out, ": {\"metrics\": {");
    for (size_t i = 0; i < result->metric_count; i++) {
        evq_buffer_text(out, i > 0 ? ", " : "");
        evq_buffer_json_text(out, result->metrics[i].name);
        evq_buffer_text(out, ": ");
        evq_buffer_json_double(out, result->metrics[i].value);
    }
    evq_buffer_printf(out, "}, \"n\": %lld, \"sums\": {", (long long)result->n);
    for (size_t i = 0; i < result->sum_count; i++) {
        evq_buffer_text(out, i > 0 ? ", " : "");
        evq_buffer_json_text(out, result->sums[i].name);
        evq_buffer_text(out, ": ");
        if (result->sums[i].is_count) {
            evq_buffer_printf(out, "%lld", (long long)result->sums[i].count);
        } else {
            evq_buffer_json_double(out, result->sums[i].value);
        }
    }
    evq_buffer_text(out, "}, \"seconds\": ");
    evq_buffer_json_double(out, result_seconds(printer, result));
    evq_buffer_text(out, "}");
}

static enum evq_status printer_task(void *context, const struct evq_result *result,
                                    struct evq_error *err)
{
    struct printer *printer = context;

    if (printer->tty) {
        (void)fputs("\r\033[K", stderr);
    }
    if (result->note != NULL && result->note[0] != '\0') {
        (void)fprintf(stderr, "evalq-worker: task %s: %s\n", result->task, result->note);
    }
    if (printer->json) {
        task_json(printer, result);
    } else {
        const double seconds = result_seconds(printer, result);
        for (size_t i = 0; i < result->metric_count; i++) {
            const double value = result->metrics[i].value;
            evq_buffer_printf(&printer->out, "%-24s %-24s %.8g\n", result->task,
                              result->metrics[i].name,
                              // So that "-nan" is never printed.
                              isnan(value) ? (double)NAN : value);
        }
        evq_buffer_printf(&printer->out, "%-24s ", result->task);
        if (result->n >= 0) { // Otherwise the evaluator did not report the number of samples.
            evq_buffer_printf(&printer->out, "%lld samples, ", (long long)result->n);
        }
        evq_buffer_printf(&printer->out, "%.3f s, %s%s%s\n", seconds,
                          result->device != NULL ? result->device : "",
                          result->compute[0] != '\0' ? ", " : "", result->compute);
    }
    printer->task_count++;
    return stop_signal != 0 ? evq_error_set(err, EVQ_E_STOPPED, "stopped by a signal") : EVQ_OK;
}

static enum evq_status eval_run(const struct evq_options *options, const struct evq_config *config,
                                const struct evq_suite *suite,
                                const struct evq_checkpoint_location *place,
                                struct printer *printer, struct evq_failure *failure,
                                struct evq_error *err)
{
    struct evq_runner *runner = NULL;
    struct evq_devices devices;
    char visible[EVQ_DEVICES_TEXT];
    char scratch[EVQ_SCRATCH_PATH_BYTES];
    char id[64];
    char note[256];
    int32_t gpus = 0;
    int64_t memory = 0;
    int lock_fd = -1;

    enum evq_status status = evq_devices_find(
        options->devices != NULL ? options->devices : config->worker.devices, &devices, err);
    if (status == EVQ_OK) {
        status = evq_scratch_open(config->worker.scratch, err);
    }
    if (status == EVQ_OK) {
        status = evq_scratch_make_attempt(config->worker.scratch, scratch, sizeof(scratch),
                                          &lock_fd, err);
    }
    if (status != EVQ_OK) {
        return status;
    }
    evq_devices_deal(&devices, 0, 1, visible, &gpus, &memory);
    (void)setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    const struct evq_runner_config runner_config = {
        .config = config,
        .devices = visible,
        .threads = options->threads >= 0 ? options->threads : config->worker.threads};
    const struct evq_eval_request request = {.config = config,
                                             .suite = suite,
                                             .variant = options->variant,
                                             .root_fd = place->root_fd,
                                             .root_path = place->root,
                                             .path = place->path,
                                             .prepared = "",
                                             .shard = -1,
                                             .scratch = scratch,
                                             .attempt = 1};
    const struct evq_eval_report report = {
        .context = printer, .progress = printer_progress, .task = printer_task};
    (void)snprintf(id, sizeof(id), "eval-%ld", (long)getpid());
    status = evq_runner_open(&runner_config, &runner, err);
    if (status == EVQ_OK && strcmp(suite->evaluator, "native") == 0) {
        status = evq_runner_open_native(runner, note, sizeof(note), err);
        if (status == EVQ_OK && note[0] != '\0' && gpus > 0) {
            (void)fprintf(stderr, "evalq-worker: %s\n", note);
        }
    }
    if (status == EVQ_OK) {
        printer->began_us = evq_clock_mono_us();
        status = evq_runner_eval(runner, id, &request, &report, failure, err);
    }
    evq_runner_close(runner);
    evq_scratch_remove(scratch);
    (void)close(lock_fd);
    return status;
}

static enum evq_exit status_exit(enum evq_status status)
{
    switch (status) {
    case EVQ_OK:
        return EVQ_EXIT_OK;
    case EVQ_E_STOPPED:
        return EVQ_EXIT_INTERRUPTED;
    case EVQ_E_TIMEOUT:
        return EVQ_EXIT_TIMEOUT;
    case EVQ_E_GONE:
    case EVQ_E_INCOMPLETE:
    case EVQ_E_CORRUPT:
    case EVQ_E_UNSUPPORTED:
    case EVQ_E_LIMIT:
    case EVQ_E_CHANGED:
    case EVQ_E_IO: // It concerns a file, because this command does not use Redis.
        return EVQ_EXIT_BAD_INPUT;
    case EVQ_E_RETRY: // A program reported a failure.
    case EVQ_E_INVALID:
        return EVQ_EXIT_JOB_FAILED;
    default:
        return evq_status_exit_code(status);
    }
}

static void signals_watch(void)
{
    struct sigaction action = {.sa_handler = stop_on_signal};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

enum evq_exit evq_eval_main(const struct evq_options *options)
{
    struct evq_error err;
    struct evq_config *config = NULL;
    struct evq_checkpoint_location place = {.root_fd = -1};
    struct evq_failure failure = {0};
    struct printer printer = {.json = options->json, .tty = isatty(STDERR_FILENO) == 1};
    enum evq_exit code = EVQ_EXIT_CONFIG;

    evq_buffer_init(&printer.out, 0);
    signals_watch();
    enum evq_status status = evq_config_load(&options->source, &config, &err);
    if (status != EVQ_OK) {
        goto out;
    }
    const struct evq_suite *suite = evq_config_suite_find(config, options->suite, &err);
    if (suite == NULL) {
        status = err.status;
        goto out;
    }
    status = evq_runner_suite_check(config, suite, &err);
    if (status != EVQ_OK) {
        goto out;
    }
    if (options->json) {
        evq_buffer_text(&printer.out, "{\"checkpoint\": ");
        evq_buffer_json_text(&printer.out, options->path);
        evq_buffer_text(&printer.out, ", \"tasks\": {");
    }
    status = evq_checkpoint_location_open(options->path, &place, &err);
    if (status == EVQ_OK) {
        status = eval_run(options, config, suite, &place, &printer, &failure, &err);
    }
    code = status_exit(status);
    if (status == EVQ_OK) {
        evq_buffer_text(&printer.out, options->json ? "}}\n" : "");
        if (printer.out.failed) {
            status = evq_error_set(&err, EVQ_E_NOMEM, "the results of suite '%s'", options->suite);
            code = EVQ_EXIT_ERROR;
        } else if (fwrite(printer.out.data, 1, printer.out.bytes, stdout) != printer.out.bytes ||
                   fflush(stdout) != 0) {
            status = evq_error_set(&err, EVQ_E_IO, "standard output cannot be written");
            code = EVQ_EXIT_ERROR;
        }
    }
out:
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "evalq-worker: %s\n%s", err.message, failure.detail);
    }
    evq_checkpoint_location_close(&place);
    evq_config_free(config);
    evq_buffer_free(&printer.out);
    return code;
}
