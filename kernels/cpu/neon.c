/*
 * neon.c - the neon table: 64-bit ARM with the dot products of ARMv8.2-A. Products with Q4_0, Q4_1
 * and Q8_0 (neon_matrix.c) are in the classes i16b32 and u8b32 of the x86 levels, with their bits;
 * other types and attention are those of ref.c. Here: weights and inputs as the products want them.
 */
#include "kernels/cpu/neon_internal.h"

#include <float.h>
#include <math.h>

/* ---------------------------------------------------------------------------- preparation - */

static uint64_t matrix_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    const struct neon_format *f = neon_format_of(dtype);
    if (!f)
        return cpu_kernels_ref.matrix_bytes(dtype, rows, k);
    return (uint64_t)((rows + NEON_ROWS - 1) / NEON_ROWS) * (uint64_t)neon_group_bytes(f, k);
}

static void put_row(const struct neon_format *f, const uint8_t *row, int64_t k, uint8_t *out,
                    int lane)
{
    const int quads = f->body / 4;
    for (int64_t b = 0; b < k / 32; b++, row += f->head + f->body) {
        for (int i = 0; i < f->head; i += 2)
            memcpy(out + i * NEON_ROWS + 2 * lane, row + i, 2);
        uint8_t *to = out + f->head * NEON_ROWS + lane / 4 * quads * 16 + lane % 4 * 4;
        for (int j = 0; j < quads; j++)
            memcpy(to + 16 * j, row + f->head + 4 * j, 4);
        out += NEON_ROWS * (f->head + f->body);
    }
}

static void matrix_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                           int64_t end)
{
    const struct neon_format *f = neon_format_of(s->dtype);
    if (!f) {
        cpu_kernels_ref.matrix_prepare(s, w, begin, end);
        return;
    }
    const int64_t row_bytes = s->k / 32 * (f->head + f->body), bytes = neon_group_bytes(f, s->k);
    for (int64_t g = begin; g < end; g += NEON_ROWS) {
        uint8_t *out = (uint8_t *)w->data + g / NEON_ROWS * bytes;
        if (end - g < NEON_ROWS)
            memset(out, 0, (size_t)bytes);
        for (int lane = 0; lane < NEON_ROWS && g + lane < end; lane++)
            put_row(f, (const uint8_t *)s->data + (s->row_begin + g + lane) * row_bytes, s->k, out,
                    lane);
    }
}

/* ---------------------------------------------------------------------------------- input - */

/* k / 32 blocks; an odd number of lines, so that columns begin in different sets of the caches. */
static uint64_t packed_bytes(int64_t k, size_t block)
{
    return size_align((size_t)(k / 32) * block, 64) | 64;
}

static uint64_t words_bytes(oato_dtype dtype, int64_t k)
{
    return neon_format_of(dtype) ? packed_bytes(k, sizeof(struct neon_words)) : 0;
}

static uint64_t bytes_bytes(oato_dtype dtype, int64_t k)
{
    return neon_format_of(dtype) ? packed_bytes(k, sizeof(struct neon_bytes)) : 0;
}

/* (x - from) * factor to the nearest integers, of 32 elements; all 0 if !keep. Returns the sum. */
static int32_t to_integers(const float32x4_t x[8], float from, float factor, bool keep,
                           int32x4_t n[8])
{
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < 8; i++) {
        n[i] = vcvtnq_s32_f32(vmulq_n_f32(vsubq_f32(x[i], vdupq_n_f32(from)), factor));
        n[i] = keep ? n[i] : vdupq_n_s32(0);
        sum = vaddq_s32(sum, n[i]);
    }
    return vaddvq_s32(sum);
}

static bool load_32(const float *x, float32x4_t v[8]) /* false: there is a NaN */
{
    uint32x4_t ordered = vdupq_n_u32(UINT32_MAX);
    for (int i = 0; i < 8; i++) {
        v[i] = vld1q_f32(x + 4 * i);
        ordered = vandq_u32(ordered, vceqq_f32(v[i], v[i]));
    }
    return vminvq_u32(ordered) != 0;
}

