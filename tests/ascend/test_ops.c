/*
 * test_ops.c - the stand-in's operators on elements, moves, indices and reductions: known values,
 * types, views, and what the documentation refuses.
 */
#include "tests/ascend/rig.h"

#include "aclnnop/aclnn_rotary_position_embedding.h"

#include "acl/acl.h"

#include <math.h>
#include <string.h>

static const aclDataType floats[] = {ACL_FLOAT, ACL_FLOAT16, ACL_BF16};

/* Values that Python's math gives. */
static const double unary_x[] = {-3, -1, -0.5, 0, 0.5, 1, 2.5};
static const double positive_x[] = {0.25, 0.5, 1, 2, 4, 9, 16};
static const struct unary {
    const char *name;
    aclnnStatus (*size)(const aclTensor *, aclTensor *, uint64_t *, aclOpExecutor **);
    rig_launch *launch;
    double y[7];
} unaries[] = {
#define U(name, ...)                                                                               \
    {                                                                                              \
#name, aclnn##name##GetWorkspaceSize, aclnn##name,                                         \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
    U(Abs, 3, 1, 0.5, 0, 0.5, 1, 2.5),
    U(Neg, 3, 1, 0.5, 0, -0.5, -1, -2.5),
    U(Exp, 0.0497870684, 0.367879441, 0.60653066, 1, 1.64872127, 2.71828183, 12.182494),
    U(Sin, -0.141120008, -0.841470985, -0.479425539, 0, 0.479425539, 0.841470985, 0.598472144),
    U(Cos, -0.989992497, 0.540302306, 0.877582562, 1, 0.877582562, 0.540302306, -0.801143616),
    U(Tanh, -0.995054754, -0.761594156, -0.462117157, 0, 0.462117157, 0.761594156, 0.986614298),
    U(Sigmoid, 0.0474258732, 0.268941421, 0.377540669, 0.5, 0.622459331, 0.731058579, 0.92414182),
    U(Relu, 0, 0, 0, 0, 0.5, 1, 2.5),
    U(Silu, -0.14227762, -0.268941421, -0.188770334, 0, 0.311229666, 0.731058579, 2.31035455),
    U(Gelu, -0.00363739208, -0.158808009, -0.15428599, 0, 0.34571401, 0.841191991, 2.48491573),
    U(FastGelu, -0.0180713097, -0.154204234, -0.149611563, 0, 0.350388437, 0.845795766, 2.46501383),
    U(Hardsigmoid, 0, 0.333333333, 0.416666667, 0.5, 0.583333333, 0.666666667, 0.916666667),
    U(Hardswish, 0, -0.333333333, -0.208333333, 0, 0.291666667, 0.666666667, 2.29166667),
    U(Sign, -1, -1, -1, 0, 1, 1, 1),
    U(Floor, -3, -1, -1, 0, 0, 1, 2),
    U(Ceil, -3, -1, 0, 0, 1, 1, 3),
    U(Round, -3, -1, 0, 0, 0, 1, 2),
    U(Trunc, -3, -1, 0, 0, 0, 1, 2),
    U(LogicalNot, 0, 0, 0, 1, 0, 0, 0),
    U(Log, -1.38629436, -0.693147181, 0, 0.693147181, 1.38629436, 2.19722458, 2.77258872),
    U(Sqrt, 0.5, 0.707106781, 1, 1.41421356, 2, 3, 4),
    U(Rsqrt, 2, 1.41421356, 1, 0.707106781, 0.5, 0.333333333, 0.25),
    U(Reciprocal, 4, 2, 1, 0.5, 0.25, 0.111111111, 0.0625),
};
enum { UNARIES = sizeof unaries / sizeof unaries[0], POSITIVE = 4 };

static void unary_operators_give_known_values_in_every_float_type(void **state)
{
    (void)state;
    for (size_t i = 0; i < UNARIES; i++)
        for (size_t t = 0; t < 3; t++) {
            const struct unary *u = &unaries[i];
            const double *x = i >= UNARIES - POSITIVE ? positive_x : unary_x;
            struct cell *in = rig_tensor(floats[t], DIMS(7), x);
            struct cell *out = rig_tensor(floats[t], DIMS(7), NULL);
            uint64_t bytes = 0;
            aclOpExecutor *e = NULL;
            aclnnStatus s = u->size(in->t, out->t, &bytes, &e);
            assert_int_equal(rig_run(s, bytes, e, u->launch), 0);
            rig_compare(out, u->y, rig_tolerance(floats[t]), u->name, __LINE__);
        }
}

static void unary_operators_refuse_null_shapes_and_types(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(7), unary_x),
                *wide = rig_tensor(ACL_FLOAT, DIMS(8), NULL);
    struct cell *ints = rig_tensor(ACL_INT32, DIMS(7), NULL);
    REFUSED(161001, Exp, NULL, x->t);
    REFUSED(161001, Exp, x->t, NULL);
    REFUSED(161002, Exp, x->t, wide->t);
    REFUSED(161002, Exp, x->t, ints->t);  /* floats do not go into integers */
    REFUSED(161002, Silu, ints->t, x->t); /* integers are not on its list */
    struct cell *promoted = rig_tensor(ACL_FLOAT, DIMS(7), NULL);
    RUN(Exp, ints->t, promoted->t); /* 7 everywhere */
    SAME(promoted, 2e-6, 1096.63316, 1096.63316, 1096.63316, 1096.63316, 1096.63316, 1096.63316,
         1096.63316);
}

