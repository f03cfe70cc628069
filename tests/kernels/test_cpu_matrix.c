/*
 * test_cpu_matrix.c - matrix products of every instruction set and weight type: close to a double
 * evaluation of the dequantised weights; the same bits whatever T, threads, row split or fusion;
 * no byte touched beyond any buffer. --bench [LEVEL|all [TYPE|all [THREADS]]]
 * times the kernels instead (bench_cpu.c).
 */
#include "tests/kernels/bench_cpu.h"
#include "tests/kernels/test_cpu.h"

/* A product y = W x ready to run: weights of up to three matrices, room for x and y. */
struct product {
    struct guarded g;
    struct cpu_context c;
    struct oato_weight *table[3];
    const struct oato_weight *borrowed[3];
    uint8_t *data[3]; /* in GGUF form */
    int64_t rows[3];
    int n_weights;
    oato_dtype dtype;
    enum numerics_choice numerics;
    int64_t k;
    float *x;
    int64_t T;
};

static void product_init(struct product *p, const struct cpu_kernels *k, oato_dtype dtype,
                         int64_t width, int64_t T, int n_weights, const int64_t *rows)
{
    memset(p, 0, sizeof *p);
    guarded_init(&p->g);
    p->dtype = dtype;
    p->k = width;
    p->T = T;
    p->n_weights = n_weights;
    size_t row = 0;
    assert_true(dtype_row_bytes(dtype, width, &row));
    for (int i = 0; i < n_weights; i++) {
        p->rows[i] = rows[i];
        p->data[i] = test_malloc((size_t)rows[i] * row);
        random_elements(dtype, p->data[i], rows[i] * width);
        p->table[i] =
            weight_make(k, &p->g, dtype, p->data[i], rows[i], width, 0, rows[i], WEIGHT_MATRIX);
    }
    p->x = guarded_alloc(&p->g, (size_t)(width * T) * sizeof(float));
    random_floats(p->x, width * T);
    p->c = (struct cpu_context){.kernels = k, .arena = p->g.base, .weights = p->table};
}

static void product_free(struct product *p)
{
    for (int i = 0; i < p->n_weights; i++) {
        test_free(p->data[i]);
        test_free(p->table[i]);
    }
    guarded_free(&p->g);
}

/* Runs `kind` on columns [t0, t0 + T) with weights from `first` on; outputs are fresh buffers. */
static void product_run(struct product *p, enum op_kind kind, int first, int64_t t0, int64_t T,
                        int threads, float **out)
{
    struct simple_step s;
    struct program_record r = record_of((struct oato_op){.kind = (uint16_t)kind,
                                                         .dtype = (uint16_t)p->dtype,
                                                         .k = (int32_t)p->k,
                                                         .n = (int32_t)p->rows[first]});
    int outputs = kind == OP_QKV ? 3 : 1;
    if (kind == OP_QKV)
        r.op.n2 = (int32_t)p->rows[1];
    r.numerics = (uint8_t)p->numerics;
    r.n_in = 1;
    r.in_width[0] = (int32_t)p->k;
    r.in[0] = (uint64_t)((uint8_t *)(p->x + t0 * p->k) - p->g.base);
    r.n_out = (uint8_t)outputs;
    r.n_weights = (uint8_t)(kind == OP_QKV ? 3 : kind == OP_GATE_UP ? 2 : 1);
    for (int i = 0; i < r.n_weights; i++)
        r.weight[i] = (uint32_t)(first + i);
    for (int i = 0; i < outputs; i++) {
        size_t bytes = (size_t)(p->rows[first + i] * T) * sizeof(float);
        r.out[i] = guarded_offset(&p->g, bytes);
        out[i] = floats(p->g.base + r.out[i]);
        memset(out[i], 0xff, bytes);
    }
    record_run(&p->c, &r, simple_step(&s, (int32_t)T), 0, threads);
}

/* The products of matrix i in double. With squares, these are the sums of the squares of their
 * terms. */
static double *product_exact(const struct product *p, int i, double *squares)
{
    double *y = test_malloc((size_t)(p->rows[i] * p->T) * sizeof *y);
    float *w = test_malloc((size_t)p->k * sizeof *w);
    size_t row = 0;
    dtype_row_bytes(p->dtype, p->k, &row);
    for (int64_t r = 0; r < p->rows[i]; r++) {
        quants_row(p->dtype, p->data[i] + (size_t)r * row, p->k, w);
        for (int64_t t = 0; t < p->T; t++) {
            double sum = 0;
            for (int64_t e = 0; e < p->k; e++) {
                const double term = (double)w[e] * (double)p->x[t * p->k + e];
                sum += term;
                if (squares)
                    *squares += term * term;
            }
            y[t * p->rows[i] + r] = sum;
        }
    }
    test_free(w);
    return y;
}

