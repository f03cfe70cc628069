/*
 * ops.c - running one record: for each kind of operator the loop over rows, heads and tokens and
 * its division among threads, written once for all instruction sets. What computes is the table
 * of the context.
 *
 * No result depends on the division: matrix rows, heads and tokens are computed whole by one
 * thread, and context segments of attention are merged in their order. Records too small to be
 * worth a barrier are solo: thread 0 does them alone.
 */
#include "kernels/core/wire.h"
#include "kernels/cpu/record_internal.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    SOLO_ELEMENTS = 8192,     /* a few us of element-wise work */
    SOLO_STATE = 16384,       /* the same of states' */
    SOLO_PRODUCTS = 8192,     /* of a matrix: fewer take less time than a barrier */
    MEMORY_BOUND_COLUMNS = 8, /* of products that wait for their weights more than they compute */
    READ_AHEAD = 256 << 10,   /* a quarter of an L2 */
};

/* ------------------------------------------------------------------------ matrix products - */

/* Memory of a matrix product: [header][scratch of each thread][packed inputs]. */
struct matrix_room {
    uint64_t scratch; /* of a thread: kernel's own, then the rows of `up` */
    uint64_t up_at;   /* GATE_UP: offset of those rows in the scratch */
    int64_t panel;    /* rows computed together */
    uint64_t pack;    /* of a row of the input; 0 when none */
    bool is_private;  /* every thread packs for itself */
};

static struct matrix_room matrix_room(const struct cpu_kernels *kernels,
                                      const struct matrix_class *k, const struct oato_op *op,
                                      int64_t T)
{
    struct matrix_room m = {0};
    oato_dtype dtype = (oato_dtype)op->dtype;
    m.up_at = align64(matrix_scratch_bytes(k, dtype, op->k));
    m.scratch = m.up_at;
    m.panel = max_i64(k->panel_rows, MATRIX_ROWS);
    if (op->kind == OP_GATE_UP || op->sparse)
        m.scratch += op->sparse ? sparse_gate_up_scratch(kernels, op, T)
                                : align64((uint64_t)(T * m.panel) * sizeof(float));
    m.pack = align64(matrix_pack_bytes(k, op->k));
    m.is_private = T * op->k <= PRIVATE_ELEMENTS;
    return m;
}

static uint64_t matrix_workspace(const struct cpu_kernels *kernels, const struct matrix_class *k,
                                 const struct oato_op *op, int64_t T, int n_threads)
{
    struct matrix_room m = matrix_room(kernels, k, op, T);
    uint64_t n = (uint64_t)n_threads;
    /* A shorter step may pack privately: room for the larger of the two. */
    int64_t most = op->k > 0 ? min_i64(T, PRIVATE_ELEMENTS / op->k) : 0;
    uint64_t packed = (uint64_t)max_i64(m.is_private ? 0 : T, most * n_threads) * m.pack;
    return WORKSPACE_HEADER_BYTES + n * m.scratch + packed;
}

static int64_t units_of(int64_t rows)
{
    return (rows + MATRIX_ROWS - 1) / MATRIX_ROWS;
}

/* Of all weights of a matrix product. */
static int64_t units_of_op(const struct oato_op *op)
{
    return units_of(op->n) + (op->kind == OP_QKV ? 2 * units_of(op->n2) : 0);
}

static void gate_up_rows(const struct matrix_task *m, int64_t begin, int64_t end,
                         const uint8_t *next)
{
    struct matrix_job gate = m->job[0], up = m->job[1];
    float *rows = floats(m->scratch + m->up_at);
    for (int64_t r = begin; r < end; r += m->panel) {
        int64_t stop = min_i64(end, r + m->panel);
        gate.next = rows_at(m->x->k, up.w, r);
        up.next = stop < end ? rows_at(m->x->k, gate.w, stop) : next;
        up.y = rows - r;
        up.y_stride = m->panel;
        m->x->matrix->rows(&gate, r, stop, m->scratch);
        m->x->matrix->rows(&up, r, stop, m->scratch);
        for (int64_t t = 0; t < gate.T; t++) {
            float *y = gate.y + t * gate.y_stride + r;
            gate_row(m->x, y, y, rows + t * m->panel, stop - r);
        }
    }
}

