/*
 * A file of torch.save. The CRC of data.pkl is put right first, so that a changed pickle is read
 * too. What opens must read: every tensor's values in 64 MB, and be complete.
 */
#include <zlib.h>

#include "shared/checkpoint/torch/zip.h"
#include "tests/fuzz/checkpoint.h"

/* Replaces the recorded CRC of each pickle wherever it stands by the true one. */
static void mend(int folder_fd, uint8_t *data, size_t bytes)
{
    const struct evq_zip_source source = {.fd = openat(folder_fd, "x.pt", O_RDONLY | O_CLOEXEC),
                                          .bytes = bytes};
    struct evq_zip *zip = NULL;

    const enum evq_status status = evq_zip_read(&source, 1000000, &zip, NULL);
    (void)close(source.fd);
    if (status != EVQ_OK) {
        return;
    }
    for (size_t i = 0; i < zip->count; i++) {
        const struct evq_zip_entry *entry = &zip->entries[i];
        const char *end = strrchr(entry->name, '/');
        if (end == NULL || strcmp(end, "/data.pkl") != 0) {
            continue;
        }
        uint32_t crc = (uint32_t)crc32(0, data + entry->offset, (uInt)entry->bytes);
        for (size_t at = 0; at + 4 <= bytes; at++) {
            bool inside = at + 4 > entry->offset && at < entry->offset + entry->bytes;
            if (!inside && memcmp(data + at, &entry->crc, 4) == 0) {
                memcpy(data + at, &crc, 4);
            }
        }
    }
    evq_zip_free(zip);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int root_fd = fuzz_folder();
    uint8_t *copy = malloc(bytes + 1);

    check(copy != NULL);
    memcpy(copy, data, bytes);
    fuzz_write(root_fd, "x.pt", copy, bytes);
    mend(root_fd, copy, bytes);
    fuzz_write(root_fd, "x.pt", copy, bytes);
    free(copy);
    fuzz_read_all(root_fd, "x.pt");
    return 0;
}
