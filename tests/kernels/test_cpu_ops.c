/*
 * test_cpu_ops.c - the operators that are no matrix product: each close to a double evaluation on
 * every instruction set, fused ones equal to their parts bit for bit, the same for any number of
 * threads; pages of the KV cache are written and copied where the block tables say.
 */
#include "tests/kernels/test_cpu.h"

/* Buffers of one record: in[], out[] and weight[0], each ending at an unreadable page. */
struct rig {
    struct guarded g;
    struct cpu_context c;
    struct oato_weight vector, *table[1];
    struct program_record r;
    struct simple_step s;
    const struct step *step;
    float *in[3], *out[2];
};

static void rig_init(struct rig *x, const struct cpu_kernels *k, struct oato_op op, int32_t T,
                     int n_in, int n_out)
{
    memset(x, 0, sizeof *x);
    guarded_init(&x->g);
    x->r = record_of(op);
    x->step = simple_step(&x->s, T);
    x->r.n_in = (uint8_t)n_in;
    x->r.n_out = (uint8_t)n_out;
    for (int i = 0; i < n_in; i++) {
        x->r.in[i] = guarded_offset(&x->g, (size_t)(T * op.n) * sizeof(float));
        x->r.in_width[i] = op.n;
        x->in[i] = floats(x->g.base + x->r.in[i]);
        random_floats(x->in[i], (int64_t)T * op.n);
    }
    for (int i = 0; i < n_out; i++) {
        x->r.out[i] = guarded_offset(&x->g, (size_t)(T * op.n) * sizeof(float));
        x->out[i] = floats(x->g.base + x->r.out[i]);
    }
    x->vector = (struct oato_weight){.dtype = DT_F32, .use = WEIGHT_VECTOR, .rows = 1, .k = op.n};
    float *w = guarded_alloc(&x->g, (size_t)op.n * sizeof *w);
    random_floats(w, op.n);
    x->vector.data = (const uint8_t *)w;
    x->table[0] = &x->vector;
    x->r.weight[0] = 0;
    x->c = (struct cpu_context){.kernels = k, .arena = x->g.base, .weights = x->table};
}

static const float *weight_of(const struct rig *x)
{
    return const_floats(x->vector.data);
}

/* Runs on 1, 2 and 3 threads; out[] must be the same. */
static void rig_run(struct rig *x)
{
    const size_t bytes = (size_t)(x->step->n_tokens * x->r.op.n) * sizeof(float);
    const int outputs = x->r.n_out < 2 ? x->r.n_out : 2;
    float *first[2];
    for (int i = 0; i < outputs; i++)
        first[i] = test_malloc(bytes);
    for (int threads = 1; threads <= 3; threads++) {
        for (int i = 0; i < outputs; i++)
            memset(x->out[i], 0xff, bytes);
        record_run(&x->c, &x->r, x->step, 0, threads);
        for (int i = 0; i < outputs; i++) {
            if (threads == 1)
                memcpy(first[i], x->out[i], bytes);
            assert_memory_equal(first[i], x->out[i], bytes);
        }
    }
    for (int i = 0; i < outputs; i++)
        test_free(first[i]);
}

static void rig_free(struct rig *x)
{
    guarded_free(&x->g);
}

static void for_each_isa(void (*fn)(const struct cpu_kernels *k, int32_t T, int32_t n))
{
    static const int32_t tokens[] = {1, 2, 5, 33};
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t t = 0; k && t < ARRAY_LEN(tokens); t++) {
            fn(k, tokens[t], (int32_t)random_in(1, 40));
            fn(k, tokens[t], (int32_t)random_in(500, 1500));
        }
    }
}

static struct oato_op plain(enum op_kind kind, int32_t n)
{
    return (struct oato_op){.kind = (uint16_t)kind, .k = n, .n = n, .eps = 1e-5f};
}

static void norm_row(const float *x, const float *w, int64_t n, double *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i] * (double)w[i] / sqrt(sum / (double)n + 1e-5);
}

