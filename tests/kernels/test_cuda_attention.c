/*
 * test_cuda_attention.c - attention of prefill on a CUDA device, by tiles of queries
 * (attention_tile.cu), against the reference kernels of the CPU; a row's bits, whatever else its
 * step has. Runs on the emulated GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) and, labelled gpu, on
 * a real one; without any it is skipped.
 */
#include "tests/kernels/cuda_contexts.h"
#include "tests/kernels/cuda_counts.h"

/* Rounding to 11 bits has errors of about 2^-12 of a number, 2^-24 when squared. Rounded are the
 * weights, V of Q8_0, and queries and K of Q8_0: weights err with the scores, which are about 1. */
#define NMSE_ROUNDED (4 * 0x1p-24)
#define NMSE_FLOAT   1e-10

static const struct context contexts[] = {
    {DT_F16, 3, 3, 64, {130, 0, 1, 65}, {130, 0, 1, 20}, 0, 0, 0},
    /* of one tile on three pages, a warp sees the first alone: it goes ahead of the others */
    {DT_F16, 3, 3, 64, {180, 0, 0, 0}, {132, 0, 0, 0}, 0, 0, 0},
    {DT_F16, 8, 2, 64, {200, 64, 63, 17}, {40, 64, 1, 17}, 0, 0, 0},
    {DT_F16, 8, 1, 128, {100, 70, 7, 300}, {30, 1, 7, 2}, 0, 0, 0},
    {DT_F16, 14, 2, 64, {90, 128, 0, 0}, {90, 19, 0, 0}, 0, 0, 0},
    {DT_F16, 4, 1, 96, {80, 257, 0, 33}, {80, 50, 0, 33}, 0, 0, 0},
    {DT_Q8_0, 7, 1, 128, {65, 192, 0, 0}, {65, 3, 0, 0}, 0, 0, 0},
    {DT_Q8_0, 8, 2, 64, {140, 12, 81, 0}, {37, 12, 16, 0}, 0, 0, 0},
    {DT_Q8_0, 2, 2, 96, {150, 66, 0, 0}, {150, 66, 0, 0}, 0, 0, 0},
};

static void check_context(const struct context *x, double limit)
{
    struct values values = random_values(x);
    struct cache cache[2];
    float *out[2];
    for (int d = 0; d < 2; d++) {
        open_cache(&cache[d], device[d], &values);
        out[d] = attend_all(&cache[d]);
        device[d]->ops->kv_free(device[d], cache[d].kv);
    }
    const double error = error_of(out[1], out[0], values.tokens * q_width(x));
    print_message("%s heads %d of %d: NMSE %.3g\n", dtype_name(x->dtype), (int)x->heads,
                  (int)x->head_dim, error);
    if (!(error <= limit))
        fail_msg("%s heads %d of %d: NMSE %.3g, at most %.3g", dtype_name(x->dtype), (int)x->heads,
                 (int)x->head_dim, error, limit);
    test_free(out[0]);
    test_free(out[1]);
    free_values(&values);
}

static void tiles_are_computed_alike(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(contexts); i++)
        check_context(&contexts[i], NMSE_ROUNDED);
}

/* By tiles of one segment and of two, by floats whole and divided. */
static void sinks_are_scores_without_values(void **state)
{
    (void)state;
    static const struct context with[] = {
        {DT_Q8_0, 8, 2, 64, {140, 12, 81, 0}, {37, 12, 16, 0}, 0, 0, 0},
        {DT_F16, 8, 2, 64, {1100, 64, 0, 0}, {20, 64, 0, 0}, 0, 0, 0},
        {DT_F32, 4, 2, 64, {70, 30, 0, 0}, {70, 1, 0, 0}, 0, 0, 0},
        {DT_F16, 8, 2, 64, {300, 30, 0, 0}, {2, 1, 0, 0}, 100, 0, 0}};
    with_sinks = true;
    for (size_t i = 0; i < ARRAY_LEN(with); i++)
        check_context(&with[i], i < 2 ? NMSE_ROUNDED : NMSE_FLOAT);
    with_sinks = false;
}