static void words_pack(oato_dtype dtype, int64_t k, const float *x, uint8_t *out)
{
    (void)dtype;
    struct neon_words *to = (struct neon_words *)(void *)out;
    for (int64_t b = 0; b < k / 32; b++, x += 32, to++) {
        float32x4_t v[8], top = vdupq_n_f32(0);
        const bool ordered = load_32(x, v);
        for (int i = 0; i < 8; i++)
            top = vmaxq_f32(top, vabsq_f32(v[i]));
        const float largest = vmaxvq_f32(top);
        /* Below this the reciprocal would overflow, and nothing that follows could tell. */
        const bool zero = !(largest > 1e-30f);
        /* Integers have no infinities and no NaN: the scale says it for the whole block. */
        const bool finite = ordered && largest <= FLT_MAX;
        int32x4_t n[8];
        to->sum = to_integers(v, 0, zero ? 0 : 32767.0f / largest, finite, n);
        to->low_sum = 0;
        for (int i = 0; i < 4; i++) {
            const int16x8_t q = vcombine_s16(vqmovn_s32(n[2 * i]), vqmovn_s32(n[2 * i + 1]));
            const uint8x8_t low = vmovn_u16(vreinterpretq_u16_s16(q));
            vst1_s8(to->high + 8 * i, vshrn_n_s16(q, 8));
            vst1_s8(to->low + 8 * i, vreinterpret_s8_u8(veor_u8(low, vdup_n_u8(128))));
            to->low_sum += vaddlv_u8(low);
        }
        to->scale = !finite ? NAN : zero ? 0 : largest / 32767.0f;
        to->scaled_sum = to->scale * (float)to->sum;
    }
}

static void bytes_pack(oato_dtype dtype, int64_t k, const float *x, uint8_t *out)
{
    (void)dtype;
    struct neon_bytes *to = (struct neon_bytes *)(void *)out;
    for (int64_t b = 0; b < k / 32; b++, x += 32, to++) {
        float32x4_t v[8];
        const bool ordered = load_32(x, v);
        float32x4_t low = v[0], high = v[0];
        for (int i = 1; i < 8; i++) {
            low = vminq_f32(low, v[i]);
            high = vmaxq_f32(high, v[i]);
        }
        const float lowest = vminvq_f32(low), range = vmaxvq_f32(high) - lowest;
        const bool finite = ordered && range <= FLT_MAX;
        /* Below this the reciprocal would overflow: all are the minimum. */
        const bool flat = !(range > 1e-30f);
        int32x4_t n[8];
        const int32_t total =
            to_integers(v, finite ? lowest : 0, flat || !finite ? 0 : 255.0f / range, finite, n);
        for (int i = 0; i < 4; i++) {
            const int16x8_t q = vcombine_s16(vqmovn_s32(n[2 * i]), vqmovn_s32(n[2 * i + 1]));
            const uint8x8_t bytes = veor_u8(vqmovun_s16(q), vdup_n_u8(128));
            vst1_s8(to->q + 8 * i, vreinterpret_s8_u8(bytes));
        }
        to->step = !finite ? NAN : flat ? 0 : range / 255.0f;
        to->min = !finite ? NAN : lowest;
        to->sum = fmaf(to->step, (float)total, 32 * to->min);
    }
}

/* ---------------------------------------------------------------------------------- table - */

static const char *words_numerics(oato_dtype dtype)
{
    return neon_format_of(dtype) ? "i16b32" : "f32";
}

static const char *bytes_numerics(oato_dtype dtype)
{
    return neon_format_of(dtype) ? "u8b32" : "f32";
}

static uint64_t attention_scratch(const struct oato_op *op)
{
    return cpu_kernels_ref.attention_scratch_bytes(op);
}

static void attention(const struct attention_job *j, uint8_t *scratch)
{
    cpu_kernels_ref.attention(j, scratch);
}

static void attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                            int32_t head_dim, float *out)
{
    cpu_kernels_ref.attention_merge(partial, stride, n, heads, head_dim, out);
}

static const struct matrix_class matrix_decode = {
    .numerics = words_numerics,
    .pack_bytes = words_bytes,
    .pack = words_pack,
    .scratch_bytes = neon_matrix_scratch,
    .rows = neon_words_rows,
};

static const struct matrix_class matrix_prefill = {
    .numerics = bytes_numerics,
    .pack_bytes = bytes_bytes,
    .pack = bytes_pack,
    .scratch_bytes = neon_matrix_scratch,
    .rows = neon_bytes_rows,
};

const struct cpu_kernels cpu_kernels_neon = {
    .name = "neon",
    .matrix = {&matrix_decode, &matrix_prefill},
    .matrix_bytes = matrix_bytes,
    .matrix_prepare = matrix_prepare,
    .attention_scratch_bytes = attention_scratch,
    .attention = attention,
    .attention_merge = attention_merge,
    .rms_norm = neon_rms_norm,
    .add = neon_add,
    .swiglu = neon_swiglu,
    .to_f16 = neon_to_f16,
};
