/*
 * test_cpu_transposed.c - MUL_MAT_T on every instruction set: the sum that double precision gives,
 * with the same bits for any number of threads and whatever else is in the step; rows of elements
 * that are 0 are not read.
 */
#include "tests/kernels/test_cpu.h"

struct product {
    struct oato_op op;
    int64_t T;
    uint8_t *data; /* the weight, k rows */
    size_t row;
    float *in;
};

static void product_init(struct product *p, oato_dtype dtype)
{
    const int64_t block = dtype_info((int)dtype)->block_elems;
    const int32_t n =
        (int32_t)(block > 1 ? block * random_in(1, 640 / block + 2) : random_in(1, 600));
    *p = (struct product){.op = {.kind = OP_MUL_MAT_T,
                                 .dtype = (uint16_t)dtype,
                                 .k = (int32_t)random_in(1, 200),
                                 .n = n},
                          .T = random_in(0, 1) ? 1 : random_in(2, 20)};
    assert_true(op_valid(&p->op) && dtype_row_bytes(dtype, n, &p->row));
    p->data = test_malloc((size_t)p->op.k * p->row);
    random_elements(dtype, p->data, (int64_t)p->op.k * n);
    p->in = test_malloc((size_t)(p->T * p->op.k) * sizeof *p->in);
    random_floats(p->in, p->T * p->op.k);
    for (int64_t i = 0; i < p->T * p->op.k; i++)
        p->in[i] = random_in(0, 1) ? 0 : p->in[i];
}

static void product_free(struct product *p)
{
    test_free(p->in);
    test_free(p->data);
}

/* The result for tokens [first, first + T). */
static float *run(const struct cpu_kernels *k, const struct product *p, const uint8_t *data,
                  int64_t first, int64_t T, int threads)
{
    const size_t bytes = (size_t)(T * p->op.n) * sizeof(float);
    const size_t in_bytes = (size_t)(T * p->op.k) * sizeof(float);
    struct guarded g;
    struct simple_step s;
    struct program_record r = record_of(p->op);
    guarded_init(&g);
    struct oato_weight *w = weight_make(k, &g, (oato_dtype)p->op.dtype, data, p->op.k, p->op.n, 0,
                                        p->op.k, WEIGHT_LOOKUP);
    r.in[0] = guarded_offset(&g, in_bytes);
    memcpy(g.base + r.in[0], p->in + first * p->op.k, in_bytes);
    r.out[0] = guarded_offset(&g, bytes);
    memset(g.base + r.out[0], 0xff, bytes);
    r.weight[0] = 0;
    struct cpu_context c = {.kernels = k, .arena = g.base, .weights = &w};
    record_run(&c, &r, simple_step(&s, (int32_t)T), 0, threads);
    float *out = test_malloc(bytes);
    memcpy(out, g.base + r.out[0], bytes);
    test_free(w);
    guarded_free(&g);
    return out;
}

static void check_values(const struct product *p, const float *out)
{
    const int64_t n = p->op.n;
    float *row = test_malloc((size_t)n * sizeof *row);
    double *sum = test_calloc((size_t)(p->T * n), sizeof *sum);
    for (int64_t i = 0; i < p->op.k; i++) {
        quants_row((oato_dtype)p->op.dtype, p->data + (size_t)i * p->row, n, row);
        for (int64_t t = 0; t < p->T; t++)
            for (int64_t j = 0; j < n; j++)
                sum[t * n + j] += (double)p->in[t * p->op.k + i] * row[j];
    }
    assert_close(out, sum, p->T * n, 1e-10);
    test_free(sum);
    test_free(row);
}

/* NaN would show in the result. */
static void spoil_silent_rows(const struct product *p, uint8_t *data)
{
    memcpy(data, p->data, (size_t)p->op.k * p->row);
    for (int64_t i = 0; i < p->op.k; i++) {
        int64_t t = 0;
        while (t < p->T && p->in[t * p->op.k + i] == 0)
            t++;
        if (t == p->T)
            memset(data + (size_t)i * p->row, 0xff, p->row);
    }
}

static void check(const struct cpu_kernels *k, oato_dtype dtype)
{
    struct product p;
    product_init(&p, dtype);
    const size_t bytes = (size_t)(p.T * p.op.n) * sizeof(float);
    float *out = run(k, &p, p.data, 0, p.T, 1);
    check_values(&p, out);
    uint8_t *spoilt = test_malloc((size_t)p.op.k * p.row);
    spoil_silent_rows(&p, spoilt);
    for (int threads = 1; threads <= 3; threads++) {
        float *again = run(k, &p, spoilt, 0, p.T, threads);
        assert_memory_equal(again, out, bytes);
        test_free(again);
    }
    for (int64_t t = 0; t < p.T; t++) {
        float *alone = run(k, &p, p.data, t, 1, 1);
        assert_memory_equal(alone, out + t * p.op.n, (size_t)p.op.n * sizeof *out);
        test_free(alone);
    }
    test_free(spoilt);
    test_free(out);
    product_free(&p);
}

static void transposed_products_are_sums_of_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t d = 0; k && d < ARRAY_LEN(matrix_types); d++)
            check(k, matrix_types[d]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transposed_products_are_sums_of_rows),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