static void what_tiles_cannot_stays_with_floats(void **state)
{
    (void)state;
    static const struct context others[] = {
        {DT_F32, 4, 2, 64, {70, 30, 0, 0}, {70, 1, 0, 0}, 0, 0, 0},
        {DT_F16, 4, 4, 80, {70, 30, 0, 0}, {20, 5, 0, 0}, 0, 0, 0},
        {DT_Q8_0, 2, 1, 32, {70, 30, 0, 0}, {20, 5, 0, 0}, 0, 0, 0},
        {DT_F16, 4, 2, 64, {260, 64, 65, 1}, {260, 64, 2, 1}, 64, 0, 0},
        {DT_F16, 3, 1, 64, {300, 129, 0, 0}, {40, 129, 0, 0}, 100, 0.5f, 0},
        {DT_F16, 2, 2, 128, {200, 0, 0, 0}, {1, 0, 0, 0}, 1, 0, 0},
        {DT_F16, 3, 1, 64, {400, 70, 0, 0}, {2, 1, 0, 0}, 200, 0, 0}, /* divided */
        {DT_Q8_0, 2, 1, 64, {140, 30, 0, 0}, {20, 5, 0, 0}, 0, 2, 0},
        {DT_F16, 10, 2, 64, {300, 129, 0, 0}, {40, 129, 0, 0}, 0, 0, 8}, /* slopes */
        {DT_F16, 3, 1, 64, {400, 70, 0, 0}, {2, 1, 0, 0}, 200, 0.5f, 8},
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        check_context(&others[i], NMSE_FLOAT);
}

static void classes_are_named(void **state)
{
    (void)state;
    static const struct {
        oato_dtype dtype;
        int32_t head_dim;
        const char *prefill;
    } cases[] = {{DT_F16, 64, "f16"},   {DT_F16, 96, "f16"},  {DT_F16, 128, "f16"},
                 {DT_Q8_0, 128, "f16"}, {DT_F32, 128, "f32"}, {DT_F16, 80, "f32"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct oato_op op = {.kind = OP_ATTENTION,
                                   .dtype = (uint16_t)cases[i].dtype,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = cases[i].head_dim};
        const struct device_ops *ops = device[1]->ops;
        assert_string_equal(ops->numerics(device[1], &op, NUMERICS_PREFILL), cases[i].prefill);
        assert_string_equal(ops->numerics(device[1], &op, NUMERICS_DECODE), "f32");
    }
}

static void same_bits(const struct values *v, const float *all, const float *some,
                      const struct piece *piece, int n)
{
    const int64_t width = q_width(v->x);
    for (int i = 0; i < n; i++)
        for (int32_t p = 0; p < piece[i].count; p++) {
            const int64_t row = (v->at[piece[i].seq] + piece[i].begin + p) * width;
            if (memcmp(all + row, some + row, (size_t)width * sizeof(float)) != 0)
                fail_msg("position %d of sequence %d has other bits", (int)(piece[i].begin + p),
                         (int)piece[i].seq);
        }
}

/* Alone, in pieces of any length, in any order of sequences. */
static void bits_do_not_depend_on_other_rows(void **state)
{
    (void)state;
    static const struct context xs[] = {
        {DT_F16, 12, 3, 64, {150, 70, 65, 9}, {150, 70, 65, 9}, 0, 0, 0},
        {DT_Q8_0, 5, 1, 128, {90, 33, 129, 1}, {90, 33, 129, 1}, 0, 0, 0}};
    static const struct piece pieces[][SEQS] = {
        {{0, 0, 1}},
        {{0, 1, 63}},
        {{0, 64, 26}},
        {{1, 0, 33}, {0, 80, 10}},
        {{3, 0, 1}, {2, 64, 1}},
        {{2, 0, 65}, {3, 0, 1}, {1, 10, 5}, {0, 89, 1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(xs); i++) {
        struct values values = random_values(&xs[i]);
        struct cache cache;
        open_cache(&cache, device[1], &values);
        float *all = attend_all(&cache);
        for (size_t j = 0; j < ARRAY_LEN(pieces); j++) {
            int n = 0;
            while (n < SEQS && pieces[j][n].count)
                n++;
            float *some = test_calloc((size_t)(values.tokens * q_width(&xs[i])), sizeof(float));
            attend_once(&cache, pieces[j], n, some);
            same_bits(&values, all, some, pieces[j], n);
            test_free(some);
        }
        test_free(all);
        device[1]->ops->kv_free(device[1], cache.kv);
        free_values(&values);
    }
}

/* A graph that was captured for one division of twelve tokens among sequences is launched for
 * others. */
static void graphs_serve_any_division(void **state)
{
    (void)state;
    static const struct context x = {DT_F16,           28, 1, 64, {90, 70, 65, 40},
                                     {90, 70, 65, 40}, 0,  0, 0};
    static const struct piece pieces[][SEQS] = {
        {{0, 20, 12}},
        {{0, 78, 12}},
        {{0, 0, 3}, {1, 60, 3}, {2, 1, 3}, {3, 7, 3}},
        {{3, 2, 1}, {2, 54, 11}},
        {{1, 58, 12}},
    };
    struct values values = random_values(&x);
    struct cache cache;
    struct attention a;
    open_cache(&cache, device[1], &values);
    float *all = attend_all(&cache);
    open_attention(&a, &cache, NUMERICS_PREFILL, 12);
    for (size_t j = 0; j < ARRAY_LEN(pieces); j++) {
        int n = 0;
        while (n < SEQS && pieces[j][n].count)
            n++;
        float *some = test_calloc((size_t)(values.tokens * q_width(&x)), sizeof(float));
        attend(&a, pieces[j], n, some);
        same_bits(&values, all, some, pieces[j], n);
        test_free(some);
    }
    close_attention(&a);
    test_free(all);
    device[1]->ops->kv_free(device[1], cache.kv);
    free_values(&values);
}

/* A few rows have a block a segment, and a kernel that merges them; of many a block walks through
 * all. */
static void divided_contexts_have_the_same_bits(void **state)
{
    (void)state;
    static const struct context xs[] = {
        {DT_F16, 4, 2, 64, {1250, 0, 0, 0}, {100, 0, 0, 0}, 0, 0, 0},
        {DT_Q8_0, 2, 2, 128, {1030, 0, 0, 0}, {100, 0, 0, 0}, 0, 0, 0}};
    /* on both sides of the end of the first segment, and across it */
    static const struct piece pieces[][2] = {
        {{0, 1239, 3}, {0, 1027, 3}}, {{0, 1249, 1}, {0, 1020, 8}}, {{0, 1155, 10}, {0, 935, 5}}};
    struct device_info info;
    device[1]->ops->info(device[1], &info);
    const bool emulated = !strcmp(info.model, "CUDA on CPU"); /* of so few multiprocessors */
    count_begin();
    for (size_t i = 0; i < ARRAY_LEN(xs); i++) {
        struct values values = random_values(&xs[i]);
        struct cache cache;
        open_cache(&cache, device[1], &values);
        launches = 0;
        float *all = attend_all(&cache);
        if (emulated)
            assert_int_equal(launches, RECORDS);
        for (size_t j = 0; j < ARRAY_LEN(pieces); j++) {
            const struct piece *piece = &pieces[j][i];
            float *some = test_calloc((size_t)(values.tokens * q_width(&xs[i])), sizeof(float));
            launches = 0;
            attend_once(&cache, piece, 1, some);
            assert_int_equal(launches,
                             RECORDS * (piece->begin + piece->count > ATTENTION_TILE_SPAN ? 2 : 1));
            same_bits(&values, all, some, piece, 1);
            test_free(some);
        }
        test_free(all);
        device[1]->ops->kv_free(device[1], cache.kv);
        free_values(&values);
    }
    count_end();
}

/* What a row does not see may be no number, too; who sees it has none, in that dimension. */
static void infinite_values_stay_with_who_sees_them(void **state)
{
    (void)state;
    enum { AT = 120, HEAD = 1, DIM = 5 };
    static const oato_dtype dtypes[] = {DT_F16, DT_Q8_0};
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        const struct context x = {dtypes[i], 4, 2, 64, {200, 0, 0, 0}, {200, 0, 0, 0}, 0, 0, 0};
        struct values values = random_values(&x);
        struct cache cache;
        float *out[2];
        for (int infinite = 0; infinite < 2; infinite++) {
            if (infinite)
                values.v[AT * kv_width(&x) + HEAD * x.head_dim + DIM] = INFINITY;
            open_cache(&cache, device[1], &values);
            out[infinite] = attend_all(&cache);
            device[1]->ops->kv_free(device[1], cache.kv);
        }
        for (int32_t p = 0; p < x.length[0]; p++)
            for (int64_t e = 0; e < q_width(&x); e++) {
                const int64_t at = p * q_width(&x) + e, dim = e % x.head_dim;
                const bool sees = p >= AT && e / x.head_dim / (x.heads / x.kv_heads) == HEAD;
                if (sees && dim == DIM)
                    assert_false(isfinite(out[1][at]));
                else if (!sees || dim >= 32) /* Q8_0: 32 share a scale */
                    assert_memory_equal(&out[0][at], &out[1][at], sizeof(float));
            }
        test_free(out[0]);
        test_free(out[1]);
        free_values(&values);
    }
}

/* A query that is no number gives none; the others keep their bits. */
static void a_query_that_is_no_number_gives_none(void **state)
{
    (void)state;
    enum { AT = 77, HEAD = 2 };
    static const struct context x = {DT_F16, 4, 2, 64, {150, 0, 0, 0}, {150, 0, 0, 0}, 0, 0, 0};
    struct values values = random_values(&x);
    float *out[2];
    for (int poison = 0; poison < 2; poison++) {
        struct cache cache;
        if (poison)
            values.q[AT * q_width(&x) + HEAD * x.head_dim + 9] = NAN;
        open_cache(&cache, device[1], &values);
        out[poison] = attend_all(&cache);
        device[1]->ops->kv_free(device[1], cache.kv);
    }
    for (int64_t i = 0; i < x.length[0] * q_width(&x); i++)
        if (i / x.head_dim == AT * x.heads + HEAD)
            assert_true(isnan(out[1][i]));
        else
            assert_memory_equal(&out[0][i], &out[1][i], sizeof(float));
    test_free(out[0]);
    test_free(out[1]);
    free_values(&values);
}

/* Queries beyond the halves, scores that leave one weight: numbers all the same. */
static void scores_may_be_large(void **state)
{
    (void)state;
    static const struct context x = {DT_F16, 4, 1, 128, {140, 0, 0, 0}, {140, 0, 0, 0}, 0, 0, 0};
    static const float factors[] = {1e2f, 1e4f, 1e6f, 1e8f};
    for (size_t f = 0; f < ARRAY_LEN(factors); f++) {
        const float factor = factors[f];
        struct values values = random_values(&x);
        struct cache cache;
        float most = 0;
        for (int64_t i = 0; i < values.tokens * q_width(&x); i++)
            values.q[i] *= factor;
        for (int64_t i = 0; i < values.tokens * kv_width(&x); i++) {
            values.k[i] *= 1000;
            most = fmaxf(most, fabsf(values.v[i]));
        }
        open_cache(&cache, device[1], &values);
        float *all = attend_all(&cache);
        for (int64_t i = 0; i < values.tokens * q_width(&x); i++)
            if (!(fabsf(all[i]) <= most * 1.01f))
                fail_msg("factor %g: %g among values of at most %g", (double)factor, (double)all[i],
                         (double)most);
        test_free(all);
        device[1]->ops->kv_free(device[1], cache.kv);
        free_values(&values);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_are_computed_alike),
        cmocka_unit_test(sinks_are_scores_without_values),
        cmocka_unit_test(what_tiles_cannot_stays_with_floats),
        cmocka_unit_test(classes_are_named),
        cmocka_unit_test(bits_do_not_depend_on_other_rows),
        cmocka_unit_test(graphs_serve_any_division),
        cmocka_unit_test(divided_contexts_have_the_same_bits),
        cmocka_unit_test(infinite_values_stay_with_who_sees_them),
        cmocka_unit_test(a_query_that_is_no_number_gives_none),
        cmocka_unit_test(scores_may_be_large),
    };
    RUN_ON_DEVICES(tests);
}
