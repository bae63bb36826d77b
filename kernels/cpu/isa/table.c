/*
 * The inner loops for one instruction set. kernels/CMakeLists.txt compiles this file once for each
 * set, with EVQ_KERNELS_TABLE as the name of the table.
 */
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/isa/gemm.h"
#include "kernels/cpu/isa/logsum.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/kernels.h"

_Static_assert(PANEL <= EVQ_KERNELS_PAD, "rows have room for a whole panel");

extern const struct evq_kernels EVQ_KERNELS_TABLE;
const struct evq_kernels EVQ_KERNELS_TABLE = {
    .panel = PANEL,
    .gemm_scratch_floats = gemm_scratch_floats,
    .gemm = gemm_run,
#if defined(__AVX512BF16__)
    .round = pairs_round,
#endif
    .attention_scratch_floats = attention_scratch_floats,
    .attention = attention_run,
    .activate = rows_activate,
    .gate = rows_gate,
    .gate_pairs = rows_gate_pairs,
    .layer_norm = rows_layer_norm,
    .rms_norm = rows_rms_norm,
    .rope = rows_rope,
    .add = rows_add,
    .cap = rows_cap,
    .logsum = logsum_take,
};
