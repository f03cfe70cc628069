/*
 * test_ops_attention.c - the stand-in's fused attention against the definition in double: layouts,
 * heads that share keys, masks, positions, lengths, pages, lists, quantised keys; and refusals.
 */
#include "tests/ascend/rig.h"

#include "acl/acl.h"

#include <math.h>
#include <string.h>

enum { B = 2, H = 4, KVH = 2, D = 16, KEYS = 20, ROWS = 3, MOST = B * H * ROWS * D };

/* One problem in B, N, S, D order. hidden(b, i, j): key j is masked for row i. */
struct problem {
    int rows, lengths[B];
    double q[B * H * ROWS * D], k[B * KVH * KEYS * D], v[B * KVH * KEYS * D];
    double bias[H * ROWS * KEYS];
    bool biased;
    bool (*hidden)(int b, int i, int j);
};

static struct problem problem_of(int rows)
{
    struct problem p = {.rows = rows, .lengths = {KEYS, KEYS}};
    rig_quarters(31, B * H * rows * D, p.q);
    rig_quarters(32, B * KVH * KEYS * D, p.k);
    rig_quarters(33, B * KVH * KEYS * D, p.v);
    rig_quarters(34, H * rows * KEYS, p.bias);
    return p;
}

static void define(const struct problem *p, double *y)
{
    for (int o = 0; o < B * H * p->rows; o++) {
        int b = o / (H * p->rows), h = o / p->rows % H, i = o % p->rows, n = p->lengths[b];
        const double *q = p->q + (size_t)o * D, *k = p->k + (b * KVH + h / (H / KVH)) * KEYS * D;
        const double *v = p->v + (b * KVH + h / (H / KVH)) * KEYS * D;
        double weight[KEYS], sum = 0;
        for (int j = 0; j < n; j++) {
            double score = 0;
            for (int d = 0; d < D; d++)
                score += q[d] * k[j * D + d];
            score = score / 8 + (p->biased ? p->bias[(h * p->rows + i) * KEYS + j] : 0);
            weight[j] = p->hidden && p->hidden(b, i, j) ? 0 : exp(score);
            sum += weight[j];
        }
        for (int d = 0; d < D; d++) {
            y[o * D + d] = 0;
            for (int j = 0; j < n; j++)
                y[o * D + d] += weight[j] / sum * v[j * D + d];
        }
    }
}

/* From B, N, S, D to B, S, N, D. */
static void to_bsnd(int heads, int rows, const double *from, double *to)
{
    for (int i = 0; i < B * heads * rows * D; i++) {
        int d = i % D, s = i / D % rows, h = i / (D * rows) % heads, b = i / (D * rows * heads);
        to[((b * rows + s) * heads + h) * D + d] = from[i];
    }
}

struct args {
    const aclTensor *q, *out, *pse, *mask, *table, *lse, *scale;
    const aclTensorList *k, *v;
    const aclIntArray *q_lengths, *kv_lengths;
    char *layout;
    int64_t kv_heads, sparse, precise, block, mode;
};

#define FUSED(a)                                                                                   \
    (a).q, (a).k, (a).v, (a).pse, (a).mask, (a).q_lengths, (a).kv_lengths, NULL, NULL, NULL, NULL, \
        NULL, (a).scale, NULL, (a).table, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
#define FUSED_2(a)                                                                                 \
    H, 0.125, INT32_MAX, INT32_MAX, (a).layout, (a).kv_heads, (a).sparse, (a).precise, (a).block,  \
        (a).mode, (a).lse != NULL, 0, 0, (a).out, (a).lse
#define V2(a)            FusedInferAttentionScoreV2, FUSED(a), FUSED_2(a)
#define V3(a)            FusedInferAttentionScoreV3, FUSED(a), NULL, NULL, NULL, FUSED_2(a)
#define CALL(macro, ...) macro(__VA_ARGS__)

static const aclTensorList *list_of(struct cell *c, int rank, const int64_t *dims)
{
    const aclTensor *member = rig_member(c, rank, dims);
    return rig_list(1, &member);
}