static void operators_with_scalars_give_known_values(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(7), unary_x),
                *y = rig_tensor(ACL_FLOAT, DIMS(7), NULL);
    const aclScalar *two = rig_scalar(2, ACL_FLOAT), *half = rig_scalar(0.5, ACL_FLOAT);
    const aclScalar *one = rig_scalar(1, ACL_FLOAT), *minus = rig_scalar(-1, ACL_FLOAT);
    const aclScalar *three = rig_scalar(3, ACL_FLOAT);
    RUN(GeluV2, x->t, 1, y->t);
    SAME(y, 2e-6, -0.00363739208, -0.158808009, -0.15428599, 0, 0.34571401, 0.841191991,
         2.48491573);
    RUN(GeluV2, x->t, 0, y->t);
    SAME(y, 2e-6, -0.00404969409, -0.158655254, -0.154268769, 0, 0.345731231, 0.841344746,
         2.48447584);
    REFUSED(161002, GeluV2, x->t, 2, y->t);
    RUN(LeakyRelu, x->t, half, y->t);
    SAME(y, 0, -1.5, -0.5, -0.25, 0, 0.5, 1, 2.5);
    RUN(Elu, x->t, rig_scalar(1.5, ACL_FLOAT), two, half, y->t);
    SAME(y, 2e-6, -2.33060952, -1.18040802, -0.663597651, 0, 1, 2, 5);
    RUN(Softplus, x->t, one, rig_scalar(20, ACL_FLOAT), y->t);
    SAME(y, 2e-6, 0.0485873516, 0.313261688, 0.474076984, 0.693147181, 0.974076984, 1.31326169,
         2.57888973);
    RUN(Threshold, x->t, half, three, y->t);
    SAME(y, 0, 3, 3, 3, 3, 3, 1, 2.5);
    RUN(Clamp, x->t, minus, two, y->t);
    SAME(y, 0, -1, -1, -0.5, 0, 0.5, 1, 2);
    RUN(Clamp, x->t, NULL, half, y->t);
    SAME(y, 0, -3, -1, -0.5, 0, 0.5, 0.5, 0.5);
    REFUSED(161001, Clamp, x->t, NULL, NULL, y->t);
    RUN(ClampMin, x->t, half, y->t);
    SAME(y, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 1, 2.5);
    RUN(Adds, x->t, two, half, y->t);
    SAME(y, 0, -2, 0, 0.5, 1, 1.5, 2, 3.5);
    RUN(Subs, x->t, two, half, y->t);
    SAME(y, 0, -4, -2, -1.5, -1, -0.5, 0, 1.5);
    RUN(Muls, x->t, two, y->t);
    SAME(y, 0, -6, -2, -1, 0, 1, 2, 5);
    RUN(Divs, x->t, two, y->t);
    SAME(y, 0, -1.5, -0.5, -0.25, 0, 0.25, 0.5, 1.25);
    RUN(PowTensorScalar, x->t, two, y->t);
    SAME(y, 0, 9, 1, 0.25, 0, 0.25, 1, 6.25);
    RUN(PowScalarTensor, two, x->t, y->t);
    SAME(y, 2e-6, 0.125, 0.5, 0.707106781, 1, 1.41421356, 2, 5.65685425);
    RUN(GtScalar, x->t, half, y->t);
    SAME(y, 0, 0, 0, 0, 0, 0, 1, 1);
    RUN(InplaceSubs, x->t, one, one);
    RUN(InplaceMuls, x->t, two);
    RUN(InplaceClampMax, x->t, one);
    RUN(InplaceThreshold, x->t, minus, rig_scalar(0, ACL_FLOAT));
    SAME(x, 0, 0, 0, 0, 0, 0, 0, 1);
    RUN(InplaceFillScalar, x->t, half);
    SAME(x, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5);
    RUN(InplaceZero, x->t);
    SAME(x, 0, 0, 0, 0, 0, 0, 0, 0);
    REFUSED(161001, Muls, x->t, NULL, y->t);
    REFUSED(161001, InplaceMuls, NULL, two);
    REFUSED(161001, Muls, x->t, two, NULL);
}

