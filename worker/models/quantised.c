#include "worker/models/quantised.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#define GROUP "quantization_config"

static void read_fp8(struct evq_model_config *config, struct evq_quantised *quantised)
{
    static const char *const blocks = GROUP ".weight_block_size";
    const char *scheme = evq_model_config_text(config, GROUP ".activation_scheme", "dynamic");
    const int64_t fallback = evq_model_config_has(config, GROUP ".weight_block_size") ? 0 : 128;

    quantised->method = EVQ_QUANTISED_FP8;
    if (strcmp(scheme, "dynamic") != 0) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                GROUP ".activation_scheme is '%.40s', expected dynamic", scheme);
    }
    if (evq_model_config_has(config, GROUP ".modules_to_convert.0")) {
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                GROUP ".modules_to_convert names modules, expected none");
    }
    if (evq_model_config_null(config, blocks)) {
        return;
    }
    if (evq_model_config_has(config, GROUP ".weight_block_size.2")) {
        evq_model_config_refuse(config, EVQ_E_INVALID, "%s has more than two numbers", blocks);
    }
    quantised->block_rows =
        evq_model_config_integer(config, GROUP ".weight_block_size.0", 1, INT_MAX, fallback);
    quantised->block_columns =
        evq_model_config_integer(config, GROUP ".weight_block_size.1", 1, INT_MAX, fallback);
}

void evq_quantised_read(struct evq_model_config *config, bool packs_experts,
                        struct evq_quantised *quantised)
{
    char shown[64];

    *quantised = (struct evq_quantised){0};
    if (!evq_model_config_has(config, GROUP)) {
        return;
    }
    const char *method = evq_model_config_text(config, GROUP ".quant_method", NULL);
    if (strcmp(method, "fp8") == 0) {
        read_fp8(config, quantised);
    } else if (strcmp(method, "mxfp4") == 0 && packs_experts) {
        quantised->method = EVQ_QUANTISED_MXFP4;
    } else {
        evq_error_escape(method, strlen(method), shown, sizeof(shown));
        evq_model_config_refuse(config, EVQ_E_UNSUPPORTED,
                                "the weights are quantised: " GROUP ".quant_method is '%s', "
                                "expected fp8%s: evaluate the checkpoint with the model server",
                                shown, packs_experts ? " or mxfp4" : "");
    }
}

/* Whether `scales` is the right number of scales for `values` values in blocks of `block`. block 0:
 * all values are one block. Transformers refuses a shorter last block, and so does evalq. */
static bool divides(int64_t values, int64_t block, int64_t scales)
{
    return scales == 1 ? block == 0 || values <= block
                       : block > 0 && values % block == 0 && values / block == scales;
}

static enum evq_status check_fp8(const struct evq_quantised *quantised, const char *file,
                                 const struct evq_tensor *scale, const struct evq_source *source,
                                 struct evq_error *err)
{
    const struct evq_tensor *tensor = source->tensor;
    const bool whole = quantised->block_rows == 0;
    const int64_t rows = scale->rank == 2 ? scale->shape[0] : 1;
    const int64_t columns = scale->rank == 2 ? scale->shape[1] : 1;

    if (evq_dtype_bytes(tensor->dtype) != 1 || tensor->rank != 2 || source->rows == 1) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' in '%s' is %s with %d dimensions and has scales, "
                             "expected a matrix of F8_E4M3",
                             tensor->name, file, tensor->dtype_name, (int)tensor->rank);
    }
    if (!evq_dtype_is_float(scale->dtype)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' is %s, expected scales of F32, F16 or BF16", scale->name,
                             scale->dtype_name);
    }
    if ((scale->rank != 2 && !(whole && scale->rank <= 1)) ||
        (scale->rank == 1 && scale->shape[0] != 1) ||
        !divides(tensor->shape[0], quantised->block_rows, rows) ||
        !divides(tensor->shape[1], quantised->block_columns, columns)) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' has %" PRId64 " x %" PRId64 " scales for %" PRId64
                             " x %" PRId64 " values, expected one for each block of %" PRId64
                             " x %" PRId64 " (0: for all), and no shorter blocks",
                             scale->name, rows, columns, tensor->shape[0], tensor->shape[1],
                             quantised->block_rows, quantised->block_columns);
    }
    return EVQ_OK;
}

static enum evq_status check_mxfp4(const char *file, const struct evq_tensor *scale,
                                   const struct evq_source *source, struct evq_error *err)
{
    const struct evq_tensor *tensor = source->tensor;
    bool same = scale->dtype == EVQ_DTYPE_U8 && scale->rank == tensor->rank - 1;

    for (int32_t i = 0; same && i < scale->rank; i++) {
        same = scale->shape[i] == tensor->shape[i];
    }
    return same ? EVQ_OK
                : evq_error_set(err, EVQ_E_INVALID,
                                "tensor '%s' in '%s' does not fit '%s', expected U8 scales of its "
                                "first %d dimensions",
                                scale->name, file, tensor->name, (int)tensor->rank - 1);
}

enum evq_status evq_quantised_take(const struct evq_quantised *quantised, const char *file,
                                   const struct evq_tensor *scale, struct evq_source *source,
                                   struct evq_error *err)
{
    const struct evq_tensor *tensor = source->tensor;
    const bool packed = source->kind == EVQ_SOURCE_MXFP4;

    const bool fp8 = quantised->method == EVQ_QUANTISED_FP8 && evq_dtype_bytes(tensor->dtype) == 1;

    if (scale == NULL && (packed || fp8)) {
        return evq_error_set(err, EVQ_E_INVALID,
                             "tensor '%s' in '%s' is quantised, but its scales are missing (%s)",
                             tensor->name, file, packed ? "..._scales" : "..._scale_inv");
    }
    if (scale == NULL) {
        return EVQ_OK;
    }
    const enum evq_status status = packed ? check_mxfp4(file, scale, source, err)
                                          : check_fp8(quantised, file, scale, source, err);
    if (status != EVQ_OK) {
        return status;
    }
    if (!tensor->contiguous || !scale->contiguous) {
        return evq_error_set(err, EVQ_E_UNSUPPORTED,
                             "tensor '%s' in '%s' is quantised, and it or its scales are not "
                             "stored in one piece: convert the checkpoint to safetensors first",
                             tensor->name, file);
    }
    source->kind = packed ? EVQ_SOURCE_MXFP4 : EVQ_SOURCE_SCALED;
    source->scale = scale;
    return EVQ_OK;
}
