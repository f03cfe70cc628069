/*
 * cuda_sparse.c - products that skip what is near zero: a GATE_UP's second half, and a product that
 * reads columns. Grids are those of the shapes; kernels find out what there is to do.
 */
#include "kernels/cuda/cuda_record.h"

bool cuda_has_sparse(const struct oato_op *op)
{
    if (op->kind != OP_GATE_UP || !op->sparse)
        return !op->sparse || op_by_columns(op);
    /* of these activations the kernels know only products */
    return op->sparse == SKIP_ZEROS && op->activation != ACT_CLAMPED &&
           op->activation != ACT_CLAMPED_SILU && op->activation != ACT_SILU_CLAMPED;
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