/* Where the weights of a unit begin, units being counted through all weights. */
static const uint8_t *unit_at(const struct matrix_task *m, int64_t unit)
{
    int i = 0;
    for (; i + 1 < m->n && unit >= units_of(m->rows[i]); i++)
        unit -= units_of(m->rows[i]);
    return rows_at(m->x->k, m->job[i].w, unit * MATRIX_ROWS);
}

/* Units [begin, end); the thread reads on at `next`. */
static void matrix_units(const struct matrix_task *m, int64_t begin, int64_t end,
                         const uint8_t *next)
{
    for (int i = 0; i < m->n && begin < end; i++) {
        int64_t units = units_of(m->rows[i]);
        if (begin < units) {
            int64_t from = begin * MATRIX_ROWS, to = min_i64(m->rows[i], end * MATRIX_ROWS);
            if (m->x->op->kind == OP_GATE_UP) {
                (m->x->op->sparse ? sparse_gate_up_rows : gate_up_rows)(m, from, to, next);
            } else if (m->x->op->sparse) {
                listed_rows(m, from, to);
            } else {
                struct matrix_job job = m->job[i];
                job.next = end > units && i + 1 < m->n ? m->job[i + 1].w->data : next;
                m->x->matrix->rows(&job, from, to, m->scratch);
            }
        }
        begin = max_i64(begin - units, 0);
        end -= units;
    }
}

static void run_matrix(const struct run *x)
{
    const struct oato_op *op = x->op;
    if (op_by_columns(op)) {
        run_columns(x);
        return;
    }
    struct matrix_room room = matrix_room(x->k, x->matrix, op, x->T);
    assert(matrix_workspace(x->k, x->matrix, op, x->T, x->n_threads) <= x->c->workspace_bytes);
    uint8_t *scratch = x->c->workspace + WORKSPACE_HEADER_BYTES;
    uint8_t *packed = scratch + (uint64_t)x->n_threads * room.scratch;
    const float *in = input(x, 0);

    int64_t pack_begin = 0, pack_end = x->T;
    if (room.is_private)
        packed += (uint64_t)(x->thread * x->T) * room.pack;
    else
        share_rows(x, &pack_begin, &pack_end);
    for (int64_t t = pack_begin; room.pack && t < pack_end; t++)
        x->matrix->pack(op->k, in + t * op->k, packed + (uint64_t)t * room.pack);

    struct matrix_task m = {.x = x, .up_at = room.up_at, .panel = room.panel};
    m.scratch = scratch + (uint64_t)x->thread * room.scratch;
    const int weights = op_weight_count(op); /* at least one */
    int i = 0;
    do {
        m.rows[i] = i && op->kind == OP_QKV ? op->n2 : op->n;
        m.job[i] = (struct matrix_job){.w = x->c->weights[x->r->weight[i]],
                                       .x = in,
                                       .packed = room.pack ? packed : NULL,
                                       .pack_stride = room.pack,
                                       .T = x->T,
                                       .y = op->kind == OP_GATE_UP ? output(x, 0) : output(x, i),
                                       .y_stride = m.rows[i]};
    } while (++i < weights);
    m.n = op->kind == OP_GATE_UP ? 1 : weights;

    if (x->n_threads > 1 && !room.is_private)
        cpu_barrier_wait(x->barrier); /* the packed input is complete */
    if (x->matrix->enter)
        x->matrix->enter(x->T);
    struct deal deal = {.x = x, .units = units_of_op(op)};
    int64_t begin = 0, end = 0, next_begin = 0, next_end = 0;
    for (bool more = deal_next(&deal, &begin, &end); more; begin = next_begin, end = next_end) {
        more = deal_next(&deal, &next_begin, &next_end);
        matrix_units(&m, begin, end, more ? unit_at(&m, next_begin) : NULL);
    }
    if (x->matrix->leave)
        x->matrix->leave();
}

/* --------------------------------------------------------------------------- row by row --- */

static void embed_row(const struct run *x, int64_t t)
{
    const struct oato_weight *w = weight(x, 0);
    const int64_t k = x->op->k, last = x->op->n - 1;
    const int64_t id = x->op->by_position
                           ? min_i64(x->step->token_position[t] + x->op->by_position - 1, last)
                           : x->step->token_id[t];
    float *y = output(x, 0) + t * k;
    size_t row = 0;
    dtype_row_bytes(w->dtype, k, &row);
    quants_row(w->dtype, w->data + (size_t)id * row, k, y);
    if (x->op->scale != 0)
        for (int64_t i = 0; i < k; i++)
            y[i] *= x->op->scale;
}

