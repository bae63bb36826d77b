/*
 * A language model from a checkpoint on the CPU backend, and texts scored by it.
 */
#ifndef EVQ_TESTS_UNIT_MODEL_FIXTURE_H
#define EVQ_TESTS_UNIT_MODEL_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fixture/check.h"
#include "tests/fixture/folder.h"
#include "worker/loader/loader.h"
#include "worker/models/model.h"

#define TOKENS_MAX 64

struct text { // Sequences packed one after another, each token but the first of each scored.
    int32_t tokens[TOKENS_MAX], starts[8], score_rows[TOKENS_MAX], score_targets[TOKENS_MAX];
    double expected[TOKENS_MAX];
    struct evq_batch batch;
};

static inline void text_add(struct text *text, const int32_t *tokens, int32_t count)
{
    struct evq_batch *batch = &text->batch;

    assert_true(batch->rows + count <= TOKENS_MAX && batch->sequences < 7);
    for (int32_t i = 0; i < count; i++) {
        text->tokens[batch->rows + i] = tokens[i];
        if (i + 1 < count) {
            text->score_rows[batch->scores] = batch->rows + i;
            text->score_targets[batch->scores++] = tokens[i + 1];
        }
    }
    batch->rows += count;
    text->starts[++batch->sequences] = batch->rows;
    batch->tokens = text->tokens;
    batch->starts = text->starts;
    batch->score_rows = text->score_rows;
    batch->score_targets = text->score_targets;
}

struct scored { // A model in place.
    struct evq_checkpoint *checkpoint;
    struct evq_model *model;
    void *state;
    struct evq_loader *loader;
    struct evq_loaded loaded;
    struct evq_row_result results[TOKENS_MAX];
};

/* Opens and builds; options may be NULL. */
static inline enum evq_status scored_build(struct scored *scored, const char *folder,
                                           const char *path, const struct evq_pair *options,
                                           size_t option_count, int32_t length,
                                           struct evq_error *err)
{
    const struct evq_task_config task = {
        .name = "t", .model = options, .model_count = option_count};
    const int root_fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_true(root_fd >= 0);
    *scored = (struct scored){0};
    enum evq_status status = evq_checkpoint_open(root_fd, path, NULL, &scored->checkpoint, err);
    (void)close(root_fd);
    const struct evq_model_request request = {.checkpoint = scored->checkpoint,
                                              .task = &task,
                                              .head = {.kind = EVQ_OP_SCORE},
                                              .rows_max = TOKENS_MAX,
                                              .length_max = length};
    return status == EVQ_OK ? evq_model_build(&request, &scored->model, err) : status;
}

static inline enum evq_status scored_load(struct scored *scored, struct evq_error *err)
{
    const struct evq_backend_config config = {.threads = 2};

    if (scored->state == NULL) {
        assert_status(evq_backend_cpu.open(&config, &scored->state, err), EVQ_OK);
        assert_status(evq_loader_new(&evq_backend_cpu, scored->state, 2, &scored->loader, err),
                      EVQ_OK);
    }
    enum evq_status status = evq_backend_cpu.prepare(scored->state, &scored->model->plan, err);
    return status == EVQ_OK ? evq_loader_fill(scored->loader, scored->checkpoint, scored->model,
                                              &scored->loaded, err)
                            : status;
}

static inline void scored_close(struct scored *scored)
{
    evq_loader_free(scored->loader);
    evq_backend_cpu.close(scored->state);
    evq_model_free(scored->model);
    evq_checkpoint_close(scored->checkpoint);
    *scored = (struct scored){0};
}

/* One text replaced in a copy of a family's config.json. */
struct edit {
    const char *family, *from, *to;
    enum evq_status status;
    const char *words[3];
};

static inline void copy_model(const struct fixture_folder *folder, const struct edit *edit)
{
    char path[256];
    size_t bytes = 0;

    (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/models/%s/model.safetensors", edit->family);
    uint8_t *weights = fixture_file_load(path, &bytes);
    fixture_folder_write(folder, "model.safetensors", weights, bytes);
    free(weights);
    (void)snprintf(path, sizeof(path), EVQ_TEST_DATA "/models/%s/config.json", edit->family);
    char *config = (char *)fixture_file_load(path, &bytes);
    config = realloc(config, bytes + 1);
    assert_non_null(config);
    config[bytes] = '\0';
    char *at = strstr(config, edit->from);
    if (at == NULL) {
        fail_msg("%s holds no '%s'", path, edit->from);
    }
    const size_t before = (size_t)(at - config);
    const size_t more = strlen(edit->to);
    char *edited = malloc(bytes + more + 1);
    assert_non_null(edited);
    (void)snprintf(edited, bytes + more + 1, "%.*s%s%s", (int)before, config, edit->to,
                   at + strlen(edit->from));
    fixture_folder_write(folder, "config.json", edited, strlen(edited));
    free(edited);
    free(config);
}

#endif
