/*
 * ops_experts.c - the records of a mixture of experts: choosing experts for each token, and the
 * products with the matrices of those that were chosen.
 *
 * Every thread sorts the pairs (token, place in its choice) by expert for itself, which is cheaper
 * than waiting for one that does. The inputs are packed in that order, so that the columns of an
 * expert stand together and its rows are read once for all of them, with the same kernels as any
 * other product. Units dealt to threads are MATRIX_ROWS rows of one chosen expert (GATE_UP), or of
 * the output through all experts (DOWN): an output is summed by one thread, experts in rising
 * order, and so has the same bits whatever T, the companions of its token or the threads.
 *
 * The matrices lie behind each other as one. When their rows are no multiple of MATRIX_ROWS, the
 * first unit of an expert begins inside a group of the layout: the rows before are computed too
 * and dropped. Of a record that holds only some experts the pairs with others are left out; where a
 * cache has some of them, the products stay apart, for EXPERT_SUM to add them in the same order.
 */
#include "kernels/cpu/record_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    PANEL_ELEMENTS = 4096, /* of a result, so that few columns read long streams */
};

static const float LEAST_SUM = 0x1p-14f;

/* --------------------------------------------------------------------------------- choice - */

/* The `used` largest; anything is chosen in place of numbers that are none. */
static void choose(const float *logits, int32_t experts, int32_t used, uint8_t *chosen)
{
    memset(chosen, 0, (size_t)max_i64(experts, 1));
    for (int32_t i = 0; i < used; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < experts; e++)
            if (!chosen[e] && (best < 0 || logits[e] > logits[best]))
                best = e;
        chosen[best] = 1;
    }
}

/* The expert that a choice names by `place`: the same number, or that of the record's order. */
static int32_t expert_named(const struct run *x, int32_t place)
{
    const struct oato_weight *order = x->r->n_weights > 1 ? weight(x, 1) : NULL;
    return order ? (int32_t)const_floats(order->data)[place] : place;
}

/* Scores of all experts: a router whose choice the largest logits are not. */
static void scores_of(const struct oato_op *op, const float *logits, float *scores)
{
    float top = logits[0], all = 0;
    for (int32_t e = 1; e < op->k; e++)
        top = logits[e] > top ? logits[e] : top;
    for (int32_t e = 0; e < op->k; e++) {
        const float l = logits[e];
        scores[e] = op->route_score == ROUTE_SOFTMAX   ? expf(l - top)
                    : op->route_score == ROUTE_SIGMOID ? 1 / (1 + expf(-l))
                                                       : sqrtf(softplus(l));
        all += scores[e];
    }
    for (int32_t e = 0; e < op->k && op->route_score == ROUTE_SOFTMAX; e++)
        scores[e] /= all;
}

/* Makes the scores of experts in all but the best groups negative infinity. */
static void groups_choose(const struct oato_op *op, float *scores)
{
    const int32_t n = op->route_groups, each = n > 0 ? op->k / n : 1;
    float best[EXPERTS_MAX], first = -INFINITY, second = -INFINITY;
    uint8_t chosen[EXPERTS_MAX];
    if (n <= 0)
        return;
    memset(best, 0, (size_t)n * sizeof *best);
    for (int32_t e = 0; e < op->k; e++) {
        const float s = scores[e];
        second = s > first ? first : s > second ? s : second;
        first = s > first ? s : first;
        if (e % each < each - 1)
            continue;
        best[e / each] = first + (each > 1 ? second : 0); /* the group ends here */
        first = second = -INFINITY;
    }
    choose(best, n, op->route_groups_used, chosen);
    for (int32_t e = 0; e < op->k; e++)
        if (!chosen[e / each])
            scores[e] = -INFINITY;
}

/* How many of an expert's scores were chosen. */
static int32_t times_chosen(const uint8_t *chosen, int32_t share)
{
    int32_t n = 0;
    for (int32_t i = 0; i < share; i++)
        n += chosen[i];
    return n;
}

