/*
 * test_cuda_join.c - records whose work one kernel does together: the bits are those of a kernel
 * each, and so many launches fewer. On the emulated GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER)
 * or, labelled gpu, on a real one.
 */
#include "tests/kernels/cuda_counts.h"
#include "tests/kernels/device_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ----------------------------------------------------------------- kernels together ------ */

/* Products of a norm's output; `apart`: with a record between that has them pack it themselves. */
static void norm_and_products(bool apart, bool adds, int T, float out[2][RIG_TOKENS * 96])
{
    enum { K = 64, N = 96 };
    struct rig *gpu = rig_create("cuda:0", 0);
    float x[2][RIG_TOKENS * K];
    if (adds)
        rig_put(gpu, "add_norm/k64", 2, (int[]){0, 1}, 2, (int[]){2, 3},
                (int[]){rig_vector(gpu, K, 1)});
    else
        rig_put(gpu, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){3}, (int[]){rig_vector(gpu, K, 1)});
    if (apart)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){6}, NULL);
    rig_put(gpu, "mul_mat/Q8_0/k64/n96", 1, (int[]){3}, 1, (int[]){4},
            (int[]){rig_matrix(gpu, K, N, 0, N, 2)});
    if (apart)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){6}, NULL);
    rig_put(gpu, "mul_mat/Q8_0/k64/n96", 1, (int[]){3}, 1, (int[]){5},
            (int[]){rig_matrix(gpu, K, N, 0, N, 3)})
        ->signal = 1;
    rig_compile(gpu, NULL);
    for (int i = 0; i < 2; i++) {
        rig_random(x[i], RIG_TOKENS * K, (uint32_t)i);
        rig_write(gpu, i, x[i], sizeof x[i]);
    }
    struct step step = {.n_tokens = T, .n_seqs = 1};
    launches = 0;
    rig_step(&gpu, 1, &step);
    for (int i = 0; i < 2; i++)
        rig_read(gpu, 4 + i, out[i], (size_t)T * N * sizeof(float));
    rig_free(gpu);
}

static void a_norm_packs_for_the_products_behind_it(void **state)
{
    (void)state;
    count_begin();
    for (int T = 1; T <= RIG_TOKENS; T += RIG_TOKENS - 1)
        for (int adds = 0; adds < 2; adds++) {
            static float own[2][RIG_TOKENS * 96], shared[2][RIG_TOKENS * 96];
            norm_and_products(true, adds, T, own);
            assert_int_equal(launches, 3 + 2 + 2); /* the records, and a pack for each product */
            norm_and_products(false, adds, T, shared);
            assert_int_equal(launches, 3);
            for (int i = 0; i < 2; i++)
                assert_memory_equal(own[i], shared[i], (size_t)T * 96 * sizeof(float));
        }
    count_end();
}

enum way { TOGETHER, NOT_ASKED_FOR, APART, MEMORY_AGAIN, WANTED_AGAIN, DOWNLOADED, UPLOADED, WAYS };

/* Rotations of q and k, a store and the attention of a prompt: with nothing between, without the
 * join being asked for, with a record between,
 * with the second rotation's output where the first one's input was, or with a record that reads it
 * as well, before which something is downloaded to the place in the host's arena that it has in the
 * GPU's; or with an upload from that place. */
