#include "worker/models/model.h"

#include <string.h>

#include "worker/tasks/pairs.h"

static const struct evq_model_family *const families[] = {&evq_model_mlp};

#define FAMILY_COUNT (sizeof(families) / sizeof(families[0]))

static enum evq_status find_family(const struct evq_task_config *task,
                                   const struct evq_model_family **ret_family,
                                   struct evq_error *err)
{
    const char *name = evq_pair_get(task->model, task->model_count, "family", "mlp");
    const char *names[FAMILY_COUNT];

    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        names[i] = families[i]->name;
        if (strcmp(families[i]->name, name) == 0) {
            *ret_family = families[i];
            return EVQ_OK;
        }
    }
    return evq_pairs_unknown("model family", name, names, FAMILY_COUNT, err);
}

enum evq_status evq_model_check(const struct evq_task_config *task, struct evq_error *err)
{
    const struct evq_model_family *family = NULL;

    const enum evq_status status = find_family(task, &family, err);
    return status == EVQ_OK ? family->check(task, err) : status;
}

enum evq_status evq_model_build(const struct evq_model_request *request,
                                struct evq_model **ret_model, struct evq_error *err)
{
    const struct evq_model_family *family = NULL;

    enum evq_status status = find_family(request->task, &family, err);
    if (status != EVQ_OK) {
        return status;
    }
    struct evq_arena *arena = evq_arena_new(0);
    struct evq_model *model = arena != NULL ? evq_arena_alloc(arena, sizeof(*model)) : NULL;
    if (model == NULL) {
        evq_arena_free(arena);
        return evq_error_set(err, EVQ_E_NOMEM, "model of '%s'", request->checkpoint->path);
    }
    model->arena = arena;
    model->family = family->name;
    status = family->build(request, model, err);
    if (status != EVQ_OK) {
        evq_model_free(model);
        return status;
    }
    *ret_model = model;
    return EVQ_OK;
}

void evq_model_free(struct evq_model *model)
{
    if (model != NULL) {
        evq_arena_free(model->arena);
    }
}

bool evq_model_same_weights(const struct evq_model *a, const struct evq_model *b)
{
    if (a->plan.slot_count != b->plan.slot_count) {
        return false;
    }
    for (size_t i = 0; i < a->plan.slot_count; i++) {
        const struct evq_source *x = &a->sources[i];
        const struct evq_source *y = &b->sources[i];
        const struct evq_weight_slot *p = &a->plan.slots[i];
        const struct evq_weight_slot *q = &b->plan.slots[i];
        if (x->kind != y->kind || x->weight != y->weight || x->bias != y->bias ||
            x->mean != y->mean || x->variance != y->variance || x->eps != y->eps ||
            p->rows != q->rows || p->columns != q->columns) {
            return false;
        }
    }
    return true;
}
