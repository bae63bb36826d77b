/* Samples as NumPy writes them: its header is a Python expression. */
// fuzz: engine
#include "array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_array(&evq_dataset_npy, data, bytes);
    return 0;
}
