/*
 * test_ops_products.c - the stand-in's products of matrices, quantised weights and experts, against
 * sums in double. Operands are quarters, so that products and sums in F32 are exact and every
 * rounding that the documentation describes shows.
 */
#include "tests/ascend/rig.h"

#include "tests/ascend/stand.h"

#include <math.h>
#include <string.h>

static double f16(double v)
{
    return (double)stand_from_f16(stand_to_f16(v));
}

/* y (m x n) = a (m x k) . b (k x n) of batches; b_step: elements between the batches of b. */
static void sums(int64_t batches, int64_t m, int64_t k, int64_t n, const double *a, const double *b,
                 int64_t b_step, double *y)
{
    for (int64_t i = 0; i < batches * m * n; i++) {
        int64_t batch = i / (m * n), row = i / n % m, column = i % n;
        y[i] = 0;
        for (int64_t j = 0; j < k; j++)
            y[i] += a[(batch * m + row) * k + j] * b[batch * b_step + j * n + column];
    }
}

enum { M = 3, K = 48, N = 5, B = 2 };

static void products_keep_f32_and_round_f16(void **state)
{
    (void)state;
    double a[M * K], b[K * N], want[M * N], rounded[M * N];
    rig_quarters(1, M * K, a);
    rig_quarters(2, K * N, b);
    a[0] = 4, b[0] = 512; /* so that the first sum needs more than 11 bits */
    sums(1, M, K, N, a, b, 0, want);
    for (int i = 0; i < M * N; i++)
        rounded[i] = f16(want[i]);
    assert_true(rounded[0] != want[0]);
    struct cell *a32 = rig_tensor(ACL_FLOAT, DIMS(M, K), a),
                *b32 = rig_tensor(ACL_FLOAT, DIMS(K, N), b);
    struct cell *a16 = rig_tensor(ACL_FLOAT16, DIMS(M, K), a),
                *b16 = rig_tensor(ACL_FLOAT16, DIMS(K, N), b);
    struct cell *y32 = rig_tensor(ACL_FLOAT, DIMS(M, N), NULL),
                *y16 = rig_tensor(ACL_FLOAT16, DIMS(M, N), NULL);
    RUN(Mm, a32->t, b32->t, y32->t, 0);
    rig_compare(y32, want, 0, "F32, kept", __LINE__);
    RUN(Mm, a32->t, b16->t, y32->t, 0);
    rig_compare(y32, want, 0, "F32 with F16, kept", __LINE__);
    RUN(Mm, a32->t, b16->t, y32->t, 2);
    rig_compare(y32, rounded, 0, "computed in F16, stored in F32", __LINE__);
    RUN(Mm, a16->t, b16->t, y32->t, 1);
    rig_compare(y32, rounded, 0, "F16 operands have a result in F16", __LINE__);
    RUN(Mm, a16->t, b16->t, y16->t, 0);
    rig_compare(y16, rounded, 0, "F16", __LINE__);
    REFUSED(161002, Mm, a32->t, a32->t, y32->t, 0);
    REFUSED(161002, Mm, a32->t, b32->t, b32->t, 0);
    REFUSED(161002, Mm, a16->t, b16->t, y16->t, 3);
    REFUSED(161002, Mm, a32->t, b32->t, y32->t, 5);
    REFUSED(161001, Mm, a32->t, b32->t, NULL, 0);
    struct cell *bf = rig_tensor(ACL_BF16, DIMS(K, N), b);
    REFUSED(161002, Mm, a32->t, bf->t, y32->t, 2);
}

static void products_of_f32_lose_bits_only_if_allowed(void **state)
{
    (void)state;
    /* HF32 has 11 bits after the point: the last of 2^-12 goes, to even. */
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(1, 1), VALUES(1 + 0x1p-11 + 0x1p-12));
    struct cell *b = rig_tensor(ACL_FLOAT, DIMS(1, 1), VALUES(1)),
                *y = rig_tensor(ACL_FLOAT, DIMS(1, 1), NULL);
    RUN(Mm, a->t, b->t, y->t, 0);
    SAME(y, 0, 1 + 0x1p-11 + 0x1p-12);
    RUN(Mm, a->t, b->t, y->t, 1);
    SAME(y, 0, 1 + 0x1p-10);
    RUN(Mm, a->t, b->t, y->t, 3);
    SAME(y, 0, 1 + 0x1p-10);
    RUN(Mm, a->t, b->t, y->t, 2);
    SAME(y, 0, 1 + 0x1p-10);
    struct cell *tie = rig_tensor(ACL_FLOAT, DIMS(1, 1), VALUES(1 + 0x1p-12));
    RUN(Mm, tie->t, b->t, y->t, 1);
    SAME(y, 0, 1);
}

