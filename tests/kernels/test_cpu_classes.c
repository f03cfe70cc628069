/*
 * test_cpu_classes.c - the classes of arithmetic of products in integers, stated in plain C: what
 * every level computes in a class equals these statements to the bit, for any number of rows and
 * columns.
 *
 * A row of weights is, for each 32 elements (16 with some types), w = d * q + m with
 * integers q.
 *   u8b32:  32 inputs are x = min + step * n, n uint8.
 *           acc = fma(d * step, sum q n, acc), then acc = fma(min, d * sum q, acc), then with a
 *           minimum acc = fma(m, sum x, acc)
 *   i14b32: of float weights and inputs 32 each, zeros behind the last, are w = d * q and x = s *
 * n, the largest magnitude being 8191. acc = fma(d * s, sum q n, acc) in order of k; sums of
 * integers are exact.
 */
#include "kernels/core/quants_bits.h"
#include "tests/kernels/test_cpu.h"

#include <float.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Elements of a weight that share a scale. */
struct part {
    float d, m;
    bool has_min;
    int q[32];
};

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

static float half_e4m3(uint8_t x)
{
    const int exponent = x >> 3 & 15, mantissa = x & 7;
    return x == 0x7f ? 0 : exponent ? ldexpf(8 + mantissa, exponent - 11) : ldexpf(mantissa, -10);
}

/* Elements [at, at + n) of a GGUF row; the integers are found from the dequantised values. */
static void part_read(oato_dtype dtype, const uint8_t *row, const float *values, int64_t at, int n,
                      struct part *part)
{
    const struct dtype_info *type = dtype_info((int)dtype);
    const uint8_t *p = row + at / type->block_elems * type->block_bytes;
    const int64_t in = at % type->block_elems, sub = in / 32, half = in / 16;
    uint8_t scale, min;
    struct quants_codes codes;
    *part = (struct part){.d = half_at(p)};
    switch (dtype) {
    case DT_Q4_1:
    case DT_Q5_1:
        part->has_min = true;
        part->m = half_at(p + 2);
        break;
    case DT_Q4_K:
    case DT_Q5_K:
        bits_k_scale(p + 4, (int)sub, &scale, &min);
        part->has_min = true;
        part->d *= (float)scale;
        part->m = -(half_at(p + 2) * (float)min);
        break;
    case DT_Q6_K: part->d = half_at(p + 208) * (float)(int8_t)p[192 + half]; break;
    case DT_Q2_K:
        part->has_min = true;
        part->d = half_at(p + 80) * (float)(p[half] & 15);
        part->m = -(half_at(p + 82) * (float)(p[half] >> 4));
        break;
    case DT_Q3_K: part->d = half_at(p + 108) * (float)bits_q3_k_scale(p + 96, (int)half); break;
    case DT_IQ4_XS: part->d *= (float)bits_iq4_xs_scale(p, (int)sub); break;
    case DT_MXFP4: part->d = ldexpf(1, p[0] - 128); break;
    case DT_NVFP4: part->d = half_e4m3(p[half]); break;
    case DT_TQ1_0: part->d = half_at(p + 52); break;
    case DT_TQ2_0: part->d = half_at(p + 64); break;
    case DT_IQ1_S:
    case DT_IQ1_M:
    case DT_IQ2_XXS:
    case DT_IQ2_XS:
    case DT_IQ2_S:
    case DT_IQ3_XXS:
    case DT_IQ3_S:
        quants_codes_read(dtype, p, &codes);
        part->d = f16_to_f32(codes.d) * (float)(2 * codes.scale[half] + 1);
        part->d *= dtype == DT_IQ3_S ? 1 : dtype == DT_IQ3_XXS ? 0.25f : 0.125f;
        break;
    default: break;
    }
    for (int i = 0; i < n; i++)
        part->q[i] = part->d == 0 ? 0 : (int)lrintf((values[at + i] - part->m) / part->d);
}

static int elements_of_scale(oato_dtype dtype)
{
    static const oato_dtype sixteen[] = {DT_Q6_K,   DT_Q2_K,  DT_Q3_K, DT_IQ1_M,
                                         DT_IQ2_XS, DT_IQ2_S, DT_NVFP4};
    for (size_t i = 0; i < ARRAY_LEN(sixteen); i++)
        if (dtype == sixteen[i])
            return 16;
    return 32;
}