static void binary_operators_broadcast_and_promote(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(1, 2, 3, 4, 5, 6));
    struct cell *b = rig_tensor(ACL_FLOAT16, DIMS(3), VALUES(2, 4, 0.5));
    struct cell *y = rig_tensor(ACL_FLOAT, DIMS(2, 3), NULL);
    const aclScalar *two = rig_scalar(2, ACL_FLOAT);
    RUN(Add, a->t, b->t, two, y->t);
    SAME(y, 0, 5, 10, 4, 8, 13, 7);
    RUN(Sub, a->t, b->t, two, y->t);
    SAME(y, 0, -3, -6, 2, 0, -3, 5);
    RUN(Mul, a->t, b->t, y->t);
    SAME(y, 0, 2, 8, 1.5, 8, 20, 3);
    RUN(Div, b->t, a->t, y->t);
    SAME(y, 2e-7, 2, 2, 1. / 6, 0.5, 0.8, 1. / 12);
    RUN(Maximum, a->t, b->t, y->t);
    SAME(y, 0, 2, 4, 3, 4, 5, 6);
    RUN(Minimum, a->t, b->t, y->t);
    SAME(y, 0, 1, 2, 0.5, 2, 4, 0.5);
    RUN(PowTensorTensor, a->t, b->t, y->t);
    SAME(y, 2e-7, 1, 16, 1.73205081, 16, 625, 2.44948974);
    struct cell *bits = rig_tensor(ACL_BOOL, DIMS(2, 3), NULL);
    RUN(EqTensor, a->t, b->t, bits->t);
    SAME(bits, 0, 0, 0, 0, 0, 0, 0);
    RUN(GeTensor, a->t, b->t, bits->t);
    SAME(bits, 0, 0, 0, 1, 1, 1, 1);
    RUN(InplaceMul, a->t, b->t);
    SAME(a, 0, 2, 8, 1.5, 8, 20, 3);
    REFUSED(161002, InplaceMul, b->t, a->t); /* the result is larger */
    REFUSED(161001, Add, a->t, b->t, NULL, y->t);
    struct cell *ints = rig_tensor(ACL_INT32, DIMS(2, 3), NULL);
    REFUSED(161002, Mul, a->t, b->t, ints->t);
    struct cell *four = rig_tensor(ACL_FLOAT, DIMS(4), NULL);
    REFUSED(161002, Mul, a->t, four->t, y->t);
    /* F16 meets F16 in F16: 2049 cannot be. */
    struct cell *h = rig_tensor(ACL_FLOAT16, DIMS(1), VALUES(2048)),
                *i = rig_tensor(ACL_FLOAT16, DIMS(1), VALUES(1));
    struct cell *w = rig_tensor(ACL_FLOAT, DIMS(1), NULL);
    RUN(Add, h->t, i->t, rig_scalar(1, ACL_FLOAT), w->t);
    SAME(w, 0, 2048);
    /* F16 and F32 in F32. */
    struct cell *f = rig_tensor(ACL_FLOAT, DIMS(1), VALUES(1));
    RUN(Add, h->t, f->t, rig_scalar(1, ACL_FLOAT), w->t);
    SAME(w, 0, 2049);
}