static void weights_may_be_transposed_batched_and_broadcast(void **state)
{
    (void)state;
    double a[B * M * K], b[B * K * N], want[B * M * N], turned[B * K * N];
    rig_quarters(3, B * M * K, a);
    rig_quarters(4, B * K * N, b);
    for (int i = 0; i < B * K * N; i++)
        turned[i / (K * N) * K * N + i % N * K + i / N % K] = b[i];
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(B, M, K), a),
                *w = rig_tensor(ACL_FLOAT16, DIMS(B, N, K), turned);
    struct cell *plain = rig_tensor(ACL_FLOAT16, DIMS(K, N), b),
                *y = rig_tensor(ACL_FLOAT, DIMS(B, M, N), NULL);
    sums(B, M, K, N, a, b, K * N, want);
    RUN(BatchMatMul, x->t, rig_view(w, ACL_FORMAT_ND, DIMS(B, K, N), (int64_t[]){N * K, 1, K}, 0),
        y->t, 0);
    rig_compare(y, want, 0, "transposed", __LINE__);
    sums(B, M, K, N, a, b, 0, want);
    RUN(Matmul, x->t, plain->t, y->t, 0);
    rig_compare(y, want, 0, "one weight for all batches", __LINE__);
    RUN(BatchMatMul, x->t,
        rig_view(plain, ACL_FORMAT_ND, DIMS(1, K, N), (int64_t[]){K * N, N, 1}, 0), y->t, 0);
    rig_compare(y, want, 0, "a batch of one", __LINE__);
    REFUSED(161002, BatchMatMul, x->t, plain->t, y->t, 0);
    struct cell *v = rig_tensor(ACL_FLOAT, DIMS(K), a), *u = rig_tensor(ACL_FLOAT, DIMS(N), NULL),
                *s = rig_tensor(ACL_FLOAT, DIMS(M), NULL);
    sums(1, 1, K, N, a, b, 0, want);
    RUN(Matmul, v->t, plain->t, u->t, 0);
    rig_compare(u, want, 0, "a row", __LINE__);
    sums(1, M, K, 1, a, a, 0, want);
    RUN(Mv, rig_view(x, ACL_FORMAT_ND, DIMS(M, K), (int64_t[]){K, 1}, 0), v->t, s->t, 0);
    rig_compare(s, want, 0, "a column", __LINE__);
    struct cell *outer = rig_tensor(ACL_FLOAT, DIMS(2, 3), NULL);
    RUN(Ger, rig_tensor(ACL_FLOAT, DIMS(2), VALUES(2, 3))->t,
        rig_tensor(ACL_FLOAT, DIMS(3), VALUES(1, 4, 5))->t, outer->t);
    SAME(outer, 0, 2, 8, 10, 3, 12, 15);
}