/* Chooses by scores, with a bias and groups; a sum that weights are divided by is no less than
 * 2^-14. */
static void route_row_scored(const struct run *x, int64_t t)
{
    const struct oato_op *op = x->op;
    const struct oato_weight *bias = x->r->n_weights ? weight(x, 0) : NULL;
    float *out = output(x, 0) + t * op->n, *weights = out + op->experts_used, sum = 0;
    float scores[EXPERTS_MAX] = {0}, choosing[EXPERTS_MAX];
    uint8_t chosen[EXPERTS_MAX];
    scores_of(op, input(x, 0) + t * op->k, scores);
    for (int32_t e = 0; e < op->k; e++)
        choosing[e] = scores[e] + (bias ? const_floats(bias->data)[e] : 0);
    groups_choose(op, choosing);
    choose(choosing, op->k, op->experts_used, chosen);
    const int32_t share = (int32_t)max_i64(op->route_share, 1);
    int32_t spare = op->experts_used;
    for (int32_t at = 0; at < op->k; at += share)
        spare -= times_chosen(chosen + at, share) > 0;
    for (int32_t place = 0, n = 0; place < op->experts; place++) {
        const int32_t e = expert_named(x, place);
        const int32_t times = times_chosen(chosen + e * share, share);
        if (!times && spare-- <= 0)
            continue;
        out[n] = (float)place;
        weights[n] = (float)times * scores[e];
        sum += weights[n++];
    }
    float factor = op->scale != 0 ? op->scale : 1;
    if (op->route_norm)
        factor /= sum > LEAST_SUM ? sum : LEAST_SUM;
    for (int32_t i = 0; i < op->experts_used; i++)
        weights[i] *= factor;
}

void route_row(const struct run *x, int64_t t)
{
    if (x->op->route_score != ROUTE_SOFTMAX || x->op->route_groups || x->op->route_share ||
        (x->r->n_weights && weight(x, 0))) {
        route_row_scored(x, t);
        return;
    }
    const struct oato_op *op = x->op;
    const float *logits = input(x, 0) + t * op->k;
    uint8_t chosen[EXPERTS_MAX];
    float *out = output(x, 0) + t * op->n;
    float *weights = out + op->experts_used, top = logits[0], sum = 0, all = 0;
    choose(logits, op->experts, op->experts_used, chosen);
    for (int32_t e = 1; e < op->experts; e++)
        top = logits[e] > top ? logits[e] : top;
    for (int32_t place = 0, n = 0; place < op->experts; place++) {
        const int32_t e = expert_named(x, place);
        const float share = expf(logits[e] - top);
        all += share;
        if (!chosen[e])
            continue;
        out[n] = (float)place;
        weights[n++] = share;
        sum += share;
    }
    const float factor = op->scale != 0 ? op->scale : 1;
    for (int32_t i = 0; i < op->experts_used; i++)
        weights[i] = weights[i] / (op->route_norm ? sum : all) * factor;
}

/* ------------------------------------------------------------------------------- grouping - */

/* Pair p = token * experts_used + place in its choice. Those of the i-th chosen expert, in rising
 * order of its place among the matrices, are pair[first[i]] .. pair[first[i + 1] - 1], in rising
 * order. */
struct groups {
    int32_t n, pairs; /* chosen experts that are computed, and pairs with them */
    int32_t *expert, *first, *pair;
};

/* Room for one list of each: experts and one more twice, pairs. */
static uint64_t groups_bytes(const struct oato_op *op, int64_t T)
{
    return align64((uint64_t)(2 * (op->experts + 1) + T * op->experts_used) * sizeof(int32_t));
}

static float chosen_id(const struct run *x, int32_t p)
{
    const int32_t used = x->op->experts_used;
    return input(x, 1)[p / used * 2 * used + p % used];
}

/* The place of pair p's expert among the matrices; -1: it is none that is computed here, or no id
 * at all, which no program makes. */
