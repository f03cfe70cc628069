/*
 * test_cpu_state.c - recurrent mixers on every instruction set: they compute what their equations
 * say in double; outputs and states have the same bits however the tokens of a sequence are split
 * into steps, in whatever company, on any number of threads; copies of states are done in order.
 */
#include "tests/kernels/test_cpu.h"

enum { SEQS = 3, TOKENS = 44, SLOTS = 5, INPUTS = 3, WEIGHTS = 2 };

static const int32_t lengths[SEQS] = {37, 1, 6}; /* 37: more than kernels take at once */

/* An operator with inputs for all sequences, one behind the other, and its state. */
struct mixer {
    struct oato_op op;
    float *in[INPUTS], *weight[WEIGHTS], *out;
    int n_in, n_weights;
    struct guarded g;
    struct oato_weight weights[WEIGHTS], *table[WEIGHTS];
    struct kv_cache *kv;
    struct cpu_context c;
};

static float *fill(struct mixer *m, int64_t n, float mean, float factor)
{
    float *x = guarded_alloc(&m->g, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = mean + factor * random_float();
    return x;
}

static void mixer_init(struct mixer *m, const struct cpu_kernels *k, struct oato_op op)
{
    struct oato_error err;
    memset(m, 0, sizeof *m);
    guarded_init(&m->g);
    assert_true(op_valid(&op) && cpu_supports(&op));
    m->op = op;
    m->n_in = op_in_count(&op);
    m->n_weights = op_weight_count(&op);
    for (int i = 0; i < m->n_in; i++)
        m->in[i] = fill(m, TOKENS * op_in_width(&op, i), 0, 1);
    for (int i = 0; i < m->n_weights; i++) {
        int64_t n, width;
        assert_true(op_weight_shape(&op, i, &n, &width));
        /* decays are negative */
        m->weight[i] = op.kind != OP_CONV && i == 0 ? fill(m, n * width, -0.7f, 0.1f)
                                                    : fill(m, n * width, 0, 0.5f);
        m->weights[i].data = (const uint8_t *)m->weight[i];
        m->table[i] = &m->weights[i];
    }
    m->out = fill(m, TOKENS * (int64_t)op.n, 0, 1);
    const struct kv_layer_shape shape = {.state = op_state_floats(&op), .slots = SLOTS};
    assert_int_equal(kv_cache_new("test", &shape, 1, DT_F16, 0, &m->kv, &err), OATO_OK);
    m->kv->data = guarded_alloc(&m->g, size_align(m->kv->bytes, 64));
    memset(m->kv->data, 0xff, m->kv->bytes); /* a new sequence must not read it */
    m->c = (struct cpu_context){.kernels = k, .arena = m->g.base, .weights = m->table, .kv = m->kv};
}

static void mixer_free(struct mixer *m)
{
    free(m->kv);
    guarded_free(&m->g);
}

/* Tokens [from[s], to[s]) of each sequence in one step, sequence s in slot SLOTS - 1 - s. */
static void mixer_step(struct mixer *m, const int32_t *from, const int32_t *to, int threads)
{
    struct step_seq seq[SEQS];
    struct step step = {.seq = seq};
    struct program_record r = record_of(m->op);
    float *in[INPUTS] = {NULL}, *out = guarded_alloc(&m->g, TOKENS * (size_t)m->op.n * sizeof *out);
    for (int i = 0; i < m->n_in; i++)
        in[i] = guarded_alloc(&m->g, TOKENS * (size_t)op_in_width(&m->op, i) * sizeof *in[i]);
    for (int32_t s = 0, first = 0; s < SEQS; first += lengths[s++]) {
        const int32_t n = to[s] - from[s];
        for (int i = 0; i < m->n_in && n; i++) {
            const int64_t w = op_in_width(&m->op, i);
            memcpy(in[i] + step.n_tokens * w, m->in[i] + (first + from[s]) * w,
                   (size_t)(n * w) * sizeof **in);
        }
        if (n)
            seq[step.n_seqs++] = (struct step_seq){.query_begin = step.n_tokens,
                                                   .query_len = n,
                                                   .kv_len = to[s],
                                                   .state = SLOTS - 1 - s};
        step.n_tokens += n;
    }
    r.kv_layer = 0;
    r.n_in = (uint8_t)m->n_in;
    r.n_weights = (uint8_t)m->n_weights;
    for (int i = 0; i < m->n_in; i++) {
        r.in[i] = (uint64_t)((uint8_t *)in[i] - m->g.base);
        r.in_width[i] = (int32_t)op_in_width(&m->op, i);
    }
    for (int i = 0; i < m->n_weights; i++)
        r.weight[i] = (uint32_t)i;
    r.n_out = 1;
    r.out[0] = (uint64_t)((uint8_t *)out - m->g.base);
    record_run(&m->c, &r, &step, 0, threads);
    for (int32_t s = 0, first = 0, at = 0; s < SEQS; first += lengths[s++]) {
        const int32_t n = to[s] - from[s];
        memcpy(m->out + (int64_t)(first + from[s]) * m->op.n, out + (int64_t)at * m->op.n,
               (size_t)n * (size_t)m->op.n * sizeof *out);
        at += n;
    }
}

/* ------------------------------------------------------------------------- the definition --- */

static double soft(double x)
{
    return log1p(exp(x));
}

static double sigmoid_of(double x)
{
    return 1 / (1 + exp(-x));
}

static void conv_wanted(const struct mixer *m, int32_t first, int32_t n, double *out)
{
    const int64_t k = m->op.k, taps = m->op.state + 1;
    for (int64_t t = 0; t < n; t++)
        for (int64_t c = 0; c < k; c++) {
            double sum = 0;
            for (int64_t j = 0; j < taps; j++)
                if (t + j + 1 >= taps)
                    sum += (double)m->weight[0][c * taps + j] *
                           (double)m->in[0][(first + t + j + 1 - taps) * k + c];
            out[(first + t) * k + c] = sum;
        }
}

static double length(const float *x, int64_t n, double eps)
{
    double sum = eps;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* One head's step of the delta rule. */
static void delta_token(const struct mixer *m, int64_t t, int64_t h, double *S, double *out)
{
    const struct oato_op *op = &m->op;
    const int64_t d = op->head_dim, H = op->heads, G = op->kv_heads;
    const int64_t g = op->cyclic ? h % G : h * G / H;
    const float *q = m->in[0] + t * op->k + g * d, *k = q + G * d;
    const float *v = m->in[0] + t * op->k + 2 * G * d + h * d;
    const double lq = length(q, d, (double)op->eps), lk = length(k, d, (double)op->eps);
    const double b = sigmoid_of((double)m->in[2][t * H + h]), A = (double)m->weight[0][h];
    for (int64_t i = 0; i < d; i++) {
        const double a = (double)m->in[1][op->per_channel ? (t * H + h) * d + i : t * H + h];
        const double g_i = op->scale != 0 ? (double)op->scale * sigmoid_of(A * a) : A * soft(a);
        for (int64_t j = 0; j < d; j++)
            S[i * d + j] *= exp(g_i);
    }
    for (int64_t j = 0; j < d; j++) {
        double seen = 0, sum = 0;
        for (int64_t i = 0; i < d; i++)
            seen += (double)k[i] / lk * S[i * d + j];
        for (int64_t i = 0; i < d; i++) {
            S[i * d + j] += (double)k[i] / lk * b * ((double)v[j] - seen);
            sum += (double)q[i] / lq / sqrt((double)d) * S[i * d + j];
        }
        out[t * op->n + h * d + j] = sum;
    }
}

static void ssm_token(const struct mixer *m, int64_t t, int64_t h, double *S, double *out)
{
    const struct oato_op *op = &m->op;
    const int64_t d = op->head_dim, H = op->heads, G = op->kv_heads, N = op->state;
    const float *x = m->in[0] + t * op->k + h * d;
    const float *B = m->in[0] + t * op->k + H * d + h * G / H * N, *C = B + G * N;
    const double dt = op->alibi != 0 ? 1 : soft((double)m->in[1][t * H + h]);
    for (int64_t j = 0; j < d; j++) {
        double y = op->alibi != 0 ? 0 : (double)m->weight[1][h] * (double)x[j];
        for (int64_t i = 0; i < N; i++) {
            const double A = op->alibi != 0 ? -(double)op->scale * (double)op_slope(op, (int32_t)h)
                                            : (double)m->weight[0][op->per_channel ? h * N + i : h];
            S[i * d + j] = S[i * d + j] * exp(dt * A) + dt * (double)x[j] * (double)B[i];
            y += S[i * d + j] * (double)C[i];
        }
        out[t * op->n + h * d + j] = y;
    }
}

/* From the states of single channels, one behind the other: blocks of channels have theirs row by
 * row. */
static double *in_blocks(const struct oato_op *op, double *S)
{
    const int64_t N = op->state, group = op->heads / op->kv_heads;
    double *moved = test_malloc((size_t)(op->heads * N) * sizeof *moved);
    for (int64_t h = 0; h < op->heads; h++) {
        const int64_t first = h % group / STATE_COLUMNS * STATE_COLUMNS;
        const int64_t width = min_i64(STATE_COLUMNS, group - first), c = h % group - first;
        for (int64_t i = 0; i < N; i++)
            moved[(h - c) * N + i * width + c] = S[h * N + i];
    }
    test_free(S);
    return moved;
}

static void check_definition(struct mixer *m)
{
    const int32_t zero[SEQS] = {0};
    double *wanted = test_calloc(TOKENS * (size_t)m->op.n, sizeof *wanted);
    const int64_t states = op_state_floats(&m->op);
    mixer_step(m, zero, lengths, 1);
    for (int32_t s = 0, first = 0; s < SEQS; first += lengths[s++]) {
        if (m->op.kind == OP_CONV) {
            conv_wanted(m, first, lengths[s], wanted);
            continue;
        }
        double *S = test_calloc((size_t)states, sizeof *S);
        for (int32_t t = first; t < first + lengths[s]; t++)
            for (int32_t h = 0; h < m->op.heads; h++) {
                double *own = S + states / m->op.heads * h;
                if (m->op.kind == OP_DELTA)
                    delta_token(m, t, h, own, wanted);
                else
                    ssm_token(m, t, h, own, wanted);
            }
        const float *state = kv_state(m->kv, 0, SLOTS - 1 - s);
        if (m->op.kind == OP_SSM && m->op.per_channel)
            S = in_blocks(&m->op, S);
        assert_close(state, S, states, 1e-11);
        test_free(S);
    }
    assert_close(m->out, wanted, TOKENS * (int64_t)m->op.n, 1e-11);
    test_free(wanted);
}

/* Steps of random tokens of the sequences give the bits of one step for all. */
static void check_splits(struct mixer *m)
{
    const size_t n = TOKENS * (size_t)m->op.n, states = m->kv->bytes;
    float *out = test_malloc(n * sizeof *out);
    uint8_t *kept = test_malloc(states);
    memcpy(out, m->out, n * sizeof *out);
    memcpy(kept, m->kv->data, states);
    for (int round = 0; round < 4; round++) {
        int32_t from[SEQS] = {0}, to[SEQS] = {0};
        memset(m->kv->data, 0xff, states);
        for (bool more = true; more;) {
            more = false;
            for (int s = 0; s < SEQS; s++) {
                from[s] = to[s];
                to[s] += (int32_t)random_in(0, min_i64(round ? 12 : 2, lengths[s] - from[s]));
                more = more || to[s] < lengths[s];
            }
            mixer_step(m, from, to, 1 + round);
        }
        assert_memory_equal(m->out, out, n * sizeof *out);
        assert_memory_equal(m->kv->data, kept, states);
    }
    test_free(out);
    test_free(kept);
}

static const char *const keys[] = {
    "conv/k7/s1",           "conv/k100/s3",        "conv/k64/s15",          "delta/h1/g1/d16/c0",
    "delta/h6/g2/d40/c0",   "delta/h4/g4/d128/c1", "ssm/h4/g1/d64/s128/c0", "ssm/h6/g3/d20/s5/c0",
    "ssm/h70/g1/d1/s16/c1", "ssm/h96/g2/d1/s5/c1",
};

static void mixers_do_what_they_are_defined_as(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t j = 0; k && j < 2 * ARRAY_LEN(keys); j++) {
            struct oato_op op;
            struct op_size size;
            struct mixer m;
            assert_true(oato_op_parse(keys[j / 2], &op, &size));
            op.eps = 1e-5f;
            if (op.kind == OP_DELTA) {
                op.cyclic = j % 2;
                op.scale = op.per_channel && j % 2 ? -5 : 0;
            }
            if (op.kind == OP_SSM && !op.per_channel && j % 2) {
                op.alibi = 8;
                op.alibi_heads = op.heads;
                op.scale = 0.5f;
            }
            mixer_init(&m, k, op);
            check_definition(&m);
            check_splits(&m);
            mixer_free(&m);
        }
    }
}

static void states_are_copied_in_order(void **state)
{
    (void)state;
    struct oato_op op;
    struct op_size size;
    struct mixer m;
    assert_true(oato_op_parse("conv/k64/s3", &op, &size));
    mixer_init(&m, kernels_named("ref"), op);
    for (int s = 0; s < SLOTS; s++)
        kv_state(m.kv, 0, s)[5] = (float)s;
    const struct step_state_copy copies[] = {{0, 1}, {1, 2}, {4, 0}};
    const struct step step = {.n_state_copies = 3, .state_copy = copies};
    const struct program_record r = record_of((struct oato_op){.kind = OP_KV_COPY});
    record_run(&m.c, &r, &step, 0, 2);
    assert_true(kv_state(m.kv, 0, 1)[5] == 0 && kv_state(m.kv, 0, 2)[5] == 0);
    assert_true(kv_state(m.kv, 0, 0)[5] == 4 && kv_state(m.kv, 0, 3)[5] == 3);
    mixer_free(&m);
}

int main(void)
{
    seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixers_do_what_they_are_defined_as),
        cmocka_unit_test(states_are_copied_in_order),
    };
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