/* The problem in layout BNSD on the device. */
static struct args bnsd(const struct problem *p, struct cell **y)
{
    struct cell *q = rig_tensor(ACL_FLOAT16, DIMS(B, H, p->rows, D), p->q);
    struct cell *k = rig_tensor(ACL_FLOAT16, DIMS(B, KVH, KEYS, D), p->k);
    struct cell *v = rig_tensor(ACL_FLOAT16, DIMS(B, KVH, KEYS, D), p->v);
    *y = rig_tensor(ACL_FLOAT16, DIMS(B, H, p->rows, D), NULL);
    return (struct args){.q = q->t,
                         .out = (*y)->t,
                         .layout = "BNSD",
                         .kv_heads = KVH,
                         .k = list_of(k, DIMS(B, KVH, KEYS, D)),
                         .v = list_of(v, DIMS(B, KVH, KEYS, D))};
}

static void every_layout_gives_the_definition(void **state)
{
    (void)state;
    for (int rows = 1; rows <= ROWS; rows += ROWS - 1) {
        struct problem p = problem_of(rows);
        double want[MOST], turned[MOST], q[MOST], k[B * KVH * KEYS * D], v[B * KVH * KEYS * D];
        struct cell *y;
        struct args a = bnsd(&p, &y);
        define(&p, want);
        to_bsnd(H, rows, want, turned);
        to_bsnd(H, rows, p.q, q);
        to_bsnd(KVH, KEYS, p.k, k);
        to_bsnd(KVH, KEYS, p.v, v);
        CALL(RUN, V2(a));
        rig_compare(y, want, 2e-3, "BNSD", __LINE__);
        CALL(RUN, V3(a));
        rig_compare(y, want, 2e-3, "BNSD, V3", __LINE__);
        struct cell *qs = rig_tensor(ACL_FLOAT16, DIMS(B, rows, H, D), q),
                    *ys = rig_tensor(ACL_FLOAT16, DIMS(B, rows, H, D), NULL);
        struct cell *ks = rig_tensor(ACL_FLOAT16, DIMS(B, KEYS, KVH, D), k),
                    *vs = rig_tensor(ACL_FLOAT16, DIMS(B, KEYS, KVH, D), v);
        struct args s = {.q = qs->t,
                         .out = ys->t,
                         .layout = "BSND",
                         .kv_heads = KVH,
                         .k = list_of(ks, DIMS(B, KEYS, KVH, D)),
                         .v = list_of(vs, DIMS(B, KEYS, KVH, D))};
        CALL(RUN, V2(s));
        rig_compare(ys, turned, 2e-3, "BSND", __LINE__);
        struct cell *yh = rig_tensor(ACL_FLOAT16, DIMS(B, rows, H * D), NULL);
        struct args h = {.q = rig_view(qs, ACL_FORMAT_ND, DIMS(B, rows, H * D),
                                       (int64_t[]){rows * H * D, H * D, 1}, 0),
                         .out = yh->t,
                         .layout = "BSH",
                         .kv_heads = KVH,
                         .k = list_of(ks, DIMS(B, KEYS, KVH * D)),
                         .v = list_of(vs, DIMS(B, KEYS, KVH * D))};
        CALL(RUN, V2(h));
        rig_compare(yh, turned, 2e-3, "BSH", __LINE__);
        a.layout = "BNSD_BSND", a.out = ys->t;
        if (rows == 1)
            CALL(REFUSED, 161002, V2(a));
        else
            CALL(RUN, V2(a));
        rig_compare(ys, turned, 2e-3, "BNSD_BSND", __LINE__);
    }
}

static bool odd_keys(int b, int i, int j)
{
    return (i + j + b) % 2 != 0;
}

static bool later_keys(int b, int i, int j)
{
    (void)b;
    return j > i + KEYS - ROWS;
}

static void masks_biases_and_lengths_choose_the_keys(void **state)
{
    (void)state;
    struct problem p = problem_of(ROWS);
    double want[MOST], mask[B * ROWS * KEYS];
    struct cell *y;
    struct args a = bnsd(&p, &y);
    p.hidden = odd_keys;
    for (int i = 0; i < B * ROWS * KEYS; i++)
        mask[i] = odd_keys(i / (ROWS * KEYS), i / KEYS % ROWS, i % KEYS);
    struct cell *m = rig_tensor(ACL_BOOL, DIMS(B, 1, ROWS, KEYS), mask),
                *bias = rig_tensor(ACL_FLOAT16, DIMS(1, H, ROWS, KEYS), p.bias);
    a.mask = m->t;
    define(&p, want);
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "mask", __LINE__);
    p.biased = true, a.pse = bias->t;
    define(&p, want);
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "mask and bias", __LINE__);
    p.hidden = NULL, a.mask = NULL;
    p.lengths[0] = 7, a.kv_lengths = INTS(7, KEYS);
    define(&p, want);
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "lengths", __LINE__);
    a.kv_lengths = INTS(7, KEYS + 1);
    CALL(REFUSED, 161002, V2(a));
    a.kv_lengths = INTS(7, 7, 7);
    CALL(RUN, V2(a));
    struct cell *small = rig_tensor(ACL_BOOL, DIMS(B, ROWS, KEYS - 1), NULL);
    a.mask = small->t, a.kv_lengths = NULL;
    CALL(REFUSED, 161002, V2(a));
    a.mask = bias->t;
    CALL(REFUSED, 161002, V2(a));
}