/* Squared error that the class may have against a double evaluation, relative to the squares of the
 * products that a sum consists of: relative to the sum's own, it would be without bound where they
 * cancel. */
static double limit_of(const struct cpu_kernels *k, enum numerics_choice numerics, oato_dtype dtype)
{
    static const struct {
        const char *name;
        double nmse;
    } classes[] = {{"f32", 1e-10}, {"i14b32", 1e-7}, {"u8b32", 1e-4}, {"bf16", 4e-5}};
    const char *name = cpu_matrix_class(k, dtype, numerics)->numerics;
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (!strcmp(classes[i].name, name))
            return classes[i].nmse;
    fail_msg("class '%s' has no limit", name);
    return 0;
}

static void assert_product_close(const struct product *p, const float *y)
{
    double error = 0, squares = 1e-30;
    double *exact = product_exact(p, 0, &squares);
    const double limit = limit_of(p->c.kernels, p->numerics, p->dtype);
    for (int64_t i = 0; i < p->rows[0] * p->T; i++)
        error += (y[i] - exact[i]) * (y[i] - exact[i]);
    if (!(error <= limit * squares))
        fail_msg("%s %s %s: k %lld, T %lld: error %.3g exceeds %.3g", p->c.kernels->name,
                 cpu_matrix_class(p->c.kernels, p->dtype, p->numerics)->numerics,
                 dtype_name(p->dtype), (long long)p->k, (long long)p->T, error / squares, limit);
    test_free(exact);
}

static int64_t width_of(oato_dtype dtype)
{
    int64_t block = dtype_info((int)dtype)->block_elems;
    if (block == 1)
        return random_in(1, 600);
    return block * random_in(1, block == 32 ? 20 : 4);
}

typedef void check_fn(const struct cpu_kernels *k, enum numerics_choice numerics, oato_dtype dtype);

/* Calls fn for every instruction set, type and class of arithmetic. */
static void for_each(check_fn *fn)
{
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t d = random_first(3); k && d < ARRAY_LEN(matrix_types); d += pace_step(3))
            for (int choice = 0; choice < NUMERICS_CHOICES; choice++)
                if (choice == NUMERICS_DECODE ||
                    cpu_matrix_class(k, matrix_types[d], choice) !=
                        cpu_matrix_class(k, matrix_types[d], NUMERICS_DECODE))
                    fn(k, (enum numerics_choice)choice, matrix_types[d]);
    }
}

static void check_exact(const struct cpu_kernels *k, enum numerics_choice numerics,
                        oato_dtype dtype)
{
    static const int64_t columns[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 21, 32, 33};
    for (size_t i = random_first(3); i < ARRAY_LEN(columns); i += pace_step(3)) {
        struct product p;
        int64_t n = random_in(16, 150);
        float *y;
        product_init(&p, k, dtype, width_of(dtype), columns[i], 1, &n);
        p.numerics = numerics;
        product_run(&p, OP_MUL_MAT, 0, 0, p.T, 1, &y);
        assert_product_close(&p, y);
        product_free(&p);
    }
}

static void products_are_close_to_double(void **state)
{
    (void)state;
    for_each(check_exact);
}

static void check_bits(const struct cpu_kernels *k, enum numerics_choice numerics, oato_dtype dtype)
{
    struct product p;
    int64_t n = random_in(65, 200);
    float *all, *y;
    product_init(&p, k, dtype, width_of(dtype), 33, 1, &n);
    p.numerics = numerics;
    product_run(&p, OP_MUL_MAT, 0, 0, p.T, 1, &all);
    for (int threads = 1; threads <= 3; threads++) {
        product_run(&p, OP_MUL_MAT, 0, 0, p.T, threads, &y);
        assert_memory_equal(y, all, (size_t)(n * p.T) * sizeof *y);
        for (int64_t t = 0, T; t < p.T; t += T) { /* chunks of any length, single columns too */
            T = min_i64(p.T - t, random_in(1, 7));
            product_run(&p, OP_MUL_MAT, 0, t, T, threads, &y);
            assert_memory_equal(y, all + t * n, (size_t)(n * T) * sizeof *y);
        }
    }
    /* rows from 64 on, prepared as a weight of their own */
    struct oato_weight *whole = p.table[0];
    p.table[0] = weight_make(k, &p.g, dtype, p.data[0], n, p.k, 64, n, WEIGHT_MATRIX);
    p.rows[0] = n - 64;
    product_run(&p, OP_MUL_MAT, 0, 0, p.T, 2, &y);
    for (int64_t t = 0; t < p.T; t++)
        assert_memory_equal(y + t * (n - 64), all + t * n + 64, (size_t)(n - 64) * sizeof *y);
    test_free(p.table[0]);
    p.table[0] = whole;
    product_free(&p);
}