static int32_t place_of(const struct run *x, int32_t p)
{
    const struct oato_op *op = x->op;
    const float id = chosen_id(x, p) - (float)op->expert_first;
    if (!(id >= 0 && id < (float)op_experts_held(op)))
        return -1;
    if (!op->expert_slots)
        return (int32_t)id;
    const int32_t slot = x->step->cached[x->r->cache][(int32_t)id + op->expert_first];
    return op->expert_slots > 0 ? slot : slot < 0 ? (int32_t)id : -1;
}

static struct groups groups_make(const struct run *x, void *memory)
{
    const struct oato_op *op = x->op;
    const int32_t pairs = (int32_t)x->T * op->experts_used;
    const int32_t held = op->expert_slots > 0 ? op->expert_slots : op_experts_held(op);
    struct groups g = {.expert = memory};
    g.first = g.expert + op->experts + 1;
    g.pair = g.first + op->experts + 1;
    int32_t *at = g.first; /* of every expert: how many, then where the next one goes */
    memset(at, 0, (size_t)op->experts * sizeof *at);
    for (int32_t p = 0; p < pairs; p++) {
        const int32_t e = place_of(x, p);
        if (e >= 0)
            at[e]++;
    }
    for (int32_t e = 0; e < held; e++) {
        const int32_t n = at[e];
        at[e] = g.pairs;
        g.pairs += n;
        if (n)
            g.expert[g.n++] = e;
    }
    for (int32_t p = 0; p < pairs; p++) {
        const int32_t e = place_of(x, p);
        if (e >= 0)
            g.pair[at[e]++] = p;
    }
    /* now every expert's place is where the next one begins */
    for (int32_t i = 0, from = 0; i < g.n; i++) {
        const int32_t to = at[g.expert[i]];
        g.first[i] = from;
        from = to;
    }
    g.first[g.n] = g.pairs;
    return g;
}

/* --------------------------------------------------------------------------------- memory - */

/* [header][scratch of each thread][packed inputs]; of a thread: the kernel's own, groups, results
 * of one panel (GATE_UP: two). */
struct experts_room {
    uint64_t scratch, groups_at, rows_at, rows; /* bytes of a thread, and offsets in them */
    uint64_t pack;                              /* of a row of the input */
    int64_t packed;                             /* rows of the input */
    int64_t panel;                              /* rows computed together */
    bool is_private;                            /* every thread packs for itself */
};

static struct experts_room experts_room(const struct matrix_class *k, const struct oato_op *op,
                                        int64_t T)
{
    struct experts_room m = {0};
    const int64_t least = max_i64(k->panel_rows, MATRIX_ROWS);
    for (int w = 0; w < op_weight_least(op); w++) {
        const uint64_t own = align64(matrix_scratch_bytes(k, op_weight_dtype(op, w), op->k));
        m.groups_at = own > m.groups_at ? own : m.groups_at;
    }
    m.rows_at = m.groups_at + groups_bytes(op, T);
    m.panel = max_i64(least, PANEL_ELEMENTS / T / MATRIX_ROWS * MATRIX_ROWS);
    /* not less than for fewer tokens; a unit's own rows may begin and end inside a group */
    m.rows = align64((uint64_t)(max_i64(T * least, PANEL_ELEMENTS) + T * 2 * MATRIX_ROWS) *
                     sizeof(float));
    m.scratch = m.rows_at + (op->kind == OP_EXPERT_GATE_UP ? 2 : 1) * m.rows;
    m.pack = align64(matrix_pack_bytes(k, op->k));
    if (!m.pack)
        m.pack = (uint64_t)op->k * sizeof(float); /* as it is, rows without gaps */
    m.packed = op->kind == OP_EXPERT_GATE_UP && T == 1 ? 1 : T * op->experts_used;
    m.is_private = m.packed * op->k <= PRIVATE_ELEMENTS;
    return m;
}

