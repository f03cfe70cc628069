/*
 * dispatch.c - which table of kernels to use: the best that the processor has and the operating
 * system saves the registers of (CPUID and XCR0, nothing else is trusted), or the one named.
 * Levels of the architecture that this is built for are listed in rising order. And what a table
 * needs and gives: classes, bytes of prepared weights, their preparation by rows.
 */
#include "kernels/cpu/kernels_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

enum { STATE_AVX = 0x6, STATE_AVX512 = 0xe6, STATE_TILES = 0x60000 };

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

static bool has_avxvnni(void)
{
    uint32_t a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

static bool has_avx512(void)
{
    uint32_t a, b, c, d;
    const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
    const uint32_t wanted = f | dq | bw | vl;
    return has_avx2() && (xcr0() & STATE_AVX512) == STATE_AVX512 &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & wanted) == wanted && (c & vnni);
}

/* Linux lets a process use the data of the tiles after asking: 18 is their bit in XCR0. */
static bool tiles_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
}

static bool has_amx(void)
{
    uint32_t a, b, c, d;
    const uint32_t amx_bf16 = 1u << 22, amx_tile = 1u << 24, avx512_bf16 = 1u << 5;
    const uint32_t wanted = amx_bf16 | amx_tile;
    return has_avx512() && (xcr0() & STATE_TILES) == STATE_TILES &&
           __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx512_bf16) && tiles_permitted();
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static bool has_neon(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

static bool has_always(void)
{
    return true;
}

struct level {
    const char *name;
    const struct cpu_kernels *kernels;
    bool (*available)(void);
};

#ifdef OATO_AMX_EMULATED /* test programs that bring the table along */
extern const struct cpu_kernels cpu_kernels_amx_emulated;
#endif

static const struct level levels[] = {
#ifdef OATO_AMX_EMULATED
    {"amx-emulated", &cpu_kernels_amx_emulated, has_avx512},
#endif
    {"ref", &cpu_kernels_ref, has_always},
#if defined(__x86_64__)
    {"avx2", &cpu_kernels_avx2, has_avx2},
    {"avxvnni", &cpu_kernels_avxvnni, has_avxvnni},
    {"avx512", &cpu_kernels_avx512, has_avx512},
    {"amx", &cpu_kernels_amx, has_amx},
#elif defined(__aarch64__)
    {"neon", &cpu_kernels_neon, has_neon},
#endif
};

static const char *levels_list(bool usable, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(levels); i++)
        if (n < out_bytes && (!usable || levels[i].available()))
            n += (size_t)snprintf(out + n, out_bytes - n, " %s", levels[i].name);
    return out;
}

/* The level that is taken if none is asked for. */
static size_t level_best(void)
{
    size_t i = ARRAY_LEN(levels);
    while (i-- > 1 && !levels[i].available())
        ;
    return i;
}

oato_status cpu_kernels_select(const char *isa, const struct cpu_kernels **out,
                               struct oato_error *err)
{
    const char *from = "the option";
    char built[128];
    if (!isa || !*isa) {
        isa = getenv("OATO_CPU_ISA");
        from = "OATO_CPU_ISA";
    }
    if (!isa || !*isa || !strcmp(isa, "best")) {
        *out = levels[level_best()].kernels;
        return OATO_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        if (strcmp(levels[i].name, isa) != 0)
            continue;
        if (!levels[i].available())
            return oato_fail(err, OATO_EUSAGE,
                             "cpu: this processor does not support '%s', requested by %s; use %s "
                             "(it has%s)",
                             isa, from, levels[level_best()].name,
                             levels_list(true, built, sizeof built));
        *out = levels[i].kernels;
        return OATO_OK;
    }
    return oato_fail(err, OATO_EUSAGE, "cpu: unknown instruction set '%s' in %s; this build has%s",
                     isa, from, levels_list(false, built, sizeof built));
}

const char *cpu_kernels_name(const struct cpu_kernels *k)
{
    return k->name;
}

const char *cpu_kernels_layout(const struct cpu_kernels *k)
{
    return k->layout->id;
}

const char *cpu_numerics(const struct cpu_kernels *k, const struct oato_op *op,
                         enum numerics_choice choice)
{
    if (op_by_columns(op))
        return k->columns->numerics((oato_dtype)op->dtype);
    return op_weight_use(op) == WEIGHT_MATRIX
               ? cpu_matrix_class(k, (oato_dtype)op->dtype, choice)->numerics
               : "f32";
}

uint64_t cpu_prepared_bytes(const struct cpu_kernels *k, oato_dtype dtype, int64_t rows,
                            int64_t cols, enum weight_use use)
{
    if (use == WEIGHT_VECTOR)
        return (uint64_t)rows * (uint64_t)cols * sizeof(float);
    if (use == WEIGHT_ROWS)
        return (uint64_t)rows * k->layout->rows_stride(dtype, cols);
    if (use == WEIGHT_COLUMNS)
        return columns_bytes(dtype, rows, cols, columns_blocks(dtype, NULL, cols));
    if (use == WEIGHT_MATRIX)
        return k->layout->bytes(k->layout->lanes, dtype, rows, cols);
    size_t row = 0;
    dtype_row_bytes(dtype, cols, &row);
    return (uint64_t)rows * row;
}

uint64_t cpu_source_bytes(const struct cpu_kernels *k, const struct weight_source *s)
{
    const int64_t rows = s->row_end - s->row_begin;
    return s->use == WEIGHT_COLUMNS
               ? columns_bytes(s->dtype, rows, s->k, columns_blocks(s->dtype, s->list, s->k))
               : cpu_prepared_bytes(k, s->dtype, rows, s->k, s->use);
}

void cpu_convert_rows(const struct cpu_kernels *k, const struct weight_source *source,
                      int64_t begin, int64_t end, void *data)
{
    struct oato_weight weight = {.dtype = source->dtype,
                                 .use = source->use,
                                 .rows = source->row_end - source->row_begin,
                                 .k = source->k,
                                 .data = data},
                       *w = &weight;
    if (begin >= end)
        return;
    if (source->use == WEIGHT_MATRIX) {
        k->layout->prepare(k->layout->lanes, source, w, begin, end);
        return;
    }
    if (source->use == WEIGHT_COLUMNS) {
        columns_prepare(source, w, begin, end);
        return;
    }
    if (source->use == WEIGHT_ROWS) {
        k->layout->rows_prepare(source, w, begin, end);
        return;
    }
    const size_t stride = weight_source_stride(source);
    uint8_t *to = (uint8_t *)w->data;
    if (source->use == WEIGHT_LOOKUP) {
        memcpy(to + (size_t)begin * stride, weight_source_row(source, begin),
               (size_t)(end - begin) * stride);
        return;
    }
    float *out = floats(to) + begin * source->k;
    for (int64_t r = begin; r < end; r++, out += source->k)
        quants_row(source->dtype, weight_source_row(source, r), source->k, out);
}
