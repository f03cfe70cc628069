/*
 * test_cpu_experts.c - mixtures of experts on every instruction set: the products of a chosen
 * expert have the bits of an ordinary product with its matrix, whatever T, the companions of a
 * token, the threads and the rows of an expert. No byte beyond any buffer is touched.
 */
#include "tests/kernels/test_cpu.h"

enum { TOKENS = 19, WEIGHTS = 2, EXTRAS = 4 };

/* Values and weights of EXPERT_GATE_UP or EXPERT_DOWN, ready to run on any tokens. */
struct mixture {
    struct guarded g;
    struct cpu_context c;
    struct oato_weight *table[WEIGHTS + EXTRAS + 1]; /* the last one: of a single expert */
    struct oato_weight extras[EXTRAS];               /* optional weights, of all experts */
    float *extra[EXTRAS];                            /* NULL: absent */
    uint8_t *data[WEIGHTS];                          /* in GGUF form */
    struct oato_op op;
    enum numerics_choice numerics;
    float *in, *choice, *out;
};

static bool is_down(const struct mixture *m)
{
    return m->op.kind == OP_EXPERT_DOWN;
}

/* Floats of a token in the input and in the output. */
static int64_t in_width(const struct mixture *m)
{
    return (int64_t)m->op.k * (is_down(m) ? m->op.experts_used : 1);
}

/* Experts that differ and rise, and weights. Some experts are more popular than others. */
static void random_choice(const struct oato_op *op, float *out)
{
    uint8_t chosen[64] = {0};
    for (int32_t i = 0; i < op->experts_used;) {
        const int64_t e = min_i64(random_in(0, op->experts - 1), random_in(0, op->experts - 1));
        i += !chosen[e];
        chosen[e] = 1;
    }
    for (int32_t e = 0, n = 0; e < op->experts; e++)
        if (chosen[e])
            out[n++] = (float)e;
    random_floats(out + op->experts_used, op->experts_used);
}

/* Factors and biases, some or none. */
static void extras_init(struct mixture *m)
{
    const int least = op_weight_least(&m->op), n = op_weight_count(&m->op) - least;
    const int64_t which = random_in(0, 3); /* none, factors, biases, all */
    for (int i = 0; i < n; i++) {
        int64_t rows, k;
        assert_true(op_weight_shape(&m->op, least + i, &rows, &k));
        if (!(which >> (i >= n / 2) & 1))
            continue;
        m->extra[i] = guarded_alloc(&m->g, (size_t)(rows * k) * sizeof(float));
        random_floats(m->extra[i], rows * k);
        m->extras[i] =
            (struct oato_weight){.use = WEIGHT_VECTOR, .data = (const uint8_t *)m->extra[i]};
        m->table[least + i] = &m->extras[i];
    }
}

/* Rows of an expert in the tensor of a weight, and the first of these that are the weight's. */
static int64_t rows_of(const struct mixture *m, int w, int64_t *first)
{
    *first = m->op.one_tensor ? w * (int64_t)m->op.n : 0;
    return m->op.one_tensor ? 2 * (int64_t)m->op.n : m->op.n;
}

static int matrices_of(const struct oato_op *op)
{
    return op_weight_least(op) - (op->one_tensor || op->single);
}

static void mixture_init(struct mixture *m, const struct cpu_kernels *k, struct oato_op op)
{
    memset(m, 0, sizeof *m);
    guarded_init(&m->g);
    m->op = op;
    int64_t first;
    const int64_t rows = op.experts * rows_of(m, 0, &first);
    size_t row = 0;
    assert_true(op_valid(&op));
    for (int i = 0; i < matrices_of(&op); i++) {
        const oato_dtype dtype = op_weight_dtype(&op, i);
        assert_true(dtype_row_bytes(dtype, op.k, &row));
        m->data[i] = test_malloc((size_t)rows * row);
        random_elements(dtype, m->data[i], rows * op.k);
        m->table[i] = weight_make(k, &m->g, dtype, m->data[i], rows, op.k, 0, rows, WEIGHT_MATRIX);
    }
    if (op.one_tensor || op.single)
        m->table[1] = m->table[0];
    extras_init(m);
    m->in = guarded_alloc(&m->g, (size_t)(TOKENS * in_width(m)) * sizeof(float));
    random_floats(m->in, TOKENS * in_width(m));
    m->choice = guarded_alloc(&m->g, (size_t)(TOKENS * 2 * op.experts_used) * sizeof(float));
    for (int t = 0; t < TOKENS; t++)
        random_choice(&op, m->choice + (ptrdiff_t)(t * 2 * op.experts_used));
    m->c = (struct cpu_context){.kernels = k, .arena = m->g.base, .weights = m->table};
}