static void check_norms(const struct cpu_kernels *k, int32_t T, int32_t n)
{
    struct rig x;
    double *wanted = test_malloc((size_t)(T * n) * sizeof *wanted);
    rig_init(&x, k, plain(OP_RMS_NORM, n), T, 1, 1);
    rig_run(&x);
    for (int32_t t = 0; t < T; t++)
        norm_row(x.in[0] + t * n, weight_of(&x), n, wanted + t * n);
    assert_close(x.out[0], wanted, (int64_t)T * n, 1e-12);
    rig_free(&x);
    test_free(wanted);

    /* ADD_NORM is ADD, then RMS_NORM, bit for bit */
    rig_init(&x, k, plain(OP_ADD_NORM, n), T, 2, 2);
    rig_run(&x);
    float *sum = test_malloc((size_t)n * sizeof *sum),
          *norm = test_malloc((size_t)n * sizeof *norm);
    for (int32_t t = 0; t < T; t++) {
        k->rows->add(sum, x.in[0] + t * n, x.in[1] + t * n, n);
        k->rows->rms_norm(norm, sum, weight_of(&x), n, 1e-5f);
        assert_memory_equal(sum, x.out[0] + t * n, (size_t)n * sizeof *sum);
        assert_memory_equal(norm, x.out[1] + t * n, (size_t)n * sizeof *norm);
    }
    test_free(sum);
    test_free(norm);
    rig_free(&x);
}

static void norms_are_close_to_double(void **state)
{
    (void)state;
    for_each_isa(check_norms);
}

static void check_pairwise(const struct cpu_kernels *k, int32_t T, int32_t n)
{
    struct rig x;
    rig_init(&x, k, plain(OP_ADD, n), T, 2, 1);
    rig_run(&x);
    for (int32_t i = 0; i < T * n; i++)
        assert_true(x.out[0][i] == x.in[0][i] + x.in[1][i]);
    rig_free(&x);

    rig_init(&x, k, plain(OP_BIAS, n), T, 1, 1);
    rig_run(&x);
    for (int32_t i = 0; i < T * n; i++)
        assert_true(x.out[0][i] == x.in[0][i] + weight_of(&x)[i % n]);
    rig_free(&x);

    rig_init(&x, k, plain(OP_SWIGLU, n), T, 2, 1);
    double *wanted = test_malloc((size_t)(T * n) * sizeof *wanted);
    for (int32_t i = 0; i < T * n; i++) {
        x.in[0][i] *= 10; /* reaches both flat ends */
        double g = (double)x.in[0][i];
        wanted[i] = g / (1 + exp(-g)) * (double)x.in[1][i];
    }
    rig_run(&x);
    assert_close(x.out[0], wanted, (int64_t)T * n, 1e-12);
    test_free(wanted);
    rig_free(&x);
}

static double activated(enum activation a, double scale, double x, double y)
{
    const double below_7 = fmin(x, 7);
    switch (a) {
    case ACT_SILU: return x / (1 + exp(-x)) * y;
    case ACT_GELU: return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))) * y;
    case ACT_RELU: return fmax(x, 0) * y;
    case ACT_RELU_SQUARED: return fmax(x, 0) * fmax(x, 0) * y;
    case ACT_SIGMOID: return 1 / (1 + exp(-x)) * y;
    case ACT_SOFT_CAP: return scale * tanh(x / scale) * y;
    case ACT_CLAMPED_SILU:
        return fmin(x, scale) / (1 + exp(-fmin(x, scale))) * fmin(fmax(y, -scale), scale);
    case ACT_SOFTPLUS: return log1p(exp(x)) * y;
    case ACT_SILU_CLAMPED: return fmin(x / (1 + exp(-x)), scale) * fmin(fmax(y, -scale), scale);
    case ACT_CLAMPED: return below_7 / (1 + exp(-1.702 * below_7)) * (1 + fmin(fmax(y, -7), 7));
    case ACT_CLAMP: return fmin(fmax(x, -scale), scale) * y;
    case ACT_NONE: return x * y;
    case ACT_COUNT: break;
    }
    return 0;
}