/* The operator's norm of n floats; w: its weights, without NORM_OWN_HEADS those of weight[0]. */
static void norm(const struct run *x, float *y, const float *in, const float *w, int64_t n)
{
    const int32_t how = x->op->norm;
    const float *bias = how & NORM_BIASED ? const_floats(weight(x, 1)->data) : NULL;
    if (w && !bias && !(how & NORM_CENTRED))
        x->k->rows->rms_norm(y, in, w, n, x->op->eps);
    else
        x->k->rows->layer_norm(y, in, w, bias, n, x->op->eps, how & NORM_CENTRED);
}

static const float *norm_weights(const struct run *x)
{
    return x->op->norm & NORM_PLAIN ? NULL : const_floats(weight(x, 0)->data);
}

static void norm_row(const struct run *x, int64_t t)
{
    const int64_t at = t * x->op->n;
    norm(x, output(x, 0) + at, input(x, 0) + at, norm_weights(x), x->op->n);
}

static void add_norm_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n, at = t * n;
    float *sum = output(x, 0) + at;
    x->k->rows->add(sum, input(x, 0) + at, input(x, 1) + at, n);
    norm(x, output(x, 1) + at, sum, norm_weights(x), n);
}

static void head_norm_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n, d = x->op->head_dim;
    const bool gains = x->op->norm & NORM_HEAD_GAINS;
    const int64_t step = x->op->norm & NORM_OWN_HEADS ? d : 0;
    const float *w = norm_weights(x);
    for (int64_t h = 0, at = t * n; h < x->op->heads; h++, at += d) {
        float *y = output(x, 0) + at;
        norm(x, y, input(x, 0) + at, w && !gains ? w + h * step : NULL, d);
        for (int64_t i = 0; gains && w && i < d; i++)
            y[i] *= w[h];
    }
}

static void bias_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n, at = t * n;
    x->k->rows->add(output(x, 0) + at, input(x, 0) + at, const_floats(weight(x, 0)->data), n);
}

/* Rows of logits have none: nothing that depends on it may compute them. */
static int32_t position_of(const struct run *x, int64_t t)
{
    return x->r->rows == ROWS_TOKENS ? x->step->token_position[t] : 0;
}

static void scale_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n;
    const struct oato_weight *w = weight(x, 0);
    const float *a = input(x, 0) + t * n, *of = w ? const_floats(w->data) : NULL;
    const float factor = of ? of[0] : scale_factor(x->op, position_of(x, t));
    float *y = output(x, 0) + t * n;
    for (int64_t i = 0; i < n; i++)
        y[i] = x->op->divides && of ? a[i] / of[i] : a[i] * factor;
}

static void add_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n, at = t * n;
    x->k->rows->add(output(x, 0) + at, input(x, 0) + at, input(x, 1) + at, n);
}

static void swiglu_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n, at = t * n;
    gate_row(x, output(x, 0) + at, input(x, 0) + at, input(x, 1) + at, n);
}

static void activate_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n, at = t * n;
    gate_row(x, output(x, 0) + at, input(x, 0) + at, NULL, n);
}

/* Each gate is of `wide` neighbours. */
static void gates_row(const struct run *x, int64_t t)
{
    enum { AT_ONCE = 64 };
    const int64_t n = x->op->n, gates = x->op->heads, wide = n / gates;
    const float *in = input(x, 0) + t * n, *gate = input(x, 1) + t * gates;
    float *y = output(x, 0) + t * n, factor[AT_ONCE];
    if (wide == 1) {
        gate_row(x, y, gate, in, n);
        return;
    }
    for (int64_t g = 0; g < gates; g += AT_ONCE) {
        const int64_t some = min_i64(AT_ONCE, gates - g);
        gate_row(x, factor, gate + g, NULL, some);
        for (int64_t i = 0; i < some; i++)
            for (int64_t at = (g + i) * wide; at < (g + i + 1) * wide; at++)
                y[at] = in[at] * factor[i];
    }
}

static void select_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n;
    memcpy(output(x, 0) + t * n, input(x, 0) + x->step->row[t] * n, (size_t)n * sizeof(float));
}

