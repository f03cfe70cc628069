/*
 * op_attention.c - the kernel of fused attention: for each query row softmax(scale * q.k + pse)
 * over the keys that its mask and its lengths leave, then the same mix of the values. Keys and
 * values are F16, BF16 or INT8 with scales, in one tensor, in one a batch, or in pages that a block
 * table names.
 *
 * As on the chip, the exponentials are rounded to the query's type before they are multiplied with
 * the values; scores stay in F32 unless innerPrecise asks for speed.
 */
#include "tests/ascend/op_attention.h"

#include <math.h>
#include <string.h>

int64_t op_attention_length(struct stand_ints lengths, int64_t batch, int64_t all)
{
    return !lengths.n ? all : lengths.values[lengths.n == 1 ? 0 : batch];
}

static void dequantise(struct stand_run *run, const struct antiquant *quant,
                       const struct attention_op *op, int64_t batch, int64_t head, int64_t n,
                       float *rows)
{
    if (!quant->scale.given)
        return;
    const float *scale = stand_read_floats(run, quant->scale), *offset = NULL;
    if (quant->offset.given)
        offset = stand_read_floats(run, quant->offset);
    bool single = stand_elements(quant->scale) == 1;
    for (int64_t i = 0; i < n * op->d; i++) {
        int64_t at = quant->per_token
                         ? batch * (stand_elements(quant->scale) / op->batches) + i / op->d
                     : single ? 0
                              : head * op->d + i % op->d;
        rows[i] = (rows[i] + (offset ? offset[at] : 0)) * scale[at];
    }
    op_narrow(rows, n * op->d, op->q.type, false);
}

/* The first n rows of keys or values of a batch and head, n x D. */
static float *load_rows(struct stand_run *run, const struct attention_op *op, int64_t batch,
                        int64_t head, int64_t n, bool values)
{
    struct stand_view all = values ? op->value : op->key;
    float *rows;
    if (op->listed)
        all = values ? op->value_list[batch] : op->key_list[batch];
    if (!op->table.given) {
        struct stand_view one = stand_select(all, 0, op->listed ? 0 : batch);
        rows = stand_read_floats(run, stand_slice(stand_select(one, 0, head), 0, 0, n));
    } else {
        rows = stand_scratch(run, (size_t)(n * op->d) * sizeof *rows);
        for (int64_t at = 0; at < n; at += op->block) {
            int64_t part = n - at < op->block ? n - at : op->block;
            int64_t page =
                stand_get_int(run, &op->table, batch * op->table.dims[1] + at / op->block);
            if (page < 0 || page >= all.dims[0]) {
                stand_fail(run, "block %lld of %lld", (long long)page, (long long)all.dims[0]);
                return NULL;
            }
            struct stand_view block = stand_select(stand_select(all, 0, page), 0, head);
            memcpy(rows + at * op->d, stand_read_floats(run, stand_slice(block, 0, 0, part)),
                   (size_t)(part * op->d) * sizeof *rows);
        }
    }
    dequantise(run, values ? &op->value_quant : &op->key_quant, op, batch, head, n, rows);
    return rows;
}

/* The keys that row i of `rows` may see by its position alone: [*first, *end) of n. */
static void band(const struct attention_op *op, int64_t i, int64_t rows, int64_t n, int64_t *first,
                 int64_t *end)
{
    int64_t shift = op->sparse >= 3 ? n - rows : 0, before = INT32_MAX, after = INT32_MAX;
    if (op->rows > 1 && (op->sparse == 4 || (op->sparse == 0 && op->mask.given)))
        before = op->before, after = op->after;
    if (op->rows > 1 && (op->sparse == 2 || op->sparse == 3))
        after = 0;
    *first = i + shift - before;
    *end = i + shift + after + 1;
    *first = *first < 0 ? 0 : *first;
    *end = *end > n ? n : *end;
}

struct head_work {
    const float *key, *value;
    double *scores, *mix;
    const double *pse, *mask; /* of all batches */
};