static void a_row_has_the_same_bits_whatever_runs_beside_it(void **state)
{
    (void)state;
    for_each(check_bits);
}

static void check_fusion(const struct cpu_kernels *k, enum numerics_choice numerics,
                         oato_dtype dtype)
{
    for (int64_t T = 1; T <= 33; T += 16) {
        struct product p;
        const int64_t n2 = random_in(1, 130), rows[3] = {random_in(1, 200), n2, n2};
        float *fused[3], *single;
        product_init(&p, k, dtype, width_of(dtype), T, 3, rows);
        p.numerics = numerics;
        product_run(&p, OP_QKV, 0, 0, T, 2, fused);
        for (int i = 0; i < 3; i++) {
            product_run(&p, OP_MUL_MAT, i, 0, T, 1, &single);
            assert_memory_equal(fused[i], single, (size_t)(rows[i] * T) * sizeof *single);
        }
        product_run(&p, OP_GATE_UP, 1, 0, T, 2, fused); /* the two of equal size */
        for (int64_t t = 0; t < T; t++) {
            float *gate, *up;
            product_run(&p, OP_MUL_MAT, 1, t, 1, 1, &gate);
            product_run(&p, OP_MUL_MAT, 2, t, 1, 1, &up);
            uint32_t state = float_state_fast(); /* as in a step: a tiny silu becomes 0 */
            k->rows->gate(ACT_SILU, 0, gate, gate, up, n2);
            float_state_set(state);
            assert_memory_equal(fused[0] + t * n2, gate, (size_t)n2 * sizeof *gate);
        }
        product_free(&p);
    }
}

static void fused_products_equal_single_ones(void **state)
{
    (void)state;
    for_each(check_fusion);
}

/* What the first level with a class computes, all of them compute. */
static void check_levels(const struct cpu_kernels *first, enum numerics_choice numerics)
{
    for (size_t d = 0; d < ARRAY_LEN(matrix_types); d++) {
        const char *class = cpu_matrix_class(first, matrix_types[d], numerics)->numerics;
        const int64_t n = random_in(65, 200), width = width_of(matrix_types[d]);
        const uint64_t seed = seed_state;
        struct product wanted;
        float *y, *z;
        product_init(&wanted, first, matrix_types[d], width, 33, 1, &n);
        wanted.numerics = numerics;
        product_run(&wanted, OP_MUL_MAT, 0, 0, 33, 1, &y);
        for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
            const struct cpu_kernels *k = kernels_named(isas[i]);
            if (!k || k == first || k == &cpu_kernels_ref ||
                strcmp(cpu_matrix_class(k, matrix_types[d], numerics)->numerics, class) != 0)
                continue;
            struct product p;
            seed_state = seed;
            product_init(&p, k, matrix_types[d], width, 33, 1, &n);
            p.numerics = numerics;
            for (int64_t t = 0; t < 33; t++) {
                product_run(&p, OP_MUL_MAT, 0, t, 1, 2, &z);
                assert_memory_equal(z, y + t * n, (size_t)n * sizeof *z);
            }
            product_run(&p, OP_MUL_MAT, 0, 0, 33, 2, &z);
            assert_memory_equal(z, y, (size_t)(n * 33) * sizeof *z);
            product_free(&p);
        }
        product_free(&wanted);
    }
}

static void levels_of_a_class_give_the_same_bits(void **state)
{
    (void)state;
    static const char *const firsts[] = {"avx2", "amx"};
    for (size_t i = 0; i < ARRAY_LEN(firsts); i++) {
        const struct cpu_kernels *first = kernels_named(firsts[i]);
        for (int choice = 0; first && choice < NUMERICS_CHOICES; choice++)
            check_levels(first, (enum numerics_choice)choice);
    }
}

/* Wider than any kernel's chunk of k, and not by a multiple of one. */
static void check_long(const struct cpu_kernels *k, enum numerics_choice numerics, oato_dtype dtype)
{
    const int64_t block = dtype_info((int)dtype)->block_elems, n = 70, T = 19;
    const int64_t width = block == 1 ? 8192 + 77 : 8192 + block;
    struct product p;
    float *y, *one;
    product_init(&p, k, dtype, width, T, 1, &n);
    p.numerics = numerics;
    product_run(&p, OP_MUL_MAT, 0, 0, T, 2, &y);
    assert_product_close(&p, y);
    for (int64_t t = 0; t < T; t += 6) {
        product_run(&p, OP_MUL_MAT, 0, t, 1, 1, &one);
        assert_memory_equal(one, y + t * n, (size_t)n * sizeof *one);
    }
    product_free(&p);
}