static void merge_row(const struct run *x, int64_t t)
{
    float *y = output(x, 0) + t * x->op->n;
    for (int i = 0; i < x->r->n_in; i++) {
        const int64_t n = x->r->in_width[i];
        memcpy(y, input(x, i) + t * n, (size_t)n * sizeof *y);
        y += n;
    }
}

static void slice_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n;
    const int32_t heads = x->op->heads ? x->op->heads : 1;
    const int64_t from = x->op->k / heads, to = n / heads;
    for (int32_t h = 0; h < heads; h++)
        memcpy(output(x, 0) + t * n + h * to, input(x, 0) + t * x->op->k + h * from + x->op->first,
               (size_t)to * sizeof(float));
}

/* Values as accelerators may have them; a host's own are float32. */
static void convert_row(const struct run *x, int64_t t)
{
    const size_t n = (size_t)x->op->n, at = (size_t)t * n;
    if (x->op->dtype == DT_F16)
        wire_pack(DT_F16, x->c->arena + x->r->out[0] + at * 2, input(x, 0) + at, n);
    else
        wire_unpack(DT_F16, output(x, 0) + at, x->c->arena + x->r->in[0] + at * 2, n);
}

/* As hosts of a cluster sum what they send each other: core/wire.c. */
static void merge_rounded(const struct run *x, int64_t t, float *y)
{
    const int64_t n = x->op->n;
    const oato_dtype wire = (oato_dtype)x->op->dtype;
    float next[8 * WIRE_BLOCK];
    for (int64_t at = 0; at < n; at += 8 * WIRE_BLOCK) {
        const int64_t piece = min_i64(n - at, 8 * WIRE_BLOCK);
        for (int i = 0; i < x->r->n_in; i++) {
            float *to = i ? next : y + at;
            memcpy(to, input(x, i) + t * n + at, (size_t)piece * sizeof *to);
            wire_round(wire, to, (size_t)piece);
            if (i)
                x->k->rows->add(y + at, y + at, next, piece);
        }
        wire_round(wire, y + at, (size_t)piece);
    }
}

/* In part order: every level of kernels adds alike, so the sum has the same bits on all devices. */
static void merge_sum_row(const struct run *x, int64_t t)
{
    const int64_t n = x->op->n;
    float *y = output(x, 0) + t * n;
    const float *sum = input(x, 0) + t * n;
    if (x->op->dtype != DT_F32) {
        merge_rounded(x, t, y);
        return;
    }
    if (x->r->n_in == 1)
        memcpy(y, sum, (size_t)n * sizeof *y);
    for (int i = 1; i < x->r->n_in; i++, sum = y)
        x->k->rows->add(y, sum, input(x, i) + t * n, n);
}

static void rope_angles(const struct oato_op *op, const double *turn, int64_t position,
                        float *cos_sin)
{
    const double magnitude = op->rope_magnitude != 0 ? (double)op->rope_magnitude : 1;
    for (int32_t i = 0; i < op->rope_dims / 2; i++) {
        double s, c;
        sincos((double)position * turn[i], &s, &c);
        cos_sin[2 * i] = (float)(c * magnitude);
        cos_sin[2 * i + 1] = (float)(s * magnitude);
    }
}

static void rope_row(const struct oato_op *op, const float *cos_sin, const float *x, float *y)
{
    const int32_t pairs = op->rope_dims / 2;
    const bool halves = op->rope_pairing == ROPE_HALVES;
    const int32_t step = halves ? 1 : 2, partner = halves ? pairs : 1;
    for (int32_t h = 0; op->first && y != x && h < op->heads; h++)
        memcpy(y + h * op->head_dim, x + h * op->head_dim, (size_t)op->first * sizeof *y);
    x += op->first;
    y += op->first;
    for (int32_t h = 0; h < op->heads; h++, x += op->head_dim, y += op->head_dim) {
        for (int32_t i = 0; i < pairs; i++) {
            float a = x[i * step], b = x[i * step + partner];
            float c = cos_sin[2 * i], s = cos_sin[2 * i + 1];
            y[i * step] = a * c - b * s;
            y[i * step + partner] = a * s + b * c;
        }
        if (y != x)
            memcpy(y + op->rope_dims, x + op->rope_dims,
                   (size_t)(op->head_dim - op->first - op->rope_dims) * sizeof *y);
    }
}

