/* Samples as MNIST has them: IDX, plain or packed with gzip. */
// fuzz: engine
#include "array.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_array(&evq_dataset_idx, data, bytes);
    return 0;
}
