/*
 * Bodies of LMMS-Eval's clients, read by rules of pydantic: every one is a request or a list of
 * faults, and each is freed. The sources themselves: they need no library of the gateway.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "producer/gateway/lmms/lmms_fields.c"

#include "producer/gateway/lmms/lmms_request.c"
#include "tests/fuzz/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct evq_lmms_request *request = NULL;
    struct evq_lmms_merge merge;
    json_t *fault = NULL;

    if (evq_lmms_request_read((const char *)data, bytes, &request, &fault) == EVQ_OK) {
        check(request->gpus >= 1 && request->gpus <= EVQ_LMMS_GPUS_MAX);
        check(strchr(request->model_dir, '/') == NULL);
        check(json_object_get(request->args, "num_gpus") == NULL);
        char *text = json_dumps(request->echo, 0);
        check(text != NULL); // What was understood can be shown.
        free(text);
    } else {
        check(json_array_size(json_object_get(fault, "detail")) > 0);
    }
    evq_lmms_request_free(request);
    json_decref(fault);
    fault = NULL;
    check(evq_lmms_merge_read((const char *)data, bytes, &merge, &fault) != EVQ_OK ||
          strcmp(merge.variant, "ema") == 0 || strcmp(merge.variant, "regular") == 0);
    evq_lmms_merge_free(&merge);
    json_decref(fault);
    return 0;
}
