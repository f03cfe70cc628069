/*
 * test_cpu_sparse.c - products that skip zeros, at every level and of every type: a sparse MUL_MAT
 * is close to a double evaluation, a sparse GATE_UP has the bits of the dense one where neurons are
 * active and zeros elsewhere; the same bits whether zeros are skipped or not, whatever T and
 * threads; any columns of a matrix can be prepared. --bench [LEVEL [TYPE [THREADS]]] times an FFN
 * instead (bench_sparse.c).
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

enum { K = 512, N = 200, MOST = 19 };

struct sparse {
    struct guarded g;
    struct cpu_context c;
    struct oato_weight *table[2];
    uint8_t *data[2];
    struct oato_op op;
    float *x;
    int64_t out; /* floats of a row */
};

static uint64_t row_bytes(oato_dtype dtype, int64_t k)
{
    size_t bytes = 0;
    assert_true(dtype_row_bytes(dtype, k, &bytes));
    return bytes;
}

static struct oato_weight *prepare(const struct cpu_kernels *k, struct guarded *g,
                                   const struct weight_source *s)
{
    struct oato_weight *w = test_calloc(1, sizeof *w);
    assert_true(weight_source_good(s));
    *w = (struct oato_weight){
        .dtype = s->dtype, .use = s->use, .rows = s->row_end - s->row_begin, .k = s->k};
    w->bytes = cpu_source_bytes(k, s);
    uint8_t *data = guarded_alloc(g, size_align(w->bytes, 64));
    memset(data, 0xff, size_align(w->bytes, 64));
    w->data = data;
    const int64_t middle = w->rows / 2 / MATRIX_ROWS * MATRIX_ROWS;
    cpu_convert_rows(k, s, middle, w->rows, (uint8_t *)(uintptr_t)w->data);
    cpu_convert_rows(k, s, 0, middle, (uint8_t *)(uintptr_t)w->data);
    return w;
}

/* Half of the elements are zeros, and some blocks have nothing else. */
static void sparse_inputs(struct sparse *s)
{
    s->x = guarded_alloc(&s->g, (size_t)(MOST * s->op.k) * sizeof(float));
    random_floats(s->x, MOST * s->op.k);
    for (int64_t i = 0; i < MOST * s->op.k; i++)
        if (random_in(0, 1) || i / 32 % 3 == 1)
            s->x[i] = 0;
}

static void sparse_free(struct sparse *s)
{
    for (int i = 0; i < 2; i++) {
        test_free(s->data[i]);
        if (s->table[i])
            test_free(s->table[i]);
    }
    guarded_free(&s->g);
}

/* The result of rows [t0, t0 + T) of the input. */
static float *sparse_run(struct sparse *s, int64_t t0, int64_t T, int threads)
{
    struct simple_step step;
    struct program_record r = record_of(s->op);
    r.n_in = r.n_out = 1;
    r.in_width[0] = s->op.k;
    r.in[0] = (uint64_t)((uint8_t *)(s->x + t0 * s->op.k) - s->g.base);
    for (int i = 0; i < 2 && s->table[i]; i++)
        r.weight[r.n_weights++] = (uint32_t)i;
    const size_t bytes = (size_t)(s->op.n * T) * sizeof(float);
    r.out[0] = guarded_offset(&s->g, bytes);
    float *out = floats(s->g.base + r.out[0]);
    memset(out, 0xff, bytes);
    record_run(&s->c, &r, simple_step(&step, (int32_t)T), 0, threads);
    return out;
}

/* Skipping changes no bit, nor do tokens and threads. */
static void check_bits(struct sparse *s)
{
    s->op.threshold = -1;
    const float *dense = sparse_run(s, 0, MOST, 1);
    s->op.threshold = 0;
    for (int threads = 1; threads <= 3; threads++) {
        const float *exact = sparse_run(s, 0, MOST, threads);
        for (int64_t i = 0; i < MOST * s->op.n; i++)
            assert_true(dense[i] == exact[i]);
    }
    for (int64_t t = 0, T; t < MOST; t += T) {
        T = min_i64(MOST - t, 1 + t);
        const float *some = sparse_run(s, t, T, 2);
        for (int64_t i = 0; i < T * s->op.n; i++)
            assert_true(dense[t * s->op.n + i] == some[i]);
    }
}