static void rotate_and_store(enum way way, int T, float *out)
{
    static const struct kv_layer_shape layer = {.kv_heads = 1, .head_dim = 32};
    struct rig *gpu = rig_create("cuda:0", 0);
    float x[3][RIG_TOKENS * 64];
    rig_kv(gpu, &layer, 1, DT_F16, 2);
    rig_put(gpu, "rope/h2/d32/r32/p0", 1, (int[]){0}, 1, (int[]){3}, NULL);
    rig_put(gpu, "rope/h1/d32/r32/p0", 1, (int[]){1}, 1, (int[]){4}, NULL);
    if (way == APART)
        rig_put(gpu, "add/k64", 2, (int[]){0, 0}, 1, (int[]){6}, NULL);
    rig_put(gpu, "kv_store/F16/g1/d32", 2, (int[]){4, 2}, 0, NULL, NULL)->kv_layer = 0;
    struct program_record *r =
        rig_put(gpu, "attention/F16/h2/g1/d32", 1, (int[]){3}, 1, (int[]){5}, NULL);
    r->kv_layer = 0;
    if (way == DOWNLOADED)
        rig_put_copy(gpu, RECORD_DOWNLOAD, 64, 5, 4);
    if (way == UPLOADED)
        r = rig_put_copy(gpu, RECORD_UPLOAD, 32, 4, 6);
    if (way == WANTED_AGAIN || way == DOWNLOADED)
        r = rig_put(gpu, "add/k32", 2, (int[]){4, 4}, 1, (int[]){6}, NULL);
    r->signal = 1;
    if (way == MEMORY_AGAIN)
        gpu->records[1].out[0] = gpu->records[2].in[0] = gpu->records[0].in[0];
    gpu->p.without_joins = way == NOT_ASKED_FOR ? 1u << JOIN_ROPE_STORE : 0;
    rig_compile(gpu, NULL);
    for (int i = 0; i < 3; i++) {
        rig_random(x[i], RIG_TOKENS * 64, (uint32_t)i);
        rig_write(gpu, i, x[i], sizeof x[i]);
    }
    static const int32_t position[RIG_TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int32_t sequence[RIG_TOKENS] = {0};
    const struct step_seq seq = {.query_len = T, .kv_len = T, .pages = (int32_t[]){1}};
    struct step step = {
        .n_tokens = T, .n_seqs = 1, .token_position = position, .token_seq = sequence, .seq = &seq};
    launches = 0;
    rig_step(&gpu, 1, &step);
    rig_read(gpu, 5, out, (size_t)T * 64 * sizeof *out);
    rig_free(gpu);
}

static void rotations_and_the_store_are_one_kernel(void **state)
{
    (void)state;
    count_begin();
    for (int T = 1; T <= RIG_TOKENS; T += RIG_TOKENS - 1) {
        static const int expected[] = {
            [TOGETHER] = 2,     [NOT_ASKED_FOR] = 4, [APART] = 5,   [MEMORY_AGAIN] = 2,
            [WANTED_AGAIN] = 5, [DOWNLOADED] = 5,    [UPLOADED] = 2};
        float out[WAYS][RIG_TOKENS * 64];
        for (int way = 0; way < WAYS; way++) {
            rotate_and_store((enum way)way, T, out[way]);
            assert_int_equal(launches, expected[way]);
            assert_memory_equal(out[way], out[0], (size_t)T * 64 * sizeof(float));
        }
    }
    count_end();
}

/* A record that has nothing to do with its neighbours. */
static void put_between(struct rig *gpu, bool apart)
{
    if (apart)
        rig_put(gpu, "add/k64", 2, (int[]){0, 0}, 1, (int[]){20}, NULL);
}

/* Attention, a product of what it gives, and the residual: the last of steps that fill a context of
 * so many tokens, T at a time. `poison`: a value of the first token of the last step is no number.
 */
static void attend_and_add(bool apart, int T, int tokens, bool poison, float *out)
{
    static const struct kv_layer_shape layer = {.kv_heads = 1, .head_dim = 32};
    struct rig *gpu = rig_create("cuda:0", 0);
    rig_kv(gpu, &layer, 1, DT_F16, 6);
    rig_put(gpu, "kv_store/F16/g1/d32", 2, (int[]){1, 2}, 0, NULL, NULL)->kv_layer = 0;
    rig_put(gpu, "attention/F16/h2/g1/d32", 1, (int[]){0}, 1, (int[]){3}, NULL)->kv_layer = 0;
    put_between(gpu, apart);
    rig_put(gpu, "mul_mat/Q8_0/k64/n96", 1, (int[]){3}, 1, (int[]){4},
            (int[]){rig_matrix(gpu, 64, 96, 0, 96, 7)});
    put_between(gpu, apart);
    rig_put(gpu, "add/k96", 2, (int[]){5, 4}, 1, (int[]){6}, NULL)->signal = 1;
    rig_compile(gpu, NULL);
    for (int at = 0; at < tokens; at += T) {
        float x[RIG_TOKENS * 96];
        for (int i = 0; i < 6; i++) {
            rig_random(x, RIG_TOKENS * 96, (uint32_t)(10 * at + i));
            if (poison && i == 2 && at + T >= tokens)
                x[5] = NAN;
            rig_write(gpu, i, x, sizeof x);
        }
        int32_t position[RIG_TOKENS], sequence[RIG_TOKENS] = {0};
        for (int t = 0; t < T; t++)
            position[t] = at + t;
        const struct step_seq seq = {
            .query_len = T, .kv_len = at + T, .pages = (int32_t[]){3, 1, 4, 0, 5, 2}};
        struct step step = {.n_tokens = T,
                            .n_seqs = 1,
                            .token_position = position,
                            .token_seq = sequence,
                            .seq = &seq};
        launches = 0;
        rig_step(&gpu, 1, &step);
    }
    rig_read(gpu, 6, out, (size_t)T * 96 * sizeof *out);
    rig_free(gpu);
}

static void attention_packs_and_a_product_adds(void **state)
{
    (void)state;
    static float own[RIG_TOKENS * 96], joined[RIG_TOKENS * 96];
    static const struct {
        int T, tokens, divided;
    } cases[] = {{1, 1, 0}, {RIG_TOKENS, 64, 0}, {RIG_TOKENS, 304, 1}};
    count_begin();
    counted->capture_begin = refuse_capture; /* launches are to be counted in every step */
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const int T = cases[i].T;
        attend_and_add(true, T, cases[i].tokens, false, own);
        assert_int_equal(launches, 5 + 2 + cases[i].divided); /* two between, a pack */
        attend_and_add(false, T, cases[i].tokens, false, joined);
        assert_int_equal(launches, 3 + cases[i].divided);
        assert_memory_equal(own, joined, (size_t)T * 96 * sizeof *own);
        for (int apart = 0; apart < 2; apart++) { /* bytes have no NaN: their scale has */
            attend_and_add(apart, T, cases[i].tokens, true, joined);
            for (int e = 0; e < T * 96; e++)
                assert_true(isnan(joined[e]));
        }
    }
    count_end();
}

