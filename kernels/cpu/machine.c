#include "kernels/cpu/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static enum evq_isa isa_of_processor(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return __builtin_cpu_supports("avx512bf16") ? EVQ_ISA_AVX512_BF16 : EVQ_ISA_AVX512;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return EVQ_ISA_AVX2;
    }
#endif
    return EVQ_ISA_BASE;
}

const char *evq_machine_isa_name(enum evq_isa isa)
{
    switch (isa) {
    case EVQ_ISA_AVX512_BF16:
        return "avx512 bf16";
    case EVQ_ISA_AVX512:
        return "avx512";
    case EVQ_ISA_AVX2:
        return "avx2";
    case EVQ_ISA_BASE:
        break;
    }
    return "base";
}

enum evq_isa evq_machine_isa(void)
{
    const char *most = getenv("EVALQ_ISA");
    const enum evq_isa has = isa_of_processor();

    for (int isa = EVQ_ISA_BASE; most != NULL && isa < (int)has; isa++) {
        if (strcmp(most, evq_machine_isa_name((enum evq_isa)isa)) == 0) {
            return (enum evq_isa)isa;
        }
    }
    return has;
}

void evq_machine_name(char *out, size_t out_bytes)
{
    char brand[49] = "";
#if defined(__x86_64__)
    unsigned int words[12] = {0};
    for (unsigned int leaf = 0; leaf < 3; leaf++) {
        if (!__get_cpuid(0x80000002u + leaf, &words[4 * leaf], &words[4 * leaf + 1],
                         &words[4 * leaf + 2], &words[4 * leaf + 3])) {
            break;
        }
    }
    memcpy(brand, words, sizeof(words));
#endif
    const char *start = brand + strspn(brand, " ");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == ' ') {
        length--;
    }
    (void)snprintf(out, out_bytes, "%.*s", length > 0 ? (int)length : 3,
                   length > 0 ? start : "CPU");
}
