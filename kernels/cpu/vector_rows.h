/*
 * vector_rows.h - element-wise kernels, written once for the vectors of a level: avx2_rows.c and
 * neon_rows.c include it, after LANES, vec and the functions of vectors. Rows are walked in whole
 * vectors with a partial one at the end that goes through the same arithmetic, so that an element's
 * bits do not depend on where a row is cut.
 */
#ifndef OATO_VECTOR_ROWS_H
#define OATO_VECTOR_ROWS_H

#include "kernels/cpu/vector_exp.h"

#include <math.h>

enum { ROW_SUMS = 4 };

static float row_sum(const vec s[ROW_SUMS])
{
    return vec_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static void rms_norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    vec s[ROW_SUMS] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    int64_t i = 0;
    for (; i + ROW_SUMS * LANES <= n; i += ROW_SUMS * LANES)
        for (int v = 0; v < ROW_SUMS; v++) {
            const vec a = vec_load(x + i + LANES * v);
            s[v] = vec_fma(a, a, s[v]);
        }
    for (int v = 0; i < n; i += LANES, v++) {
        const vec a = vec_load_below(x + i, n - i);
        s[v] = vec_fma(a, a, s[v]);
    }
    const vec scale = vec_set(1.0f / sqrtf(row_sum(s) / (float)n + eps));
    for (i = 0; i < n; i += LANES) {
        const vec a = vec_load_below(x + i, n - i) * scale;
        vec_store_below(y + i, a * vec_load_below(w + i, n - i), n - i);
    }
}

/* x - mean of the lanes before n, zeros in the others. */
VECTOR_INLINE vec deviations(const float *x, vec mean, int64_t n)
{
    return vec_keep_below(vec_load_below(x, n) - mean, n);
}

static void layer_norm(float *y, const float *x, const float *w, const float *bias, int64_t n,
                       float eps, bool centred)
{
    vec s[ROW_SUMS] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
    vec q[ROW_SUMS] = {s[0], s[0], s[0], s[0]}, mean = s[0];
    for (int64_t i = 0; centred && i < n; i += LANES)
        s[i / LANES % ROW_SUMS] = s[i / LANES % ROW_SUMS] + vec_load_below(x + i, n - i);
    if (centred)
        mean = vec_set(row_sum(s) / (float)n);
    for (int64_t i = 0; i < n; i += LANES) {
        const vec a = deviations(x + i, mean, n - i);
        q[i / LANES % ROW_SUMS] = vec_fma(a, a, q[i / LANES % ROW_SUMS]);
    }
    const vec scale = vec_set(1.0f / sqrtf(row_sum(q) / (float)n + eps));
    for (int64_t i = 0; i < n; i += LANES) {
        vec a = deviations(x + i, mean, n - i) * scale;
        if (w)
            a = a * vec_load_below(w + i, n - i);
        if (bias)
            a = a + vec_load_below(bias + i, n - i);
        vec_store_below(y + i, a, n - i);
    }
}

static void add(float *y, const float *a, const float *b, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(y + i, vec_load(a + i) + vec_load(b + i));
    for (; i < n; i++)
        y[i] = a[i] + b[i];
}

/* x / (1 + e^-t) */
VECTOR_INLINE vec times_sigmoid(vec x, vec t)
{
    return x / (vec_exp(vec_set(0) - t) + vec_set(1.0f));
}

/* tanh t = 2 s(2 t) - 1, so that GELU's (1 + tanh t) / 2 is s(2 t). */
VECTOR_INLINE vec activate(enum activation a, vec scale, vec x)
{
    const vec one = vec_set(1.0f), two = vec_set(2.0f);
    vec t = vec_max(vec_set(0), x); /* of a NaN the second: it stays NaN */
    switch (a) {
    case ACT_SILU: return times_sigmoid(x, x);
    case ACT_GELU:
        t = vec_fma(x * x, vec_set(0.044715f), one);
        return times_sigmoid(x, vec_set(1.5957691216f) * (x * t));
    case ACT_RELU: return t;
    case ACT_RELU_SQUARED: return t * t;
    case ACT_SIGMOID: return times_sigmoid(one, x);
    case ACT_SOFT_CAP: return scale * (times_sigmoid(two, two * (x / scale)) - one);
    case ACT_CLAMPED: t = vec_min(vec_set(7.0f), x); return times_sigmoid(t, vec_set(1.702f) * t);
    case ACT_CLAMP: return vec_max(vec_set(0) - scale, vec_min(scale, x));
    case ACT_CLAMPED_SILU: t = vec_min(scale, x); return times_sigmoid(t, t);
    case ACT_SILU_CLAMPED: return vec_min(scale, times_sigmoid(x, x));
    case ACT_NONE:
    case ACT_SOFTPLUS:
    case ACT_COUNT: break;
    }
    return x;
}

VECTOR_INLINE void gate_rows(enum activation a, float scale, float *y, const float *gate,
                             const float *up, int64_t n)
{
    const float limit = a == ACT_CLAMPED ? 7.0f : scale;
    const vec most = vec_set(limit), least = vec_set(-limit);
    for (int64_t i = 0; i < n; i += LANES) {
        vec v = activate(a, vec_set(scale), vec_load_below(gate + i, n - i));
        if (up) {
            vec u = vec_load_below(up + i, n - i);
            if (a == ACT_CLAMPED)
                u = vec_max(least, vec_min(most, u)) + vec_set(1.0f);
            if (a == ACT_CLAMPED_SILU || a == ACT_SILU_CLAMPED)
                u = vec_max(least, vec_min(most, u));
            v = v * u;
        }
        vec_store_below(y + i, v, n - i);
    }
}

static void gate_any(enum activation a, float scale, float *y, const float *gate, const float *up,
                     int64_t n)
{
    if (a == ACT_SILU && up)
        gate_rows(ACT_SILU, scale, y, gate, up, n);
    else if (a == ACT_SOFTPLUS)
        softplus_row(y, gate, up, n);
    else
        gate_rows(a, scale, y, gate, up, n);
}

#endif
