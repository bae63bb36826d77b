/* What a job needs of a slot, and its canonical text: equal needs give equal text, whatever their
 * order. Any thread. */
#ifndef EVQ_SHARED_QUEUE_NEEDS_H
#define EVQ_SHARED_QUEUE_NEEDS_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/arena.h"

#define EVQ_NEEDS_LABELS_MAX 16
#define EVQ_NEEDS_GPUS_MAX   64
#define EVQ_NEEDS_BYTES_MAX  512 // Room for needs as text, with the NUL.

struct evq_needs {
    int32_t gpus;              // 0: none needed.
    int64_t gpu_memory_bytes;  // Per GPU; 0: any.
    const char *const *labels; // All must be among the worker's.
    size_t label_count;
};

/*
 * Writes the canonical text of needs, which is the key of a class: "" or
 * "gpus=1,gpu_memory=25769803776,labels=a+b" (labels sorted). Parsing also accepts units, as people
 * write them: gpu_memory=24GiB.
 */
enum evq_status evq_needs_text(const struct evq_needs *needs, char *out, size_t out_bytes,
                               struct evq_error *err) EVQ_CHECK_RESULT;
enum evq_status evq_needs_parse(const char *text, struct evq_arena *arena,
                                struct evq_needs *ret_needs,
                                struct evq_error *err) EVQ_CHECK_RESULT;
/* Whether text can be parsed. Allocates nothing. */
enum evq_status evq_needs_check(const char *text, struct evq_error *err) EVQ_CHECK_RESULT;

#endif
