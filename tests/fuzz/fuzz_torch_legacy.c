/*
 * A legacy stream of torch.save. What opens must read: every tensor's values in 64 MB, and be
 * complete.
 */
#include "tests/fuzz/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const int root_fd = fuzz_folder();

    fuzz_write(root_fd, "x.pt", data, bytes);
    fuzz_read_all(root_fd, "x.pt");
    return 0;
}
