#include "gpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool write_config(const struct gpt *gpt, FILE *file)
{
    (void)gpt;
    return fprintf(file,
                   "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\",\n"
                   " \"vocab_size\": %d, \"n_positions\": %d, \"n_embd\": %d, \"n_head\": %d,\n"
                   " \"n_layer\": %d, \"activation_function\": \"gelu_new\",\n"
                   " \"layer_norm_epsilon\": 1e-05, \"tie_word_embeddings\": true}\n",
                   GPT_VOCABULARY, GPT_CONTEXT, GPT_WIDTH, GPT_HEADS, GPT_LAYERS) > 0;
}

/* GPT-2 writes printable bytes as themselves, and the others as letters from U+0100 on. */
static bool write_tokenizer(const struct gpt *gpt, FILE *file)
{
    int next = 0x100;

    (void)gpt;
    fprintf(file, "{\"version\": \"1.0\", \"added_tokens\": [], \"normalizer\": null,\n"
                  " \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false,\n"
                  "  \"trim_offsets\": true, \"use_regex\": true},\n"
                  " \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"},\n"
                  " \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
    for (int byte = 0; byte < GPT_VOCABULARY; byte++) {
        const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
                               (byte >= 174 && byte <= 255);
        fprintf(file, "%s\"\\u%04x\": %d", byte > 0 ? ", " : "", printable ? byte : next++, byte);
    }
    return fprintf(file, "}}}\n") > 0;
}

/*
 * A safetensors file begins with the length of its header (8 bytes, little-endian) and the header
 * (JSON, padded to a multiple of 8). The tensors follow.
 */
static bool write_weights(const struct gpt *gpt, FILE *file)
{
    char header[8192];
    uint8_t length[8] = {0};
    size_t offset = 0;
    int used = snprintf(header, sizeof(header),
                        "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"%ld\"}", gpt->steps);

    for (int at = 0; at < GPT_TENSORS; at++) { // The file has the order of the memory.
        const struct gpt_tensor *tensor = &gpt->tensors[at];
        const size_t end = at + 1 < GPT_TENSORS ? gpt->tensors[at + 1].offset : gpt->count;
        char shape[32];
        snprintf(shape, sizeof(shape), tensor->rows > 0 ? "%d,%d" : "%.0d%d", tensor->rows,
                 tensor->columns);
        used += snprintf(header + used, sizeof(header) - (size_t)used,
                         ",\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                         tensor->name, shape, offset * sizeof(float), end * sizeof(float));
        offset = end;
    }
    header[used++] = '}';
    while (used % 8 != 0) {
        header[used++] = ' ';
    }
    for (int at = 0; at < 8; at++) {
        length[at] = (uint8_t)((uint64_t)used >> (8 * at));
    }
    return fwrite(length, sizeof(length), 1, file) == 1 &&
           fwrite(header, (size_t)used, 1, file) == 1 &&
           fwrite(gpt->values, sizeof(float), gpt->count, file) == gpt->count;
}

static bool write_file(const struct gpt *gpt, const char *folder, const char *name,
                       bool (*write)(const struct gpt *gpt, FILE *file))
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    bool written =
        file != NULL && write(gpt, file) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (file != NULL && fclose(file) != 0) {
        written = false;
    }
    return written;
}

bool gpt_save(const struct gpt *gpt, const char *path)
{
    char folder[4000];

    snprintf(folder, sizeof(folder), "%s.tmp", path);
    if (mkdir(folder, 0777) != 0 || !write_file(gpt, folder, "config.json", write_config) ||
        !write_file(gpt, folder, "tokenizer.json", write_tokenizer) ||
        !write_file(gpt, folder, "model.safetensors", write_weights) || rename(folder, path) != 0) {
        fprintf(stderr, "train_gpt: cannot write '%s': %s\n", path, strerror(errno));
        return false;
    }
    return true;
}