static void mixture_free(struct mixture *m)
{
    for (int i = 0; i < WEIGHTS; i++) {
        test_free(m->data[i]);
        if (i < op_weight_least(&m->op) && (!i || m->table[i] != m->table[i - 1]))
            test_free(m->table[i]);
    }
    guarded_free(&m->g);
}

static uint64_t offset_of(const struct mixture *m, const float *p)
{
    return (uint64_t)((const uint8_t *)p - m->g.base);
}

/* Tokens [t0, t0 + T) on so many threads; the result is a fresh buffer. */
static const float *mixture_run(struct mixture *m, int64_t t0, int64_t T, int threads)
{
    struct simple_step s;
    struct program_record r = record_of(m->op);
    const size_t bytes = (size_t)(T * op_out_width(&m->op, 0)) * sizeof(float);
    r.numerics = (uint8_t)m->numerics;
    r.n_in = 2;
    r.in[0] = offset_of(m, m->in + t0 * in_width(m));
    r.in[1] = offset_of(m, m->choice + t0 * 2 * m->op.experts_used);
    r.n_out = 1;
    r.out[0] = guarded_offset(&m->g, bytes);
    for (int i = 0; i < op_weight_count(&m->op); i++) {
        r.weight[i] = m->table[i] ? (uint32_t)i : UINT32_MAX;
        if (m->table[i])
            r.n_weights = (uint8_t)(i + 1);
    }
    memset(m->g.base + r.out[0], 0xff, bytes);
    record_run(&m->c, &r, simple_step(&s, (int32_t)T), 0, threads);
    return const_floats(m->g.base + r.out[0]);
}

/* All rows of the input times the matrix of one expert, prepared by itself. */
static const float *single_run(struct mixture *m, int w, int32_t expert)
{
    struct simple_step s;
    int64_t first;
    const int64_t rows = TOKENS * in_width(m) / m->op.k, n = m->op.n, each = rows_of(m, w, &first);
    const oato_dtype dtype = op_weight_dtype(&m->op, w);
    struct program_record r = record_of(
        (struct oato_op){.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = m->op.k, .n = m->op.n});
    first += expert * each;
    m->table[WEIGHTS + EXTRAS] =
        weight_make(m->c.kernels, &m->g, dtype, m->data[w < matrices_of(&m->op) ? w : 0],
                    m->op.experts * each, m->op.k, first, first + n, WEIGHT_MATRIX);
    r.numerics = (uint8_t)m->numerics;
    r.n_in = r.n_out = r.n_weights = 1;
    r.in[0] = offset_of(m, m->in);
    r.out[0] = guarded_offset(&m->g, (size_t)(rows * n) * sizeof(float));
    r.weight[0] = WEIGHTS + EXTRAS;
    record_run(&m->c, &r, simple_step(&s, (int32_t)rows), 0, 2);
    test_free(m->table[WEIGHTS + EXTRAS]);
    return const_floats(m->g.base + r.out[0]);
}

/* A row of products with an expert, after its factor, the weight of the choice if that is for the
 * input, and its bias. */
static void adjusted(const struct mixture *m, int w, int32_t expert, float weight, const float *x,
                     float *y)
{
    const int64_t n = m->op.n, matrices = op_weight_least(&m->op);
    const float *factor = m->extra[w], *bias = m->extra[matrices + w];
    float by = factor ? factor[expert] : 1;
    if (m->op.weighs_input && !is_down(m))
        by *= weight;
    for (int64_t i = 0; i < n; i++) {
        y[i] = x[i] * by;
        if (bias)
            y[i] += bias[expert * n + i];
    }
}

