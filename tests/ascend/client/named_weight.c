/*
 * named_weight.c - a product whose weight has a name by which llama.cpp's backend knows it for a
 * weight of a model: it then rearranges it into the format FRACTAL_NZ on upload, which llama.cpp's
 * operator test, whose tensors have no such names, never does. Through ggml's public functions; the
 * reference is computed here. Status 0: all products are right.
 */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 256, ROWS = 96, TOKENS = 5 };

static float value(int i)
{
    return (float)((i * 7919 % 2003) - 1001) / 1001.0f;
}

static double squared_error(ggml_backend_t backend, enum ggml_type type)
{
    struct ggml_init_params params = {
        .mem_size = 64 * ggml_tensor_overhead() + ggml_graph_overhead(), .no_alloc = true};
    struct ggml_context *ctx = ggml_init(params);
    struct ggml_tensor *weight = ggml_new_tensor_2d(ctx, type, DEPTH, ROWS);
    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, DEPTH, TOKENS);
    ggml_set_name(weight, "blk.0.attn_q.weight");
    struct ggml_tensor *y = ggml_mul_mat(ctx, weight, x);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, backend);
    if (!buffer)
        return INFINITY;

    static float w[DEPTH * ROWS], in[DEPTH * TOKENS], out[ROWS * TOKENS];
    static ggml_fp16_t halves[DEPTH * ROWS];
    for (int i = 0; i < DEPTH * ROWS; i++) {
        halves[i] = ggml_fp32_to_fp16(value(i));
        w[i] = type == GGML_TYPE_F16 ? ggml_fp16_to_fp32(halves[i]) : value(i);
    }
    for (int i = 0; i < DEPTH * TOKENS; i++)
        in[i] = value(i * 31 + 5);
    ggml_backend_tensor_set(weight, type == GGML_TYPE_F16 ? (void *)halves : (void *)w, 0,
                            ggml_nbytes(weight));
    ggml_backend_tensor_set(x, in, 0, sizeof in);
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS)
        return INFINITY;
    ggml_backend_tensor_get(y, out, 0, sizeof out);

    double error = 0, norm = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int d = 0; d < DEPTH; d++)
                sum += (double)w[r * DEPTH + d] * in[t * DEPTH + d];
            error += pow(out[t * ROWS + r] - sum, 2);
            norm += sum * sum;
        }
    ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return error / norm;
}

int main(void)
{
    ggml_backend_load_all();
    ggml_backend_dev_t device = ggml_backend_dev_by_name("CANN0");
    ggml_backend_t backend = device ? ggml_backend_dev_init(device, NULL) : NULL;
    if (!backend)
        return 1;
    int wrong = 0;
    const enum ggml_type types[] = {GGML_TYPE_F16, GGML_TYPE_F32};
    for (int i = 0; i < 2; i++) {
        double error = squared_error(backend, types[i]);
        printf("weight of %s: NMSE %.3g\n", ggml_type_name(types[i]), error);
        wrong += !(error < 5e-4); /* the limit of llama.cpp's operator test for products */
    }
    ggml_backend_free(backend);
    return wrong != 0;
}
