/*
 * ops_sparse.c - products that skip zeros. GATE_UP goes over chunks of neurons:
 *
 *   for each up to 256 neurons
 *     gate's products, as a matrix like any other; or, from rows, of listed neurons, as up's
 *     the neurons that are active for some token
 *     for each up to 64 of these
 *       up's products, of their rows as they lie; or else
 *         their rows, gathered into the layout of a matrix, in L2
 *         products by the very kernels of a dense GATE_UP
 *       activation(gate) * up where the token's neuron is active, elsewhere 0
 *
 * A MUL_MAT by a list is the first half of it. A sparse one has neurons for columns. Threads share
 * its rows, so each adds up a row alone, in order of the columns: there is nothing to merge.
 */
#include "kernels/cpu/record_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static uint64_t up_bytes(int64_t T)
{
    return align64((uint64_t)(T * SPARSE_PANEL) * sizeof(float));
}

uint64_t sparse_gate_up_scratch(const struct cpu_kernels *k, const struct oato_op *op, int64_t T)
{
    return up_bytes(T) +
           align64(k->layout->bytes(k->layout->lanes, (oato_dtype)op->dtype, SPARSE_PANEL, op->k));
}

/* Marks the neurons that are active for a token at least; gates are n for each token. The gate of a
 * neuron that a token's list lacks is 0. */
static void neurons_mark(const struct run *x, const float *gate, int64_t stride, int64_t n,
                         bool *active)
{
    const bool listed = x->op->sparse == SPARSE_PREDICT;
    float a[SPARSE_CHUNK];
    memset(active, 0, (size_t)n * sizeof *active);
    for (int64_t t = 0; t < x->T; t++, gate += stride) {
        gate_row(x, a, gate, NULL, n);
        for (int64_t i = 0; i < n; i++)
            active[i] |= is_active(a[i], x->op->threshold) && !(listed && gate[i] == 0);
    }
}

/* The first number of an ascending list that is not below r. */
static const float *list_from(const float *at, const float *stop, int64_t r)
{
    while (at < stop) {
        const float *middle = at + (stop - at) / 2;
        if (*middle < (float)r)
            at = middle + 1;
        else
            stop = middle;
    }
    return at;
}

/* Results of n listed neurons, first in place of their gates: y is the token's neuron 0. */
static void neurons_put(const struct run *x, const int32_t *list, int64_t n, const float *up,
                        float *y)
{
    float gate[SPARSE_PANEL], a[SPARSE_PANEL], product[SPARSE_PANEL];
    for (int64_t i = 0; i < n; i++)
        gate[i] = y[list[i]];
    gate_row(x, a, gate, NULL, n);
    gate_row(x, product, gate, up, n);
    for (int64_t i = 0; i < n; i++)
        y[list[i]] = is_active(a[i], x->op->threshold) ? product[i] : 0;
}

/* Products of listed rows of weight i, at most SPARSE_PANEL; T rows of them, SPARSE_PANEL apart. */
static const float *panel_products(const struct matrix_task *m, int i, const struct rows_list *l)
{
    const struct matrix_layout *layout = m->x->k->layout;
    const struct oato_weight *rows = m->job[i].w;
    float *out = floats(m->scratch + m->up_at);
    struct oato_weight panel = {.dtype = rows->dtype,
                                .use = WEIGHT_MATRIX,
                                .rows = l->n,
                                .k = rows->k,
                                .data = m->scratch + m->up_at + up_bytes(m->x->T)};
    struct matrix_job job = m->job[i];
    job.next = NULL;
    job.y = out;
    job.y_stride = SPARSE_PANEL;
    if (m->x->matrix->listed && m->x->matrix->listed(&job, l))
        return out;
    layout->rows_panel(layout->lanes, rows, l, &panel);
    job.w = &panel;
    m->x->matrix->rows(&job, 0, l->n, m->scratch);
    return out;
}

/* What is not listed: nothing that passes an activation. */
static float unlisted(const struct oato_op *op)
{
    return op->kind == OP_GATE_UP ? 0 : -INFINITY;
}

/* Marks the neurons [r, end) that a token's list names, which get a gate of 1 to be replaced; the
 * others are as unlisted() says. */
static void listed_mark(const struct matrix_task *m, int64_t r, int64_t end, bool *named)
{
    const struct matrix_job *gate = &m->job[0];
    const int64_t width = op_in_width(m->x->op, 1);
    for (int64_t t = 0; t < gate->T; t++) {
        const float *at = input(m->x, 1) + t * width, *stop = at + 1 + (int64_t)*at;
        float *y = gate->y + t * gate->y_stride;
        for (int64_t i = r; i < end; i++)
            y[i] = unlisted(m->x->op);
        for (at = list_from(at + 1, stop, r); at < stop && *at < (float)end; at++) {
            named[(int64_t)*at - r] = true;
            y[(int64_t)*at] = 1;
        }
    }
}