static void masks_choose(void **state)
{
    (void)state;
    struct cell *mask = rig_tensor(ACL_BOOL, DIMS(2, 1), VALUES(1, 0));
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(2, 2), VALUES(1, 2, 3, 4));
    struct cell *b = rig_tensor(ACL_FLOAT, DIMS(2), VALUES(8, 9)),
                *y = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL);
    RUN(SWhere, mask->t, a->t, b->t, y->t);
    SAME(y, 0, 1, 2, 8, 9);
    RUN(InplaceMaskedFillScalar, a->t, mask->t, rig_scalar(-INFINITY, ACL_FLOAT));
    SAME(a, 0, -INFINITY, -INFINITY, 3, 4);
    REFUSED(161002, InplaceMaskedFillScalar, a->t, b->t, rig_scalar(0, ACL_FLOAT));
}

static void casts_round_truncate_and_pack(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(4), VALUES(1.0004883, -2.7, 70000, 3.5));
    struct cell *h = rig_tensor(ACL_FLOAT16, DIMS(4), NULL),
                *i = rig_tensor(ACL_INT8, DIMS(4), NULL);
    struct cell *q = rig_tensor(ACL_INT4, DIMS(4), NULL), *m = rig_tensor(ACL_BOOL, DIMS(4), NULL);
    RUN(Cast, x->t, ACL_FLOAT16, h->t);
    SAME(h, 0, 1, -2.69921875, INFINITY, 3.5); /* 1 + 2^-11 is a tie, to even */
    RUN(Cast, x->t, ACL_INT8, i->t);
    SAME(i, 0, 1, -2, 127, 3);
    RUN(Cast, x->t, ACL_BOOL, m->t);
    SAME(m, 0, 1, 1, 1, 1);
    struct cell *s = rig_tensor(ACL_INT32, DIMS(4), VALUES(-8, 7, 3, -1));
    RUN(Cast, s->t, ACL_INT4, q->t);
    SAME(q, 0, -8, 7, 3, -1);
    REFUSED(161002, Cast, x->t, ACL_FLOAT, h->t);
    /* A transposed view into a broadcast row and back. */
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(1, 2, 3, 4, 5, 6)),
                *t = rig_tensor(ACL_FLOAT16, DIMS(3, 2), NULL);
    RUN(InplaceCopy, t->t, rig_view(a, ACL_FORMAT_ND, DIMS(3, 2), (int64_t[]){1, 3}, 0));
    SAME(t, 0, 1, 4, 2, 5, 3, 6);
    RUN(InplaceCopy, (aclTensor *)rig_view(t, ACL_FORMAT_ND, DIMS(2, 3), (int64_t[]){1, 2}, 0),
        a->t);
    SAME(t, 0, 1, 4, 2, 5, 3, 6);
    struct cell *row = rig_tensor(ACL_FLOAT, DIMS(3), VALUES(7, 8, 9));
    RUN(InplaceCopy, a->t, row->t);
    SAME(a, 0, 7, 8, 9, 7, 8, 9);
    REFUSED(161002, InplaceCopy, row->t, a->t);
}