/* With a second input and without; what is no number stays none. */
static void check_activations(const struct cpu_kernels *k, int32_t T, int32_t n)
{
    for (int i = 0; i < 2 * ACT_COUNT; i++) {
        const enum activation a = (enum activation)(i / 2);
        const bool gates = i % 2;
        struct rig x;
        if ((a == ACT_CLAMPED || a == ACT_CLAMPED_SILU) && !gates)
            continue;
        struct oato_op op = plain(gates ? OP_SWIGLU : OP_ACTIVATE, n);
        op.activation = (int32_t)a;
        op.scale = 5;
        rig_init(&x, k, op, T, 1 + gates, 1);
        double *wanted = test_malloc((size_t)(T * n) * sizeof *wanted);
        for (int32_t e = 0; e < T * n; e++) {
            x.in[0][e] = e ? 10 * x.in[0][e] : 10; /* few and small ones would cancel to nothing */
            wanted[e] = activated(a, 5, (double)x.in[0][e], gates ? (double)x.in[1][e] : 1);
        }
        rig_run(&x);
        assert_close(x.out[0], wanted, (int64_t)T * n, 1e-11);
        x.in[0][0] = NAN;
        rig_run(&x);
        assert_true(isnan(x.out[0][0]));
        test_free(wanted);
        rig_free(&x);
    }
}

/* One gate for a row, for each of some neighbours, for each element. */
static void check_gates(const struct cpu_kernels *k, int32_t T, int32_t n)
{
    const int32_t gates[] = {1, (int32_t)random_in(2, 100), n};
    for (size_t i = 0; i < ARRAY_LEN(gates); i++) {
        const int32_t wide = gates[i] == n ? 1 : n, all = gates[i] * wide;
        struct rig x;
        struct oato_op op = plain(OP_GATE, all);
        op.heads = gates[i];
        op.activation = i % 2 ? ACT_SOFTPLUS : ACT_SIGMOID;
        assert_true(op_valid(&op));
        rig_init(&x, k, op, T, 2, 1); /* the second input is as wide; its first numbers are read */
        double *wanted = test_malloc((size_t)(T * all) * sizeof *wanted);
        for (int32_t e = 0; e < T * all; e++)
            wanted[e] =
                activated((enum activation)op.activation, 0,
                          (double)x.in[1][e / all * gates[i] + e % all / wide], (double)x.in[0][e]);
        rig_run(&x);
        assert_close(x.out[0], wanted, (int64_t)T * all, 1e-11);
        test_free(wanted);
        rig_free(&x);
    }
}

static void gates_are_close_to_double(void **state)
{
    (void)state;
    for_each_isa(check_gates);
}

static void activations_are_close_to_double(void **state)
{
    (void)state;
    for_each_isa(check_activations);
}

static void sums_biases_and_swiglu_are_close_to_double(void **state)
{
    (void)state;
    for_each_isa(check_pairwise);
}

static void select_takes_the_wanted_rows(void **state)
{
    (void)state;
    struct rig x;
    const int32_t n = 17, rows[3] = {4, 0, 4};
    rig_init(&x, &cpu_kernels_ref, plain(OP_SELECT, n), 5, 1, 1);
    x.r.rows = ROWS_LOGITS;
    x.s.step.row = rows;
    x.s.step.n_rows = 3;
    record_run(&x.c, &x.r, x.step, 0, 2);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(x.out[0] + i * n, x.in[0] + rows[i] * n, (size_t)n * sizeof(float));
    rig_free(&x);
}

static void merge_puts_parts_side_by_side(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        struct rig x;
        const int32_t n = 9001, width[3] = {64, 128, 9001 - 192}, T = 3;
        rig_init(&x, &cpu_kernels_ref, plain(OP_MERGE, n), T, 3, 1);
        for (int i = 0; i < 3; i++)
            x.r.in_width[i] = width[i];
        record_run(&x.c, &x.r, x.step, 0, threads);
        for (int32_t t = 0; t < T; t++)
            for (int i = 0, at = 0; i < 3; at += width[i++])
                assert_memory_equal(x.out[0] + t * n + at, x.in[i] + t * width[i],
                                    (size_t)width[i] * sizeof(float));
        rig_free(&x);
    }
}

static void slice_takes_columns(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        struct rig x;
        const int32_t k = 9001, n = 640, first = 777, T = 3;
        rig_init(&x, &cpu_kernels_ref, plain(OP_SLICE, k), T, 1, 1);
        x.r.op.n = n;
        x.r.op.first = first;
        record_run(&x.c, &x.r, x.step, 0, threads);
        for (int32_t t = 0; t < T; t++)
            assert_memory_equal(x.out[0] + t * n, x.in[0] + t * k + first,
                                (size_t)n * sizeof(float));
        rig_free(&x);
    }
}

