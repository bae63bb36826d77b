/*
 * ViT with a head that classifies images: patches, a class token, learned positions, and norms
 * before each block.
 */
#include <stdio.h>

#include "worker/models/classifier.h"

#define SIDE_MAX 65536 // Most pixels of a side.

static const char *const buffers[] = {"embeddings.mask_token", NULL};

static const struct evq_decoder_names names = {
    .inside = "vit.",
    .embedding = "embeddings.patch_embeddings.projection",
    .positions = "embeddings.position_embeddings",
    .class_token = "embeddings.cls_token",
    .layer = "encoder.layer.",
    .attention_norm = "layernorm_before",
    .query = "attention.attention.query",
    .key = "attention.attention.key",
    .value = "attention.attention.value",
    .attention_out = "attention.output.dense",
    .mlp_norm = "layernorm_after",
    .up = "intermediate.dense",
    .down = "output.dense",
    .final_norm = "layernorm",
    .head = "classifier",
    .buffers = buffers,
};

/* Reads height and width: one number for both, or a list of the two. */
static void read_sides(struct evq_model_config *config, const char *name, int64_t fallback,
                       int32_t sides[2])
{
    char item[40];

    for (int32_t i = 0; i < 2; i++) {
        (void)snprintf(item, sizeof(item), "%s.%d", name, (int)i);
        const bool listed = evq_model_config_has(config, item);
        sides[i] =
            (int32_t)evq_model_config_integer(config, listed ? item : name, 1, SIDE_MAX, fallback);
    }
}

static void vit_read(struct evq_model_config *config, struct evq_arena *arena,
                     struct evq_decoder *decoder)
{
    int32_t image[2];
    int32_t patch[2];

    (void)arena; // ViT has no rotary positions and no windows.
    evq_classifier_read_encoder(config, NULL, decoder);
    read_sides(config, "image_size", 224, image);
    read_sides(config, "patch_size", 16, patch);
    decoder->patches = (struct evq_patches){
        .channels = (int32_t)evq_model_config_integer(config, "num_channels", 1, 1024, 3),
        .height = image[0],
        .width = image[1],
        .patch_height = patch[0],
        .patch_width = patch[1],
    };
    decoder->qkv_bias = evq_model_config_flag(config, "qkv_bias", true);
    decoder->vocabulary = 2; // Token 0 is the class, token 1 is any patch.
    const int64_t rows = 1 + (int64_t)(image[0] / patch[0]) * (image[1] / patch[1]);
    const int64_t values = (int64_t)decoder->patches.channels * image[0] * image[1];
    if (rows < 2 || values > 1 << 28) {
        evq_model_config_refuse(config, EVQ_E_INVALID,
                                "images of %d x %d pixels do not divide into patches of %d x %d, "
                                "or are too large",
                                (int)image[0], (int)image[1], (int)patch[0], (int)patch[1]);
    }
    decoder->context = rows < INT32_MAX ? (int32_t)rows : 1;
}

static const char *const architectures[] = {"ViTForImageClassification", "vit", NULL};
static const char *const keys[] = {"hidden_act",
                                   "hidden_size",
                                   "image_size",
                                   "intermediate_size",
                                   "layer_norm_eps",
                                   "num_attention_heads",
                                   "num_channels",
                                   "num_hidden_layers",
                                   "num_labels",
                                   "patch_size",
                                   "problem_type",
                                   "qkv_bias",
                                   NULL};
// The classifier reads none of these keys.
static const char *const more_keys[] = {"encoder_stride", "pooler_act", "pooler_output_size", NULL};
static const struct evq_decoder_kind kind = {
    .names = &names, .keys = keys, .more_keys = more_keys, .read = vit_read};

const struct evq_model_family evq_model_vit = {
    .name = "vit", .architectures = architectures, .own_types_only = true, .decoder = &kind};
