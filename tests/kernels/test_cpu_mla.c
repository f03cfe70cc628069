/*
 * test_cpu_mla.c - what latent attention adds, on every instruction set: products of heads have the
 * bits of each head's product alone; a store of keys with a common tail has the bytes of one of
 * whole keys; rotations of a part of each head are those of that part alone.
 */
#include "tests/kernels/test_cpu.h"

/* Runs the operator on T rows of its inputs, with one weight or none. */
static float *run(const struct cpu_kernels *k, struct oato_op op, enum numerics_choice numerics,
                  struct oato_weight *w, const float *const in[2], int64_t T, int threads,
                  const struct kv_cache *kv)
{
    struct guarded g;
    struct simple_step s;
    struct program_record r = record_of(op);
    static const int32_t pages[] = {0, 1, 2};
    const size_t bytes = (size_t)(T * max_i64(1, op_out_width(&op, 0))) * sizeof(float);
    assert_true(op_valid(&op));
    guarded_init(&g);
    for (int i = 0; i < op_in_count(&op) && in[i]; i++) {
        const size_t size = (size_t)(T * op_in_width(&op, i)) * sizeof(float);
        r.in[i] = guarded_offset(&g, size);
        memcpy(g.base + r.in[i], in[i], size);
    }
    r.out[0] = guarded_offset(&g, bytes);
    memset(g.base + r.out[0], 0xff, bytes);
    r.weight[0] = w ? 0 : UINT32_MAX;
    r.numerics = (uint8_t)numerics;
    r.kv_layer = kv ? 0 : -1;
    const struct step *step = simple_step(&s, (int32_t)T);
    s.seq.pages = pages;
    struct cpu_context c = {.kernels = k, .arena = g.base, .weights = &w, .kv = kv};
    record_run(&c, &r, step, 0, threads);
    float *out = test_malloc(bytes);
    memcpy(out, g.base + r.out[0], bytes);
    guarded_free(&g);
    return out;
}

static float *random_rows(int64_t n)
{
    float *x = test_malloc((size_t)n * sizeof *x);
    random_floats(x, n);
    return x;
}

/* ------------------------------------------------------------------------- products of heads - */

static void check_head(const struct cpu_kernels *k, struct oato_op op,
                       enum numerics_choice numerics, int64_t head, const uint8_t *data,
                       const float *in, const float *out, int64_t T)
{
    const int64_t n = op.n, width = n + op.head_dim - op.k;
    struct guarded g;
    guarded_init(&g);
    struct oato_weight *w = weight_make(k, &g, (oato_dtype)op.dtype, data, op.heads * n, op.k,
                                        head * n, (head + 1) * n, WEIGHT_MATRIX);
    float *x = test_malloc((size_t)(T * op.k) * sizeof *x);
    for (int64_t t = 0; t < T; t++)
        memcpy(x + t * op.k, in + (t * op.heads + head) * op.head_dim, (size_t)op.k * sizeof *x);
    const struct oato_op alone = {.kind = OP_MUL_MAT, .dtype = op.dtype, .k = op.k, .n = op.n};
    float *y = run(k, alone, numerics, w, (const float *const[2]){x, NULL}, T, 1, NULL);
    for (int64_t t = 0; t < T; t++) {
        const float *row = out + (t * op.heads + head) * width;
        assert_memory_equal(row, y + t * n, (size_t)n * sizeof *y);
        assert_memory_equal(row + n, in + (t * op.heads + head) * op.head_dim + op.k,
                            (size_t)(op.head_dim - op.k) * sizeof *y);
    }
    test_free(y);
    test_free(x);
    test_free(w);
    guarded_free(&g);
}