uint64_t experts_workspace(const struct matrix_class *k, const struct oato_op *op, int64_t T,
                           int n_threads)
{
    const struct experts_room m = experts_room(k, op, max_i64(T, 1));
    /* A shorter step may pack privately: room for the larger of the two. */
    const int64_t most = max_i64(1, min_i64(m.packed, PRIVATE_ELEMENTS / op->k)) * n_threads;
    return WORKSPACE_HEADER_BYTES + (uint64_t)n_threads * m.scratch +
           align64((uint64_t)max_i64(m.packed, most) * m.pack);
}

/* ------------------------------------------------------------------------------- products - */

/* A running record: what all of its jobs have in common. */
struct experts_task {
    const struct run *x;
    struct experts_room room;
    struct groups groups;
    uint8_t *scratch;
    const uint8_t *packed;
    int64_t entered; /* columns that the kernel was told */
    bool adjusts;    /* the products, by factors, biases or weights of the choice */
};

/* Weight number w of the record, or NULL. */
static const struct oato_weight *optional(const struct run *x, int w)
{
    return w < x->r->n_weights ? weight(x, w) : NULL;
}

static float choice_weight(const struct run *x, int32_t pair)
{
    const int32_t used = x->op->experts_used;
    return input(x, 1)[(2 * (pair / used) + 1) * used + pair % used];
}

/* The inputs of rows [begin, end), in the order of the pairs. */
static void inputs_pack(const struct experts_task *m, int64_t begin, int64_t end, uint8_t *packed)
{
    const struct run *x = m->x;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = m->groups.pair[i];
        if (x->op->kind == OP_EXPERT_GATE_UP)
            row /= x->op->experts_used;
        const float *from = input(x, 0) + row * x->op->k;
        uint8_t *to = packed + (uint64_t)i * m->room.pack;
        if (x->matrix->pack)
            x->matrix->pack(x->op->k, from, to);
        else
            memcpy(to, from, (size_t)x->op->k * sizeof *from);
    }
}

/* The row of weight w at which the i-th chosen expert begins. */
static int64_t expert_row(const struct experts_task *m, int w, int32_t i)
{
    const struct oato_op *op = m->x->op;
    const int64_t first = (int64_t)m->groups.expert[i] * op->n;
    return op->one_tensor ? 2 * first + w * (int64_t)op->n : first;
}

/* The product of weight w, rows [begin, end) of the i-th chosen expert, with its columns. Returns
 * where row `begin` of its first column stands in `out`; *stride floats lie between columns. */
static float *expert_rows(struct experts_task *m, int w, int32_t i, int64_t begin, int64_t end,
                          const uint8_t *next, float *out, int64_t *stride)
{
    const struct run *x = m->x;
    const struct oato_weight *weight = x->c->weights[x->r->weight[w]];
    const int64_t first = m->groups.first[i], T = m->groups.first[i + 1] - first;
    const int64_t row = expert_row(m, w, i) + begin;
    const int64_t from = row / MATRIX_ROWS * MATRIX_ROWS;
    const int64_t to = (row - begin + end + MATRIX_ROWS - 1) / MATRIX_ROWS * MATRIX_ROWS;
    const uint8_t *in = m->packed + (m->room.packed > 1 ? (uint64_t)first * m->room.pack : 0);
    const bool packs = x->matrix->pack;
    *stride = m->room.panel + 2 * MATRIX_ROWS;
    const struct matrix_job job = {.w = weight,
                                   .x = packs ? NULL : const_floats(in),
                                   .packed = packs ? in : NULL,
                                   .pack_stride = packs ? m->room.pack : 0,
                                   .T = T,
                                   .next = next,
                                   .y = out - from,
                                   .y_stride = *stride};
    if (x->matrix->enter && m->entered != T)
        x->matrix->enter(T);
    m->entered = T;
    x->matrix->rows(&job, from, min_i64(to, weight->rows), m->scratch);
    return out + (row - from);
}