static void check_merge_sum(const struct cpu_kernels *k, int32_t T, int32_t n)
{
    struct rig x;
    struct oato_op op = plain(OP_MERGE_SUM, n);
    op.k = 3 * n;
    rig_init(&x, k, op, T, 3, 1);
    rig_run(&x);
    for (int64_t i = 0; i < (int64_t)T * n; i++)
        assert_true(x.out[0][i] == (x.in[0][i] + x.in[1][i]) + x.in[2][i]); /* in part order */
    x.r.n_in = 1;
    rig_run(&x);
    assert_memory_equal(x.out[0], x.in[0], (size_t)(T * n) * sizeof(float));
    rig_free(&x);
}

static void partial_sums_are_added_in_part_order(void **state)
{
    (void)state;
    for_each_isa(check_merge_sum);
}

static void embed_looks_rows_up(void **state)
{
    (void)state;
    for (size_t d = 0; d < ARRAY_LEN(matrix_types); d++) {
        struct rig x;
        const oato_dtype dtype = matrix_types[d];
        struct oato_op op = plain(OP_EMBED, 256);
        op.dtype = (uint16_t)dtype;
        op.scale = d % 2 ? 3 : 0;
        rig_init(&x, &cpu_kernels_ref, op, 40, 0, 1);
        x.r.op.n = 100; /* the vocabulary */
        size_t row = 0;
        assert_true(dtype_row_bytes(dtype, 256, &row));
        uint8_t *data = guarded_alloc(&x.g, row * 100);
        random_elements(dtype, data, 256 * 100);
        x.table[0] =
            weight_make(&cpu_kernels_ref, &x.g, dtype, data, 100, 256, 0, 100, WEIGHT_LOOKUP);
        assert_int_equal(x.table[0]->bytes, row * 100);
        record_run(&x.c, &x.r, x.step, 0, 2);
        float wanted[256];
        for (int t = 0; t < 40; t++) {
            quants_row(dtype, data + (size_t)x.s.ids[t] * row, 256, wanted);
            for (int i = 0; i < 256; i++)
                assert_true(x.out[0][t * 256 + i] == (d % 2 ? 3 * wanted[i] : wanted[i]));
        }
        test_free(x.table[0]);
        rig_free(&x);
    }
}

/* ----------------------------------------------------------------------------------- rope - */

static void rope_exact(const struct oato_op *op, const float *divisors, int32_t position,
                       const float *x, double *y)
{
    for (int32_t i = 0; i < op->n; i++)
        y[i] = (double)x[i];
    const int32_t half = op->rope_dims / 2;
    for (int32_t h = 0; h < op->heads; h++) {
        for (int32_t i = 0; i < half; i++) {
            bool halves = op->rope_pairing == ROPE_HALVES;
            int32_t a = h * op->head_dim + (halves ? i : 2 * i), b = a + (halves ? half : 1);
            const double low = (double)op->rope_low, high = (double)op->rope_high;
            const double kept = high > 0 ? 1 - fmin(fmax((i - low) / (high - low), 0), 1) : 0;
            const double scale = kept + (1 - kept) * (double)op->rope_scale;
            double angle = position * pow((double)op->rope_base, -(double)i / half) * scale /
                           (divisors ? (double)divisors[i] : 1);
            const double m = op->rope_magnitude != 0 ? (double)op->rope_magnitude : 1;
            y[a] = m * ((double)x[a] * cos(angle) - (double)x[b] * sin(angle));
            y[b] = m * ((double)x[a] * sin(angle) + (double)x[b] * cos(angle));
        }
    }
}

