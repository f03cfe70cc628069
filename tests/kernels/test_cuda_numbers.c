/*
 * test_cuda_numbers.c - numbers that are very large, infinite or none on a CUDA device: what F16
 * cannot hold is not cut in products, is the largest half in a cache, and what is no number is seen
 * in the results, as on the CPU. Runs on the emulated GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER)
 * and, labelled gpu, on a real one; without any it is skipped.
 */
#include "tests/kernels/cuda_case.h"

/* The FFN of some models has activations beyond the largest half, 65504: prefill must not cut what
 * decode does not, or the two disagree about the same token. */
static void inputs_may_be_larger_than_halves(void **state)
{
    (void)state;
    static const char *const keys[] = {"mul_mat/F16/k512/n37", "gate_up/F16/k512/n37",
                                       "mul_mat/BF16/k512/n37", "mul_mat/Q4_0/k512/n37"};
    static const int32_t rows[] = {1, 9, 33};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (size_t t = 0; t < ARRAY_LEN(rows); t++)
            for (int n = NUMERICS_DECODE; n <= NUMERICS_PREFILL; n++) {
                struct test_case c = case_of(keys[i], rows[t]);
                struct step step = plain_step(rows[t]);
                c.numerics = (enum numerics_choice)n;
                give_input(&c, 512);
                give_weights(&c);
                scale_input(&c, 1e5f);
                compare(&c, &step, 1e-10);
                free_case(&c);
            }
}

static bool same_bits(float a, float b)
{
    uint32_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    return x == y;
}

/* One number of the row `bad` is none or infinite: then no result of that row is finite, as on the
 * CPU, and the other rows have the bits that they have without it. */
static void check_poison(struct test_case *c, int32_t bad, float poison)
{
    char key[OP_KEY_SIZE];
    const struct step step = plain_step(c->T);
    const size_t n = (size_t)c->T * (size_t)c->out_width[0];
    float *out[3]; /* the CPU's, the GPU's, the GPU's without */
    float *const at = &c->in[0][(int64_t)bad * c->in_width[0] + 37], kept = *at;
    for (int i = 0; i < 3; i++) {
        float *outs[RECORD_OUTPUTS] = {NULL};
        for (int o = 0; o < c->n_out; o++)
            outs[o] = test_calloc((size_t)c->T * (size_t)c->out_width[o], sizeof(float));
        *at = i < 2 ? poison : kept;
        run_case(device[i > 0], c, &step, outs);
        out[i] = outs[0];
        for (int o = 1; o < c->n_out; o++)
            test_free(outs[o]);
    }
    for (size_t i = 0; i < n && out[0] && out[1] && out[2]; i++) {
        const bool poisoned = (int32_t)(i / (size_t)c->out_width[0]) == bad;
        const bool same = poisoned || same_bits(out[1][i], out[2][i]);
        if (isfinite(out[0][i]) == poisoned || isfinite(out[1][i]) == poisoned || !same)
            fail_msg("%s T %d class %d, %g in row %d: result %d is %g on the CPU, %g here",
                     oato_op_key(&c->op, NULL, key), (int)c->T, c->numerics, (double)poison,
                     (int)bad, (int)i, (double)out[0][i], (double)out[1][i]);
    }
    for (int i = 0; i < 3; i++)
        test_free(out[i]);
}

/* Bytes have no NaN and halves are cut: it must not be lost there. */
static void what_is_no_number_stays_none(void **state)
{
    (void)state;
    static const char *const keys[] = {"mul_mat/F16/k256/n37",  "mul_mat/BF16/k256/n37",
                                       "mul_mat/Q4_0/k256/n37", "gate_up/Q4_1/k256/n37",
                                       "qkv/Q6_K/k256/n37/m19", "mul_mat/Q2_K/k256/n37"};
    static const int32_t rows[] = {1, 9, 33};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (size_t t = 0; t < ARRAY_LEN(rows); t++)
            for (int n = NUMERICS_DECODE; n <= NUMERICS_PREFILL; n++) {
                struct test_case c = case_of(keys[i], rows[t]);
                c.numerics = (enum numerics_choice)n;
                give_input(&c, 256);
                give_weights(&c);
                check_poison(&c, rows[t] / 2, NAN);
                check_poison(&c, rows[t] / 2, INFINITY);
                free_case(&c);
            }
}

/* ------------------------------------------------------------------------------- caches -- */

enum { TOKENS = 70, HEADS = 2, DIM = 64, WIDTH = HEADS * DIM, PAGES = 3 };

