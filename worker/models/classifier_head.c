#include "worker/models/classifier_head.h"

#include "worker/models/decoder_parts.h"

enum { POOLED, DENSE, LOGITS };

void evq_classifier_columns(const struct evq_decoder *shape, int32_t *columns)
{
    const bool used = shape->classes > 0;

    columns[POOLED] = used && shape->mean ? shape->hidden : 1;
    columns[DENSE] = used ? shape->hidden : 1;
    columns[LOGITS] = used ? shape->classes : 1;
}

void evq_classifier_add_head(struct evq_decoder_plan *plan, int32_t in, int32_t pooled)
{
    const struct evq_decoder *shape = plan->shape;
    const struct evq_decoder_names *names = plan->names;
    const int32_t place = names->dense_inside ? EVQ_DECODER_BESIDE : EVQ_DECODER_OUTSIDE;
    const struct evq_decoder_part dense = {names->dense, shape->hidden};
    const struct evq_decoder_part head = {plan->head, shape->classes};
    struct evq_op op = plan->request->head;

    if (shape->mean) {
        evq_decoder_add_op(plan, &(struct evq_op){.kind = EVQ_OP_MEAN,
                                                  .in = in,
                                                  .out = pooled + POOLED,
                                                  .weight = -1,
                                                  .bias = -1,
                                                  .n = shape->hidden});
        in = pooled + POOLED;
    }
    if (names->dense != NULL) {
        evq_decoder_add_gemm(plan, place, &dense, 1, shape->hidden, shape->dense_bias,
                             (struct evq_op){.in = in,
                                             .out = pooled + DENSE,
                                             .activation = shape->dense_activation});
        in = pooled + DENSE;
    }
    if (names->dense_norm != NULL) {
        evq_decoder_add_norm(plan, place, names->dense_norm, in, in);
    }
    evq_decoder_add_gemm(plan, EVQ_DECODER_OUTSIDE, &head, 1, shape->hidden, true,
                         (struct evq_op){.in = in, .out = pooled + LOGITS});
    op.in = pooled + LOGITS;
    op.out = op.weight = op.bias = -1;
    op.n = op.k = shape->classes;
    evq_decoder_add_op(plan, &op);
}