/* One result of class u8b32. */
static float product_stated(oato_dtype dtype, const uint8_t *row, const float *values, int64_t k,
                            const float *x)
{
    const int n = elements_of_scale(dtype);
    float acc = 0;
    for (int64_t b = 0; b < k; b += 32) {
        float low = x[b], high = x[b];
        for (int i = 0; i < 32; i++) {
            low = fminf(low, x[b + i]);
            high = fmaxf(high, x[b + i]);
        }
        const float factor = 255.0f / (high - low), step = (high - low) / 255.0f;
        int q[32];
        for (int i = 0; i < 32; i++)
            q[i] = (int)lrintf((x[b + i] - low) * factor);
        for (int at = 0; at < 32; at += n) {
            struct part w;
            int products = 0, sum = 0, total = 0;
            part_read(dtype, row, values, b + at, n, &w);
            for (int i = 0; i < n; i++) {
                products += w.q[i] * q[at + i];
                sum += w.q[i];
                total += q[at + i];
            }
            acc = fmaf(w.d * step, (float)products, acc);
            acc = fmaf(low, w.d * (float)sum, acc);
            if (w.has_min)
                acc = fmaf(w.m, fmaf(step, (float)total, (float)n * low), acc);
        }
    }
    return acc;
}

/* 32 floats, n of them at x, as integers of 14 bits and a scale. */
static float words_stated(const float *x, int64_t n, int q[32])
{
    float top = 0;
    for (int i = 0; i < n; i++)
        top = fmaxf(top, fabsf(x[i]));
    for (int i = 0; i < 32; i++)
        q[i] = i < n && top > 1e-30f ? (int)lrintf(x[i] * (8191.0f / top)) : 0;
    return top > 1e-30f ? top / 8191.0f : 0;
}

/* One result of class i14b32. */
static float float_product_stated(const float *values, int64_t k, const float *x)
{
    float acc = 0;
    for (int64_t b = 0; b < k; b += 32) {
        int q[32], n[32], products = 0;
        const float d = words_stated(values + b, min_i64(32, k - b), q);
        const float s = words_stated(x + b, min_i64(32, k - b), n);
        for (int i = 0; i < 32; i++)
            products += q[i] * n[i];
        acc = fmaf(d * s, (float)products, acc);
    }
    return acc;
}

static void check_class(const struct cpu_kernels *level, const struct matrix_class *class,
                        oato_dtype dtype)
{
    const bool is_float = !strcmp(class->numerics, "i14b32");
    if (!is_float && strcmp(class->numerics, "u8b32") != 0)
        return;
    const int64_t block = dtype_info((int)dtype)->block_elems;
    const int64_t k = block * random_in(1, block == 1    ? 700
                                           : block == 32 ? 20
                                           : block == 64 ? 15
                                                         : 3);
    const int64_t rows = random_in(1, 140),
                  T = random_in(0, 1) ? random_in(1, 9) : random_in(10, 60);
    const uint64_t stride = class->pack_bytes(k);
    size_t row_bytes = 0;
    assert_true(dtype_row_bytes(dtype, k, &row_bytes));
    struct guarded g;
    guarded_init(&g);
    uint8_t *data = guarded_alloc(&g, (size_t)rows * row_bytes);
    float *x = guarded_alloc(&g, (size_t)(k * T) * sizeof *x);
    float *y = guarded_alloc(&g, (size_t)(rows * T) * sizeof *y);
    uint8_t *packed = guarded_alloc(&g, (size_t)T * stride);
    uint8_t *scratch = guarded_alloc(&g, size_align(matrix_scratch_bytes(class, dtype, k), 64));
    float *values = test_malloc((size_t)k * sizeof *values);
    random_elements(dtype, data, rows * k);
    random_floats(x, k * T);
    struct oato_weight *w = weight_make(level, &g, dtype, data, rows, k, 0, rows, WEIGHT_MATRIX);
    for (int64_t t = 0; t < T; t++)
        class->pack(k, x + t * k, packed + (uint64_t)t * stride);
    const struct matrix_job j = {
        .w = w, .x = x, .packed = packed, .pack_stride = stride, .T = T, .y = y, .y_stride = rows};
    class->rows(&j, 0, rows, scratch);
    for (int64_t r = 0; r < rows; r++) {
        quants_row(dtype, data + (size_t)r * row_bytes, k, values);
        for (int64_t t = 0; t < T; t++) {
            const uint8_t *row = data + (size_t)r * row_bytes;
            float wanted = is_float ? float_product_stated(values, k, x + t * k)
                                    : product_stated(dtype, row, values, k, x + t * k);
            if (bits_of(wanted) != bits_of(y[t * rows + r]))
                fail_msg("%s %s %s: row %lld of %lld, column %lld of %lld, k %lld: %.9g, not %.9g",
                         level->name, dtype_name(dtype), class->numerics, (long long)r,
                         (long long)rows, (long long)t, (long long)T, (long long)k,
                         (double)y[t * rows + r], (double)wanted);
        }
    }
    test_free(w);
    test_free(values);
    guarded_free(&g);
}

static void levels_compute_what_their_class_states(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *level = kernels_named(isas[i]);
        for (size_t d = 0; level && d < ARRAY_LEN(matrix_types); d++)
            for (int choice = 0; choice < NUMERICS_CHOICES; choice++)
                for (int run = 0; run < 3; run++)
                    check_class(level, cpu_matrix_class(level, matrix_types[d], choice),
                                matrix_types[d]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_compute_what_their_class_states),
    };
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