static void ranges_have_as_many_elements_as_steps(void **state)
{
    (void)state;
    struct cell *y = rig_tensor(ACL_FLOAT, DIMS(4), NULL);
    const aclScalar *half = rig_scalar(0.5, ACL_FLOAT), *zero = rig_scalar(0, ACL_FLOAT),
                    *end2 = rig_scalar(1.75, ACL_FLOAT);
    RUN(Arange, zero, end2, half, y->t);
    SAME(y, 0, 0, 0.5, 1, 1.5);
    REFUSED(161002, Arange, zero, half, half, y->t);
    REFUSED(161002, Arange, zero, end2, zero, y->t);
}

static void moves_put_each_element_where_it_belongs(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(1, 2, 3, 4, 5, 6));
    struct cell *t = rig_tensor(ACL_FLOAT, DIMS(3, 2), NULL),
                *r = rig_tensor(ACL_FLOAT, DIMS(2, 6), NULL);
    struct cell *y = rig_tensor(ACL_FLOAT, DIMS(2, 3), NULL),
                *s = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL);
    RUN(Permute, x->t, INTS(1, 0), t->t);
    SAME(t, 0, 1, 4, 2, 5, 3, 6);
    REFUSED(161002, Permute, x->t, INTS(1, 1), t->t);
    REFUSED(161002, Permute, x->t, INTS(0, 1), t->t);
    RUN(Repeat, x->t, INTS(1, 2), r->t);
    SAME(r, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
    RUN(RepeatInterleaveIntWithDim, x->t, 2, 1, 6, r->t);
    SAME(r, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6);
    REFUSED(161002, RepeatInterleaveIntWithDim, x->t, 2, 1, 5, r->t);
    RUN(Roll, x->t, INTS(1), INTS(1), y->t);
    SAME(y, 0, 3, 1, 2, 6, 4, 5);
    RUN(Slice, x->t, -1, 0, 3, 2, s->t);
    SAME(s, 0, 1, 3, 4, 6);
    REFUSED(161002, Slice, x->t, -1, 0, 3, 0, s->t);
    RUN(Tril, x->t, 0, y->t);
    SAME(y, 0, 1, 0, 0, 4, 5, 0);
    RUN(Triu, x->t, 1, y->t);
    SAME(y, 0, 0, 2, 3, 0, 0, 6);
    RUN(InplaceTriu, y->t, 2);
    SAME(y, 0, 0, 0, 3, 0, 0, 0);
    struct cell *p = rig_tensor(ACL_FLOAT, DIMS(3, 4), NULL);
    RUN(ConstantPadNd, x->t, INTS(1, 0, 0, 1), rig_scalar(9, ACL_FLOAT), p->t);
    SAME(p, 0, 9, 1, 2, 3, 9, 4, 5, 6, 9, 9, 9, 9);
    struct cell *m = rig_tensor(ACL_FLOAT, DIMS(2, 6), NULL);
    RUN(ReflectionPad1d, x->t, INTS(2, 1), m->t);
    SAME(m, 0, 3, 2, 1, 2, 3, 2, 6, 5, 4, 5, 6, 5);
    REFUSED(161002, ReflectionPad1d, x->t, INTS(3, 0), m->t);
    aclTensor *members[] = {rig_member(x, DIMS(2, 3)), rig_member(s, DIMS(2, 2)),
                            rig_member(s, DIMS(2, 2))};
    struct cell *cat = rig_tensor(ACL_FLOAT, DIMS(2, 7), NULL);
    const aclTensorList *list = rig_list(3, (const aclTensor *const *)members);
    RUN(Cat, list, 1, cat->t);
    SAME(cat, 0, 1, 2, 3, 1, 3, 1, 3, 4, 5, 6, 4, 6, 4, 6);
    REFUSED(161002, Cat, list, 0, cat->t);
    const aclTensor *image =
        rig_view(x, ACL_FORMAT_NCHW, DIMS(1, 1, 2, 3), (int64_t[]){6, 6, 3, 1}, 0);
    struct cell *up = rig_tensor(ACL_FLOAT, DIMS(1, 1, 4, 3), NULL);
    const aclTensor *to =
        rig_view(up, ACL_FORMAT_NCHW, DIMS(1, 1, 4, 3), (int64_t[]){12, 12, 3, 1}, 0);
    RUN(UpsampleNearest2d, image, INTS(4, 3), (aclTensor *)to);
    SAME(up, 0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6);
}

