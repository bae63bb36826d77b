/*
 * A distributed checkpoint: two bytes say how long .metadata is, which follows them; the rest is
 * the one file of parts, under the names that seeds call it. What opens must read, and be complete.
 */
#include "tests/fuzz/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int root_fd = fuzz_folder();
    static bool linked;

    if (bytes < 2) {
        return 0;
    }
    size_t metadata = (size_t)data[0] | (size_t)data[1] << 8;
    metadata = metadata < bytes - 2 ? metadata : bytes - 2;
    if (!linked) {
        check(mkdirat(root_fd, "d", 0700) == 0);
        fuzz_write(root_fd, "d/__0_0.distcp", "", 0);
        check(linkat(root_fd, "d/__0_0.distcp", root_fd, "d/p", 0) == 0);
        linked = true;
    }
    fuzz_write(root_fd, "d/.metadata", data + 2, metadata);
    fuzz_write(root_fd, "d/__0_0.distcp", data + 2 + metadata, bytes - 2 - metadata);
    fuzz_read_all(root_fd, "d");
    return 0;
}