static void check_heads(const struct cpu_kernels *k, enum numerics_choice numerics,
                        oato_dtype dtype)
{
    const int64_t block = dtype_info((int)dtype)->block_elems, T = random_in(1, 40);
    struct oato_op op = {.kind = OP_HEAD_MUL_MAT,
                         .dtype = (uint16_t)dtype,
                         .k = (int32_t)(block > 1 ? block : random_in(1, 200)),
                         .n = (int32_t)(random_in(0, 1) ? 64 * random_in(1, 2) : random_in(1, 200)),
                         .heads = (int32_t)random_in(1, 5)};
    op.head_dim = op.k + (int32_t)(random_in(0, 1) * random_in(1, 70));
    size_t row = 0;
    assert_true(dtype_row_bytes(dtype, op.k, &row));
    const int64_t rows = (int64_t)op.heads * op.n;
    struct guarded g;
    guarded_init(&g);
    uint8_t *data = test_malloc((size_t)rows * row);
    random_elements(dtype, data, rows * op.k);
    struct oato_weight *w = weight_make(k, &g, dtype, data, rows, op.k, 0, rows, WEIGHT_MATRIX);
    float *in = random_rows(T * op.heads * op.head_dim);
    const float *const inputs[2] = {in, NULL};
    float *out = run(k, op, numerics, w, inputs, T, 1, NULL);
    for (int64_t h = 0; h < op.heads; h++)
        check_head(k, op, numerics, h, data, in, out, T);
    for (int threads = 2; threads <= 3; threads++) {
        float *again = run(k, op, numerics, w, inputs, T, threads, NULL);
        assert_memory_equal(again, out, (size_t)(T * op_out_width(&op, 0)) * sizeof *out);
        test_free(again);
    }
    test_free(out);
    test_free(in);
    test_free(w);
    test_free(data);
    guarded_free(&g);
}

static void products_of_heads_are_those_of_each_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t d = random_first(3); k && d < ARRAY_LEN(matrix_types); d += pace_step(3))
            for (int choice = 0; choice < NUMERICS_CHOICES; choice++)
                check_heads(k, (enum numerics_choice)choice, matrix_types[d]);
    }
}

/* ------------------------------------------------------------------------------------ stores - */

static struct kv_cache cache_of(const struct oato_op *op, struct kv_layer_shape *shape,
                                uint64_t *offset)
{
    *shape = (struct kv_layer_shape){.kv_heads = op->kv_heads,
                                     .head_dim = op->head_dim,
                                     .v_dim = op->v_dim,
                                     .v_in_k = op->v_in_k};
    struct kv_cache kv = {.n_layers = 1,
                          .pages = 3,
                          .dtype = (oato_dtype)op->dtype,
                          .layers = shape,
                          .layer_offset = offset};
    uint64_t bytes = 0;
    assert_true(kv_cache_layout(&kv, &bytes));
    assert_true(bytes == 3 * 64 * op_kv_bytes(op, (oato_dtype)op->dtype) + KV_PADDING);
    kv.data = test_calloc(1, bytes);
    return kv;
}

