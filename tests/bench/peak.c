#include "tests/bench/peak.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define THREADS_MAX 256
#define TURNS       300000
#define SUMS        12 // Independent: more than latency times units.

static double seconds_now(bool processor_time)
{
    struct timespec now;

    (void)clock_gettime(processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

#define KEEP(v) __asm__ volatile("" : "+v"(v))

/* Each returns the operations done. */
#if defined(__x86_64__)
__attribute__((target("avx512f"))) static double loop_avx512(void)
{
    __m512 sums[SUMS];
    __m512 a = _mm512_set1_ps(0.999f);
    __m512 b = _mm512_set1_ps(0.5f);

#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) {
        sums[i] = _mm512_set1_ps((float)i);
    }
    for (int turn = 0; turn < TURNS; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            sums[i] = _mm512_fmadd_ps(sums[i], a, b);
            KEEP(sums[i]);
        }
    }
    return (double)TURNS * SUMS * 16 * 2;
}

__attribute__((target("avx512f,avx512bf16"))) static double loop_bf16(void)
{
    __m512 sums[SUMS];
    __m512i bits = _mm512_set1_epi16(0x3c00);

#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) {
        sums[i] = _mm512_set1_ps((float)i);
    }
    for (int turn = 0; turn < TURNS; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)bits, (__m512bh)bits);
            KEEP(sums[i]);
        }
    }
    return (double)TURNS * SUMS * 32 * 2;
}

__attribute__((target("avx2,fma"))) static double loop_avx2(void)
{
    __m256 sums[SUMS];
    __m256 a = _mm256_set1_ps(0.999f);
    __m256 b = _mm256_set1_ps(0.5f);

#pragma GCC unroll 12
    for (int i = 0; i < SUMS; i++) {
        sums[i] = _mm256_set1_ps((float)i);
    }
    for (int turn = 0; turn < TURNS; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) {
            sums[i] = _mm256_fmadd_ps(sums[i], a, b);
            KEEP(sums[i]);
        }
    }
    return (double)TURNS * SUMS * 8 * 2;
}
#endif

struct peak_thread {
    pthread_t handle;
    bool bf16;
    bool processor_time;
    double rate;
};

static void *thread_main(void *argument)
{
    struct peak_thread *self = argument;
#if defined(__x86_64__)
    double (*loop)(void) = NULL;

    __builtin_cpu_init();
    if (self->bf16) {
        loop = __builtin_cpu_supports("avx512bf16") ? loop_bf16 : NULL;
    } else if (__builtin_cpu_supports("avx512f")) {
        loop = loop_avx512;
    } else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        loop = loop_avx2;
    }
    if (loop != NULL) {
        const double start = seconds_now(self->processor_time);
        const double flops = loop() + loop() + loop();
        self->rate = flops / (seconds_now(self->processor_time) - start) * 1e-9;
    }
#endif
    return self;
}

double peak_measure(int threads, bool bf16, bool processor_time)
{
    struct peak_thread all[THREADS_MAX];
    double rate = 0.0;
    int started = 0;

    for (; started < threads && started < THREADS_MAX; started++) {
        all[started] = (struct peak_thread){.bf16 = bf16, .processor_time = processor_time};
        if (pthread_create(&all[started].handle, NULL, thread_main, &all[started]) != 0) {
            break;
        }
    }
    for (int i = 0; i < started; i++) {
        (void)pthread_join(all[i].handle, NULL);
        rate += all[i].rate;
    }
    return rate;
}
