/*
 * Writes what evalq reads of a checkpoint, for tests/peers/test_checkpoints.py:
 *   dump_tensors ROOT PATH [KEY [VARIANT [BASE]]]
 * For each tensor a line of name, dtype and shape, divided by tabs, then its bytes, then its values
 * as float32.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/checkpoint/checkpoint.h"

static enum evq_status dump(const struct evq_checkpoint *checkpoint,
                            const struct evq_tensor *tensor, struct evq_error *err)
{
    size_t elements = 0;

    if (!evq_tensor_elements(tensor, &elements)) {
        return evq_error_set(err, EVQ_E_LIMIT, "tensor '%s' is too large", tensor->name);
    }
    const size_t bytes = elements * evq_dtype_bytes(tensor->dtype);
    void *raw = malloc(bytes + 1);
    float *values = malloc(elements * sizeof(*values) + 1);
    enum evq_status status = raw == NULL || values == NULL
                                 ? evq_error_set(err, EVQ_E_NOMEM, "%zu bytes", bytes)
                                 : evq_checkpoint_read_raw(checkpoint, tensor, raw, bytes, err);
    if (status == EVQ_OK) {
        status = evq_checkpoint_read_f32(checkpoint, tensor, values, elements, err);
    }
    if (status == EVQ_OK) {
        (void)printf("%s\t%s\t", tensor->name, tensor->dtype_name);
        for (int32_t i = 0; i < tensor->rank; i++) {
            (void)printf(i == 0 ? "%lld" : ",%lld", (long long)tensor->shape[i]);
        }
        (void)printf("\n");
        if (fwrite(raw, 1, bytes, stdout) != bytes ||
            fwrite(values, sizeof(*values), elements, stdout) != elements) {
            status = evq_error_set(err, EVQ_E_IO, "standard output");
        }
    }
    free(values);
    free(raw);
    return status;
}

int main(int argc, char **argv)
{
    const struct evq_checkpoint_options options = {.key = argc > 3 ? argv[3] : "",
                                                   .variant = argc > 4 ? argv[4] : NULL,
                                                   .base = argc > 5 ? argv[5] : NULL};
    struct evq_checkpoint *checkpoint = NULL;
    struct evq_error err = {.message = "two arguments, ROOT and PATH"};
    enum evq_status status = EVQ_E_INVALID;

    if (argc > 2) {
        const int root_fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        status = evq_checkpoint_open(root_fd, argv[2], &options, &checkpoint, &err);
    }
    for (size_t i = 0; status == EVQ_OK && i < checkpoint->tensor_count; i++) {
        status = dump(checkpoint, &checkpoint->tensors[i], &err);
    }
    evq_checkpoint_close(checkpoint);
    if (status != EVQ_OK) {
        (void)fprintf(stderr, "%s: %s\n", evq_status_name(status), err.message);
        return 1;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