/* Where rows of the i-th chosen expert begin in weight w; NULL behind the last one. */
static const uint8_t *expert_at(const struct experts_task *m, int w, int32_t i, int64_t row)
{
    const struct oato_weight *weight = m->x->c->weights[m->x->r->weight[w]];
    if (i >= m->groups.n)
        return NULL;
    row += expert_row(m, w, i);
    return rows_at(m->x->k, weight, row / MATRIX_ROWS * MATRIX_ROWS);
}

/* Rows [begin, end) of the product of the p-th pair in order: times its expert's factor and the
 * weight of the choice, where there are any, and then its bias. NULL: no such weight. */
static void rows_adjust(const struct experts_task *m, int factors, int biases, int32_t p,
                        int64_t begin, int64_t end, float *y)
{
    const struct run *x = m->x;
    const struct oato_weight *factor = optional(x, factors), *bias = optional(x, biases);
    const int32_t expert = (int32_t)chosen_id(x, m->groups.pair[p]);
    float by = 1;
    if (factor)
        by = const_floats(factor->data)[expert];
    if (x->op->weighs_input && x->op->kind == OP_EXPERT_GATE_UP)
        by *= choice_weight(x, m->groups.pair[p]);
    for (int64_t r = 0; r < end - begin && by != 1; r++)
        y[r] *= by;
    if (bias)
        x->k->rows->add(y, y, const_floats(bias->data) + expert * x->op->n + begin, end - begin);
}

static void gate_up_rows(struct experts_task *m, int32_t i, int64_t begin, int64_t end)
{
    const struct run *x = m->x;
    const bool single = x->op->single;
    float *rows = floats(m->scratch + m->room.rows_at), *more = rows + m->room.rows / sizeof *rows;
    for (int64_t r = begin; r < end; r += m->room.panel) {
        const int64_t stop = min_i64(end, r + m->room.panel);
        int64_t stride;
        const uint8_t *next = stop < end ? expert_at(m, 0, i, stop) : NULL;
        float *gate =
            expert_rows(m, 0, i, r, stop, single ? next : expert_at(m, 1, i, r), rows, &stride);
        float *up = single ? NULL : expert_rows(m, 1, i, r, stop, next, more, &stride);
        for (int32_t p = m->groups.first[i]; p < m->groups.first[i + 1]; p++) {
            float *y = output(x, 0) + (int64_t)m->groups.pair[p] * x->op->n + r;
            if (m->adjusts) {
                rows_adjust(m, 2, 4, p, r, stop, gate);
                if (up)
                    rows_adjust(m, 3, 5, p, r, stop, up);
            }
            gate_row(x, y, gate, up, stop - r);
            gate += stride;
            up = up ? up + stride : NULL;
        }
    }
}

static void add_weighted(float *y, const float *x, float weight, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += weight * x[i];
}

static void down_rows(struct experts_task *m, int64_t begin, int64_t end)
{
    const struct run *x = m->x;
    const int64_t n = x->op->n, used = x->op->experts_used;
    float *rows = floats(m->scratch + m->room.rows_at);
    for (int64_t r = begin; r < end; r += m->room.panel) {
        const int64_t stop = min_i64(end, r + m->room.panel);
        for (int64_t t = 0; t < x->T; t++)
            memset(output(x, 0) + t * n + r, 0, (size_t)(stop - r) * sizeof *rows);
        for (int32_t i = 0; i < m->groups.n; i++) {
            int64_t stride;
            float *y = expert_rows(m, 0, i, r, stop, expert_at(m, 0, i + 1, r), rows, &stride);
            for (int32_t p = m->groups.first[i]; p < m->groups.first[i + 1]; p++, y += stride) {
                const int32_t pair = m->groups.pair[p];
                if (m->adjusts)
                    rows_adjust(m, 1, 2, p, r, stop, y);
                add_weighted(output(x, 0) + pair / used * n + r, y,
                             x->op->weighs_input ? 1 : choice_weight(x, pair), stop - r);
            }
        }
    }
}

