/*
 * test_cpu_choices.c - choices of experts are the largest logits or scores with their weights;
 * norms of heads are those of rows. No byte beyond any buffer is touched.
 */
#include "tests/kernels/test_cpu.h"

/* A record of one input and one output without a mixture around it. */
static float *ordered_op(const struct cpu_kernels *k, struct oato_op op, const float *in, int64_t T,
                         const float *weight, const float *order, int threads)
{
    struct guarded g;
    struct simple_step s;
    guarded_init(&g);
    struct program_record r = record_of(op);
    const size_t bytes = (size_t)(T * op.n) * sizeof(float);
    struct oato_weight w = {.use = WEIGHT_VECTOR, .data = (const uint8_t *)weight};
    struct oato_weight numbers = {.use = WEIGHT_VECTOR, .data = (const uint8_t *)order};
    struct oato_weight *table[] = {&w, &numbers};
    r.n_in = r.n_out = 1;
    r.n_weights = order ? 2 : weight != NULL;
    r.weight[0] = weight ? 0 : UINT32_MAX;
    r.weight[1] = order ? 1 : UINT32_MAX;
    r.in[0] = guarded_offset(&g, (size_t)(T * op.k) * sizeof(float));
    memcpy(g.base + r.in[0], in, (size_t)(T * op.k) * sizeof(float));
    r.out[0] = guarded_offset(&g, bytes);
    memset(g.base + r.out[0], 0xff, bytes);
    struct cpu_context c = {.kernels = k, .arena = g.base, .weights = table};
    record_run(&c, &r, simple_step(&s, (int32_t)T), 0, threads);
    float *out = test_malloc(bytes);
    memcpy(out, g.base + r.out[0], bytes);
    guarded_free(&g);
    return out;
}

static float *row_op(const struct cpu_kernels *k, struct oato_op op, const float *in, int64_t T,
                     const float *weight, int threads)
{
    return ordered_op(k, op, in, T, weight, NULL, threads);
}

/* Logits whose value `at` is the (used)th largest or more: how many are larger, or equal before. */
static int32_t rank_of(const float *logits, int32_t n, int32_t at)
{
    int32_t rank = 0;
    for (int32_t i = 0; i < n; i++)
        rank += logits[i] > logits[at] || (i < at && logits[i] == logits[at]);
    return rank;
}

static void check_choice(const struct oato_op *op, const float *logits, const float *out)
{
    double all = 0, chosen = 0;
    int32_t n = 0;
    for (int32_t e = 0; e < op->experts; e++) {
        const double x = exp((double)logits[e]);
        all += x;
        if (rank_of(logits, op->experts, e) >= op->experts_used)
            continue;
        chosen += x;
        assert_true(out[n++] == (float)e);
    }
    assert_int_equal(n, op->experts_used);
    for (int32_t i = 0; i < n; i++) {
        const double x = exp((double)logits[(int32_t)out[i]]);
        const double wanted =
            x / (op->route_norm ? chosen : all) * (op->scale != 0 ? op->scale : 1);
        assert_true(fabs(out[n + i] / wanted - 1) < 1e-5);
    }
}

static void the_largest_logits_are_chosen_with_their_softmax(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct oato_op op = {.kind = OP_ROUTE, .experts = (int32_t)random_in(1, 200)};
        op.experts_used = (int32_t)random_in(1, min_i64(op.experts, 16));
        op.k = op.experts;
        op.n = 2 * op.experts_used;
        op.route_norm = (int32_t)random_in(0, 1);
        op.scale = random_in(0, 1) ? 2.5f : 0;
        const int64_t T = random_in(1, 60);
        float *logits = test_malloc((size_t)(T * op.k) * sizeof *logits), *first = NULL;
        for (int64_t i = 0; i < T * op.k; i++) /* with equal ones among them */
            logits[i] = random_in(0, 3) ? 3 * random_float() : (float)random_in(-4, 4);
        for (int threads = 1; threads <= 3; threads++) {
            float *y = row_op(&cpu_kernels_ref, op, logits, T, NULL, threads);
            if (!first)
                first = y;
            assert_memory_equal(y, first, (size_t)(T * op.n) * sizeof *y);
            if (y != first)
                test_free(y);
        }
        for (int64_t t = 0; t < T; t++)
            check_choice(&op, logits + t * op.k, first + t * op.n);
        test_free(first);
        test_free(logits);
    }
}

static double score_of(const struct oato_op *op, const float *logits, int32_t e)
{
    double all = 0;
    for (int32_t i = 0; i < op->experts; i++)
        all += exp((double)logits[i]);
    return op->route_score == ROUTE_SOFTMAX   ? exp((double)logits[e]) / all
           : op->route_score == ROUTE_SIGMOID ? 1 / (1 + exp(-(double)logits[e]))
                                              : sqrt(log1p(exp((double)logits[e])));
}