/* What the definition asks for, from ordinary products of each expert with every token. */
static float *mixture_expected(struct mixture *m)
{
    const int32_t first = m->op.expert_first, end = first + op_experts_held(&m->op);
    const int64_t n = m->op.n, used = m->op.experts_used, width = op_out_width(&m->op, 0);
    const bool two = !is_down(m) && !m->op.single;
    float *y = test_calloc((size_t)(TOKENS * width), sizeof *y);
    float *gate = test_malloc((size_t)n * sizeof *gate), *up = test_malloc((size_t)n * sizeof *up);
    for (int32_t e = first; e < end; e++) {
        const float *a = single_run(m, 0, e), *b = two ? single_run(m, 1, e) : NULL;
        uint32_t state = float_state_fast(); /* as in a step: what is tiny becomes 0 */
        for (int64_t p = 0; p < TOKENS * used; p++) {
            const int64_t t = p / used;
            const float *choice = m->choice + t * 2 * used;
            if ((int32_t)choice[p % used] != e)
                continue;
            const float weight = choice[used + p % used];
            adjusted(m, 0, e, weight, a + (is_down(m) ? p : t) * n, gate);
            if (b)
                adjusted(m, 1, e, weight, b + t * n, up);
            if (!is_down(m))
                m->c.kernels->rows->gate(ACT_SILU, 0, y + p * n, gate, b ? up : NULL, n);
            for (int64_t i = 0; is_down(m) && i < n; i++)
                y[t * n + i] += (m->op.weighs_input ? 1 : weight) * gate[i];
        }
        float_state_set(state);
    }
    test_free(gate);
    test_free(up);
    return y;
}

typedef void check_fn(const struct cpu_kernels *k, enum numerics_choice numerics,
                      struct oato_op op);

/* Calls fn for every instruction set, class of arithmetic and type, with experts whose rows are
 * whole units and not. */
static void for_each(check_fn *fn)
{
    for (size_t i = 0; i < ARRAY_LEN(isas) * ARRAY_LEN(matrix_types); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i / ARRAY_LEN(matrix_types)]);
        const oato_dtype dtype = matrix_types[i % ARRAY_LEN(matrix_types)];
        const int64_t block = dtype_info((int)dtype)->block_elems;
        for (int c = 0; k && c < NUMERICS_CHOICES; c++) {
            if (c != NUMERICS_DECODE &&
                cpu_matrix_class(k, dtype, c) == cpu_matrix_class(k, dtype, NUMERICS_DECODE))
                continue;
            struct oato_op op = {.dtype = (uint16_t)dtype, .experts = (int32_t)random_in(2, 9)};
            op.experts_used = (int32_t)random_in(1, min_i64(3, op.experts));
            op.k = (int32_t)(block == 1 ? random_in(1, 300) : block * random_in(1, 3));
            op.n = (int32_t)(random_in(0, 1) ? MATRIX_ROWS * random_in(1, 3) : random_in(1, 150));
            op.weighs_input = random_in(0, 3) == 0;
            op.kind = OP_EXPERT_DOWN;
            fn(k, (enum numerics_choice)c, op);
            op.kind = OP_EXPERT_GATE_UP;
            op.one_tensor = (int32_t)random_in(0, 1);
            op.single = !op.one_tensor && random_in(0, 1);
            fn(k, (enum numerics_choice)c, op);
            op.one_tensor = op.single = 0;
            op.up_dtype = (int32_t)matrix_types[random_in(0, ARRAY_LEN(matrix_types) - 1)];
            if (op.up_dtype && op_valid(&op) && random_in(0, 3) == 0)
                fn(k, (enum numerics_choice)c, op);
        }
    }
}

static void check_bits(const struct cpu_kernels *k, enum numerics_choice numerics,
                       struct oato_op op)
{
    struct mixture m;
    mixture_init(&m, k, op);
    m.numerics = numerics;
    const int64_t width = op_out_width(&op, 0);
    float *expected = mixture_expected(&m);
    for (int threads = 1; threads <= 3; threads++) {
        const float *y = mixture_run(&m, 0, TOKENS, threads);
        if (memcmp(y, expected, (size_t)(TOKENS * width) * sizeof *y) != 0) {
            char key[OP_KEY_SIZE];
            fail_msg("%s, numerics %d, %s on %d threads: other bits than single products", k->name,
                     numerics, oato_op_key(&op, NULL, key), threads);
        }
        for (int64_t t = 0, T; threads == 2 && t < TOKENS; t += T) {
            T = min_i64(TOKENS - t, random_in(1, 9));
            y = mixture_run(&m, t, T, threads);
            assert_memory_equal(y, expected + t * width, (size_t)(T * width) * sizeof *y);
        }
    }
    test_free(expected);
    mixture_free(&m);
}

