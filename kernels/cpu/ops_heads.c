/*
 * ops_heads.c - products of heads that have a matrix each, which multi-head latent attention makes
 * of its queries and of its results.
 *
 * The inputs are packed head by head, so that a head's columns stand together and its rows are read
 * once for all of them, with the same kernels as any other product. Units dealt to threads are
 * MATRIX_ROWS rows of one head. The matrices lie behind each other as one: where their rows are no
 * multiple of MATRIX_ROWS, a unit may begin inside a group of the layout, and the rows around it
 * are computed too and dropped.
 */
#include "kernels/cpu/record_internal.h"

#include <assert.h>
#include <string.h>

/* [header][scratch of each thread][packed inputs]; of a thread: the kernel's own, then a panel. */
struct heads_room {
    uint64_t panel_at, scratch; /* bytes */
    uint64_t pack;              /* of a row of one head */
    bool is_private;            /* every thread packs for itself */
};

enum { PANEL_ROWS = 2 * MATRIX_ROWS }; /* a unit, which may begin and end inside a group */

static struct heads_room heads_room(const struct matrix_class *k, const struct oato_op *op,
                                    int64_t T)
{
    struct heads_room m = {0};
    m.panel_at = align64(matrix_scratch_bytes(k, (oato_dtype)op->dtype, op->k));
    m.scratch = m.panel_at + align64((uint64_t)(T * PANEL_ROWS) * sizeof(float));
    m.pack = align64(matrix_pack_bytes(k, op->k));
    if (!m.pack)
        m.pack = (uint64_t)op->k * sizeof(float); /* as it is, rows without gaps */
    m.is_private = T * op->k * op->heads <= PRIVATE_ELEMENTS;
    return m;
}

uint64_t heads_workspace(const struct matrix_class *k, const struct oato_op *op, int64_t T,
                         int n_threads)
{
    const struct heads_room m = heads_room(k, op, max_i64(T, 1));
    /* A shorter step may pack privately: room for the larger of the two. */
    const int64_t width = (int64_t)op->k * op->heads;
    const int64_t most =
        max_i64(m.is_private ? 0 : T, min_i64(T, PRIVATE_ELEMENTS / width) * n_threads);
    return WORKSPACE_HEADER_BYTES + (uint64_t)n_threads * m.scratch +
           align64((uint64_t)(most * op->heads) * m.pack);
}

/* Row p of what is packed: head p / T of token p mod T. */
static void inputs_pack(const struct run *x, const struct heads_room *m, int64_t begin, int64_t end,
                        uint8_t *packed)
{
    for (int64_t p = begin; p < end; p++) {
        const int64_t head = p / x->T, t = p % x->T;
        const float *from = input(x, 0) + (t * x->op->heads + head) * x->op->head_dim;
        uint8_t *to = packed + (uint64_t)p * m->pack;
        if (x->matrix->pack)
            x->matrix->pack(x->op->k, from, to);
        else
            memcpy(to, from, (size_t)x->op->k * sizeof *from);
    }
}

/* Rows [begin, end) of a head's matrix. */
static void head_rows(const struct run *x, const struct heads_room *m, int64_t head, int64_t begin,
                      int64_t end, const uint8_t *packed, uint8_t *scratch)
{
    const struct oato_weight *w = weight(x, 0);
    const int64_t n = x->op->n, width = n + x->op->head_dim - x->op->k;
    const int64_t first = head * n + begin, last = head * n + end;
    const int64_t from = first / MATRIX_ROWS * MATRIX_ROWS;
    const int64_t to = min_i64((last + MATRIX_ROWS - 1) / MATRIX_ROWS * MATRIX_ROWS, w->rows);
    const bool packs = x->matrix->pack, whole = from == first && to == last;
    const uint8_t *in = packed + (uint64_t)(head * x->T) * m->pack;
    float *panel = floats(scratch + m->panel_at), *out = output(x, 0) + head * width;
    const struct matrix_job job = {.w = w,
                                   .x = packs ? NULL : const_floats(in),
                                   .packed = packs ? in : NULL,
                                   .pack_stride = packs ? m->pack : 0,
                                   .T = x->T,
                                   .y = whole ? out - head * n : panel - from,
                                   .y_stride = whole ? x->op->heads * width : PANEL_ROWS};
    x->matrix->rows(&job, from, to, scratch);
    for (int64_t t = 0; t < x->T && !whole; t++)
        memcpy(out + t * x->op->heads * width + begin, panel + t * PANEL_ROWS + (first - from),
               (size_t)(end - begin) * sizeof *out);
}

/* The columns that are no input of a product. */
static void others_copy(const struct run *x)
{
    const int64_t n = x->op->n, k = x->op->k, rest = x->op->head_dim - k;
    int64_t begin, end;
    share_rows(x, &begin, &end);
    for (int64_t p = begin * x->op->heads; rest && p < end * x->op->heads; p++)
        memcpy(output(x, 0) + p * (n + rest) + n, input(x, 0) + p * (k + rest) + k,
               (size_t)rest * sizeof(float));
}

void run_heads(const struct run *x)
{
    const struct oato_op *op = x->op;
    const struct heads_room m = heads_room(x->matrix, op, x->T);
    assert(heads_workspace(x->matrix, op, x->T, x->n_threads) <= x->c->workspace_bytes);
    uint8_t *all = x->c->workspace + WORKSPACE_HEADER_BYTES;
    uint8_t *packed = all + (uint64_t)x->n_threads * m.scratch;
    const int64_t rows = x->T * op->heads;
    if (m.is_private) {
        packed += (uint64_t)(x->thread * rows) * m.pack;
        inputs_pack(x, &m, 0, rows, packed);
    } else {
        inputs_pack(x, &m, rows * x->thread / x->n_threads, rows * (x->thread + 1) / x->n_threads,
                    packed);
        cpu_barrier_wait(x->barrier); /* the packed input is complete */
    }
    others_copy(x);
    const int64_t units = (op->n + MATRIX_ROWS - 1) / MATRIX_ROWS;
    uint8_t *scratch = all + (uint64_t)x->thread * m.scratch;
    struct deal deal = {.x = x, .units = units * op->heads};
    int64_t begin, end;
    if (x->matrix->enter)
        x->matrix->enter(x->T);
    while (deal_next(&deal, &begin, &end))
        for (int64_t u = begin; u < end; u++)
            head_rows(x, &m, u / units, u % units * MATRIX_ROWS,
                      min_i64(op->n, (u % units + 1) * MATRIX_ROWS), packed, scratch);
    if (x->matrix->leave)
        x->matrix->leave();
}