/* One query row: `x` in, `y` out. Returns log(sum(exp(score))). */
static double attend(const struct attention_op *op, const struct head_work *w, int64_t batch,
                     int64_t head, int64_t i, int64_t rows, int64_t n, const float *x, float *y)
{
    int64_t d = op->d, first, end, seen = 0;
    double most = -INFINITY, sum = 0;
    band(op, i, rows, n, &first, &end);
    for (int64_t j = 0; j < n; j++) {
        double score = (double)op_dot(x, w->key + j * d, d) * op->scale;
        if (op->fast)
            score = op_round(score, op->q.type);
        if (w->pse) {
            int64_t at = op->pse.dims[0] == 1 ? 0 : batch;
            score += w->pse[((at * op->heads + head) * op->pse.dims[2] + i) * op->pse.dims[3] + j];
        }
        bool hidden = j < first || j >= end;
        if (w->mask) {
            int64_t at = op->mask.dims[0] == 1 ? 0 : batch;
            hidden |= w->mask[(at * op->mask.dims[1] + i) * op->mask.dims[2] + j] != 0;
        }
        w->scores[j] = hidden ? -INFINITY : score;
        seen += !hidden;
        most = w->scores[j] > most ? w->scores[j] : most;
    }
    memset(w->mix, 0, (size_t)d * sizeof *w->mix);
    if (isinf(most)) {
        /* Nothing is seen: with corrected rows nothing comes out, otherwise all keys are alike. */
        bool empty = op->mend_rows || op->sparse == 3 || !n || seen;
        for (int64_t j = 0; j < n; j++)
            w->scores[j] = empty ? -INFINITY : 0;
        most = 0;
    }
    for (int64_t j = 0; j < n; j++) {
        double p = exp(w->scores[j] - most);
        sum += p;
        p = op_round(p, op->q.type);
        for (int64_t k = 0; p != 0 && k < d; k++)
            w->mix[k] += p * (double)w->value[j * d + k];
    }
    for (int64_t k = 0; k < d; k++)
        y[k] = sum > 0 ? (float)(w->mix[k] / sum) : 0;
    return sum > 0 ? most + log(sum) : (double)INFINITY;
}

void op_attention_run(struct stand_run *run, const void *state)
{
    const struct attention_op *op = state;
    int64_t group = op->heads / op->kv_heads, d = op->d;
    if (op_empty(op->out, op->out))
        return;
    struct head_work w = {.scores = stand_scratch(run, (size_t)(op->keys + 1) * sizeof(double)),
                          .mix = stand_scratch(run, (size_t)d * sizeof(double))};
    w.pse = op->pse.given ? stand_read_doubles(run, op->pse) : NULL;
    bool compressed = op->rows > 1 && op->sparse >= 2; /* the position alone decides */
    w.mask = op->mask.given && !compressed ? stand_read_doubles(run, op->mask) : NULL;
    float *y = stand_scratch(run, (size_t)(op->rows * d) * sizeof *y);
    double *lse = stand_scratch(run, (size_t)op->rows * sizeof *lse);
    for (int64_t batch = 0; batch < op->batches; batch++) {
        int64_t n = op_attention_length(op->kv_lengths, batch, op->keys);
        int64_t rows = op->rows == 1 ? 1 : op_attention_length(op->q_lengths, batch, op->rows);
        for (int64_t head = 0; head < op->heads; head++) {
            if (head % group == 0) {
                w.key = n ? load_rows(run, op, batch, head / group, n, false) : NULL;
                w.value = n ? load_rows(run, op, batch, head / group, n, true) : NULL;
                if (n && (!w.key || !w.value))
                    return;
            }
            struct stand_view to = stand_select(stand_select(op->out, 0, batch), 0, head);
            float *x = stand_read_floats(run, stand_select(stand_select(op->q, 0, batch), 0, head));
            memset(y, 0, (size_t)(op->rows * d) * sizeof *y);
            for (int64_t i = 0; i < rows; i++)
                lse[i] = attend(op, &w, batch, head, i, rows, n, x + i * d, y + i * d);
            stand_write_floats(run, to, y);
            if (op->lse.given)
                stand_write_doubles(run, stand_select(stand_select(op->lse, 0, batch), 0, head),
                                    lse);
        }
    }
}