static void an_expert_computes_what_its_matrix_alone_would(void **state)
{
    (void)state;
    for_each(check_bits);
}

/* A record that holds experts [first, first + held) computes their rows of a choice as a record of
 * all would, and leaves the others out: no byte of GATE_UP's output is written there, nothing of
 * them is in DOWN's sums. */
static void check_range(const struct cpu_kernels *k, enum numerics_choice numerics,
                        struct oato_op op)
{
    struct mixture m;
    mixture_init(&m, k, op);
    m.numerics = numerics;
    m.op.expert_first = (int32_t)random_in(0, op.experts - 1);
    m.op.experts_held = (int32_t)random_in(1, op.experts - m.op.expert_first);
    assert_true(op_valid(&m.op));
    const int64_t width = op_out_width(&op, 0), used = op.experts_used;
    const int32_t first = m.op.expert_first, end = first + m.op.experts_held;
    float *expected = mixture_expected(&m);
    for (int64_t p = 0; p < TOKENS * used && !is_down(&m); p++) {
        const int32_t e = (int32_t)m.choice[p / used * 2 * used + p % used];
        if (e < first || e >= end)
            memset(expected + p * op.n, 0xff, (size_t)op.n * sizeof *expected);
    }
    for (int i = 0; i < matrices_of(&op); i++) {
        int64_t own;
        const int64_t each = rows_of(&m, i, &own);
        test_free(m.table[i]);
        m.table[i] = weight_make(k, &m.g, op_weight_dtype(&op, i), m.data[i], op.experts * each,
                                 op.k, first * each, end * each, WEIGHT_MATRIX);
    }
    if (op.one_tensor || op.single)
        m.table[1] = m.table[0];
    for (int i = 0; i < 9; i++) { /* all, some, and single tokens */
        const int64_t t = i ? random_in(0, TOKENS - 1) : 0;
        const int64_t T = i % 2 ? 1 : i ? random_in(1, TOKENS - t) : TOKENS;
        const float *y = mixture_run(&m, t, T, 1 + i / 2 % 3);
        assert_memory_equal(y, expected + t * width, (size_t)(T * width) * sizeof *y);
    }
    test_free(expected);
    mixture_free(&m);
}

static void experts_can_be_divided(void **state)
{
    (void)state;
    for_each(check_range);
}

/* All tokens want the same expert, or each another one. */
static void even_and_lopsided_choices_are_served(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas) * 2; i++) {
        const struct cpu_kernels *k = kernels_named(isas[i / 2]);
        const struct oato_op op = {.kind = i % 2 ? OP_EXPERT_DOWN : OP_EXPERT_GATE_UP,
                                   .dtype = DT_Q4_0,
                                   .k = 256,
                                   .n = 192,
                                   .experts = TOKENS,
                                   .experts_used = 1};
        if (!k)
            continue;
        for (int same = 0; same <= 1; same++) {
            struct mixture m;
            mixture_init(&m, k, op);
            for (int t = 0; t < TOKENS; t++)
                m.choice[2 * t] = (float)(same ? TOKENS - 1 : t);
            float *expected = mixture_expected(&m);
            const float *y = mixture_run(&m, 0, TOKENS, 3);
            assert_memory_equal(y, expected, (size_t)(TOKENS * op.n) * sizeof *y);
            test_free(expected);
            mixture_free(&m);
        }
    }
}

/* Programs make no such choice; one that did would not read beyond the weights. */
static void a_choice_of_no_expert_stays_inside_the_weights(void **state)
{
    (void)state;
    const struct oato_op op = {.kind = OP_EXPERT_GATE_UP,
                               .dtype = DT_F32,
                               .k = 40,
                               .n = 30,
                               .experts = 3,
                               .experts_used = 3};
    struct mixture m;
    mixture_init(&m, &cpu_kernels_ref, op);
    const float bad[] = {-1, 3, 1e30f, NAN, INFINITY, -INFINITY, 2.5f};
    for (int t = 0; t < TOKENS * 6; t++)
        m.choice[t] = bad[random_in(0, ARRAY_LEN(bad) - 1)];
    mixture_run(&m, 0, TOKENS, 2);
    mixture_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_expert_computes_what_its_matrix_alone_would),
        cmocka_unit_test(experts_can_be_divided),
        cmocka_unit_test(even_and_lopsided_choices_are_served),
        cmocka_unit_test(a_choice_of_no_expert_stays_inside_the_weights),
    };
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
