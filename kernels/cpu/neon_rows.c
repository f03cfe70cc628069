/*
 * neon_rows.c - element-wise kernels of the neon table. Rows are walked in vectors of 4 with a
 * partial one at the end that goes through the same arithmetic, so that an element's bits do not
 * depend on where a row is cut.
 */
#include "kernels/cpu/neon_internal.h"

#include <math.h>

static void rms_norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    float32x4_t s[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int64_t i = 0; i < n; i += 4) {
        float32x4_t a = neon_load(x + i, n - i);
        s[i / 4 % 4] = vfmaq_f32(s[i / 4 % 4], a, a);
    }
    float32x4_t all = vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3]));
    float scale = 1.0f / sqrtf(vaddvq_f32(all) / (float)n + eps);
    for (int64_t i = 0; i < n; i += 4) {
        float32x4_t a = vmulq_n_f32(neon_load(x + i, n - i), scale);
        neon_store(y + i, vmulq_f32(a, neon_load(w + i, n - i)), n - i);
    }
}

/* x - mean of the lanes before n, zeros in the others. */
static float32x4_t deviations(const float *x, float mean, int64_t n)
{
    const float32x4_t a = vsubq_f32(neon_load(x, n), vdupq_n_f32(mean));
    float kept[4] = {0};
    neon_store(kept, a, n);
    return vld1q_f32(kept);
}

static void layer_norm(float *y, const float *x, const float *w, const float *bias, int64_t n,
                       float eps, bool centred)
{
    float32x4_t s = vdupq_n_f32(0), q = vdupq_n_f32(0);
    for (int64_t i = 0; centred && i < n; i += 4)
        s = vaddq_f32(s, neon_load(x + i, n - i));
    const float mean = centred ? vaddvq_f32(s) / (float)n : 0;
    for (int64_t i = 0; i < n; i += 4) {
        const float32x4_t a = deviations(x + i, mean, n - i);
        q = vfmaq_f32(q, a, a);
    }
    const float scale = 1.0f / sqrtf(vaddvq_f32(q) / (float)n + eps);
    for (int64_t i = 0; i < n; i += 4) {
        float32x4_t a = vmulq_n_f32(deviations(x + i, mean, n - i), scale);
        if (w)
            a = vmulq_f32(a, neon_load(w + i, n - i));
        if (bias)
            a = vaddq_f32(a, neon_load(bias + i, n - i));
        neon_store(y + i, a, n - i);
    }
}

static void add(float *y, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(y + i, vaddq_f32(vld1q_f32(a + i), vld1q_f32(b + i)));
    for (; i < n; i++)
        y[i] = a[i] + b[i];
}

/* e^x within 2 ulp; 0 below -87, at most e^88. x = n ln 2 + r with |r| <= ln 2 / 2, and the minimax
 * polynomial of Cephes' expf for e^r. NaN stays NaN. */
static float32x4_t exp_4(float32x4_t x)
{
    const float32x4_t lowest = vdupq_n_f32(-87.0f);
    const uint32x4_t under = vcltq_f32(x, lowest);
    x = vminq_f32(vdupq_n_f32(88.0f), vmaxq_f32(lowest, x));
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504f));
    float32x4_t r = vfmsq_n_f32(x, n, 0.693359375f);
    r = vfmsq_n_f32(r, n, -2.12194440e-4f);
    float32x4_t p = vdupq_n_f32(1.9875691500e-4f);
    p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3f), p, r);
    p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1f), p, r);
    p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1f), p, r);
    p = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.0f)), vmulq_f32(r, r), p);
    const int32x4_t power = vshlq_n_s32(vcvtnq_s32_f32(n), 23);
    const int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(p), power);
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(scaled), under));
}

/* x / (1 + e^-t) */
static float32x4_t times_sigmoid(float32x4_t x, float32x4_t t)
{
    return vdivq_f32(x, vaddq_f32(exp_4(vnegq_f32(t)), vdupq_n_f32(1.0f)));
}

/* tanh t = 2 s(2 t) - 1, so that GELU's (1 + tanh t) / 2 is s(2 t). */
static float32x4_t activate(enum activation a, float scale, float32x4_t x)
{
    const float32x4_t one = vdupq_n_f32(1.0f), two = vdupq_n_f32(2.0f);
    float32x4_t t = vmaxq_f32(x, vdupq_n_f32(0));
    switch (a) {
    case ACT_SILU: return times_sigmoid(x, x);
    case ACT_GELU:
        t = vfmaq_f32(one, vmulq_f32(x, x), vdupq_n_f32(0.044715f));
        return times_sigmoid(x, vmulq_n_f32(vmulq_f32(x, t), 1.5957691216f));
    case ACT_RELU: return t;
    case ACT_RELU_SQUARED: return vmulq_f32(t, t);
    case ACT_SIGMOID: return times_sigmoid(one, x);
    case ACT_SOFT_CAP:
        t = times_sigmoid(two, vmulq_f32(two, vdivq_f32(x, vdupq_n_f32(scale))));
        return vmulq_n_f32(vsubq_f32(t, one), scale);
    case ACT_CLAMPED:
        t = vminq_f32(x, vdupq_n_f32(7.0f));
        return times_sigmoid(t, vmulq_n_f32(t, 1.702f));
    case ACT_CLAMP: return vmaxq_f32(vdupq_n_f32(-scale), vminq_f32(vdupq_n_f32(scale), x));
    case ACT_CLAMPED_SILU: t = vminq_f32(x, vdupq_n_f32(scale)); return times_sigmoid(t, t);
    case ACT_SILU_CLAMPED: return vminq_f32(times_sigmoid(x, x), vdupq_n_f32(scale));
    case ACT_NONE:
    case ACT_SOFTPLUS:
    case ACT_COUNT: break;
    }
    return x;
}

static void gate_rows(enum activation a, float scale, float *y, const float *gate, const float *up,
                      int64_t n)
{
    const float limit = a == ACT_CLAMPED ? 7.0f : scale;
    const float32x4_t most = vdupq_n_f32(limit), least = vdupq_n_f32(-limit);
    if (a == ACT_SOFTPLUS) {
        softplus_row(y, gate, up, n);
        return;
    }
    for (int64_t i = 0; i < n; i += 4) {
        float32x4_t v = activate(a, scale, neon_load(gate + i, n - i));
        if (up) {
            float32x4_t u = neon_load(up + i, n - i);
            if (a == ACT_CLAMPED)
                u = vaddq_f32(vmaxq_f32(least, vminq_f32(most, u)), vdupq_n_f32(1.0f));
            if (a == ACT_CLAMPED_SILU || a == ACT_SILU_CLAMPED)
                u = vmaxq_f32(least, vminq_f32(most, u));
            v = vmulq_f32(v, u);
        }
        neon_store(y + i, v, n - i);
    }
}

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
    .gate = gate_rows,
    .to_f16 = to_f16,
    .above = ref_above,
    .add_scaled = ref_add_scaled,
};