/* By scores with a bias, from the groups whose two best have the largest sums. */
static void check_scored(const struct oato_op *op, const float *logits, const float *bias,
                         const float *out)
{
    const int32_t groups = op->route_groups ? op->route_groups : 1, each = op->experts / groups;
    float choosing[64] = {0}, sums[64] = {0};
    double chosen = 0;
    int32_t n = 0;
    for (int32_t e = 0; e < op->experts; e++)
        choosing[e] = (float)score_of(op, logits, e) + bias[e];
    for (int32_t g = 0; g < groups; g++) {
        sums[g] = 0;
        for (int32_t e = 0; e < each; e++)
            sums[g] += rank_of(choosing + g * each, each, e) < 2 ? choosing[g * each + e] : 0;
    }
    for (int32_t e = 0; op->route_groups && e < op->experts; e++)
        if (rank_of(sums, groups, e / each) >= op->route_groups_used)
            choosing[e] = -INFINITY;
    for (int32_t e = 0; e < op->experts; e++) {
        if (rank_of(choosing, op->experts, e) >= op->experts_used)
            continue;
        assert_true(out[n++] == (float)e);
        chosen += score_of(op, logits, e);
    }
    for (int32_t i = 0; i < n; i++) {
        const double score = score_of(op, logits, (int32_t)out[i]);
        const double wanted = score / (op->route_norm ? fmax(chosen, 0x1p-14) : 1) * 2.5;
        assert_true(fabs((double)out[n + i] - wanted) <= 1e-5 * wanted);
    }
}

static void scores_biases_and_groups_choose(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        const int32_t groups = (int32_t)random_in(0, 4), each = (int32_t)random_in(1, 12);
        struct oato_op op = {.kind = OP_ROUTE, .scale = 2.5f, .route_groups = groups};
        op.experts = groups ? groups * each : each;
        op.route_groups_used = groups ? (int32_t)random_in(1, groups) : 0;
        op.experts_used = (int32_t)random_in(1, groups ? each * op.route_groups_used : each);
        op.k = op.experts;
        op.n = 2 * op.experts_used;
        op.route_norm = (int32_t)random_in(0, 1);
        op.route_score = (int32_t)random_in(0, ROUTE_SCORE_COUNT - 1);
        assert_true(op_valid(&op));
        float logits[64], bias[64];
        random_floats(bias, op.k);
        for (int32_t i = 0; i < op.k; i++) /* far below: sums near 2^-14 */
            logits[i] = 3 * random_float() - (round % 5 ? 0 : 12);
        float *y = row_op(&cpu_kernels_ref, op, logits, 1, bias, 1);
        check_scored(&op, logits, bias, y);
        test_free(y);
    }
}

/* An expert of several scores has its weight as often as they are chosen; others fill up. */
static void experts_may_have_several_scores(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct oato_op op = {
            .kind = OP_ROUTE, .route_norm = 1, .experts = (int32_t)random_in(1, 20)};
        op.route_share = (int32_t)random_in(1, 3);
        op.experts_used = (int32_t)random_in(1, op.experts);
        op.k = op.experts * op.route_share;
        op.n = 2 * op.experts_used;
        assert_true(op_valid(&op));
        float logits[60] = {0};
        double all = 0, sum = 0, wanted[20] = {0};
        int32_t times[20] = {0}, spare = op.experts_used, n = 0;
        for (int32_t i = 0; i < op.k; i++) {
            logits[i] = (float)random_in(-64, 64) / 8;
            all += exp((double)logits[i]);
        }
        for (int32_t e = 0; e < op.experts; e++) {
            for (int32_t i = 0; i < op.route_share; i++)
                times[e] += rank_of(logits, op.k, e * op.route_share + i) < op.experts_used;
            spare -= times[e] > 0;
        }
        float *y = row_op(&cpu_kernels_ref, op, logits, 1, NULL, 1);
        for (int32_t e = 0; e < op.experts; e++) {
            if (!times[e] && spare-- <= 0)
                continue;
            assert_true(y[n] == (float)e);
            wanted[n] = times[e] * exp((double)logits[e]) / all;
            sum += wanted[n++];
        }
        assert_int_equal(n, op.experts_used);
        for (int32_t i = 0; i < n; i++)
            assert_true(fabs((double)y[n + i] - wanted[i] / fmax(sum, 0x1p-14)) < 1e-5);
        test_free(y);
    }
}

static void what_is_not_finite_still_chooses_experts(void **state)
{
    (void)state;
    const struct oato_op op = {
        .kind = OP_ROUTE, .k = 12, .n = 8, .experts = 12, .experts_used = 4, .route_norm = 1};
    for (int round = 0; round < 100; round++) {
        const float odd[] = {NAN, INFINITY, -INFINITY, 1e38f, -1e38f, 0};
        float logits[12];
        for (int i = 0; i < 12; i++)
            logits[i] = odd[random_in(0, ARRAY_LEN(odd) - 1)];
        float *y = row_op(&cpu_kernels_ref, op, logits, 1, NULL, 1);
        for (int i = 0; i < 4; i++)
            assert_true(y[i] >= 0 && y[i] < 12 && (i == 0 || y[i] > y[i - 1]));
        test_free(y);
    }
}