static void a_weight_in_its_own_format_multiplies_the_same(void **state)
{
    (void)state;
    enum { ROWS = 20, PADDED = 32, WIDE = 48, BYTES = PADDED * WIDE * 2 };
    double a[M * K], w[PADDED * WIDE] = {0}, b[K * ROWS], want[M * ROWS];
    uint64_t bytes = 0;
    rig_quarters(5, M * K, a);
    rig_quarters(6, ROWS * K, w);
    for (int i = 0; i < K * ROWS; i++)
        b[i] = w[i % ROWS * K + i / ROWS];
    assert_int_equal(aclnnCalculateMatmulWeightSizeV2(INTS(ROWS, K), ACL_FLOAT16, &bytes), 0);
    assert_int_equal(bytes, BYTES);
    struct cell *x = rig_tensor(ACL_FLOAT16, DIMS(M, K), a),
                *room = rig_tensor(ACL_FLOAT16, DIMS(PADDED, WIDE), w);
    struct cell *y = rig_tensor(ACL_FLOAT, DIMS(M, ROWS), NULL);
    RUN(TransMatmulWeight,
        (aclTensor *)rig_view(room, ACL_FORMAT_ND, DIMS(ROWS, K), (int64_t[]){K, 1}, 0));
    const double *nz = rig_values(room);
    assert_true(nz[16] == w[K] &&
                nz[PADDED * 16] == w[16]); /* row 1; the second block of columns */
    sums(1, M, K, ROWS, a, b, 0, want);
    for (int i = 0; i < M * ROWS; i++)
        want[i] = f16(want[i]);
    RUN(Mm, x->t, rig_view(room, ACL_FORMAT_FRACTAL_NZ, DIMS(K, ROWS), (int64_t[]){1, K}, 0), y->t,
        2);
    rig_compare(y, want, 0, "FRACTAL_NZ", __LINE__);
}

static void the_310p_multiplies_f16_only(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(1, 1), VALUES(1 + 0x1p-11)),
                *y = rig_tensor(ACL_FLOAT, DIMS(1, 1), NULL);
    struct cell *b = rig_tensor(ACL_FLOAT, DIMS(1, 1), VALUES(1));
    REFUSED(161002, Mm, a->t, b->t, y->t, 0);
    REFUSED(161002, Mm, a->t, b->t, y->t, 3);
    RUN(Mm, a->t, b->t, y->t, 1);
    SAME(y, 0, 1);
}

static void the_310b_has_no_such_kernels(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(1, 16), NULL),
                *y = rig_tensor(ACL_FLOAT16, DIMS(1, 1), NULL);
    struct cell *rstd = rig_tensor(ACL_FLOAT, DIMS(1, 1), NULL),
                *z = rig_tensor(ACL_FLOAT16, DIMS(1, 16), NULL);
    struct cell *g = rig_tensor(ACL_FLOAT16, DIMS(16), NULL);
    REFUSED(561003, Mm, a->t, a->t, y->t, 0);
    REFUSED(561003, RmsNorm, a->t, g->t, 1e-6, z->t, rstd->t);
    RUN(Silu, a->t, z->t);
}

/* -------------------------------------------------------------------- quantised weights ---- */

enum { QK = 64, QN = 6, QM = 3, GROUP = 32 };

/* Weights of one kind, n x k as a file has them; scales are powers of two. */
static void quantised(aclDataType type, double *q, double *scale, double *k_by_n)
{
    for (int i = 0; i < QN * QK; i++)
        q[i] = type == ACL_INT4 ? i * 7 % 16 - 8 : i * 37 % 255 - 127;
    for (int i = 0; i < QN * QK / GROUP; i++)
        scale[i] = ldexp(1, i % 3 - 4);
    for (int i = 0; i < QN * QK; i++)
        k_by_n[i % QK * QN + i / QK] = q[i] * scale[i / GROUP];
}