static double *columns_exact(const struct sparse *s, const int32_t *list)
{
    double *y = test_calloc((size_t)(N * MOST), sizeof *y);
    float w[K];
    const oato_dtype dtype = (oato_dtype)s->op.dtype;
    for (int64_t r = 0; r < N; r++) {
        quants_row(dtype, s->data[0] + (uint64_t)r * row_bytes(dtype, K), K, w);
        for (int64_t t = 0; t < MOST; t++)
            for (int64_t i = 0; i < s->op.k; i++)
                y[t * N + r] += (double)w[list ? list[i] : i] * (double)s->x[t * s->op.k + i];
    }
    return y;
}

/* All columns, or about a quarter of them. */
static void check_columns(const struct cpu_kernels *k, oato_dtype dtype, bool some)
{
    int32_t list[K], n = 0;
    struct sparse s = {.c = {.kernels = k, .weights = s.table}};
    guarded_init(&s.g);
    s.c.arena = s.g.base;
    for (int32_t i = 0; i < K; i++)
        if (!some || random_in(0, 3) == 0 || i / 32 == 3)
            list[n++] = i;
    s.op =
        (struct oato_op){.kind = OP_MUL_MAT, .dtype = (uint16_t)dtype, .k = n, .n = N, .sparse = 1};
    s.data[0] = test_malloc(N * row_bytes(dtype, K));
    random_elements(dtype, s.data[0], N * K);
    const struct weight_source source = {.data = s.data[0],
                                         .dtype = dtype,
                                         .k = n,
                                         .n = N,
                                         .row_end = N,
                                         .row_stride = row_bytes(dtype, K),
                                         .use = WEIGHT_COLUMNS,
                                         .list = some ? list : NULL};
    s.table[0] = prepare(k, &s.g, &source);
    sparse_inputs(&s);
    if (!some || !columns_form_of(dtype)->bits)
        assert_true(!some || columns_blocks(dtype, list, n) == 0);
    if (!some)
        assert_int_equal(s.table[0]->bytes, cpu_prepared_bytes(k, dtype, N, K, WEIGHT_COLUMNS));
    s.op.threshold = 0;
    double *wanted = columns_exact(&s, some ? list : NULL);
    const bool f32 = !strcmp(cpu_numerics(k, &s.op, NUMERICS_DECODE), "f32");
    assert_close(sparse_run(&s, 0, MOST, 2), wanted, N * MOST, f32 ? 1e-10 : 2e-4);
    check_bits(&s);
    test_free(wanted);
    sparse_free(&s);
}

static void test_columns(void **state)
{
    (void)state;
    for (size_t l = 0; l < ARRAY_LEN(isas); l++) {
        const struct cpu_kernels *k = kernels_named(isas[l]);
        for (size_t i = 0; k && i < ARRAY_LEN(matrix_types); i++) {
            const struct oato_op op = {.kind = OP_MUL_MAT,
                                       .dtype = (uint16_t)matrix_types[i],
                                       .k = K,
                                       .n = N,
                                       .sparse = 1};
            if (!op_valid(&op))
                continue;
            check_columns(k, matrix_types[i], false);
            check_columns(k, matrix_types[i], true);
        }
    }
}

