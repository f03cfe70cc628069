/*
 * model_facts.c - what a file says beside its graph: how many weights it has and of which type, and
 * the ranking head of a reranker's (cls.output, as llama.cpp's converter writes it): a row of
 * weights for each class, which a text's last hidden state is multiplied with. It is small, so it
 * is read as it lies in the file.
 */
#include "models/models.h"

#include <math.h>
#include <string.h>

enum { CLASSES_MOST = 2, BLOCK = 32, Q8_0_BYTES = 34 };

static bool is_read(const struct gguf_tensor *t)
{
    return t->dtype == DT_F32 || t->dtype == DT_F16 || t->dtype == DT_BF16 || t->dtype == DT_Q8_0;
}

static float element(const struct gguf_tensor *t, const uint8_t *row, int64_t i)
{
    uint16_t half;
    float f;
    if (t->dtype == DT_Q8_0) {
        const uint8_t *block = row + i / BLOCK * Q8_0_BYTES;
        memcpy(&half, block, sizeof half);
        return f16_to_f32(half) * (float)(int8_t)block[2 + i % BLOCK];
    }
    if (t->dtype == DT_F32) {
        memcpy(&f, row + (size_t)i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, row + (size_t)i * sizeof half, sizeof half);
    return t->dtype == DT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

oato_status model_head(const struct model *m, bool *there, struct oato_error *err)
{
    const struct gguf_tensor *w = gguf_tensor(m->gguf, "cls.output.weight"),
                             *bias = gguf_tensor(m->gguf, "cls.output.bias");
    *there = w && w->data;
    if (*there && (!is_read(w) || w->ne[0] != m->shape.width || w->ne[1] > CLASSES_MOST ||
                   (bias && (!is_read(bias) || bias->dtype == DT_Q8_0 || bias->ne[0] != w->ne[1]))))
        return oato_fail(err, OATO_EFILE,
                         "%s: its ranking head (cls.output) has a type or a shape that is not read "
                         "here; convert it to F32, F16, BF16 or Q8_0, with one or two classes",
                         gguf_path(m->gguf));
    return OATO_OK;
}

double model_head_score(const struct model *m, const float *state)
{
    const struct gguf_tensor *w = gguf_tensor(m->gguf, "cls.output.weight"),
                             *bias = gguf_tensor(m->gguf, "cls.output.bias");
    double out[CLASSES_MOST] = {0};
    for (int64_t r = 0; r < w->ne[1]; r++) {
        const uint8_t *row = w->data + (size_t)r * (w->bytes / (size_t)w->ne[1]);
        for (int64_t i = 0; i < w->ne[0]; i++)
            out[r] += (double)element(w, row, i) * (double)state[i];
        out[r] += bias ? (double)element(bias, bias->data, r) : 0;
    }
    return w->ne[1] > 1 ? 1 / (1 + exp(out[1] - out[0])) : out[0];
}

int64_t model_parameters(const struct model *m)
{
    int64_t n = 0;
    for (size_t i = 0; i < gguf_tensor_count(m->gguf); i++) {
        const int64_t *ne = gguf_tensor_at(m->gguf, i)->ne;
        n += ne[0] * ne[1] * ne[2] * ne[3];
    }
    return n;
}

oato_dtype model_dtype(const struct model *m)
{
    size_t bytes[DT_COUNT] = {0};
    int most = 0;
    for (size_t i = 0; i < gguf_tensor_count(m->gguf); i++)
        bytes[gguf_tensor_at(m->gguf, i)->dtype] += gguf_tensor_at(m->gguf, i)->bytes;
    for (int i = 0; i < DT_COUNT; i++)
        most = bytes[i] > bytes[most] ? i : most;
    return (oato_dtype)most;
}
