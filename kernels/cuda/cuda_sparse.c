/*
 * cuda_sparse.c - products that skip neurons: a GATE_UP's second half, a product that reads
 * columns, products by a list and what makes the list. Grids are those of the shapes; kernels find
 * out what there is to do.
 */
#include "kernels/cuda/cuda_record.h"
#include "kernels/cuda/cuda_sparse_kernels.h"

#include <math.h>

bool cuda_has_sparse(const struct oato_op *op)
{
    /* of these activations the kernels know only products */
    return op->kind != OP_GATE_UP || !op->sparse ||
           (op->activation != ACT_CLAMPED && op->activation != ACT_CLAMPED_SILU &&
            op->activation != ACT_SILU_CLAMPED);
}

/* --------------------------------------------------------------------------------- gate_up - */

cu_result launch_sparse_up(const struct launch *l, const struct cuda_matvec_args *gate)
{
    struct cuda_sparse_up_args a = {.w = launch_matrix(l, 1),
                                    .y = launch_output(l, 0),
                                    .x = gate->x,
                                    .x_stride = gate->x_stride,
                                    .activation = l->op->activation,
                                    .split = gate->split,
                                    .limit = l->op->scale,
                                    .threshold = l->op->threshold};
    return launch_start(l, l->kernels->run_up,
                        (struct grid){blocks_of(l->op->n, SPARSE_CHUNK), l->T, 1},
                        MATVEC_WARPS * 32, 0, &a);
}

/* ------------------------------------------------------------------------------- by a list - */

cu_result launch_listed(const struct launch *l)
{
    const struct oato_op *op = l->op;
    const bool gate_up = op->kind == OP_GATE_UP;
    const int32_t pairs = (op->n + 1) / 2;
    struct cuda_listed_args a = {.list = launch_input(l, 1),
                                 .y = launch_output(l, 0),
                                 .gate_up = gate_up,
                                 .activation = op->activation,
                                 .split = launch_split(gate_up ? op->n : pairs, op->k),
                                 .limit = op->scale,
                                 .threshold = op->threshold,
                                 .unlisted = gate_up ? 0 : -INFINITY};
    for (int i = 0; i < l->r->n_weights; i++)
        a.w[i] = launch_matrix(l, i);
    const cu_result result = launch_pack(l, l->T, &a.x, &a.x_stride);
    if (result)
        return result;
    const struct grid grid = {blocks_of((int64_t)pairs * a.split, MATVEC_WARPS), l->T, 1};
    return launch_start(l, l->kernels->run, grid, MATVEC_WARPS * 32, 0, &a);
}

cu_result launch_list(const struct launch *l)
{
    struct cuda_list_args a = {.x = launch_input(l, 0),
                               .bias = launch_optional(l, 0),
                               .list = launch_output(l, 0),
                               .k = l->op->k,
                               .threshold = l->op->threshold};
    return launch_start(l, l->kernels->run, (struct grid){l->T, 1, 1}, LIST_THREADS, 0, &a);
}

/* --------------------------------------------------------------------------------- columns - */

const char *cuda_columns_kernel(oato_dtype dtype, bool many)
{
    if (!cuda_has_blocks(dtype))
        return many ? "columns_many_%s" : "columns_%s";
    if (columns_form_of(dtype)->bits == 4)
        return many ? "columns_many_nibbles" : "columns_nibbles";
    return many ? "columns_many_bytes" : "columns_bytes";
}

/* Slices side by side keep a GPU busy with few tokens; many tokens do so by themselves. */
static bool divides(int64_t rows)
{
    return rows <= NUMERICS_DECODE_ROWS;
}

uint64_t cuda_columns_workspace(const struct oato_op *op, int64_t rows)
{
    return (uint64_t)min_i64(rows, NUMERICS_DECODE_ROWS) * (uint64_t)op->n *
           (uint64_t)cuda_columns_slices(op->n, op->k) * sizeof(float);
}

cu_result launch_columns(const struct launch *l)
{
    const struct oato_weight *w = launch_weight(l, 0);
    const struct columns c = columns_at(w, 0);
    struct cuda_columns_args a = {.w = {.data = w->data,
                                        .scales = c.scales,
                                        .column = c.column,
                                        .rows = l->op->n,
                                        .k = l->op->k,
                                        .offset = c.form->offset,
                                        .has_min = c.form->has_min,
                                        .half = c.form->half},
                                  .x = launch_input(l, 0),
                                  .y = launch_output(l, 0),
                                  .slices = cuda_columns_slices(l->op->n, l->op->k),
                                  .tokens = (int32_t)l->T,
                                  .threshold = l->op->threshold};
    if (divides(l->T) && a.slices > 1)
        a.partial = launch_workspace(l);
    const struct grid grid = {blocks_of(a.w.rows, COLUMNS_ROWS), a.partial ? (uint32_t)a.slices : 1,
                              l->T == 1 ? 1 : blocks_of(l->T, COLUMNS_TOKENS)};
    const cu_result result = launch_start(l, l->T == 1 ? l->kernels->run : l->kernels->many, grid,
                                          COLUMNS_WARPS * 32, 0, &a);
    if (result || !a.partial)
        return result;
    return launch_start(l, l->kernels->merge,
                        (struct grid){blocks_of(a.w.rows, ROW_THREADS), l->T, 1}, ROW_THREADS, 0,
                        &a);
}
