/*
 * A config.json beside a tiny Llama's weights: what is refused says so in one line; what is
 * accepted is a model whose every weight is filled, once, by tensors of the checkpoint.
 */
// fuzz: engine
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/check.h"
#include "worker/models/model.h"

static struct evq_checkpoint *checkpoint;
static char path[64];

static void stop(void)
{
    (void)unlink(path);
    evq_checkpoint_close(checkpoint);
}

static void start(void)
{
    const int root_fd = open("tests/data/models", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    check(root_fd >= 0);
    check(evq_checkpoint_open(root_fd, "llama/model.safetensors", NULL, &checkpoint, NULL) ==
          EVQ_OK);
    (void)close(root_fd);
    (void)snprintf(path, sizeof(path), "/dev/shm/evq-fuzz-config-%d.json", (int)getpid());
    (void)atexit(stop);
}

static void check_model(const struct evq_model *model)
{
    int32_t slot = 0;
    int32_t row = 0;

    check(model->context >= 1 && model->outputs >= 1);
    for (size_t i = 0; i < model->source_count; i++) {
        const struct evq_source *source = &model->sources[i];
        const struct evq_weight_slot *wanted = &model->plan.slots[slot];
        check(source->slot == slot && source->first_row == row && source->rows >= 1);
        row += source->rows;
        if (row == (wanted->rows == 1 ? wanted->columns : wanted->rows)) {
            slot++;
            row = 0;
        }
    }
    check(row == 0 && (size_t)slot == model->plan.slot_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct evq_pair options[] = {{"config_path", path}};
    const struct evq_task_config task = {.name = "t", .model = options, .model_count = 1};
    struct evq_error err = {EVQ_OK, ""};
    struct evq_model *model = NULL;

    if (checkpoint == NULL) {
        start();
    }
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    (void)close(fd);
    const struct evq_model_request request = {
        .checkpoint = checkpoint, .task = &task, .head = {.kind = EVQ_OP_SCORE}, .rows_max = 64};
    if (evq_model_build(&request, &model, &err) != EVQ_OK) {
        check(model == NULL && err.message[0] != '\0');
        for (const char *c = err.message; *c != '\0'; c++) {
            check((unsigned char)*c >= 0x20 && *c != 0x7f); // It is shown on a terminal.
        }
        return 0;
    }
    check_model(model);
    evq_model_free(model);
    return 0;
}
