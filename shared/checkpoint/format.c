#include "shared/checkpoint/format.h"

#include <string.h>

#include "shared/base/file.h"
#include "shared/checkpoint/root_open.h"

#define HEAD_BYTES 512

// First match wins; safetensors has no magic number and comes last.
static const struct evq_format *const formats[] = {&evq_format_torch_zip, &evq_format_torch_legacy,
                                                   &evq_format_unsupported,
                                                   &evq_format_safetensors};

/* Refuses a file of unknown format. If evalq reads its extension, the file is damaged; any other
 * may be of a format that the user's evaluator reads. */
static enum evq_status unknown(const char *name, const uint8_t *head, size_t head_bytes,
                               uint64_t file_bytes, struct evq_error *err)
{
    const bool torch = evq_file_ends_with(name, ".pt") || evq_file_ends_with(name, ".pth");
    static const uint8_t zip_magic[4] = {'P', 'K', 3, 4};
    char hex[3 * 8 + 1] = "";

    if (head_bytes < sizeof(zip_magic) && memcmp(head, zip_magic, head_bytes) == 0) {
        return evq_error_set(err, EVQ_E_INCOMPLETE,
                             "the file holds only %llu bytes: still being written",
                             (unsigned long long)file_bytes);
    }
    for (size_t i = 0; i < 8 && i < head_bytes; i++) {
        static const char digits[] = "0123456789abcdef";
        hex[3 * i] = ' ';
        hex[3 * i + 1] = digits[head[i] >> 4];
        hex[3 * i + 2] = digits[head[i] & 15];
        hex[3 * i + 3] = '\0';
    }
    return evq_error_set(
        err, torch ? EVQ_E_CORRUPT : EVQ_E_UNSUPPORTED,
        "no checkpoint, but %llu bytes that begin with%s; expected safetensors or a "
        "file of torch.save",
        (unsigned long long)file_bytes, hex);
}

static enum evq_status read_known(struct evq_checkpoint *checkpoint, const char *name, int32_t file,
                                  const struct evq_checkpoint_options *options,
                                  struct evq_error *err)
{
    uint8_t head[HEAD_BYTES];
    uint64_t bytes = checkpoint->files[file].bytes;
    size_t head_bytes = bytes < HEAD_BYTES ? (size_t)bytes : HEAD_BYTES;

    if (bytes == 0) {
        return evq_error_set(err, EVQ_E_INCOMPLETE, "the file is empty: still being written");
    }
    enum evq_status status = evq_checkpoint_read_bytes(checkpoint, file, 0, head, head_bytes, err);
    if (status != EVQ_OK) {
        return status;
    }
    const struct evq_format *format = NULL;
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]) && format == NULL; i++) {
        if (formats[i]->probe(head, head_bytes, bytes)) {
            format = formats[i];
        }
    }
    if (format == NULL && evq_file_ends_with(name, ".safetensors")) {
        format = &evq_format_safetensors; // Its reader explains the fault better than "unknown".
    }
    if (format == NULL) {
        return unknown(name, head, head_bytes, bytes, err);
    }
    checkpoint->format = format->name;
    return format->open(checkpoint, file, options, err);
}

enum evq_status evq_format_read(struct evq_checkpoint *checkpoint, const char *name, int fd,
                                const struct stat *info,
                                const struct evq_checkpoint_options *options, struct evq_error *err)
{
    int32_t file = 0;
    enum evq_status status = evq_builder_add_file(checkpoint, name, fd, info, &file, err);

    return status == EVQ_OK ? read_known(checkpoint, name, file, options, err) : status;
}

enum evq_status evq_format_read_part(struct evq_checkpoint *checkpoint, int root_fd,
                                     const char *folder, const char *name,
                                     const struct evq_checkpoint_options *options,
                                     struct evq_error *err)
{
    struct stat info;
    int fd = -1;
    enum evq_status status =
        evq_root_open_part(root_fd, folder, name, EVQ_E_INCOMPLETE, &fd, &info, err);

    if (status != EVQ_OK) {
        return status; // The message names the file.
    }
    status = evq_format_read(checkpoint, name, fd, &info, options, err);
    if (status != EVQ_OK) {
        (void)evq_error_prefix(err, "'%.160s'", name); // The status stays what it is.
    }
    return status;
}
