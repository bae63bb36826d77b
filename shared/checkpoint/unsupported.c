#include <string.h>

#include "shared/checkpoint/format.h"

/* Formats that are known by their first bytes and refused by name. */
static const struct {
    const char *magic;
    size_t bytes;
    size_t at;
    const char *sentence;
} magics[] = {
    {"ustar", 5, 257, "this is a tar archive (torch before 0.2), which is not read"},
    {"\x80\x02", 2, 0, "this is a bare pickle, not a file of torch.save"},
    {"\x80\x03", 2, 0, "this is a bare pickle, not a file of torch.save"},
    {"\x80\x04", 2, 0, "this is a bare pickle, not a file of torch.save"},
    {"\x80\x05", 2, 0, "this is a bare pickle, not a file of torch.save"},
    {"\x89HDF\r\n\x1a\n", 8, 0, "this is an HDF5 file (Keras or TensorFlow), which is not read"},
    {"GGUF", 4, 0, "this is a GGUF file, which is not read"},
    {"\x93NUMPY", 6, 0, "this is a NumPy array, not a checkpoint"},
    {"\x1f\x8b", 2, 0, "this is compressed with gzip: unpack it first"},
    {"\x28\xb5\x2f\xfd", 4, 0, "this is compressed with zstd: unpack it first"},
    {"version https://git-lfs", 23, 0, "this is a Git LFS pointer: fetch the file itself first"},
};

static const char *find_sentence(const uint8_t *head, size_t head_bytes)
{
    for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
        if (head_bytes >= magics[i].at + magics[i].bytes &&
            memcmp(head + magics[i].at, magics[i].magic, magics[i].bytes) == 0) {
            return magics[i].sentence;
        }
    }
    return NULL;
}

static bool unsupported_probe(const uint8_t *head, size_t head_bytes, uint64_t file_bytes)
{
    const char *sentence = find_sentence(head, head_bytes);

    // A safetensors header of 0x0280 or 0x8b1f bytes begins like these; its ninth byte tells.
    return sentence != NULL &&
           (head[0] == 'G' || !evq_format_safetensors.probe(head, head_bytes, file_bytes));
}

static enum evq_status unsupported_open(struct evq_checkpoint *checkpoint, int32_t file,
                                        const struct evq_checkpoint_options *options,
                                        struct evq_error *err)
{
    uint8_t head[512];
    uint64_t bytes = checkpoint->files[file].bytes;
    size_t head_bytes = bytes < sizeof(head) ? (size_t)bytes : sizeof(head);

    (void)options; // Nothing is read whatever is asked for.
    enum evq_status status = evq_checkpoint_read_bytes(checkpoint, file, 0, head, head_bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    const char *sentence = find_sentence(head, head_bytes);
    return evq_error_set(err, EVQ_E_UNSUPPORTED, "%s",
                         sentence == NULL ? "it changed while it was opened" : sentence);
}

const struct evq_format evq_format_unsupported = {
    .name = "unsupported", .probe = unsupported_probe, .open = unsupported_open};