static void gathers_and_scatters_follow_their_indices(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT16, DIMS(3, 2), VALUES(1, 2, 3, 4, 5, 6));
    struct cell *at = rig_tensor(ACL_INT32, DIMS(2, 2), VALUES(2, 0, 1, 1)),
                *y = rig_tensor(ACL_FLOAT16, DIMS(2, 2, 2), NULL);
    RUN(GatherV2, x->t, 0, at->t, y->t);
    SAME(y, 0, 5, 6, 1, 2, 3, 4, 3, 4);
    RUN(Embedding, x->t, at->t, y->t);
    SAME(y, 0, 5, 6, 1, 2, 3, 4, 3, 4);
    struct cell *one = rig_tensor(ACL_INT64, DIMS(2), VALUES(1, 0)),
                *z = rig_tensor(ACL_FLOAT16, DIMS(3, 2), NULL);
    RUN(IndexSelect, x->t, 1, one->t, z->t);
    SAME(z, 0, 2, 1, 4, 3, 6, 5);
    REFUSED(161002, IndexSelect, x->t, 1, at->t, y->t);
    REFUSED(161002, IndexSelect, x->t, 2, one->t, z->t);
    REFUSED(161002, GatherV2, x->t, 0, x->t, y->t);
    struct cell *src = rig_tensor(ACL_FLOAT16, DIMS(2, 2), VALUES(7, 8, 9, 10));
    RUN(InplaceIndexCopy, x->t, 0, one->t, src->t);
    SAME(x, 0, 9, 10, 7, 8, 5, 6);
    struct cell *copy = rig_tensor(ACL_FLOAT16, DIMS(3, 2), NULL);
    RUN(IndexCopy, z->t, 0, one->t, src->t, copy->t);
    SAME(copy, 0, 9, 10, 7, 8, 6, 5);
    RUN(InplaceIndexFillTensor, x->t, 1, INTS(0), rig_scalar(-1, ACL_FLOAT));
    SAME(x, 0, -1, 10, -1, 8, -1, 6);
    REFUSED(161002, InplaceIndexFillTensor, x->t, 1, INTS(2), rig_scalar(0, ACL_FLOAT));
    struct cell *data = rig_tensor(ACL_FLOAT, DIMS(2, 3, 1), VALUES(1, 2, 3, 4, 5, 6)),
                *new = rig_tensor(ACL_FLOAT, DIMS(2, 1, 1), VALUES(10, 20));
    RUN(InplaceScatterUpdate, data->t, one->t, new->t, -2);
    SAME(data, 0, 1, 10, 3, 20, 5, 6);
}

static void an_index_out_of_range_ends_the_stream(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(3, 2), NULL),
                *y = rig_tensor(ACL_FLOAT, DIMS(1, 2), NULL);
    struct cell *at = rig_tensor(ACL_INT32, DIMS(1), VALUES(3));
    FAULTS(IndexSelect, x->t, 0, at->t, y->t);
    rig_begin("910B4"); /* the device is lost: begin anew for rig_end */
}