/* Of keys with a tail: whole keys and values, as a store without one takes them. */
static void check_store(const struct cpu_kernels *k, struct oato_op op)
{
    enum { T = 60 };
    const int32_t own = op.head_dim - op.k_tail, v_dim = op.v_in_k ? 0 : op_v_dim(&op);
    float *first = random_rows((int64_t)T * op_in_width(&op, 0));
    float *tail = random_rows((int64_t)T * op.k_tail);
    float *keys = test_malloc((size_t)(T * op.kv_heads * op.head_dim) * sizeof *keys);
    float *values = test_malloc((size_t)(T * op.kv_heads * op.head_dim) * sizeof *values);
    const float *from = first;
    for (int64_t i = 0; i < (int64_t)T * op.kv_heads; i++, from += own + v_dim) {
        memcpy(keys + i * op.head_dim, from, (size_t)own * sizeof *keys);
        memcpy(keys + i * op.head_dim + own, tail + i / op.kv_heads * op.k_tail,
               (size_t)op.k_tail * sizeof *keys);
        memcpy(values + i * v_dim, from + own, (size_t)v_dim * sizeof *keys);
    }
    struct oato_op plain = op;
    plain.k_tail = plain.v_in_k = 0;
    struct kv_layer_shape shapes[2];
    uint64_t offsets[2];
    struct kv_cache kv[2] = {cache_of(&op, &shapes[0], &offsets[0]),
                             cache_of(&plain, &shapes[1], &offsets[1])};
    test_free(
        run(k, op, NUMERICS_DECODE, NULL, (const float *const[2]){first, tail}, T, 2, &kv[0]));
    test_free(
        run(k, plain, NUMERICS_DECODE, NULL, (const float *const[2]){keys, values}, T, 2, &kv[1]));
    for (int which = 0; which < (op.v_in_k ? 1 : 2); which++)
        for (int32_t h = 0; h < op.kv_heads; h++)
            assert_memory_equal(kv_block(&kv[0], 0, 0, which, h), kv_block(&kv[1], 0, 0, which, h),
                                kv_layer_block_bytes(&kv[0], 0, which));
    test_free(kv[0].data);
    test_free(kv[1].data);
    test_free(values);
    test_free(keys);
    test_free(tail);
    test_free(first);
}

static void stores_put_whole_keys_together(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (int dtype = 0; k && dtype < 3; dtype++) {
            struct oato_op op = {.kind = OP_KV_STORE,
                                 .dtype = (uint16_t[]){DT_F16, DT_F32, DT_Q8_0}[dtype],
                                 .kv_heads = 1,
                                 .head_dim = 96,
                                 .v_in_k = 64,
                                 .k_tail = 32};
            check_store(k, op);
            op.v_in_k = 0;
            op.kv_heads = 3;
            op.v_dim = 64;
            check_store(k, op);
            op.v_dim = 0;
            op.k_tail = 96;
            check_store(k, op);
        }
    }
}

/* --------------------------------------------------------------------------------- rotations - */

static void a_part_of_each_head_is_rotated(void **state)
{
    enum { T = 5, HEADS = 3, DIM = 40, FIRST = 12, DIMS = 20 };
    (void)state;
    for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALVES; pairing++) {
        struct oato_op op = {.kind = OP_ROPE,
                             .k = HEADS * DIM,
                             .n = HEADS * DIM,
                             .heads = HEADS,
                             .head_dim = DIM,
                             .first = FIRST,
                             .rope_dims = DIMS,
                             .rope_pairing = pairing,
                             .rope_base = 10000,
                             .rope_scale = 1};
        float *in = random_rows(T * op.n), part[T * HEADS * DIMS];
        for (int i = 0; i < T * HEADS; i++)
            memcpy(part + i * DIMS, in + i * DIM + FIRST, DIMS * sizeof *in);
        const struct cpu_kernels *k = kernels_named("ref");
        const float *const whole[2] = {in, NULL}, *const parts[2] = {part, NULL};
        float *y = run(k, op, NUMERICS_DECODE, NULL, whole, T, 2, NULL);
        op.first = 0;
        op.head_dim = DIMS;
        op.k = op.n = HEADS * DIMS;
        float *wanted = run(k, op, NUMERICS_DECODE, NULL, parts, T, 2, NULL);
        for (int i = 0; i < T * HEADS; i++) {
            const float *head = y + i * DIM, *from = in + i * DIM;
            assert_memory_equal(head, from, FIRST * sizeof *y);
            assert_memory_equal(head + FIRST, wanted + i * DIMS, DIMS * sizeof *y);
            assert_memory_equal(head + FIRST + DIMS, from + FIRST + DIMS,
                                (DIM - FIRST - DIMS) * sizeof *y);
        }
        test_free(wanted);
        test_free(y);
        test_free(in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_heads_are_those_of_each_alone),
        cmocka_unit_test(stores_put_whole_keys_together),
        cmocka_unit_test(a_part_of_each_head_is_rotated),
    };
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
