/*
 * ops_transposed.c - products with a matrix that is kept transposed, as PowerInfer's files keep
 * ffn_down: row i of the weight is what element i of the input adds to the result. Rows of elements
 * that are 0 are not read.
 *
 * Threads divide the columns. An element of the result is the sum of its products in rising i,
 * whatever T, the threads and the zeros are. One token walks a row's columns at once, as memory
 * likes it; for more tokens a row is dequantised once, and so few columns are taken at a time that
 * all tokens' sums stay in the L2.
 */
#include "kernels/cpu/record_internal.h"

#include <assert.h>
#include <string.h>

enum { COLUMNS = 256 }; /* at a time, a multiple of every block */

uint64_t transposed_workspace(const struct oato_op *op, int n_threads)
{
    return WORKSPACE_HEADER_BYTES + (uint64_t)n_threads * align64((uint64_t)op->n * sizeof(float));
}

/* Adds row i times the tokens' elements to n columns of the result from `column` on. */
static void row_add(const struct run *x, int64_t i, const uint8_t *row, int64_t column, int64_t n,
                    float *room)
{
    const oato_dtype dtype = weight(x, 0)->dtype;
    const float *in = input(x, 0) + i;
    float *y = output(x, 0) + column;
    bool ready = false; /* room has the row as float32 */
    for (int64_t t = 0; t < x->T; t++) {
        const float factor = in[t * x->op->k];
        if (factor == 0)
            continue;
        if (!ready && x->T > 1)
            quants_row(dtype, row, n, room);
        ready = x->T > 1;
        x->k->rows->add_scaled(y + t * x->op->n, factor, ready ? DT_F32 : dtype,
                               ready ? (const uint8_t *)room : row, n, room);
    }
}

void run_transposed(const struct run *x)
{
    const struct oato_op *op = x->op;
    const struct oato_weight *w = weight(x, 0);
    const struct dtype_info *d = dtype_info((int)w->dtype);
    size_t stride = 0;
    const int64_t units = (op->n + COLUMNS - 1) / COLUMNS;
    const int64_t end = min_i64(op->n, units * (x->thread + 1) / x->n_threads * COLUMNS);
    int64_t column = units * x->thread / x->n_threads * COLUMNS;
    float *room = floats(x->c->workspace + WORKSPACE_HEADER_BYTES +
                         (uint64_t)x->thread * align64((uint64_t)op->n * sizeof(float)));
    assert(transposed_workspace(op, x->n_threads) <= x->c->workspace_bytes);
    dtype_row_bytes(w->dtype, op->n, &stride);
    for (int64_t n; column < end; column += n) {
        n = x->T > 1 ? min_i64(COLUMNS, end - column) : end - column;
        const uint8_t *row = w->data + column / d->block_elems * d->block_bytes;
        for (int64_t t = 0; t < x->T; t++)
            memset(output(x, 0) + t * op->n + column, 0, (size_t)n * sizeof(float));
        for (int64_t i = 0; i < op->k; i++, row += stride)
            row_add(x, i, row, column, n, room);
    }
}
