/*
 * dispatch.c - which table of kernels to use: the best that the processor has and the operating
 * system saves the registers of (CPUID and XCR0, nothing else is trusted), or the one named.
 * Levels are listed in rising order; a level whose kernels are not in this build is refused by
 * name and passed over when choosing.
 */
#include "kernels/cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

enum { STATE_AVX = 0x6 };

static bool has_avx2(void)
{
    uint32_t a, b, c, d;
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const uint32_t wanted = fma | osxsave | avx | f16c;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & wanted) != wanted ||
        (xcr0() & STATE_AVX) != STATE_AVX)
        return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 5);
}
#else
static bool has_avx2(void)
{
    return false;
}
#endif

static bool has_always(void)
{
    return true;
}

struct level {
    const char *name;
    const struct cpu_kernels *kernels; /* NULL: not in this build */
    bool (*available)(void);
};

static const struct level levels[] = {
    {"ref", &cpu_kernels_ref, has_always},
    {"avx2", &cpu_kernels_avx2, has_avx2},
    {"avxvnni", NULL, NULL},
    {"avx512", NULL, NULL},
    {"amx", NULL, NULL},
};

oato_status cpu_kernels_select(const char *isa, const struct cpu_kernels **out,
                               struct oato_error *err)
{
    const char *from = "the option";
    if (!isa || !*isa) {
        isa = getenv("OATO_CPU_ISA");
        from = "OATO_CPU_ISA";
    }
    if (!isa || !*isa) {
        for (size_t i = ARRAY_LEN(levels); i-- > 0;) {
            if (levels[i].kernels && levels[i].available()) {
                *out = levels[i].kernels;
                return OATO_OK;
            }
        }
    }
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        if (!isa || strcmp(levels[i].name, isa) != 0)
            continue;
        if (!levels[i].kernels)
            return oato_fail(err, OATO_EUSAGE,
                             "cpu: instruction set '%s' of %s is not built; use ref or avx2", isa,
                             from);
        if (!levels[i].available())
            return oato_fail(err, OATO_EUSAGE,
                             "cpu: this processor has no '%s' as %s asks; use ref", isa, from);
        *out = levels[i].kernels;
        return OATO_OK;
    }
    return oato_fail(err, OATO_EUSAGE,
                     "cpu: unknown instruction set '%s' in %s; known are ref avx2 (and avxvnni "
                     "avx512 amx, not built)",
                     isa ? isa : "", from);
}

const char *cpu_kernels_name(const struct cpu_kernels *k)
{
    return k->name;
}
