/*
 * What processor this is: its instruction set as far as the kernels care, and its name. Any thread.
 */
#ifndef EVQ_KERNELS_CPU_MACHINE_H
#define EVQ_KERNELS_CPU_MACHINE_H

#include <stddef.h>

/* Each includes those before it. */
enum evq_isa { EVQ_ISA_BASE, EVQ_ISA_AVX2, EVQ_ISA_AVX512, EVQ_ISA_AVX512_BF16 };

/* AVX512 means F, DQ, BW and VL, enabled by the system too; AVX2 includes FMA. At most what
 * EVALQ_ISA names, where it names one. */
enum evq_isa evq_machine_isa(void);
const char *evq_machine_isa_name(enum evq_isa isa);
/* The processor's own name, or "CPU" where it has none. */
void evq_machine_name(char *out, size_t out_bytes);

#endif