/* Ids are places in an order of the experts: the same ones are chosen, with the same weights. */
static void experts_are_numbered_by_an_order(void **state)
{
    (void)state;
    enum { EXPERTS = 24, USED = 5 };
    for (int round = 0; round < 60; round++) {
        struct oato_op op = {.kind = OP_ROUTE,
                             .k = EXPERTS,
                             .n = 2 * USED,
                             .experts = EXPERTS,
                             .experts_used = USED,
                             .route_norm = round % 2,
                             .route_score = round % 4 ? ROUTE_SOFTMAX : ROUTE_SIGMOID};
        float logits[EXPERTS], order[EXPERTS];
        for (int i = 0; i < EXPERTS; i++) {
            logits[i] = 3 * random_float();
            order[i] = (float)i;
        }
        for (int i = EXPERTS - 1; i > 0; i--) {
            const int j = (int)random_in(0, i);
            const float other = order[j];
            order[j] = order[i];
            order[i] = other;
        }
        float *by_id = row_op(&cpu_kernels_ref, op, logits, 1, NULL, 1);
        float *placed = ordered_op(&cpu_kernels_ref, op, logits, 1, NULL, order, 1);
        for (int i = 0, found; i < USED; i++) {
            assert_true(!i || placed[i] > placed[i - 1]);
            for (found = 0; found < USED && by_id[found] != order[(int)placed[i]];)
                found++;
            assert_true(found < USED);
            assert_true(fabsf(placed[USED + i] - by_id[USED + found]) <=
                        1e-6f * by_id[USED + found]);
        }
        test_free(by_id);
        test_free(placed);
    }
}

static void heads_are_normed_like_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas) * 4; i++) {
        const struct cpu_kernels *k = kernels_named(isas[i / 4]);
        const int64_t T = random_in(1, 40), heads = random_in(1, 9), d = 2 * random_in(1, 80);
        if (!k)
            continue;
        const struct oato_op op = {.kind = OP_HEAD_NORM,
                                   .k = (int32_t)(heads * d),
                                   .n = (int32_t)(heads * d),
                                   .heads = (int32_t)heads,
                                   .head_dim = (int32_t)d,
                                   .eps = 1e-6f};
        assert_true(op_valid(&op));
        float *x = test_malloc((size_t)(T * heads * d) * sizeof *x);
        float *w = test_malloc((size_t)d * sizeof *w), *row = test_malloc((size_t)d * sizeof *row);
        random_floats(x, T * heads * d);
        random_floats(w, d);
        for (int threads = 1; threads <= 3; threads++) {
            float *y = row_op(k, op, x, T, w, threads);
            for (int64_t h = 0; h < T * heads; h++) {
                k->rows->rms_norm(row, x + h * d, w, d, 1e-6f);
                assert_memory_equal(y + h * d, row, (size_t)d * sizeof *row);
            }
            test_free(y);
        }
        test_free(x);
        test_free(w);
        test_free(row);
    }
}

static void supports_says_no_to_what_cannot_run(void **state)
{
    (void)state;
    static const struct oato_op rows[] = {
        {.kind = OP_HEAD_NORM, .k = 64, .n = 64, .heads = 3, .head_dim = 32},
        {.kind = OP_ROUTE, .k = 8, .n = 4, .experts = 8},
        {.kind = OP_ROUTE, .k = 8, .n = 18, .experts = 8, .experts_used = 9},
        {.kind = OP_ROUTE, .k = 9, .n = 4, .experts = 8, .experts_used = 2},
        {.kind = OP_ROUTE, .k = 1 << 16, .n = 4, .experts = 1 << 16, .experts_used = 2},
        {.kind = OP_EXPERT_DOWN, .k = 64, .n = 64, .experts = 4},
        {.kind = OP_EXPERT_DOWN, .k = 64, .experts = 4, .experts_used = 2},
        {.kind = OP_EXPERT_GATE_UP, .k = 1 << 30, .n = 1, .experts = 4, .experts_used = 2},
        {.kind = OP_EXPERT_GATE_UP,
         .dtype = DT_Q4_0,
         .k = 48,
         .n = 64,
         .experts = 4,
         .experts_used = 2},
        {.kind = OP_EXPERT_DOWN,
         .k = 64,
         .n = 64,
         .experts = 4,
         .experts_used = 2,
         .expert_first = 2,
         .experts_held = 3},
        {.kind = OP_EXPERT_DOWN,
         .k = 64,
         .n = 64,
         .experts = 4,
         .experts_used = 2,
         .expert_first = -1,
         .experts_held = 3},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_false(op_valid(&rows[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_logits_are_chosen_with_their_softmax),
        cmocka_unit_test(scores_biases_and_groups_choose),
        cmocka_unit_test(experts_may_have_several_scores),
        cmocka_unit_test(what_is_not_finite_still_chooses_experts),
        cmocka_unit_test(experts_are_numbered_by_an_order),
        cmocka_unit_test(heads_are_normed_like_rows),
        cmocka_unit_test(supports_says_no_to_what_cannot_run),
    };
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
