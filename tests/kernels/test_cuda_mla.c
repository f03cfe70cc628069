/*
 * test_cuda_mla.c - latent attention on a CUDA device against the reference kernels of the CPU:
 * keys with a common tail, values of another width or in the keys, products of heads, and rotations
 * of a part of each head. Runs on the emulated GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) and,
 * labelled gpu, on a real one; without any it is skipped.
 */
#include "tests/kernels/cuda_case.h"

enum { T = 100 }; /* tokens of one sequence: a page and a part of one */

static struct program_record record_with(struct oato_op op, uint64_t *bytes)
{
    struct program_record r = {.op = op, .kv_layer = 0, .signal = op.kind == OP_ATTENTION ? 2 : 1};
    r.n_in = (uint8_t)op_in_count(&op);
    for (int i = 0; i < r.n_in; i++) {
        r.in_width[i] = (int32_t)op_in_width(&op, i);
        r.in[i] = *bytes;
        *bytes += size_align((size_t)(T * r.in_width[i]) * sizeof(float), 64);
    }
    r.n_out = op_out_width(&op, 0) > 0;
    r.out[0] = *bytes;
    *bytes += size_align((size_t)(T * op_out_width(&op, 0)) * sizeof(float), 64);
    return r;
}

/* Stores keys and values and attends to them. */
static void attend(struct oato_device *d, struct oato_op store, struct oato_op attention,
                   const float *inputs, float *out)
{
    struct oato_error err;
    uint64_t bytes = 0, begin;
    struct program_record r[2];
    r[0] = record_with(store, &bytes);
    begin = bytes;
    r[1] = record_with(attention, &bytes);
    uint8_t *arena = at(d, bytes);
    upload(d, arena, 0, inputs, begin + (uint64_t)(T * attention.k) * sizeof(float));
    const struct kv_layer_shape layer = {.kv_heads = store.kv_heads,
                                         .head_dim = store.head_dim,
                                         .v_dim = store.v_dim,
                                         .v_in_k = store.v_in_k};
    struct program p = {.records = r,
                        .n_records = 2,
                        .n_signals = 2,
                        .max_tokens = T,
                        .max_rows = T,
                        .max_seqs = 1,
                        .arena = arena};
    const struct op_size size = {.rows = T, .seqs = 1, .kv_positions = T * (T + 1) / 2};
    p.workspace_bytes = d->ops->workspace_bytes(d, &attention, &size);
    assert_true(d->ops->supports(d, &store) && d->ops->supports(d, &attention));
    if (d->ops->kv_create(d, &layer, 1, (oato_dtype)store.dtype, 2, &p.kv, &err))
        fail_msg("%s", err.text);
    static const int32_t pages[] = {1, 0};
    const struct step_seq seq = {.query_len = T, .kv_len = T, .pages = pages};
    struct step step = plain_step(T);
    step.seq = &seq;
    run_program(d, &p, &step);
    if (d->ops->download(d, out, arena, r[1].out[0], (uint64_t)(T * attention.n) * sizeof(float),
                         NULL, &err))
        fail_msg("%s", err.text);
    d->ops->kv_free(d, p.kv);
    d->ops->free(d, arena, bytes);
}

static void check_attention(const char *store_key, const char *attention_key)
{
    struct oato_op store, attention;
    struct op_size size;
    assert_true(oato_op_parse(store_key, &store, &size));
    assert_true(oato_op_parse(attention_key, &attention, &size));
    attention.scale = 0.1f;
    uint64_t bytes = 0;
    record_with(store, &bytes);
    record_with(attention, &bytes);
    float *inputs = test_malloc(bytes), *out[2];
    random_floats(inputs, (int64_t)(bytes / sizeof *inputs));
    for (int d = 0; d < 2; d++) {
        out[d] = test_malloc((size_t)(T * attention.n) * sizeof *out[d]);
        attend(device[d], store, attention, inputs, out[d]);
    }
    const double e = error_of(out[1], out[0], (int64_t)T * attention.n);
    if (!(e <= 1e-9))
        fail_msg("%s: NMSE %.3g", attention_key, e);
    test_free(out[0]);
    test_free(out[1]);
    test_free(inputs);
}

static void values_lie_in_keys_or_have_another_width(void **state)
{
    (void)state;
    check_attention("kv_store/F16/g1/d96/c64/x32", "attention/F16/h6/g1/d96/c64");
    check_attention("kv_store/F32/g1/d40/c30/x10", "attention/F32/h3/g1/d40/c30");
    check_attention("kv_store/Q8_0/g1/d96/c64/x32", "attention/Q8_0/h5/g1/d96/c64");
    check_attention("kv_store/F16/g2/d96/v64/x32", "attention/F16/h4/g2/d96/v64");
    check_attention("kv_store/Q8_0/g2/d96/v64/x96", "attention/Q8_0/h2/g2/d96/v64");
    check_attention("kv_store/F32/g2/d24/v40", "attention/F32/h4/g2/d24/v40");
    check_attention("kv_store/F16/g1/d576/c512/x64", "attention/F16/h2/g1/d576/c512");
}

static void products_of_heads(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        double limit;
    } rows[] = {{"head_mul_mat/F32/k64/n33/h3/d96", 1e-10},
                {"head_mul_mat/F16/k128/n64/h2/d128", 1e-10},
                {"head_mul_mat/Q8_0/k64/n70/h3/d64", 1e-10},
                {"head_mul_mat/Q4_K/k256/n33/h2/d256", 1e-10},
                /* the reference rounds what is only copied, too */
                {"head_mul_mat/Q8_0/k128/n40/h2/d192", 1e-4}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (int choice = 0; choice < NUMERICS_CHOICES; choice++) {
            struct test_case c = case_of(rows[i].key, choice ? 37 : 3);
            c.numerics = (enum numerics_choice)choice;
            give_input(&c, (int32_t)op_in_width(&c.op, 0));
            give_weights(&c);
            const struct step step = plain_step(c.T);
            compare(&c, &step, rows[i].limit);
            free_case(&c);
        }
    }
}

static void a_part_of_each_head_is_rotated(void **state)
{
    (void)state;
    for (int pairing = ROPE_ADJACENT; pairing <= ROPE_HALVES; pairing++) {
        struct test_case c = case_of("rope/h3/d48/r16/p0", 60);
        c.op.rope_pairing = pairing;
        c.op.first = 24;
        give_input(&c, c.op.k);
        const struct step step = plain_step(c.T);
        compare(&c, &step, 1e-10);
        free_case(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_lie_in_keys_or_have_another_width),
        cmocka_unit_test(products_of_heads),
        cmocka_unit_test(a_part_of_each_head_is_rotated),
    };
    RUN_ON_DEVICES(tests);
}
