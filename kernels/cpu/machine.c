#include "kernels/cpu/machine.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#if defined(__x86_64__)
static bool has_bits(unsigned int word, unsigned int bits)
{
    return (word & bits) == bits;
}

/* Which registers the kernel saves when it switches threads: XCR0. */
static unsigned int saved_registers(void)
{
    unsigned int low = 0;
    unsigned int high = 0;

    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* CPUID itself, because zig's runtime answers __builtin_cpu_supports() with no for everything. */
static enum evq_isa isa_of_processor(void)
{
    const unsigned int ymm_saved = 0x06;
    const unsigned int zmm_saved = 0xe6;
    unsigned int a = 0;
    unsigned int b = 0;
    unsigned int c = 0;
    unsigned int d = 0;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_bits(c, bit_OSXSAVE | bit_AVX | bit_FMA)) {
        return EVQ_ISA_BASE;
    }
    const unsigned int saved = saved_registers();
    if (!has_bits(saved, ymm_saved) || !__get_cpuid_count(7, 0, &a, &b, &c, &d) ||
        !has_bits(b, bit_AVX2)) {
        return EVQ_ISA_BASE;
    }
    if (!has_bits(saved, zmm_saved) ||
        !has_bits(b, bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL)) {
        return EVQ_ISA_AVX2;
    }
    // Subleaf 0 says in EAX how many subleaves leaf 7 has.
    if (a < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !has_bits(a, bit_AVX512BF16)) {
        return EVQ_ISA_AVX512;
    }
    return EVQ_ISA_AVX512_BF16;
}
#else
static enum evq_isa isa_of_processor(void)
{
    return EVQ_ISA_BASE;
}
#endif

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
