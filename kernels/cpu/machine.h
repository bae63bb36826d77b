/*
 * The instruction set of this processor, as far as the kernels use it, and its name. Any thread.
 */
#ifndef EVQ_KERNELS_CPU_MACHINE_H
#define EVQ_KERNELS_CPU_MACHINE_H

#include <stddef.h>

/* Each set includes those before it. */
enum evq_isa { EVQ_ISA_BASE, EVQ_ISA_AVX2, EVQ_ISA_AVX512, EVQ_ISA_AVX512_BF16 };

/* AVX512 means F, DQ, BW and VL, also enabled by the system; AVX2 includes FMA. $EVALQ_ISA can
 * limit the result. */
enum evq_isa evq_machine_isa(void);
const char *evq_machine_isa_name(enum evq_isa isa);
/* The name of the processor, or "CPU" if it has none. */
void evq_machine_name(char *out, size_t out_bytes);

#endif