static void causal_attention_hides_later_keys(void **state)
{
    (void)state;
    enum { SIDE = 2048 };
    struct problem p = problem_of(ROWS);
    double want[MOST], *upper = calloc((size_t)SIDE * SIDE, sizeof *upper);
    struct cell *y;
    struct args a = bnsd(&p, &y);
    assert_non_null(upper);
    for (int i = 0; i < SIDE * SIDE; i++)
        upper[i] = i % SIDE > i / SIDE;
    struct cell *m = rig_tensor(ACL_BOOL, DIMS(SIDE, SIDE), upper);
    free(upper);
    p.hidden = later_keys;
    define(&p, want);
    a.sparse = 3;
    CALL(REFUSED, 161002, V2(a));
    a.mask = m->t;
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "right-down causal", __LINE__);
    a.sparse = 5;
    CALL(REFUSED, 161002, V2(a));
}

static void a_row_that_sees_nothing_is_zero_where_rows_are_mended(void **state)
{
    (void)state;
    struct problem p = problem_of(ROWS);
    double all[ROWS * KEYS], zero[MOST] = {0};
    struct cell *y, *lse = rig_tensor(ACL_FLOAT, DIMS(B, H, ROWS, 1), NULL);
    struct args a = bnsd(&p, &y);
    for (int i = 0; i < ROWS * KEYS; i++)
        all[i] = 1;
    a.mask = rig_tensor(ACL_INT8, DIMS(ROWS, KEYS), all)->t;
    a.precise = 2;
    CALL(RUN, V2(a));
    rig_compare(y, zero, 0, "nothing seen", __LINE__);
    a.mask = NULL, a.lse = lse->t;
    CALL(RUN, V2(a));
    double score[KEYS], sum = 0;
    for (int j = 0; j < KEYS; j++) {
        score[j] = 0;
        for (int d = 0; d < D; d++)
            score[j] += p.q[d] * p.k[j * D + d] / 8;
        sum += exp(score[j]);
    }
    assert_true(fabs(rig_values(lse)[0] - log(sum)) < 1e-5);
}