/* EXPERT_DOWN of the i-th chosen expert alone. */
static void apart_rows(struct experts_task *m, int32_t i, int64_t begin, int64_t end)
{
    const struct run *x = m->x;
    float *rows = floats(m->scratch + m->room.rows_at);
    for (int64_t r = begin; r < end; r += m->room.panel) {
        const int64_t stop = min_i64(end, r + m->room.panel);
        int64_t stride;
        const uint8_t *next = stop < end ? expert_at(m, 0, i, stop) : NULL;
        float *y = expert_rows(m, 0, i, r, stop, next, rows, &stride);
        for (int32_t p = m->groups.first[i]; p < m->groups.first[i + 1]; p++, y += stride) {
            if (m->adjusts)
                rows_adjust(m, 1, 2, p, r, stop, y);
            memcpy(output(x, 0) + (int64_t)m->groups.pair[p] * x->op->n + r, y,
                   (size_t)(stop - r) * sizeof *y);
        }
    }
}

void expert_sum_row(const struct run *x, int64_t t)
{
    const struct oato_op *op = x->op;
    const int64_t used = op->experts_used, n = op->n;
    const float *ids = input(x, 0) + t * 2 * used, *weights = ids + used;
    const int32_t *slot = x->step->cached[x->r->cache];
    float *y = output(x, 0) + t * n;
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < used; i++) {
        const float id = ids[i] - (float)op->expert_first;
        if (!(id >= 0 && id < (float)op_experts_held(op)))
            continue;
        const float *row = input(x, slot[(int32_t)ids[i]] < 0 ? 1 : 2) + (t * used + i) * n;
        add_weighted(y, row, op->weighs_input ? 1 : weights[i], n);
    }
}

void run_experts(const struct run *x)
{
    const struct oato_op *op = x->op;
    const bool down = op->kind == OP_EXPERT_DOWN, sums = down && !op->expert_slots;
    struct experts_task m = {.x = x, .room = experts_room(x->matrix, op, x->T)};
    m.adjusts = x->r->n_weights > op_weight_least(op) || (!down && op->weighs_input);
    assert(experts_workspace(x->matrix, op, x->T, x->n_threads) <= x->c->workspace_bytes);
    uint8_t *all = x->c->workspace + WORKSPACE_HEADER_BYTES;
    m.scratch = all + (uint64_t)x->thread * m.room.scratch;
    m.groups = groups_make(x, m.scratch + m.room.groups_at);

    uint8_t *packed = all + (uint64_t)x->n_threads * m.room.scratch;
    const int64_t inputs = min_i64(m.room.packed, m.groups.pairs);
    int64_t begin = 0, end = inputs;
    if (m.room.is_private) {
        packed += (uint64_t)(x->thread * m.room.packed) * m.room.pack;
    } else {
        begin = inputs * x->thread / x->n_threads;
        end = inputs * (x->thread + 1) / x->n_threads;
    }
    inputs_pack(&m, begin, end, packed);
    m.packed = packed;
    if (x->n_threads > 1 && !m.room.is_private)
        cpu_barrier_wait(x->barrier); /* the packed input is complete */

    const int64_t units = (op->n + MATRIX_ROWS - 1) / MATRIX_ROWS;
    struct deal deal = {.x = x, .units = sums ? units : units * m.groups.n};
    while (deal_next(&deal, &begin, &end)) {
        for (int64_t stop; begin < end; begin = stop) {
            stop = min_i64(end, (begin / units + 1) * units); /* of one expert */
            const int64_t first = begin / units * units;
            const int64_t from = (begin - first) * MATRIX_ROWS;
            const int64_t to = min_i64(op->n, (stop - first) * MATRIX_ROWS);
            if (sums)
                down_rows(&m, from, to);
            else if (down)
                apart_rows(&m, (int32_t)(begin / units), from, to);
            else
                gate_up_rows(&m, (int32_t)(begin / units), from, to);
        }
    }
    if (x->matrix->leave && m.entered)
        x->matrix->leave();
}