static float largest(const float *x, int64_t n)
{
    float top = 0;
    for (int64_t i = 0; i < n; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top;
}

/* The dense operator's results at active neurons, 0 at others. */
static void check_gate_up(const struct cpu_kernels *k, oato_dtype dtype, enum activation a,
                          int64_t width)
{
    enum { NEURONS = 328 };
    struct sparse s = {.c = {.kernels = k, .weights = s.table}};
    struct oato_weight *up[2];
    guarded_init(&s.g);
    s.c.arena = s.g.base;
    s.op = (struct oato_op){.kind = OP_GATE_UP,
                            .dtype = (uint16_t)dtype,
                            .k = width,
                            .n = NEURONS,
                            .activation = (int32_t)a};
    struct weight_source source = {
        .dtype = dtype, .k = width, .n = NEURONS, .row_end = NEURONS, .use = WEIGHT_MATRIX};
    for (int i = 0; i < 2; i++) {
        s.data[i] = test_malloc(NEURONS * row_bytes(dtype, width));
        random_elements(dtype, s.data[i], NEURONS * width);
        source.data = s.data[i];
        s.table[i] = prepare(k, &s.g, &source);
    }
    sparse_inputs(&s);
    const float *wanted = sparse_run(&s, 0, MOST, 1);
    source.use = WEIGHT_ROWS;
    up[0] = s.table[1];
    s.table[1] = up[1] = prepare(k, &s.g, &source);
    s.op.sparse = 1;
    check_bits(&s);
    for (int which = 0; which < 2; which++) {
        int64_t zeros = 0;
        s.op.threshold = which ? 0.2f * largest(wanted, NEURONS) : 0;
        const float *got = sparse_run(&s, 0, MOST, 2);
        for (int64_t i = 0; i < MOST * NEURONS; i++) {
            assert_true(got[i] == 0 || got[i] == wanted[i]);
            zeros += got[i] == 0 && wanted[i] != 0;
        }
        assert_true(which ? zeros > 0 : zeros == 0);
    }
    test_free(up[0]);
    sparse_free(&s);
}

static void test_gate_up(void **state)
{
    (void)state;
    for (size_t l = 0; l < ARRAY_LEN(isas); l++) {
        const struct cpu_kernels *k = kernels_named(isas[l]);
        for (size_t i = 0; k && i < ARRAY_LEN(matrix_types); i++)
            check_gate_up(k, matrix_types[i], i % 2 ? ACT_RELU : ACT_SILU,
                          dtype_info((int)matrix_types[i])->block_elems > 32 ? 256 : 352);
        if (k)
            check_gate_up(k, DT_Q4_0, ACT_RELU, 4096 + 352); /* more than avx2_listed.c's PIECE */
    }
}

/* Integers and scales are those of the elements. */
static void test_integers(void **state)
{
    (void)state;
    uint8_t block[512];
    float wanted[256];
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++) {
        const oato_dtype dtype = matrix_types[i];
        const struct columns_form *f = columns_form_of(dtype);
        const int n = dtype_info((int)dtype)->block_elems;
        random_elements(dtype, block, n);
        quants_row(dtype, block, n, wanted);
        for (int sub = 0; f->bits && sub < n / f->block; sub++) {
            float scale, min = 0;
            int8_t q[32];
            quants_integers(dtype, block, sub, q, &scale, &min);
            for (int e = 0; e < f->block; e++) {
                const int stored = q[e] + f->offset;
                assert_true(scale * (float)q[e] + min == wanted[sub * f->block + e]);
                assert_true(stored >= 0 && stored < 1 << f->bits);
            }
            assert_true(!f->half || f16_to_f32(f32_to_f16(scale)) == scale);
        }
    }
}

/* A list that is no list of columns is refused. */
static void test_lists(void **state)
{
    (void)state;
    const int32_t good[3] = {0, 5, 31}, twice[3] = {0, 5, 5}, far[3] = {0, 5, 32},
                  low[3] = {-1, 0, 1};
    static const uint8_t data[2 * 18];
    struct weight_source s = {.data = data,
                              .dtype = DT_Q4_0,
                              .k = 3,
                              .n = 2,
                              .row_end = 2,
                              .row_stride = 18,
                              .use = WEIGHT_COLUMNS};
    const int32_t *const lists[] = {good, twice, far, low};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        s.list = lists[i];
        assert_int_equal(weight_source_good(&s), i == 0);
    }
    s.list = good;
    s.row_stride = 0;
    assert_false(weight_source_good(&s));
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        bench_sparse(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL,
                     argc > 4 ? atoi(argv[4]) : 0);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_integers),
                                       cmocka_unit_test(test_lists), cmocka_unit_test(test_columns),
                                       cmocka_unit_test(test_gate_up)};
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