/* Pages of 16 keys (single rows) in an order of their own. */
static void pages_give_what_one_tensor_gives(void **state)
{
    (void)state;
    enum { PAGE = 16, PAGES = 6, PER = 2 };
    static const int table[B * PER] = {4, 1, 0, 5};
    struct problem p = problem_of(1);
    double want[MOST], k[PAGES * KVH * PAGE * D], v[PAGES * KVH * PAGE * D],
        kh[PAGES * PAGE * KVH * D], vh[PAGES * PAGE * KVH * D], entries[B * PER];
    for (int i = 0; i < PAGES * KVH * PAGE * D; i++)
        k[i] = v[i] = kh[i] = vh[i] = 999; /* what no table names must not be seen */
    for (int i = 0; i < B * KVH * KEYS * D; i++) {
        int d = i % D, j = i / D % KEYS, h = i / (D * KEYS) % KVH, b = i / (D * KEYS * KVH);
        int page = table[b * PER + j / PAGE], at = ((page * KVH + h) * PAGE + j % PAGE) * D + d;
        int flat = ((page * PAGE + j % PAGE) * KVH + h) * D + d;
        k[at] = kh[flat] = p.k[i], v[at] = vh[flat] = p.v[i];
    }
    for (int i = 0; i < B * PER; i++)
        entries[i] = table[i];
    struct cell *y;
    struct args a = bnsd(&p, &y);
    p.lengths[0] = 18;
    define(&p, want);
    a.kv_lengths = INTS(18, KEYS);
    a.table = rig_tensor(ACL_INT32, DIMS(B, PER), entries)->t;
    a.block = PAGE;
    struct cell *kc = rig_tensor(ACL_FLOAT16, DIMS(PAGES, KVH, PAGE, D), k),
                *vc = rig_tensor(ACL_FLOAT16, DIMS(PAGES, KVH, PAGE, D), v);
    a.k = list_of(kc, DIMS(PAGES, KVH, PAGE, D)), a.v = list_of(vc, DIMS(PAGES, KVH, PAGE, D));
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "pages by head", __LINE__);
    a.block = 8;
    CALL(REFUSED, 161002, V2(a));
    a.block = PAGE, a.kv_lengths = NULL;
    CALL(REFUSED, 161002, V2(a));
    a.kv_lengths = INTS(18, PER * PAGE + 1);
    CALL(REFUSED, 161002, V2(a));
    struct cell *kf = rig_tensor(ACL_FLOAT16, DIMS(PAGES, PAGE, KVH * D), kh),
                *vf = rig_tensor(ACL_FLOAT16, DIMS(PAGES, PAGE, KVH * D), vh);
    a.kv_lengths = INTS(18, KEYS);
    a.k = list_of(kf, DIMS(PAGES, PAGE, KVH * D)), a.v = list_of(vf, DIMS(PAGES, PAGE, KVH * D));
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "pages by row", __LINE__);
    RUN(IncreFlashAttentionV4, a.q, a.k, a.v, NULL, NULL, a.kv_lengths, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, a.table, NULL, H, 0.125, "BNSD", KVH, PAGE, 0, a.out);
    rig_compare(y, want, 2e-3, "IncreFlashAttention", __LINE__);
    /* Several rows want pages of 128. */
    struct problem more = problem_of(ROWS);
    struct args b = bnsd(&more, &y);
    b.k = a.k, b.v = a.v, b.table = a.table, b.block = PAGE, b.kv_lengths = a.kv_lengths;
    CALL(REFUSED, 161002, V2(b));
}

static void keys_may_be_int8_with_scales(void **state)
{
    (void)state;
    struct problem p = problem_of(1);
    double want[MOST], k[B * KVH * KEYS * D], v[B * KVH * KEYS * D], per_token[2 * B * KEYS];
    for (int i = 0; i < B * KVH * KEYS * D; i++)
        k[i] = p.k[i] * 4, v[i] = p.v[i] * 4; /* quarters as whole numbers */
    for (int i = 0; i < 2 * B * KEYS; i++)
        per_token[i] = 0.25;
    struct cell *y, *k8 = rig_tensor(ACL_INT8, DIMS(B, KVH, KEYS, D), k),
                    *v8 = rig_tensor(ACL_INT8, DIMS(B, KVH, KEYS, D), v);
    struct args a = bnsd(&p, &y);
    define(&p, want);
    a.k = list_of(k8, DIMS(B, KVH, KEYS, D)), a.v = list_of(v8, DIMS(B, KVH, KEYS, D));
    CALL(REFUSED, 161002, V2(a));
    a.scale = rig_tensor(ACL_FLOAT16, DIMS(2), VALUES(0.25, 0.25))->t;
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "one scale", __LINE__);
    a.scale = rig_tensor(ACL_FLOAT, DIMS(2, B, KEYS), per_token)->t, a.mode = 1;
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "a scale a token", __LINE__);
    a.mode = 0;
    CALL(REFUSED, 161002, V2(a));
}

static void a_list_has_a_tensor_for_each_batch(void **state)
{
    (void)state;
    struct problem p = problem_of(ROWS);
    double want[MOST];
    struct cell *y, *k[B], *v[B];
    const aclTensor *ks[B], *vs[B];
    struct args a = bnsd(&p, &y);
    for (int b = 0; b < B; b++) {
        k[b] = rig_tensor(ACL_FLOAT16, DIMS(1, KVH, KEYS, D), p.k + b * KVH * KEYS * D);
        v[b] = rig_tensor(ACL_FLOAT16, DIMS(1, KVH, KEYS, D), p.v + b * KVH * KEYS * D);
        ks[b] = rig_member(k[b], DIMS(1, KVH, KEYS, D)),
        vs[b] = rig_member(v[b], DIMS(1, KVH, KEYS, D));
    }
    define(&p, want);
    a.k = rig_list(B, ks), a.v = rig_list(B, vs), a.kv_lengths = INTS(KEYS, KEYS);
    CALL(RUN, V2(a));
    rig_compare(y, want, 2e-3, "list", __LINE__);
}