static void quantised_weights_are_scaled_by_group(void **state)
{
    (void)state;
    static const aclDataType types[] = {ACL_INT4, ACL_INT8};
    for (int t = 0; t < 2; t++) {
        double x[QM * QK], q[QN * QK], scale[QN * QK / GROUP], w[QK * QN], want[QM * QN];
        rig_quarters(7, QM * QK, x);
        quantised(types[t], q, scale, w);
        sums(1, QM, QK, QN, x, w, 0, want);
        for (int i = 0; i < QM * QN; i++)
            want[i] = f16(want[i]);
        struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(QM, QK), x),
                    *y = rig_tensor(ACL_FLOAT16, DIMS(QM, QN), NULL);
        struct cell *weight = rig_tensor(types[t], DIMS(QN, QK), q),
                    *s = rig_tensor(ACL_FLOAT16, DIMS(QN, QK / GROUP), scale);
        const aclTensor *kn = rig_view(weight, ACL_FORMAT_ND, DIMS(QK, QN), (int64_t[]){1, QK}, 0);
        const aclTensor *sn =
            rig_view(s, ACL_FORMAT_ND, DIMS(QK / GROUP, QN), (int64_t[]){1, QK / GROUP}, 0);
        RUN(WeightQuantBatchMatmulV2, a->t, kn, sn, NULL, NULL, NULL, NULL, GROUP, y->t);
        rig_compare(y, want, 0, "groups of 32", __LINE__);
        /* An offset comes before the scale: q + 3. */
        double more[QM * QN], three[QN * QK / GROUP];
        for (int i = 0; i < QK * QN; i++)
            w[i % QK * QN + i / QK] = (q[i] + 3) * scale[i / GROUP];
        for (int i = 0; i < QN * QK / GROUP; i++)
            three[i] = 3;
        sums(1, QM, QK, QN, x, w, 0, more);
        for (int i = 0; i < QM * QN; i++)
            more[i] = f16(more[i]);
        struct cell *offsets = rig_tensor(ACL_FLOAT16, DIMS(QN, QK / GROUP), three);
        const aclTensor *on =
            rig_view(offsets, ACL_FORMAT_ND, DIMS(QK / GROUP, QN), (int64_t[]){1, QK / GROUP}, 0);
        RUN(WeightQuantBatchMatmulV2, a->t, kn, sn, on, NULL, NULL, NULL, GROUP, y->t);
        rig_compare(y, more, 0, "offsets", __LINE__);
        REFUSED(161002, WeightQuantBatchMatmulV2, a->t, kn, sn, NULL, NULL, NULL, NULL, 0, y->t);
        REFUSED(161002, WeightQuantBatchMatmulV2, a->t, kn, sn, NULL, NULL, NULL, NULL, 48, y->t);
        REFUSED(161002, WeightQuantBatchMatmulV2, a->t, kn, sn, NULL, NULL, NULL, NULL, QK, y->t);
        struct cell *f32 = rig_tensor(ACL_FLOAT, DIMS(QM, QN), NULL),
                    *x32 = rig_tensor(ACL_FLOAT, DIMS(QM, QK), x);
        REFUSED(161002, WeightQuantBatchMatmulV2, a->t, kn, sn, NULL, NULL, NULL, NULL, GROUP,
                f32->t);
        REFUSED(161002, WeightQuantBatchMatmulV2, x32->t, kn, sn, NULL, NULL, NULL, NULL, GROUP,
                y->t);
        REFUSED(161002, WeightQuantBatchMatmulV2, a->t, weight->t, sn, NULL, NULL, NULL, NULL,
                GROUP, y->t);
    }
}

static void quantised_weights_of_one_scale_a_column(void **state)
{
    (void)state;
    /* k = 32 has no groups: group 32 must be at most k - 1. */
    double x[32], q[32 * 2], ones[32];
    for (int i = 0; i < 32; i++)
        x[i] = 1, q[2 * i] = i - 16, q[2 * i + 1] = 2, ones[i] = 1;
    struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(1, 32), x),
                *w = rig_tensor(ACL_INT8, DIMS(32, 2), q);
    struct cell *s = rig_tensor(ACL_FLOAT16, DIMS(1, 2), VALUES(0.5, 0.25)),
                *y = rig_tensor(ACL_FLOAT16, DIMS(1, 2), NULL);
    struct cell *bias = rig_tensor(ACL_FLOAT16, DIMS(2), VALUES(1, 2));
    RUN(WeightQuantBatchMatmulV2, a->t, w->t, s->t, NULL, NULL, NULL, bias->t, 0, y->t);
    SAME(y, 0, -7, 18);
    REFUSED(161002, WeightQuantBatchMatmulV2, a->t, w->t, s->t, NULL, NULL, NULL, NULL, 32, y->t);
    /* INT4 needs an even inner axis. */
    struct cell *odd = rig_tensor(ACL_INT4, DIMS(32, 3), NULL),
                *y3 = rig_tensor(ACL_FLOAT16, DIMS(1, 3), NULL);
    struct cell *s3 = rig_tensor(ACL_FLOAT16, DIMS(3), ones);
    REFUSED(161002, WeightQuantBatchMatmulV2, a->t, odd->t, s3->t, NULL, NULL, NULL, NULL, 0,
            y3->t);
    /* A vocabulary has to be split: 65536 columns are one too many. */
    struct cell *wide = rig_tensor(ACL_INT8, DIMS(65536), NULL),
                *one = rig_tensor(ACL_FLOAT16, DIMS(1), ones);
    struct cell *yw = rig_tensor(ACL_FLOAT16, DIMS(1, 65536), NULL),
                *x1 = rig_tensor(ACL_FLOAT16, DIMS(1, 1), ones);
    const aclTensor *column =
        rig_view(wide, ACL_FORMAT_ND, DIMS(1, 65536), (int64_t[]){65536, 1}, 0);
    REFUSED(161002, WeightQuantBatchMatmulV2, x1->t, column, one->t, NULL, NULL, NULL, NULL, 0,
            yw->t);
    column = rig_view(wide, ACL_FORMAT_ND, DIMS(1, 65535), (int64_t[]){65535, 1}, 0);
    const aclTensor *most = rig_view(yw, ACL_FORMAT_ND, DIMS(1, 65535), (int64_t[]){65535, 1}, 0);
    RUN(WeightQuantBatchMatmulV2, x1->t, column, one->t, NULL, NULL, NULL, NULL, 0, most);
}