static void long_rows_are_products_too(void **state)
{
    (void)state;
    for_each(check_long);
}

/* Columns of the unit matrix bring out the weights one by one. */
static void check_rounded(const struct cpu_kernels *k, enum numerics_choice numerics,
                          oato_dtype dtype)
{
    enum { WIDTH = 256 };
    if (strcmp(cpu_matrix_class(k, dtype, numerics)->numerics, "bf16") != 0)
        return;
    const int64_t n = 33;
    struct product p;
    float w[WIDTH];
    size_t row = 0;
    dtype_row_bytes(dtype, WIDTH, &row);
    product_init(&p, k, dtype, WIDTH, 1, 1, &n);
    p.numerics = numerics;
    for (int64_t e = 0; e < WIDTH; e += random_in(1, 9)) {
        float *y;
        memset(p.x, 0, WIDTH * sizeof *p.x);
        p.x[e] = 1;
        product_run(&p, OP_MUL_MAT, 0, 0, 1, 1, &y);
        for (int64_t r = 0; r < n; r++) {
            quants_row(dtype, p.data[0] + (size_t)r * row, WIDTH, w);
            assert_true(y[r] == bf16_to_f32(f32_to_bf16(w[e])));
        }
    }
    product_free(&p);
}

static void weights_of_bf16_are_the_nearest_ones(void **state)
{
    (void)state;
    for_each(check_rounded);
}

/* Zero inputs, huge and tiny ones, and extreme weights do not overflow the integers. Sums of huge
 * ones may cancel, so errors count beside the summands where those are larger. */
static void check_extremes(const struct cpu_kernels *k, enum numerics_choice numerics,
                           oato_dtype dtype)
{
    enum { WIDTH = 512 };
    struct product p;
    const int64_t n = 9;
    float *y, w[WIDTH];
    double error = 0, size = 0;
    size_t row = 0;
    dtype_row_bytes(dtype, WIDTH, &row);
    product_init(&p, k, dtype, WIDTH, 3, 1, &n);
    p.numerics = numerics;
    for (int64_t e = 0; e < 512; e++) {
        p.x[e] = 0;
        p.x[512 + e] = 1e20f;
        p.x[1024 + e] = e % 2 ? 1e-38f : 1e-41f;
    }
    product_run(&p, OP_MUL_MAT, 0, 0, 3, 2, &y);
    double *exact = product_exact(&p, 0, NULL);
    for (int64_t r = 0; r < n; r++) {
        assert_true(y[r] == 0);
        assert_true(fabs((double)y[2 * n + r]) < 1e-30);
    }
    for (int64_t r = 0; r < n; r++) {
        const double off = (double)y[n + r] - exact[n + r];
        double summands = 0;
        error += off * off;
        quants_row(dtype, p.data[0] + (size_t)r * row, WIDTH, w);
        for (int64_t e = 0; e < WIDTH; e++)
            summands += 1e40 * (double)w[e] * (double)w[e];
        size += fmax(exact[n + r] * exact[n + r], summands);
    }
    assert_true(error <= (limit_of(k, numerics, dtype) > 1e-8 ? 1e-4 : 1e-8) * size);
    test_free(exact);
    product_free(&p);
}

static void extreme_inputs_stay_exact(void **state)
{
    (void)state;
    for_each(check_extremes);
}

static void check_not_finite(const struct cpu_kernels *k, enum numerics_choice numerics,
                             oato_dtype dtype)
{
    struct product p;
    const int64_t n = 9;
    float *y;
    product_init(&p, k, dtype, 512, 2, 1, &n);
    p.numerics = numerics;
    p.x[random_in(0, 511)] = random_in(0, 1) ? NAN : INFINITY; /* of column 0 */
    product_run(&p, OP_MUL_MAT, 0, 0, 2, 1, &y);
    for (int64_t r = 0; r < n; r++) {
        assert_false(isfinite(y[r]));
        assert_true(isfinite(y[n + r]));
    }
    product_free(&p);
}

static void what_is_not_finite_does_not_come_out_finite(void **state)
{
    (void)state;
    for_each(check_not_finite);
}