/* The sum of a product with floats, or a bias, with its output at `to`. */
static int add_to_product(const char *add, int to, float *out)
{
    enum { T = 5, K = 64 };
    struct rig *gpu = rig_create("cuda:0", 0);
    const bool bias = !strncmp(add, "bias", 4);
    float x[2][T * K];
    rig_put(gpu, "mul_mat/F32/k64/n64", 1, (int[]){0}, 1, (int[]){2},
            (int[]){rig_f32_matrix(gpu, K, K, 1)});
    const int vector = bias ? rig_vector(gpu, K, 2) : -1;
    rig_put(gpu, add, bias ? 1 : 2, (int[]){2, 1}, 1, (int[]){to}, bias ? &vector : NULL)->signal =
        1;
    rig_compile(gpu, NULL);
    for (int i = 0; i < 2; i++) {
        rig_random(x[i], T * K, (uint32_t)i);
        rig_write(gpu, i, x[i], sizeof x[i]);
    }
    struct step step = {.n_tokens = T, .n_seqs = 1};
    launches = 0;
    rig_step(&gpu, 1, &step);
    rig_read(gpu, to, out, sizeof x[0]);
    rig_free(gpu);
    return launches;
}

/* Not where the sum would lie on the input, which other blocks still read. */
static void sums_take_the_place_of_what_nobody_reads(void **state)
{
    (void)state;
    static float apart[5 * 64], joined[5 * 64];
    static const char *const adds[] = {"add/k64", "bias/k64"};
    count_begin();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(add_to_product(adds[i], 0, apart), 2);
        for (int to = 1; to <= 3; to++) {
            assert_int_equal(add_to_product(adds[i], to, joined), 1);
            assert_memory_equal(joined, apart, sizeof apart);
        }
    }
    count_end();
}

/* What the profiler asks: decode's kernels join what has blocks, a tensor core's do not. */
static void a_device_declares_its_joins(void **state)
{
    (void)state;
    struct rig *gpu = rig_create("cuda:0", 0), *cpu = rig_create("cpu", 1);
    static const struct {
        enum op_join join;
        const char *first, *last;
        bool made;
    } rows[] = {
        {JOIN_NORM, "rms_norm/k64", "mul_mat/Q8_0/k64/n96", true},
        {JOIN_NORM, "rms_norm/k64", "mul_mat/F32/k64/n96", false},
        {JOIN_ATTENTION, "attention/F16/h2/g1/d32", "mul_mat/Q8_0/k64/n96", true},
        {JOIN_ATTENTION, "attention/F16/h2/g1/d20", "mul_mat/Q8_0/k40/n96", false},
        {JOIN_ADD, "mul_mat/Q8_0/k64/n96", "add/k96", true},
        {JOIN_ROPE_STORE, "rope/h2/d32/r32/p0", "kv_store/F16/g1/d32", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct oato_op first, last;
        struct op_size size;
        assert_true(oato_op_parse(rows[i].first, &first, &size));
        assert_true(oato_op_parse(rows[i].last, &last, &size));
        assert_int_equal(gpu->d->ops->joins(gpu->d, rows[i].join, &first, &last), rows[i].made);
    }
    assert_null(cpu->d->ops->joins);
    rig_free(cpu);
    rig_free(gpu);
}

int main(void)
{
    struct oato_error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_declares_its_joins),
        cmocka_unit_test(a_norm_packs_for_the_products_behind_it),
        cmocka_unit_test(rotations_and_the_store_are_one_kernel),
        cmocka_unit_test(attention_packs_and_a_product_adds),
        cmocka_unit_test(sums_take_the_place_of_what_nobody_reads),
    };
    if (!cuda_driver_open(&err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