static bool rope_same(const struct rope_table *t, const struct oato_op *op, const uint8_t *divisors)
{
    return t->filled_serial == t->step_serial && t->divisors == divisors &&
           t->op.rope_dims == op->rope_dims && t->op.rope_base == op->rope_base &&
           t->op.rope_scale == op->rope_scale && t->op.rope_low == op->rope_low &&
           t->op.rope_high == op->rope_high && t->op.rope_magnitude == op->rope_magnitude;
}

/* Each thread fills the table for its own tokens; it is marked as filled once all have. */
static void run_rope(const struct run *x)
{
    const struct oato_op *op = x->op;
    const struct oato_weight *w = weight(x, 0);
    const uint8_t *divisors = w ? w->data : NULL;
    struct rope_table *table = x->c->rope;
    const int64_t pairs = op->rope_dims / 2;
    if (table && table->floats < (uint64_t)(x->T * pairs * 2))
        table = NULL;
    const bool filled = table && rope_same(table, op, divisors);
    float local[HEAD_DIM_MAX];
    double turn[HEAD_DIM_MAX / 2];
    for (int32_t i = 0; !filled && i < pairs; i++)
        turn[i] = rope_turn(op, i, w ? const_floats(divisors) : NULL);
    int64_t begin, end;
    share_rows(x, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float *cos_sin = local;
        if (table)
            cos_sin = table->cos_sin + t * pairs * 2;
        if (!filled)
            rope_angles(op, turn, x->step->token_position[t], cos_sin);
        rope_row(op, cos_sin, input(x, 0) + t * op->n, output(x, 0) + t * op->n);
    }
    if (!table || filled)
        return;
    cpu_barrier_wait(x->barrier); /* nobody looks at the key any more */
    if (x->thread == 0) {
        table->op = *op;
        table->divisors = divisors;
        table->filled_serial = table->step_serial;
    }
}

/* --------------------------------------------------------------------------------- record - */

/* A kind has one of the two: cheap rows, which the threads share, or more. */
static const struct {
    void (*row)(const struct run *x, int64_t t);
    void (*run)(const struct run *x);
} kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {.row = embed_row},
    [OP_RMS_NORM] = {.row = norm_row},
    [OP_MUL_MAT] = {.run = run_matrix},
    [OP_BIAS] = {.row = bias_row},
    [OP_SCALE] = {.row = scale_row},
    [OP_ROPE] = {.run = run_rope},
    [OP_KV_STORE] = {.row = kv_store_row},
    [OP_ATTENTION] = {.run = run_attention},
    [OP_ADD] = {.row = add_row},
    [OP_SWIGLU] = {.row = swiglu_row},
    [OP_ACTIVATE] = {.row = activate_row},
    [OP_GATE] = {.row = gates_row},
    [OP_SELECT] = {.row = select_row},
    [OP_QKV] = {.run = run_matrix},
    [OP_GATE_UP] = {.run = run_matrix},
    [OP_ADD_NORM] = {.row = add_norm_row},
    [OP_MERGE] = {.row = merge_row},
    [OP_MERGE_SUM] = {.row = merge_sum_row},
    [OP_KV_COPY] = {.run = run_kv_copy},
    [OP_HEAD_NORM] = {.row = head_norm_row},
    [OP_ROUTE] = {.row = route_row},
    [OP_EXPERT_GATE_UP] = {.run = run_experts},
    [OP_EXPERT_DOWN] = {.run = run_experts},
    [OP_EXPERT_SUM] = {.row = expert_sum_row},
    [OP_TOP_K] = {.row = top_k_row},
    [OP_SLICE] = {.row = slice_row},
    [OP_CONV] = {.run = run_state},
    [OP_DELTA] = {.run = run_state},
    [OP_SSM] = {.run = run_state},
    [OP_HEAD_MUL_MAT] = {.run = run_heads},
    [OP_ACTIVE] = {.row = active_row},
    [OP_CONVERT] = {.row = convert_row},
    [OP_MUL_MAT_T] = {.run = run_transposed},
};