/* Each thread its own part of what will be read, and nothing where arithmetic is the limit. */
static void what_is_read_first_is_a_part_of_the_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        struct product p;
        struct simple_step s;
        const int64_t n = random_in(1, 700);
        if (!k)
            continue;
        product_init(&p, k, DT_Q4_0, 64 * random_in(1, 9), 1, 1, &n);
        struct program_record r =
            record_of((struct oato_op){.kind = OP_MUL_MAT, .k = (int32_t)p.k, .n = (int32_t)n});
        r.weight[0] = 0;
        const struct step *one = simple_step(&s, 1);
        for (int threads = 1; threads < 6; threads++) {
            const uint8_t *free_from = p.table[0]->data;
            for (int t = 0; t < threads; t++) {
                struct read_ahead a = cpu_record_reads(&p.c, &r, one, t, threads);
                assert_true(!a.bytes || a.from >= free_from);
                free_from = a.bytes ? a.from + a.bytes : free_from;
            }
            assert_true(free_from <= p.table[0]->data + p.table[0]->bytes);
        }
        assert_true(cpu_record_reads(&p.c, &r, one, 0, 1).bytes > 0);
        assert_int_equal(cpu_record_reads(&p.c, &r, simple_step(&s, 60), 0, 1).bytes, 0);
        r.op.kind = OP_ADD;
        assert_int_equal(cpu_record_reads(&p.c, &r, simple_step(&s, 1), 0, 1).bytes, 0);
        product_free(&p);
    }
}

/* Columns of a tensor, read where they lie, are prepared as if they were cut out first. */
static void columns_are_prepared_as_a_tensor_of_their_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *kernels = kernels_named(isas[i]);
        for (size_t t = 0; kernels && t < ARRAY_LEN(matrix_types); t++) {
            const oato_dtype dtype = matrix_types[t];
            const int64_t n = random_in(1, 150), k = 256 * random_in(1, 2), left = 256;
            size_t wide = 0, row = 0, skip = 0;
            assert_true(dtype_row_bytes(dtype, left + k + 256, &wide) &&
                        dtype_row_bytes(dtype, k, &row) && dtype_row_bytes(dtype, left, &skip));
            struct guarded g;
            guarded_init(&g);
            uint8_t *data = guarded_alloc(&g, wide * (size_t)n),
                    *cut = test_malloc(row * (size_t)n);
            random_elements(dtype, data, (left + k + 256) * n);
            for (int64_t r = 0; r < n; r++)
                memcpy(cut + (size_t)r * row, data + (size_t)r * wide + skip, row);
            struct oato_weight *want =
                weight_make(kernels, &g, dtype, cut, n, k, 0, n, WEIGHT_MATRIX);
            struct oato_weight got = *want;
            got.data = guarded_alloc(&g, got.bytes);
            const struct weight_source s = {.data = data + skip,
                                            .dtype = dtype,
                                            .k = k,
                                            .n = n,
                                            .row_end = n,
                                            .row_stride = wide,
                                            .use = WEIGHT_MATRIX};
            cpu_convert_rows(kernels, &s, 0, n, (uint8_t *)(uintptr_t)got.data);
            assert_memory_equal(got.data, want->data, got.bytes);
            test_free(want);
            test_free(cut);
            guarded_free(&g);
        }
    }
}

static void an_empty_step_does_nothing(void **state)
{
    (void)state;
    struct product p;
    const int64_t n = 8;
    float *y;
    product_init(&p, &cpu_kernels_ref, DT_F32, 8, 1, 1, &n);
    product_run(&p, OP_MUL_MAT, 0, 0, 0, 2, &y);
    product_free(&p);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_close_to_double),
        cmocka_unit_test(a_row_has_the_same_bits_whatever_runs_beside_it),
        cmocka_unit_test(fused_products_equal_single_ones),
        cmocka_unit_test(levels_of_a_class_give_the_same_bits),
        cmocka_unit_test(long_rows_are_products_too),
        cmocka_unit_test(weights_of_bf16_are_the_nearest_ones),
        cmocka_unit_test(extreme_inputs_stay_exact),
        cmocka_unit_test(what_is_not_finite_does_not_come_out_finite),
        cmocka_unit_test(what_is_read_first_is_a_part_of_the_weights),
        cmocka_unit_test(columns_are_prepared_as_a_tensor_of_their_own),
        cmocka_unit_test(an_empty_step_does_nothing),
    };
    seed_init();
    for (size_t i = 0; i < ARRAY_LEN(isas); i++)
        if (!kernels_named(isas[i]))
            print_message("%s: not on this processor, skipped\n", isas[i]);
    if (argc > 1 && !strcmp(argv[1], "--bench")) {
        bench_matrices(argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL,
                       argc > 4 ? atoi(argv[4]) : 0);
        return 0;
    }
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
