/*
 * neon_rows.c - element-wise kernels of the neon table, in vectors of 4 floats.
 */
#include "kernels/cpu/neon_internal.h"

enum { LANES = 4 };
typedef float32x4_t vec;
#define vec_set           vdupq_n_f32
#define vec_load          vld1q_f32
#define vec_store         vst1q_f32
#define vec_load_below    neon_load
#define vec_store_below   neon_store
#define vec_sum           vaddvq_f32
#define vec_round         vrndnq_f32
#define vec_min           vminq_f32
#define vec_max           vmaxq_f32
#define vec_fma(a, b, c)  vfmaq_f32(c, a, b)
#define vec_fnma(a, b, c) vfmsq_f32(c, a, b)

NEON_INLINE vec vec_keep_below(vec x, int64_t n)
{
    float kept[LANES] = {0};
    neon_store(kept, x, n);
    return vec_load(kept);
}

NEON_INLINE vec vec_scaled(vec x, vec n)
{
    const int32x4_t power = vshlq_n_s32(vcvtnq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), power));
}

NEON_INLINE vec vec_zero_less(vec x, vec compared, vec limit)
{
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(x), vcltq_f32(compared, limit)));
}

#include "kernels/cpu/vector_rows.h"

static void to_f16(uint16_t *y, const float *x, int64_t n)
{
    const float32x4_t most = vdupq_n_f32(F16_MOST), least = vdupq_n_f32(-F16_MOST);
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vld1q_f32(x + i), near = vmaxq_f32(least, vminq_f32(most, v));
        const uint32x4_t finite = vcltq_f32(vabsq_f32(v), vdupq_n_f32(INFINITY));
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vbslq_f32(finite, near, v))));
    }
    for (; i < n; i++)
        y[i] = f32_to_finite_f16(x[i]);
}

const struct row_kernels neon_rows = {
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .add = add,
    .gate = gate_any,
    .to_f16 = to_f16,
    .above = ref_above,
    .add_scaled = ref_add_scaled,
};
