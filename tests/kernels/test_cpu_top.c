/*
 * test_cpu_top.c - the candidates of rows of logits are those that sorting the whole row puts
 * first, for any number of them, of equal logits and of what is no number.
 */
#include "tests/kernels/top_logits.h"

struct entry {
    float logit;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const bool x_none = isnan(x->logit), y_none = isnan(y->logit);
    if (x_none != y_none)
        return x_none ? 1 : -1;
    if (!x_none && x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Bit by bit: a logit stays what it is, minus zero and no number too. */
static void check_row(const float *logits, int32_t n, const float *out, int32_t wanted)
{
    struct entry *all = test_malloc((size_t)n * sizeof *all);
    for (int32_t i = 0; i < n; i++)
        all[i] = (struct entry){logits[i], i};
    qsort(all, (size_t)n, sizeof *all, by_logit);
    for (int32_t i = 0; i < wanted; i++) {
        assert_true(out[i] == (float)all[i].id);
        assert_memory_equal(&out[wanted + i], &all[i].logit, sizeof(float));
    }
    test_free(all);
}

static void check_rows(enum top_logits what, int32_t n, int32_t wanted, int32_t T)
{
    const struct oato_op op = {.kind = OP_TOP_K, .k = n, .n = 2 * wanted};
    struct guarded g;
    struct simple_step s;
    struct program_record r = record_of(op);
    guarded_init(&g);
    r.n_in = r.n_out = 1;
    r.in[0] = guarded_offset(&g, (size_t)(T * n) * sizeof(float));
    r.out[0] = guarded_offset(&g, (size_t)(T * op.n) * sizeof(float));
    float *logits = floats(g.base + r.in[0]), *out = floats(g.base + r.out[0]);
    assert_true(op_valid(&op));
    for (int32_t t = 0; t < T; t++)
        fill_logits(what, logits + t * n, n);
    for (int threads = 1; threads <= 3; threads++) {
        struct cpu_context c = {.kernels = &cpu_kernels_ref, .arena = g.base};
        memset(out, 0xff, (size_t)(T * op.n) * sizeof(float));
        record_run(&c, &r, simple_step(&s, T), 0, threads);
        for (int32_t t = 0; t < T; t++)
            check_row(logits + t * n, n, out + t * op.n, wanted);
    }
    guarded_free(&g);
}

static void candidates_are_the_first_of_the_sorted_row(void **state)
{
    (void)state;
    for (int what = 0; what < TOP_LOGITS; what++)
        for (int round = 0; round < 20; round++) {
            const int32_t n = (int32_t)random_in(1, round % 2 ? 20 : 4000);
            const int32_t most = (int32_t)min_i64(n, TOP_K_MOST);
            const int32_t wanted = round % 3 ? (int32_t)random_in(1, most) : round % 2 ? 1 : most;
            check_rows(what, n, wanted, (int32_t)random_in(1, 5));
        }
}

static void supports_says_no_to_what_cannot_run(void **state)
{
    (void)state;
    static const struct oato_op rows[] = {
        {.kind = OP_TOP_K, .k = 8, .n = 0},
        {.kind = OP_TOP_K, .k = 8, .n = 3},
        {.kind = OP_TOP_K, .k = 8, .n = 18},
        {.kind = OP_TOP_K, .k = 1000, .n = 2 * TOP_K_MOST + 2},
        {.kind = OP_TOP_K, .k = TOP_K_LOGITS_MOST + 1, .n = 2},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_false(op_valid(&rows[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_the_first_of_the_sorted_row),
        cmocka_unit_test(supports_says_no_to_what_cannot_run),
    };
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