static void pages_of_keys_are_written_by_slot(void **state)
{
    (void)state;
    double zeros[16] = {0};
    struct cell *k = rig_tensor(ACL_FLOAT16, DIMS(3, 1, 2), VALUES(1, 2, 3, 4, 5, 6)),
                *v = rig_tensor(ACL_FLOAT16, DIMS(3, 1, 2), VALUES(7, 8, 9, 10, 11, 12));
    struct cell *kc = rig_tensor(ACL_FLOAT16, DIMS(2, 2, 1, 2), zeros),
                *vc = rig_tensor(ACL_FLOAT16, DIMS(2, 2, 1, 2), zeros);
    struct cell *slots = rig_tensor(ACL_INT32, DIMS(3), VALUES(3, -1, 0));
    RUN(ScatterPaKvCache, k->t, kc->t, slots->t, v->t, vc->t, NULL, NULL, NULL, "Norm", NULL, NULL,
        NULL);
    SAME(kc, 0, 5, 6, 0, 0, 0, 0, 1, 2);
    SAME(vc, 0, 11, 12, 0, 0, 0, 0, 7, 8);
    REFUSED(161002, ScatterPaKvCache, k->t, kc->t, slots->t, v->t, vc->t, NULL, NULL, NULL, "PA_NZ",
            NULL, NULL, NULL);
}

static void sums_and_orders_are_right_along_any_axis(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(3, 1, 2, -4, 6, 5));
    struct cell *two = rig_tensor(ACL_FLOAT, DIMS(2), NULL),
                *kept_ = rig_tensor(ACL_FLOAT, DIMS(1, 3), NULL),
                *all = rig_tensor(ACL_FLOAT, 0, NULL, NULL);
    RUN(ReduceSum, x->t, INTS(-1), false, ACL_FLOAT, two->t);
    SAME(two, 0, 6, 7);
    RUN(ReduceSum, x->t, INTS(0, 1), false, ACL_FLOAT, all->t);
    SAME(all, 0, 13);
    REFUSED(161002, ReduceSum, x->t, INTS(0), false, ACL_FLOAT, two->t);
    REFUSED(161002, ReduceSum, x->t, INTS(1), false, ACL_FLOAT16, two->t);
    RUN(Mean, x->t, INTS(0), true, ACL_FLOAT, kept_->t);
    SAME(kept_, 0, -0.5, 3.5, 3.5);
    RUN(Amax, x->t, INTS(1), false, two->t);
    SAME(two, 0, 3, 6);
    RUN(Norm, x->t, rig_scalar(2, ACL_FLOAT), INTS(1), false, two->t);
    SAME(two, 2e-7, 3.74165739, 8.77496439);
    struct cell *sum = rig_tensor(ACL_FLOAT, DIMS(2, 3), NULL);
    RUN(Cumsum, x->t, 0, ACL_FLOAT, sum->t);
    SAME(sum, 0, 3, 1, 2, -1, 7, 7);
    RUN(Cumsum, x->t, 1, ACL_FLOAT, sum->t);
    SAME(sum, 0, 3, 4, 6, -4, 2, 7);
    struct cell *best = rig_tensor(ACL_INT32, DIMS(2), NULL),
                *order = rig_tensor(ACL_INT64, DIMS(2, 3), NULL);
    RUN(ArgMax, x->t, 1, false, best->t);
    SAME(best, 0, 0, 1);
    RUN(Argsort, x->t, -1, true, order->t);
    SAME(order, 0, 0, 2, 1, 1, 2, 0);
    struct cell *sorted = rig_tensor(ACL_FLOAT, DIMS(2, 3), NULL);
    RUN(Sort, x->t, true, 0, false, sorted->t, order->t);
    SAME(sorted, 0, -4, 1, 2, 3, 6, 5);
    SAME(order, 0, 1, 0, 0, 0, 1, 1);
    struct cell *top = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL),
                *where = rig_tensor(ACL_INT64, DIMS(2, 2), NULL);
    RUN(Topk, x->t, 2, 1, true, true, top->t, where->t);
    SAME(top, 0, 3, 2, 6, 5);
    SAME(where, 0, 0, 2, 1, 2);
    REFUSED(161002, Topk, x->t, 4, 1, true, true, top->t, where->t);
    /* Of equal values the first is the largest, and sorts keep their order both ways. */
    struct cell *ties = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(5, 1, 5, 2, 2, 2));
    RUN(ArgMax, ties->t, 1, false, best->t);
    SAME(best, 0, 0, 0);
    RUN(Sort, ties->t, true, 1, true, sorted->t, order->t);
    SAME(order, 0, 0, 2, 1, 0, 1, 2);
    RUN(Argsort, ties->t, 1, false, order->t);
    SAME(order, 0, 1, 0, 2, 0, 1, 2);
    struct cell *narrow = rig_tensor(ACL_INT32, DIMS(2, 3), NULL);
    REFUSED(161002, Argsort, x->t, -1, true, narrow->t); /* indices are INT64 */
}