bool cpu_record_is_solo(const struct program_record *r, const struct step *step)
{
    if (r->kind != RECORD_RUN)
        return true;
    if (r->op.kind == OP_KV_COPY)
        return step->n_page_copies == 0 && step->n_state_copies == 0;
    int64_t T = record_rows(r, step);
    if (kinds[r->op.kind].run == run_state)
        return T * op_state_floats(&r->op) <= SOLO_STATE;
    const bool wide = r->op.kind == OP_EMBED || r->op.kind == OP_ROUTE || r->op.kind == OP_TOP_K ||
                      r->op.kind == OP_ACTIVE;
    int64_t width = wide ? r->op.k : r->op.n;
    if (r->op.kind == OP_MUL_MAT && T * r->op.k * r->op.n <= SOLO_PRODUCTS)
        return true;
    const bool by_rows = kinds[r->op.kind].row || kinds[r->op.kind].run == run_rope;
    return T == 0 || (by_rows && (T == 1 || T * width <= SOLO_ELEMENTS));
}

struct read_ahead cpu_record_reads(const struct cpu_context *c, const struct program_record *r,
                                   const struct step *step, int thread, int n_threads)
{
    struct read_ahead none = {NULL, 0};
    if (r->kind != RECORD_RUN || kinds[r->op.kind].run != run_matrix ||
        op_weight_use_at(&r->op, 0) != WEIGHT_MATRIX || record_rows(r, step) > MEMORY_BOUND_COLUMNS)
        return none;
    const struct oato_weight *w = c->weights[r->weight[0]];
    const int64_t own = deal_own(units_of_op(&r->op), n_threads) * MATRIX_ROWS;
    const int64_t from = min_i64(w->rows, thread * own), to = min_i64(w->rows, from + own);
    const uint8_t *at = rows_at(c->kernels, w, from);
    return (struct read_ahead){at, (uint64_t)min_i64(READ_AHEAD, rows_at(c->kernels, w, to) - at)};
}

void cpu_run_record(const struct cpu_context *c, const struct program_record *r,
                    const struct step *step, int thread, struct cpu_barrier *barrier)
{
    struct cpu_barrier alone = {.n = 1};
    struct run x = {.c = c,
                    .k = c->kernels,
                    .matrix = cpu_matrix_class(c->kernels, (oato_dtype)r->op.dtype, r->numerics),
                    .r = r,
                    .op = &r->op,
                    .step = step,
                    .barrier = barrier,
                    .T = record_rows(r, step),
                    .thread = thread,
                    .n_threads = barrier->n};
    if (cpu_record_is_solo(r, step)) {
        if (thread != 0)
            return;
        x.barrier = &alone;
        x.n_threads = 1;
    }
    int64_t begin, end;
    share_rows(&x, &begin, &end);
    for (int64_t t = begin; kinds[r->op.kind].row && t < end; t++)
        kinds[r->op.kind].row(&x, t);
    if (kinds[r->op.kind].run && (x.T > 0 || r->op.kind == OP_KV_COPY))
        kinds[r->op.kind].run(&x);
}

void cpu_run_alone(const struct cpu_context *c, const struct program_record *r,
                   const struct step *step)
{
    struct cpu_barrier alone;
    cpu_barrier_init(&alone, 1);
    cpu_run_record(c, r, step, 0, &alone);
}

bool cpu_supports(const struct oato_op *op)
{
    return op_valid(op) && (kinds[op->kind].row || kinds[op->kind].run);
}

uint64_t cpu_workspace_bytes(const struct cpu_kernels *k, const struct oato_op *op,
                             const struct op_size *size, int n_threads)
{
    if (op->kind == OP_ATTENTION)
        return attention_workspace(k, op, size, n_threads);
    if (op_by_columns(op))
        return columns_workspace(k, op, size->rows, n_threads);
    if (op->kind == OP_MUL_MAT_T)
        return transposed_workspace(op, n_threads);
    uint64_t bytes = 0;
    for (int i = 0; i < NUMERICS_CHOICES && op_weight_use(op) == WEIGHT_MATRIX; i++) {
        const struct matrix_class *matrix = cpu_matrix_class(k, (oato_dtype)op->dtype, i);
        const uint64_t one =
            op_has_experts(op)            ? experts_workspace(matrix, op, size->rows, n_threads)
            : op->kind == OP_HEAD_MUL_MAT ? heads_workspace(matrix, op, size->rows, n_threads)
                                          : matrix_workspace(k, matrix, op, size->rows, n_threads);
        bytes = one > bytes ? one : bytes;
    }
    return bytes;
}