/* A cache of two layers, all bytes 0xff but for what is stored to the second. */
static struct kv_cache *filled_cache(struct oato_device *d, oato_dtype dtype, const float *k,
                                     const float *v)
{
    static const struct kv_layer_shape layers[] = {{.kv_heads = 1, .head_dim = 32},
                                                   {.kv_heads = HEADS, .head_dim = DIM}};
    static const int32_t pages[] = {2, 0};
    const uint64_t bytes = sizeof(float) * TOKENS * WIDTH;
    struct kv_cache *kv = NULL;
    struct oato_error err;
    if (d->ops->kv_create(d, layers, ARRAY_LEN(layers), dtype, PAGES, &kv, &err))
        fail_msg("%s", err.text);
    uint8_t *garbage = test_malloc(kv->bytes), *arena = at(d, 2 * bytes);
    memset(garbage, 0xff, kv->bytes);
    upload(d, kv->data, 0, garbage, kv->bytes);
    upload(d, arena, 0, k, bytes);
    upload(d, arena, bytes, v, bytes);
    test_free(garbage);
    const struct program_record r = {.op = {.kind = OP_KV_STORE,
                                            .dtype = (uint16_t)dtype,
                                            .k = WIDTH,
                                            .n = WIDTH,
                                            .kv_heads = HEADS,
                                            .head_dim = DIM},
                                     .n_in = 2,
                                     .kv_layer = 1,
                                     .in_width = {WIDTH, WIDTH},
                                     .in = {0, bytes},
                                     .signal = 1};
    const struct program p = {.records = &r,
                              .n_records = 1,
                              .n_signals = 1,
                              .max_tokens = TOKENS,
                              .max_rows = TOKENS,
                              .max_seqs = 1,
                              .arena = arena,
                              .kv = kv};
    struct step step = plain_step(TOKENS);
    const struct step_seq seq = {.query_len = TOKENS, .kv_len = TOKENS, .pages = pages};
    step.seq = &seq;
    run_program(d, &p, &step);
    d->ops->free(d, arena, 2 * bytes);
    return kv;
}

/* Finite values beyond the halves become the largest half (of Q8_0 so does the scale), infinities
 * and what is no number stay what they are: the same bytes as on the CPU. */
static void caches_keep_the_same_bytes(void **state)
{
    (void)state;
    static const float odd[] = {65519, 65520, 1e5f, -1e5f, 9e6f, -1e8f, INFINITY, -INFINITY, NAN};
    static const oato_dtype dtypes[] = {DT_F16, DT_Q8_0};
    static float k[TOKENS * WIDTH], v[TOKENS * WIDTH];
    random_floats(k, TOKENS * WIDTH);
    random_floats(v, TOKENS * WIDTH);
    for (size_t o = 0; o < ARRAY_LEN(odd); o++) /* each in a block of 32 of its own */
        k[o * 32 + 3] = v[o * 32 + 7] = odd[o];
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        struct kv_cache *kv[2];
        struct oato_error err;
        for (int d = 0; d < 2; d++)
            kv[d] = filled_cache(device[d], dtypes[i], k, v);
        const uint64_t bytes = kv[1]->bytes;
        const uint16_t *expected = (const uint16_t *)(const void *)kv[0]->data;
        uint16_t *got = test_malloc(bytes);
        if (device[1]->ops->download(device[1], got, kv[1]->data, 0, bytes, NULL, &err))
            fail_msg("%s", err.text);
        int infinite = 0, none = 0;
        for (uint64_t b = 0; b < bytes / 2; b++) {
            const bool is_none = isnan(f16_to_f32(expected[b])) && expected[b] != 0xffff;
            infinite += (expected[b] & 0x7fff) == 0x7c00;
            none += is_none;
            if (got[b] != expected[b] && !(is_none && isnan(f16_to_f32(got[b]))))
                fail_msg("%s: %#x at byte %d, not %#x", dtype_name(dtypes[i]), got[b], (int)(2 * b),
                         expected[b]);
        }
        assert_true(dtypes[i] != DT_F16 || (infinite == 4 && none == 2)); /* of K and of V */
        for (int d = 0; d < 2; d++)
            device[d]->ops->kv_free(device[d], kv[d]);
        test_free(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inputs_may_be_larger_than_halves),
        cmocka_unit_test(what_is_no_number_stays_none),
        cmocka_unit_test(caches_keep_the_same_bytes),
    };
    RUN_ON_DEVICES(tests);
}