static void rope_is_exact_far_out_and_with_a_table(void **state)
{
    (void)state;
    for (int round = 0; round < 32; round++) {
        struct oato_op op = {.kind = OP_ROPE,
                             .heads = (int32_t)random_in(1, 9),
                             .head_dim = 64,
                             .rope_dims = round % 3 ? 64 : 48,
                             .rope_pairing = round % 2 ? ROPE_HALVES : ROPE_ADJACENT,
                             .rope_base = 100000,
                             .rope_scale = round % 5 ? 1 : 0.25f,
                             .rope_low = round % 10 ? 0 : 3, /* YaRN */
                             .rope_high = round % 10 ? 0 : 17.5f,
                             .rope_magnitude = round % 10 ? 0 : 1.2f};
        op.k = op.n = op.heads * op.head_dim;
        const int32_t T = round % 4 ? 40 : 1;
        struct rig x;
        rig_init(&x, &cpu_kernels_ref, op, T, 1, 1);
        float *divisors = floats((uint8_t *)x.vector.data);
        for (int i = 0; i < op.n; i++)
            divisors[i] = (float)random_in(1, 8);
        if (round % 7)
            x.r.weight[0] = UINT32_MAX;
        for (int32_t t = 0; t < T; t++)
            x.s.positions[t] = (int32_t)random_in(0, 120000);
        float *room = guarded_alloc(&x.g, (size_t)(T * op.rope_dims) * sizeof(float));
        struct rope_table table = {.cos_sin = room, .floats = (uint64_t)(T * op.rope_dims)};
        if (round % 8 < 5)
            x.c.rope = &table;
        double *wanted = test_malloc((size_t)(T * op.n) * sizeof *wanted);
        for (int32_t t = 0; t < T; t++)
            rope_exact(&op, round % 7 ? NULL : divisors, x.s.positions[t], x.in[0] + t * op.n,
                       wanted + t * op.n);
        for (int pass = 0; pass < 3; pass++) { /* filled, filled again, and read */
            table.step_serial = pass ? 2 : 1;
            rig_run(&x);
            assert_close(x.out[0], wanted, (int64_t)T * op.n, 1e-13);
        }
        x.r.out[0] = x.r.in[0]; /* in place */
        record_run(&x.c, &x.r, x.step, 0, 2);
        assert_memory_equal(x.in[0], x.out[0], (size_t)(T * op.n) * sizeof(float));
        test_free(wanted);
        rig_free(&x);
    }
}

/* ------------------------------------------------------------------------------- KV pages - */

static void check_kv_pages(oato_dtype dtype, const struct cpu_kernels *k)
{
    enum { T = 40, HEADS = 3, DIM = 20, PAGES = 6 };
    struct kv_layer_shape shapes[2] = {{.kv_heads = HEADS, .head_dim = DIM},
                                       {.kv_heads = HEADS, .head_dim = DIM}};
    uint64_t offsets[2], bytes;
    struct kv_cache kv = {
        .n_layers = 2, .pages = PAGES, .dtype = dtype, .layers = shapes, .layer_offset = offsets};
    struct oato_op op = {
        .kind = OP_KV_STORE, .dtype = (uint16_t)dtype, .kv_heads = HEADS, .head_dim = DIM};
    op.k = op.n = HEADS * DIM;
    struct rig x;
    rig_init(&x, k, op, T, 2, 0);
    assert_true(kv_cache_layout(&kv, &bytes));
    kv.data = guarded_alloc(&x.g, bytes);
    memset(kv.data, 0, bytes);
    x.c.kv = &kv;
    x.r.kv_layer = 1;
    const int32_t pages[3] = {4, 0, 5};
    for (int32_t t = 0; t < T; t++)
        x.s.positions[t] = 100 + t;
    x.s.seq = (struct step_seq){.query_len = T, .kv_len = 100 + T, .pages = pages};
    record_run(&x.c, &x.r, x.step, 0, 2);

    struct step_page_copy copies[2] = {{0, 3, 64, false}, {5, 1, 7, false}};
    struct program_record copy = record_of((struct oato_op){.kind = OP_KV_COPY});
    x.s.step.page_copy = copies;
    assert_true(cpu_record_is_solo(&copy, x.step)); /* nothing to copy yet */
    x.s.step.n_page_copies = 2;
    record_run(&x.c, &copy, x.step, 0, 2);

    for (int32_t t = 0; t < T; t++) {
        for (int where = 0; where < 2; where++) { /* the page and its copy */
            int32_t position = 100 + t, page = pages[position / 64];
            if (where) { /* of page 5 seven positions must be there, and more may be */
                if (page == 5 && position % 64 >= 7)
                    continue;
                page = page == 0 ? 3 : 1;
            }
            for (int i = 0; i < 2 * HEADS * DIM; i++) {
                int which = i / (HEADS * DIM), h = i / DIM % HEADS, e = i % DIM;
                int64_t at = ((int64_t)(page * 2 + which) * HEADS + h) * 64 * DIM +
                             (which ? position % 64 * DIM + e : e * 64 + position % 64);
                float wanted = x.in[which][t * op.n + h * DIM + e];
                if (dtype == DT_F32)
                    assert_true(floats(kv.data + offsets[1])[at] == wanted);
                else
                    assert_int_equal(((uint16_t *)(kv.data + offsets[1]))[at], f32_to_f16(wanted));
            }
        }
    }
    /* nothing reaches the other layer */
    for (uint64_t i = 0; i < offsets[1]; i++)
        assert_int_equal(kv.data[i], 0);
    rig_free(&x);
}