static void the_310p_has_no_quantised_products(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(1, 64), NULL),
                *w = rig_tensor(ACL_INT4, DIMS(64, 2), NULL);
    struct cell *s = rig_tensor(ACL_FLOAT16, DIMS(2), NULL),
                *y = rig_tensor(ACL_FLOAT16, DIMS(1, 2), NULL);
    REFUSED(561003, WeightQuantBatchMatmulV2, a->t, w->t, s->t, NULL, NULL, NULL, NULL, 0, y->t);
}

/* -------------------------------------------------------------------------------- experts ---- */

static const aclTensorList *list_of(struct cell *c, int rank, const int64_t *dims)
{
    const aclTensor *member = rig_member(c, rank, dims);
    return rig_list(1, &member);
}

static void experts_take_the_rows_that_the_group_list_gives_them(void **state)
{
    (void)state;
    enum { G = 3, ROWS = 5, GK = 16, GN = 4 };
    double x[ROWS * GK], w[G * GK * GN], want[ROWS * GN];
    static const int owner[ROWS] = {0, 0, 2, 2, -1};
    rig_quarters(8, ROWS * GK, x);
    rig_quarters(9, G * GK * GN, w);
    for (int i = 0; i < ROWS; i++) {
        if (owner[i] >= 0)
            sums(1, 1, GK, GN, x + i * GK, w + owner[i] * GK * GN, 0, want + i * GN);
        for (int j = 0; j < GN; j++)
            want[i * GN + j] = owner[i] < 0 ? 7 : f16(want[i * GN + j]); /* 7: never written */
    }
    struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(ROWS, GK), x),
                *b = rig_tensor(ACL_FLOAT16, DIMS(G, GK, GN), w);
    struct cell *y = rig_tensor(ACL_FLOAT16, DIMS(ROWS, GN), NULL);
    struct cell *ends = rig_tensor(ACL_INT64, DIMS(G), VALUES(2, 2, 4)),
                *counts = rig_tensor(ACL_INT64, DIMS(G), VALUES(2, 0, 2));
    const aclTensorList *xs = list_of(a, DIMS(ROWS, GK)), *ws = list_of(b, DIMS(G, GK, GN));
    const aclTensorList *ys = list_of(y, DIMS(ROWS, GN));
    RUN(GroupedMatmulV3, xs, ws, NULL, NULL, NULL, NULL, NULL, ends->t, 2, 0, ys);
    rig_compare(y, want, 0, "ends", __LINE__);
    struct cell *y4 = rig_tensor(ACL_FLOAT16, DIMS(ROWS, GN), NULL);
    aclTensorList *y4s = (aclTensorList *)list_of(y4, DIMS(ROWS, GN));