static void every_operator_has_both_phases_and_rejects_nothing_at_all(void **state)
{
    (void)state;
    REFUSED(161001, Mm, NULL, NULL, NULL, 0);
    REFUSED(161001, RmsNorm, NULL, NULL, 0, NULL, NULL);
    REFUSED(161001, Softmax, NULL, 0, NULL);
    REFUSED(161001, RotaryPositionEmbedding, NULL, NULL, NULL, 0, NULL);
    REFUSED(161001, Cat, NULL, 0, NULL);
    REFUSED(161001, Permute, NULL, NULL, NULL);
    REFUSED(161001, WeightQuantBatchMatmulV2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL);
    REFUSED(161001, Convolution, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, 1, NULL, 0);
    REFUSED(161001, MoeGatingTopKSoftmax, NULL, NULL, 1, NULL, NULL, NULL);
    REFUSED(161001, LayerNorm, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL);
    REFUSED(161001, GroupNorm, NULL, NULL, NULL, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    REFUSED(161001, TriangularSolve, NULL, NULL, false, false, false, NULL, NULL);
    REFUSED(161001, Im2col, NULL, NULL, NULL, NULL, NULL, NULL);
    REFUSED(161001, GroupedMatmulV3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 2, 0, NULL);
    REFUSED(161001, IncreFlashAttentionV4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
            NULL, NULL, NULL, NULL, NULL, NULL, 1, 1, "BNSD", 1, 0, 0, NULL);
    REFUSED(161001, Topk, NULL, 1, 0, true, true, NULL, NULL);
    REFUSED(161001, ReduceSum, NULL, NULL, false, ACL_FLOAT, NULL);
    REFUSED(161001, Argsort, NULL, 0, false, NULL);
    REFUSED(161001, GatherV2, NULL, 0, NULL, NULL);
    REFUSED(161001, InplaceScatterUpdate, NULL, NULL, NULL, 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, rig_on_910b, rig_off)
    const struct CMUnitTest tests[] = {
        T(unary_operators_give_known_values_in_every_float_type),
        T(unary_operators_refuse_null_shapes_and_types),
        T(operators_with_scalars_give_known_values),
        T(binary_operators_broadcast_and_promote),
        T(masks_choose),
        T(casts_round_truncate_and_pack),
        T(ranges_have_as_many_elements_as_steps),
        T(moves_put_each_element_where_it_belongs),
        T(gathers_and_scatters_follow_their_indices),
        T(an_index_out_of_range_ends_the_stream),
        T(pages_of_keys_are_written_by_slot),
        T(sums_and_orders_are_right_along_any_axis),
        T(every_operator_has_both_phases_and_rejects_nothing_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