static void keys_and_values_go_to_their_pages_and_copies(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        if (k) {
            check_kv_pages(DT_F16, k);
            check_kv_pages(DT_F32, k);
        }
    }
}

static void sizes_of_kv_caches_are_checked(void **state)
{
    (void)state;
    struct kv_layer_shape shapes[3] = {{.kv_heads = 1 << 30, .head_dim = 1 << 30},
                                       {.kv_heads = 1 << 30, .head_dim = 1 << 30},
                                       {.kv_heads = -1, .head_dim = 4}};
    uint64_t offsets[3], bytes;
    struct kv_cache kv = {.n_layers = 2,
                          .pages = 1 << 20,
                          .dtype = DT_F32,
                          .layers = shapes,
                          .layer_offset = offsets};
    assert_false(kv_cache_layout(&kv, &bytes));
    kv.pages = -1;
    assert_false(kv_cache_layout(&kv, &bytes));
    kv.pages = 1;
    kv.layers = shapes + 2;
    kv.n_layers = 1;
    assert_false(kv_cache_layout(&kv, &bytes));
}

static void supports_says_no_to_what_cannot_run(void **state)
{
    (void)state;
    const struct cpu_kernels *k = &cpu_kernels_ref;
    struct oato_op op = {.kind = OP_MUL_MAT, .dtype = DT_Q4_K, .k = 512, .n = 7};
    assert_true(op_valid(&op));
    assert_string_equal(cpu_numerics(k, &op, NUMERICS_DECODE), "f32");
    op.k = 500;
    assert_false(op_valid(&op));
    op.dtype = DT_I8;
    assert_false(op_valid(&op));
    op = (struct oato_op){.kind = OP_ATTENTION,
                          .dtype = DT_F16,
                          .k = 128,
                          .n = 128,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_dim = 64};
    assert_true(op_valid(&op));
    assert_string_equal(cpu_numerics(k, &op, NUMERICS_DECODE), "f32");
    op.dtype = DT_Q8_0;
    assert_true(op_valid(&op));
    op.head_dim = 16;
    op.heads = 8;
    assert_false(op_valid(&op)); /* no whole blocks */
    op.dtype = DT_Q4_0;
    op.head_dim = 64;
    op.heads = 2;
    assert_false(op_valid(&op));
    op.dtype = DT_F32;
    op.heads = 3;
    assert_false(op_valid(&op));
    op = (struct oato_op){.kind = OP_ROPE, .n = 64, .heads = 1, .head_dim = 64, .rope_dims = 63};
    assert_false(op_valid(&op));
    op = (struct oato_op){.kind = OP_KV_STORE, .dtype = DT_BF16, .kv_heads = 1, .head_dim = 64};
    assert_false(op_valid(&op));
    op = (struct oato_op){.kind = OP_KIND_COUNT};
    assert_false(op_valid(&op));
    op = (struct oato_op){.kind = OP_ADD, .k = -1};
    assert_false(op_valid(&op));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_are_close_to_double),
        cmocka_unit_test(activations_are_close_to_double),
        cmocka_unit_test(gates_are_close_to_double),
        cmocka_unit_test(sums_biases_and_swiglu_are_close_to_double),
        cmocka_unit_test(select_takes_the_wanted_rows),
        cmocka_unit_test(merge_puts_parts_side_by_side),
        cmocka_unit_test(slice_takes_columns),
        cmocka_unit_test(partial_sums_are_added_in_part_order),
        cmocka_unit_test(embed_looks_rows_up),
        cmocka_unit_test(rope_is_exact_far_out_and_with_a_table),
        cmocka_unit_test(keys_and_values_go_to_their_pages_and_copies),
        cmocka_unit_test(sizes_of_kv_caches_are_checked),
        cmocka_unit_test(supports_says_no_to_what_cannot_run),
    };
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