static void a_prompt_has_one_tensor_of_keys(void **state)
{
    (void)state;
    struct problem p = problem_of(ROWS);
    double want[MOST], mask[ROWS * KEYS];
    struct cell *y, *k = rig_tensor(ACL_FLOAT16, DIMS(B, KVH, KEYS, D), p.k),
                    *v = rig_tensor(ACL_FLOAT16, DIMS(B, KVH, KEYS, D), p.v);
    struct args a = bnsd(&p, &y);
    p.hidden = later_keys;
    for (int i = 0; i < ROWS * KEYS; i++)
        mask[i] = later_keys(0, i / KEYS, i % KEYS);
    define(&p, want);
    a.mask = rig_tensor(ACL_BOOL, DIMS(ROWS, KEYS), mask)->t;
#define PROMPT(kv_heads)                                                                           \
    PromptFlashAttentionV3, a.q, k->t, v->t, NULL, a.mask, NULL, NULL, NULL, NULL, NULL, NULL,     \
        NULL, H, 0.125, INT32_MAX, INT32_MAX, "BNSD", kv_heads, 0, 2, a.out
    CALL(RUN, PROMPT(KVH));
    rig_compare(y, want, 2e-3, "prompt", __LINE__);
    CALL(REFUSED, 161002, PROMPT(0)); /* as many heads of keys as of queries */
}

static void wrong_heads_types_and_layouts_are_refused(void **state)
{
    (void)state;
    struct problem p = problem_of(ROWS);
    struct cell *y, *f = rig_tensor(ACL_FLOAT, DIMS(B, H, ROWS, D), p.q),
                    *odd = rig_tensor(ACL_FLOAT16, DIMS(B, H, ROWS, 8), NULL);
    struct args a = bnsd(&p, &y), b = a;
    b.kv_heads = 3;
    CALL(REFUSED, 161002, V2(b));
    b = a, b.layout = "TND";
    CALL(REFUSED, 161002, V2(b));
    b = a, b.q = f->t;
    CALL(REFUSED, 161002, V2(b));
    b = a, b.out = f->t;
    CALL(REFUSED, 161002, V2(b));
    b = a, b.q = odd->t, b.out = odd->t;
    CALL(REFUSED, 161002, V2(b));
    b = a, b.out = NULL;
    CALL(REFUSED, 161001, V2(b));
    b = a, b.k = NULL;
    CALL(REFUSED, 161001, V2(b));
}

static void the_310p_has_attention_of_single_rows_only(void **state)
{
    (void)state;
    struct cell *q = rig_tensor(ACL_FLOAT16, DIMS(1, 2, 1, 16), NULL),
                *k = rig_tensor(ACL_FLOAT16, DIMS(1, 2, 4, 16), NULL),
                *y = rig_tensor(ACL_FLOAT16, DIMS(1, 2, 1, 16), NULL);
    const aclTensorList *ks = list_of(k, DIMS(1, 2, 4, 16));
    struct args a = {.q = q->t, .out = y->t, .k = ks, .v = ks, .layout = "BNSD", .kv_heads = 2};
    CALL(REFUSED, 561003, V2(a));
    RUN(IncreFlashAttentionV4, q->t, ks, ks, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, 2, 1, "BNSD", 0, 0, 0, y->t);
    REFUSED(161002, IncreFlashAttentionV4, q->t, ks, ks, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, 2, 1, "BNSD", 2, 0, 0, y->t);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, rig_on_910b, rig_off)
    const struct CMUnitTest tests[] = {
        T(every_layout_gives_the_definition),
        T(masks_biases_and_lengths_choose_the_keys),
        T(causal_attention_hides_later_keys),
        T(a_row_that_sees_nothing_is_zero_where_rows_are_mended),
        T(pages_give_what_one_tensor_gives),
        T(keys_may_be_int8_with_scales),
        T(a_list_has_a_tensor_for_each_batch),
        T(a_prompt_has_one_tensor_of_keys),
        T(wrong_heads_types_and_layouts_are_refused),
        cmocka_unit_test_setup_teardown(the_310p_has_attention_of_single_rows_only, rig_on_310p,
                                        rig_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