#define V4(scales, list, type)                                                                     \
    xs, ws, NULL, NULL, NULL, scales, NULL, NULL, list, NULL, NULL, NULL, 3, 0, type, 0, y4s,      \
        NULL, NULL
    RUN(GroupedMatmulV4, V4(NULL, counts->t, 1));
    rig_compare(y4, want, 0, "counts", __LINE__);
    REFUSED(161002, GroupedMatmulV4, V4(NULL, counts->t, 2));
    REFUSED(161002, GroupedMatmulV4, V4(xs, counts->t, 1)); /* scales without integers */
    REFUSED(161002, GroupedMatmulV3, xs, ws, NULL, NULL, NULL, NULL, NULL, ends->t, 0, 0, ys);
    struct cell *short_ = rig_tensor(ACL_INT64, DIMS(2), VALUES(2, 4)),
                *narrow = rig_tensor(ACL_INT32, DIMS(G), VALUES(2, 2, 4));
    REFUSED(161002, GroupedMatmulV3, xs, ws, NULL, NULL, NULL, NULL, NULL, short_->t, 2, 0, ys);
    REFUSED(161002, GroupedMatmulV3, xs, ws, NULL, NULL, NULL, NULL, NULL, narrow->t, 2, 0, ys);
    REFUSED(161001, GroupedMatmulV3, xs, ws, NULL, NULL, NULL, NULL, NULL, NULL, 2, 0, ys);
    /* The same weights in a list, each transposed in memory. */
    double turned[G * GK * GN];
    for (int i = 0; i < G * GK * GN; i++)
        turned[i / (GK * GN) * GK * GN + i % GN * GK + i / GN % GK] = w[i];
    struct cell *bt = rig_tensor(ACL_FLOAT16, DIMS(G, GN, GK), turned),
                *y5 = rig_tensor(ACL_FLOAT16, DIMS(ROWS, GN), NULL);
    const aclTensor *members[G];
    for (int g = 0; g < G; g++) {
        const int64_t dims[] = {GK, GN}, strides[] = {1, GK};
        members[g] = aclCreateTensor(dims, 2, ACL_FLOAT16, strides, (int64_t)g * GK * GN,
                                     ACL_FORMAT_ND, &bt->n, 1, (char *)bt->device + 64);
    }
    RUN(GroupedMatmulV3, xs, rig_list(G, members), NULL, NULL, NULL, NULL, NULL, ends->t, 2, 0,
        list_of(y5, DIMS(ROWS, GN)));
    rig_compare(y5, want, 0, "a list of weights", __LINE__);
}

static void experts_may_be_quantised_by_group(void **state)
{
    (void)state;
    enum { G = 2, ROWS = 4, GK = 64, GN = 8 };
    double x[ROWS * GK], q[G * GK * GN], scale[G * 2 * GN], w[G * GK * GN], want[ROWS * GN];
    rig_quarters(10, ROWS * GK, x);
    for (int i = 0; i < G * GK * GN; i++)
        q[i] = i * 5 % 16 - 8;
    for (int i = 0; i < G * 2 * GN; i++)
        scale[i] = ldexp(1, i % 4 - 5);
    for (int i = 0; i < G * GK * GN; i++)
        w[i] = q[i] * scale[(i / (GK * GN) * 2 + i / GN % GK / 32) * GN + i % GN];
    for (int g = 0; g < G; g++)
        sums(1, 2, GK, GN, x + g * 2 * GK, w + g * GK * GN, 0, want + g * 2 * GN);
    for (int i = 0; i < ROWS * GN; i++)
        want[i] = f16(want[i]);
    struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(ROWS, GK), x),
                *b = rig_tensor(ACL_INT4, DIMS(G, GK, GN), q);
    struct cell *s = rig_tensor(ACL_FLOAT16, DIMS(G, 2, GN), scale),
                *y4 = rig_tensor(ACL_FLOAT16, DIMS(ROWS, GN), NULL);
    struct cell *counts = rig_tensor(ACL_INT64, DIMS(G), VALUES(2, 2));
    const aclTensorList *xs = list_of(a, DIMS(ROWS, GK)), *ws = list_of(b, DIMS(G, GK, GN));
    aclTensorList *y4s = (aclTensorList *)list_of(y4, DIMS(ROWS, GN));
    RUN(GroupedMatmulV4, V4(list_of(s, DIMS(G, 2, GN)), counts->t, 1));
    rig_compare(y4, want, 0, "INT4 experts", __LINE__);
    REFUSED(161002, GroupedMatmulV4, V4(NULL, counts->t, 1));
}