/* Gates of the neurons [r, end) from rows: those that a token's list names, or all of them. */
static void row_gates(const struct matrix_task *m, int64_t r, int64_t end)
{
    const struct matrix_job *gate = &m->job[0];
    const bool listed = m->x->op->sparse == SPARSE_PREDICT;
    bool named[SPARSE_CHUNK] = {false};
    int32_t list[SPARSE_CHUNK];
    int64_t n = 0;
    if (listed)
        listed_mark(m, r, end, named);
    for (int64_t i = r; i < end; i++)
        if (!listed || named[i - r])
            list[n++] = (int32_t)i;
    for (int64_t i = 0; i < n; i += SPARSE_PANEL) {
        const int64_t panel = min_i64(SPARSE_PANEL, n - i);
        const struct rows_list l = {list + i, panel, n - i - panel, !i};
        const float *product = panel_products(m, 0, &l);
        for (int64_t t = 0; t < gate->T; t++)
            for (int64_t j = 0; j < panel; j++) {
                float *y = gate->y + t * gate->y_stride + list[i + j];
                *y = listed && *y != 1 ? *y : product[t * SPARSE_PANEL + j];
            }
    }
}

void listed_rows(const struct matrix_task *m, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r += SPARSE_CHUNK)
        row_gates(m, r, min_i64(end, r + SPARSE_CHUNK));
}

void sparse_gate_up_rows(const struct matrix_task *m, int64_t begin, int64_t end,
                         const uint8_t *next)
{
    const struct run *x = m->x;
    struct matrix_job gate = m->job[0];
    for (int64_t r = begin, stop; r < end; r = stop) {
        int32_t list[SPARSE_CHUNK];
        bool active[SPARSE_CHUNK];
        int64_t n = 0;
        stop = min_i64(end, r + SPARSE_CHUNK);
        if (x->op->sparse != SPARSE_ABOVE) {
            row_gates(m, r, stop);
        } else {
            gate.next = stop < end ? rows_at(x->k, gate.w, stop) : next;
            x->matrix->rows(&gate, r, stop, m->scratch);
        }
        neurons_mark(x, gate.y + r, gate.y_stride, stop - r, active);
        for (int64_t i = r; i < stop; n += active[i - r], i++) /* branches would be guesses */
            list[n] = (int32_t)i;
        for (int64_t i = 0; i < n; i += SPARSE_PANEL) {
            const int64_t panel = min_i64(SPARSE_PANEL, n - i);
            const struct rows_list l = {list + i, panel, n - i - panel, !i};
            const float *up = panel_products(m, 1, &l);
            for (int64_t t = 0; t < gate.T; t++)
                neurons_put(x, list + i, panel, up + t * SPARSE_PANEL, gate.y + t * gate.y_stride);
        }
        for (int64_t t = 0; t < gate.T && n < stop - r; t++)
            for (int64_t i = r; i < stop; i++) {
                float *y = gate.y + t * gate.y_stride + i;
                *y = active[i - r] ? *y : 0;
            }
    }
}

/* -------------------------------------------------------------------------------- columns - */

static uint64_t columns_scratch(const struct cpu_kernels *k, const struct oato_op *op, int64_t T)
{
    return align64(k->columns->scratch_bytes((oato_dtype)op->dtype, op->k, T));
}

uint64_t columns_workspace(const struct cpu_kernels *k, const struct oato_op *op, int64_t T,
                           int n_threads)
{
    return WORKSPACE_HEADER_BYTES + (uint64_t)n_threads * columns_scratch(k, op, T);
}

void run_columns(const struct run *x)
{
    const int64_t units = (x->op->n + MATRIX_ROWS - 1) / MATRIX_ROWS;
    const int64_t begin = units * x->thread / x->n_threads * MATRIX_ROWS;
    const int64_t end = min_i64(x->op->n, units * (x->thread + 1) / x->n_threads * MATRIX_ROWS);
    const struct columns_job job = {.w = weight(x, 0),
                                    .x = input(x, 0),
                                    .T = x->T,
                                    .threshold = x->op->threshold,
                                    .y = output(x, 0),
                                    .y_stride = x->op->n};
    uint8_t *scratch = x->c->workspace + WORKSPACE_HEADER_BYTES +
                       (uint64_t)x->thread * columns_scratch(x->k, x->op, x->T);
    assert(columns_workspace(x->k, x->op, x->T, x->n_threads) <= x->c->workspace_bytes);
    if (begin < end)
        x->k->columns->run(&job, begin, end, scratch);
}

void active_row(const struct run *x, int64_t t)
{
    const struct oato_weight *bias = weight(x, 0);
    const int64_t n = x->op->k;
    float *list = output(x, 0) + t * x->op->n;
    list[0] = (float)x->k->rows->above(list + 1, input(x, 0) + t * n,
                                       bias ? const_floats(bias->data) : NULL, n, x->op->threshold);
}
