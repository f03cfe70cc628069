/*
 * plant_guess.c - a gate of low rank: w_i = sum over r of part[i][r] direction[r], so that
 * w_i x = part[i] (direction x), which a predictor of 2 x latent ranks computes but for rounding.
 */
#include "tests/solver/plant_guess.h"
#include "kernels/core/core_internal.h"

#include <math.h>

enum { BLOCK = 32 };

static float next_normal(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) * 0x1p-24f;
    }
    return sum - 6;
}

/* n elements, whole blocks of a block type. */
static void encode(oato_dtype dtype, const float *x, int64_t n, uint8_t *out)
{
    const int most = dtype == DT_Q8_0 ? 127 : 7;
    for (int64_t at = 0; at < n; at += BLOCK, x += BLOCK) {
        float top = 0;
        for (int i = 0; i < BLOCK; i++)
            top = fmaxf(top, fabsf(x[i]));
        const uint16_t scale = f32_to_f16(top / (float)most);
        const float inverse = f16_to_f32(scale) > 0 ? 1 / f16_to_f32(scale) : 0;
        int8_t q[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            q[i] = (int8_t)fminf(fmaxf(roundf(x[i] * inverse), (float)-most), (float)most);
        for (int i = 0; i < BLOCK && dtype == DT_F16; i++)
            memcpy(out + 2 * i, &(uint16_t){f32_to_f16(x[i])}, 2);
        if (dtype == DT_F32)
            memcpy(out, x, BLOCK * sizeof *x);
        if (dtype == DT_Q8_0 || dtype == DT_Q4_0)
            memcpy(out, &scale, 2);
        if (dtype == DT_Q8_0)
            memcpy(out + 2, q, BLOCK);
        for (int i = 0; i < BLOCK / 2 && dtype == DT_Q4_0; i++)
            out[2 + i] = (uint8_t)((q[i] + 8) | (q[i + BLOCK / 2] + 8) << 4);
        size_t bytes = 0;
        dtype_row_bytes(dtype, BLOCK, &bytes);
        out += bytes;
    }
}

static struct gguf_tensor *tensor_of(struct arena *a, oato_dtype dtype, int64_t k, int64_t n)
{
    size_t row = 0;
    dtype_row_bytes(dtype, k, &row);
    struct gguf_tensor *t = arena_alloc(a, 1, sizeof *t);
    uint8_t *data = arena_alloc(a, (size_t)n, row);
    if (!t || !data)
        return NULL;
    *t = (struct gguf_tensor){.dtype = dtype,
                              .n_dims = n > 1 ? 2 : 1,
                              .ne = {k, n, 1, 1},
                              .data = data,
                              .bytes = row * (size_t)n};
    return t;
}

static uint8_t *row_of(const struct gguf_tensor *t, int64_t i)
{
    return (uint8_t *)(uintptr_t)t->data + (size_t)i * (t->bytes / (size_t)t->ne[1]);
}

bool plant_guess_begin(struct plant_guess *p, struct arena *a, uint64_t seed)
{
    const int64_t k = p->k;
    p->direction = arena_alloc(a, (size_t)p->latent * (size_t)k, sizeof(float));
    p->part = arena_alloc(a, (size_t)p->latent * (size_t)p->n, sizeof(float));
    p->predictor = arena_alloc(a, 1, sizeof *p->predictor);
    p->room = arena_alloc(a, (size_t)(k + 2 * p->latent), sizeof *p->room);
    struct gguf_tensor *down = tensor_of(a, DT_Q8_0, k, 2 * p->latent),
                       *up = tensor_of(a, DT_Q8_0, 2 * p->latent, p->n),
                       *bias = tensor_of(a, DT_F32, p->n, 1);
    if (!p->direction || !p->part || !p->predictor || !p->room || !down || !up || !bias)
        return false;
    for (int64_t r = 0; r < p->latent; r++) {
        float *d = p->direction + r * k;
        for (int64_t i = 0; i < k; i++)
            d[i] = i < p->first ? 0 : next_normal(&seed);
        encode(DT_Q8_0, d, k, row_of(down, r));
        quants_row(DT_Q8_0, row_of(down, r), k, d);
        for (int64_t i = 0; i < k; i++)
            d[i] = -d[i];
        encode(DT_Q8_0, d, k, row_of(down, p->latent + r));
        for (int64_t i = 0; i < k; i++)
            d[i] = -d[i];
    }
    for (int64_t i = 0; i < p->n * p->latent; i++)
        p->part[i] = next_normal(&seed);
    p->bias = (float *)(uintptr_t)bias->data;
    *p->predictor = (struct neurons_predictor){.down = down, .up = up, .bias = bias};
    return true;
}

void plant_guess_row(struct plant_guess *p, int64_t i, double rms, oato_dtype dtype, uint8_t *row)
{
    const int64_t k = p->k, ranks = 2 * p->latent;
    const float *part = p->part + i * p->latent;
    float *w = p->room, *up = p->room + k;
    double sum = 0;
    memset(w, 0, (size_t)k * sizeof *w);
    for (int64_t r = 0; r < p->latent; r++)
        for (int64_t c = 0; c < k; c++)
            w[c] += part[r] * p->direction[r * k + c];
    for (int64_t c = 0; c < k; c++)
        sum += (double)w[c] * w[c];
    const float factor = (float)(rms / sqrt(sum / (double)(k - p->first)));
    for (int64_t c = 0; c < k; c++)
        w[c] *= factor;
    for (int64_t r = 0; r < p->latent; r++) {
        up[r] = factor * part[r];
        up[p->latent + r] = -up[r];
    }
    encode(dtype, w, k, row);
    encode(DT_Q8_0, up, ranks, row_of(p->predictor->up, i));
}