static void a_group_list_beyond_the_rows_ends_the_stream(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT16, DIMS(2, 16), NULL),
                *b = rig_tensor(ACL_FLOAT16, DIMS(2, 16, 4), NULL);
    struct cell *y = rig_tensor(ACL_FLOAT16, DIMS(2, 4), NULL),
                *ends = rig_tensor(ACL_INT64, DIMS(2), VALUES(2, 3));
    FAULTS(GroupedMatmulV3, list_of(a, DIMS(2, 16)), list_of(b, DIMS(2, 16, 4)), NULL, NULL, NULL,
           NULL, NULL, ends->t, 2, 0, list_of(y, DIMS(2, 4)));
    rig_begin("910B4");
}

static void gating_chooses_the_largest_and_does_not_renormalise(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 4), VALUES(0, 1, 2, 3, 5, 5, 0, 0));
    struct cell *y = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL),
                *e = rig_tensor(ACL_INT32, DIMS(2, 2), NULL),
                *r = rig_tensor(ACL_INT32, DIMS(2, 2), NULL);
    RUN(MoeGatingTopKSoftmax, x->t, NULL, 2, y->t, e->t, r->t);
    SAME(y, 2e-6, 0.643914260, 0.236882818, 0.496653567, 0.496653567);
    SAME(e, 0, 3, 2, 0, 1);
    SAME(r, 0, 0, 2, 1, 3);
    struct cell *five = rig_tensor(ACL_FLOAT, DIMS(2, 5), NULL);
    REFUSED(561002, MoeGatingTopKSoftmax, x->t, NULL, 5, five->t, e->t, r->t);
    struct cell *done = rig_tensor(ACL_BOOL, DIMS(2), VALUES(0, 1));
    RUN(MoeGatingTopKSoftmax, x->t, done->t, 2, y->t, e->t, r->t);
    SAME(e, 0, 3, 2, 4, 4);
}

static void triangles_are_solved(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(2, 2), VALUES(2, 99, 1, 4)),
                *b = rig_tensor(ACL_FLOAT, DIMS(2, 1), VALUES(6, 11));
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 1), NULL),
                *m = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL);
    RUN(TriangularSolve, b->t, a->t, false, false, false, x->t, m->t);
    SAME(x, 0, 3, 2); /* the upper triangle is not read */
    struct cell *u = rig_tensor(ACL_FLOAT, DIMS(2, 2), VALUES(2, 1, 99, 4));
    RUN(TriangularSolve, b->t, u->t, true, false, false, x->t, m->t);
    SAME(x, 0, 1.625, 2.75);
    RUN(TriangularSolve, b->t, a->t, false, true, false, x->t, m->t);
    SAME(x, 0, 1.625, 2.75);
    RUN(TriangularSolve, b->t, a->t, false, false, true, x->t, m->t);
    SAME(x, 0, 6, 5);
}

int main(void)
{
#define T(f)     cmocka_unit_test_setup_teardown(f, rig_on_910b, rig_off)
#define T_310(f) cmocka_unit_test_setup_teardown(f, rig_on_310p, rig_off)
    const struct CMUnitTest tests[] = {
        T(products_keep_f32_and_round_f16),
        T(products_of_f32_lose_bits_only_if_allowed),
        T(weights_may_be_transposed_batched_and_broadcast),
        T(a_weight_in_its_own_format_multiplies_the_same),
        T_310(the_310p_multiplies_f16_only),
        cmocka_unit_test_setup_teardown(the_310b_has_no_such_kernels, rig_on_310b, rig_off),
        T(quantised_weights_are_scaled_by_group),
        T(quantised_weights_of_one_scale_a_column),
        T_310(the_310p_has_no_quantised_products),
        T(experts_take_the_rows_that_the_group_list_gives_them),
        T(experts_may_be_quantised_by_group),
        T(a_group_list_beyond_the_rows_ends_the_stream),
        T(gating_chooses_the_largest_and_does_not_renormalise),
        T(triangles_are_solved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
