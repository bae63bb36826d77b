/*
 * OpenBLAS, loaded at run time. Call from one thread, before others read the environment.
 */
#ifndef EVQ_KERNELS_CPU_BLAS_H
#define EVQ_KERNELS_CPU_BLAS_H

#include "kernels/cpu/gemm.h"

/* cblas_sgemm of libopenblas.so.0 set to one thread of its own, or NULL when it is not installed.
 */
evq_sgemm_fn evq_blas_load(enum evq_isa isa);

#endif
