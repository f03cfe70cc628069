/*
 * test_ops_rows.c - the stand-in's operators on rows and images: norms, softmax, gates, rotation,
 * convolution and pools. Known values are of Python's math.
 */
#include "tests/ascend/rig.h"

#include "aclnnop/aclnn_rotary_position_embedding.h"

#include "acl/acl.h"

#include <math.h>
#include <string.h>

static const double rows[] = {1, 2, 3, 4, -1, 0.5, 2, -2};

static void rms_norm_gives_known_values(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 4), rows),
                *g = rig_tensor(ACL_FLOAT, DIMS(4), VALUES(1, 0.5, 2, 1));
    struct cell *y = rig_tensor(ACL_FLOAT, DIMS(2, 4), NULL),
                *r = rig_tensor(ACL_FLOAT, DIMS(2, 1), NULL);
    RUN(RmsNorm, x->t, g->t, 1e-6, y->t, r->t);
    SAME(y, 1e-6, 0.365148346, 0.365148346, 2.190890076, 1.460593384, -0.657595807, 0.164398952,
         2.630383229, -1.315191615);
    SAME(r, 1e-6, 0.365148346, 0.657595807);
    struct cell *h = rig_tensor(ACL_FLOAT16, DIMS(2, 4), rows),
                *yh = rig_tensor(ACL_FLOAT16, DIMS(2, 4), NULL);
    RUN(RmsNorm, h->t, g->t, 1e-6, yh->t, r->t); /* gamma may stay F32 on a 910B */
    SAME(yh, 1e-3, 0.365148346, 0.365148346, 2.190890076, 1.460593384, -0.657595807, 0.164398952,
         2.630383229, -1.315191615);
    struct cell *g16 = rig_tensor(ACL_FLOAT16, DIMS(4), NULL),
                *flat = rig_tensor(ACL_FLOAT, DIMS(2), NULL);
    REFUSED(161002, RmsNorm, x->t, g16->t, 1e-6, y->t, r->t);
    REFUSED(561002, RmsNorm, x->t, g->t, 1e-6, y->t, flat->t);
    REFUSED(161002, RmsNorm, x->t, g->t, 1e-6, yh->t, r->t);
    REFUSED(161001, RmsNorm, x->t, g->t, 1e-6, y->t, NULL);
    REFUSED(561002, RmsNorm, x->t, flat->t, 1e-6, y->t, r->t);
}

static void the_310p_wants_gamma_in_the_type_of_x_and_32_bytes(void **state)
{
    (void)state;
    struct cell *h = rig_tensor(ACL_FLOAT16, DIMS(2, 4), rows),
                *y = rig_tensor(ACL_FLOAT16, DIMS(2, 4), NULL);
    struct cell *g = rig_tensor(ACL_FLOAT, DIMS(4), NULL),
                *g16 = rig_tensor(ACL_FLOAT16, DIMS(4), NULL);
    struct cell *r = rig_tensor(ACL_FLOAT, DIMS(2, 1), NULL),
                *bf = rig_tensor(ACL_BF16, DIMS(2, 4), rows);
    REFUSED(161002, RmsNorm, h->t, g->t, 1e-6, y->t, r->t);
    REFUSED(561002, RmsNorm, h->t, g16->t, 1e-6, y->t, r->t);
    REFUSED(161002, Silu, bf->t, bf->t);
}

static void a_fused_sum_comes_before_the_norm(void **state)
{
    (void)state;
    struct cell *a = rig_tensor(ACL_FLOAT, DIMS(2, 4), VALUES(0, 1, 3, 2, 0, 0, 1, -1)),
                *b = rig_tensor(ACL_FLOAT, DIMS(2, 4), VALUES(1, 1, 0, 2, -1, 0.5, 1, -1));
    struct cell *g = rig_tensor(ACL_FLOAT, DIMS(4), VALUES(1, 0.5, 2, 1)),
                *y = rig_tensor(ACL_FLOAT, DIMS(2, 4), NULL);
    struct cell *r = rig_tensor(ACL_FLOAT, DIMS(2, 1), NULL),
                *x = rig_tensor(ACL_FLOAT, DIMS(2, 4), NULL);
    RUN(AddRmsNorm, a->t, b->t, g->t, 1e-6, y->t, r->t, x->t);
    rig_compare(x, rows, 0, "the sum", __LINE__);
    SAME(y, 1e-6, 0.365148346, 0.365148346, 2.190890076, 1.460593384, -0.657595807, 0.164398952,
         2.630383229, -1.315191615);
    SAME(r, 1e-6, 0.365148346, 0.657595807);
    REFUSED(161001, AddRmsNorm, a->t, b->t, g->t, 1e-6, y->t, r->t, NULL);
    REFUSED(161002, AddRmsNorm, a->t, b->t, g->t, 1e-6, y->t, NULL, x->t); /* F32 needs rstd */
    REFUSED(161002, AddRmsNorm, a->t, b->t, g->t, -1, y->t, r->t, x->t);
}

static void centred_norms_give_known_values(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 4), rows),
                *g = rig_tensor(ACL_FLOAT, DIMS(4), VALUES(1, 0.5, 2, 1));
    struct cell *b = rig_tensor(ACL_FLOAT, DIMS(4), VALUES(0, 1, 0, -1)),
                *y = rig_tensor(ACL_FLOAT, DIMS(2, 4), NULL);
    struct cell *m = rig_tensor(ACL_FLOAT, DIMS(2, 1), NULL),
                *r = rig_tensor(ACL_FLOAT, DIMS(2, 1), NULL);
    RUN(LayerNorm, x->t, INTS(4), g->t, b->t, 1e-5, y->t, m->t, r->t);
    SAME(y, 1e-6, -1.34163542, 0.776394097, 0.894423613, 0.34163542, -0.577349012, 1.20619608,
         2.80426663, -2.23717646);
    SAME(m, 0, 2.5, -0.125);
    RUN(LayerNorm, x->t, INTS(4), NULL, NULL, 1e-5, y->t, NULL, NULL);
    REFUSED(161002, LayerNorm, x->t, INTS(3), NULL, NULL, 1e-5, y->t, NULL, NULL);
    struct cell *image = rig_tensor(ACL_FLOAT, DIMS(1, 2, 4), rows),
                *yi = rig_tensor(ACL_FLOAT, DIMS(1, 2, 4), NULL);
    struct cell *m1 = rig_tensor(ACL_FLOAT, DIMS(1, 1), NULL),
                *r1 = rig_tensor(ACL_FLOAT, DIMS(1, 1), NULL);
    struct cell *gc = rig_tensor(ACL_FLOAT, DIMS(2), VALUES(1, 2)),
                *bc = rig_tensor(ACL_FLOAT, DIMS(2), VALUES(0, 1));
    RUN(GroupNorm, image->t, gc->t, bc->t, 1, 2, 4, 1, 1e-5, yi->t, m1->t, r1->t);
    SAME(yi, 1e-6, -0.100278797, 0.434541454, 0.969361706, 1.50418196, -1.3398386, 0.264622154,
         1.86908291, -2.4094791);
    REFUSED(161002, GroupNorm, image->t, gc->t, bc->t, 1, 2, 4, 3, 1e-5, yi->t, m1->t, r1->t);
}

static void softmax_works_along_any_axis_and_hides_minus_infinity(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(1, 2, 3, 0, 0, -INFINITY)),
                *y = rig_tensor(ACL_FLOAT, DIMS(2, 3), NULL);
    RUN(Softmax, x->t, -1, y->t);
    SAME(y, 1e-6, 0.0900305732, 0.244728471, 0.665240956, 0.5, 0.5, 0);
    struct cell *t = rig_tensor(ACL_FLOAT, DIMS(3, 2), VALUES(1, 0, 2, 0, 3, -INFINITY)),
                *u = rig_tensor(ACL_FLOAT, DIMS(3, 2), NULL);
    RUN(Softmax, t->t, 0, u->t);
    SAME(u, 1e-6, 0.0900305732, 0.5, 0.244728471, 0.5, 0.665240956, 0);
    RUN(LogSoftmax, x->t, 1, y->t);
    SAME(y, 1e-6, -2.40760596, -1.40760596, -0.407605964, -0.693147181, -0.693147181, -INFINITY);
    struct cell *h = rig_tensor(ACL_FLOAT16, DIMS(2, 3), NULL),
                *i = rig_tensor(ACL_INT32, DIMS(2, 3), NULL);
    RUN(Softmax, x->t, 1, h->t);
    SAME(h, 1e-3, 0.0900305732, 0.244728471, 0.665240956, 0.5, 0.5, 0);
    REFUSED(161002, Softmax, i->t, 1, y->t);
    REFUSED(161002, Softmax, x->t, 2, y->t);
    struct cell *labels = rig_tensor(ACL_FLOAT, DIMS(2, 3), VALUES(0, 0, 1, 1, 0, 0)),
                *loss = rig_tensor(ACL_FLOAT, DIMS(2), NULL);
    RUN(SoftmaxCrossEntropyWithLogits, x->t, labels->t, loss->t, y->t);
    SAME(loss, 1e-6, 0.407605964, 0.693147181);
    SAME(y, 1e-6, 0.0900305732, 0.244728471, -0.334759044, -0.5, 0.5, 0);
}

static void gates_activate_one_half(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(2, 4), VALUES(1, 2, 3, 4, -1, 0.5, 2, -2)),
                *y = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL),
                *a = rig_tensor(ACL_FLOAT, DIMS(2, 2), NULL);
    RUN(SwiGlu, x->t, -1, y->t);
    SAME(y, 1e-6, 2.19317574, 7.04637664, -0.537882843, -0.622459331);
    RUN(GeGluV3, x->t, -1, 0, true, y->t, a->t);
    SAME(y, 1e-6, 2.52403424, 7.81799895, -0.317310508, -0.691462461);
    SAME(a, 1e-6, 0.841344746, 1.95449974, -0.158655254, 0.345731231);
    RUN(GeGluV3, x->t, -1, 1, false, y->t, a->t);
    SAME(y, 1e-6, 2.99636261, 7.99985951, -1.95459769, -0.022701153);
    REFUSED(161002, SwiGlu, x->t, 2, y->t);
    REFUSED(161002, SwiGlu, x->t, 0, y->t);
    REFUSED(161002, SwiGlu, rig_view(x, ACL_FORMAT_ND, DIMS(2, 4), (int64_t[]){1, 2}, 0), -1, y->t);
    struct cell *odd = rig_tensor(ACL_FLOAT, DIMS(3), NULL),
                *one = rig_tensor(ACL_FLOAT, DIMS(1), NULL);
    REFUSED(161002, SwiGlu, odd->t, 0, one->t);
}

static void rotation_turns_halves_or_pairs(void **state)
{
    (void)state;
    /* A quarter turn of the first angle, none of the second: (a, b) becomes (-b, a). */
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(1, 1, 2, 4), VALUES(1, 2, 3, 4, 5, 6, 7, 8)),
                *y = rig_tensor(ACL_FLOAT, DIMS(1, 1, 2, 4), NULL);
    struct cell *c = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 4), VALUES(0, 1, 0, 1)),
                *s = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 4), VALUES(1, 0, 1, 0));
    RUN(RotaryPositionEmbedding, x->t, c->t, s->t, 0, y->t);
    SAME(y, 0, -3, 2, 1, 4, -7, 6, 5, 8);
    struct cell *c1 = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 4), VALUES(0, 0, 1, 1)),
                *s1 = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 4), VALUES(1, 1, 0, 0));
    RUN(RotaryPositionEmbedding, x->t, c1->t, s1->t, 1, y->t);
    SAME(y, 0, -2, 1, 3, 4, -6, 5, 7, 8);
    REFUSED(161002, RotaryPositionEmbedding, x->t, c->t, s->t, 2, y->t);
    struct cell *h = rig_tensor(ACL_FLOAT16, DIMS(1, 1, 1, 4), NULL),
                *odd = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 3), NULL);
    REFUSED(161002, RotaryPositionEmbedding, x->t, h->t, h->t, 0, y->t);
    REFUSED(161002, RotaryPositionEmbedding, odd->t, odd->t, odd->t, 0, odd->t);
    struct cell *two = rig_tensor(ACL_FLOAT, DIMS(2, 4), NULL);
    REFUSED(161002, RotaryPositionEmbedding, two->t, two->t, two->t, 0, two->t);
    /* Interleaved pairs do not take angles for each batch and head. */
    struct cell *full = rig_tensor(ACL_FLOAT, DIMS(2, 2, 2, 4), NULL);
    REFUSED(161002, RotaryPositionEmbedding, full->t, full->t, full->t, 1, full->t);
    struct cell *wide = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 896), NULL);
    REFUSED(161002, RotaryPositionEmbedding, wide->t, wide->t, wide->t, 0, wide->t);
}

static void the_310p_turns_halves_of_32_and_more(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 32), NULL),
                *y = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 32), NULL);
    struct cell *few = rig_tensor(ACL_FLOAT, DIMS(1, 1, 1, 16), NULL);
    RUN(RotaryPositionEmbedding, x->t, x->t, x->t, 0, y->t);
    REFUSED(161002, RotaryPositionEmbedding, x->t, x->t, x->t, 1, y->t);
    REFUSED(161002, RotaryPositionEmbedding, few->t, few->t, few->t, 0, few->t);
}

/* ------------------------------------------------------------------------------- images ---- */

enum { CI = 4, CO = 6, HI = 5, WI = 6, KH = 3, KW = 2 };

/* The definition: sum over channels and taps, without any of the kernel's short cuts. */
static void convolution(const double *x, const double *w, int groups, int stride, int pad,
                        int dilation, int ho, int wo, double *y)
{
    for (int o = 0; o < CO * ho * wo; o++) {
        int co = o / (ho * wo), h = o / wo % ho, v = o % wo, g = co / (CO / groups);
        y[o] = 0;
        for (int c = 0; c < CI / groups; c++)
            for (int i = 0; i < KH; i++)
                for (int j = 0; j < KW; j++) {
                    int r = h * stride - pad + i * dilation, s = v * stride - pad + j * dilation;
                    if (r >= 0 && r < HI && s >= 0 && s < WI)
                        y[o] += x[((g * CI / groups + c) * HI + r) * WI + s] *
                                w[((co * (CI / groups) + c) * KH + i) * KW + j];
                }
    }
}

static void convolutions_follow_their_definition(void **state)
{
    (void)state;
    static const int cases[][5] = {
        {1, 1, 0, 1, 0}, {2, 2, 1, 1, 0}, {2, 1, 1, 2, 0}, {1, 2, 1, 2, 0}};
    double x[CI * HI * WI], w[CO * CI * KH * KW], want[CO * 64], bias[CO] = {1, 2, 3, 4, 5, 6};
    rig_quarters(20, CI * HI * WI, x);
    rig_quarters(21, CO * CI * KH * KW, w);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int groups = cases[i][0], stride = cases[i][1], pad = cases[i][2], dil = cases[i][3];
        int ho = (HI + 2 * pad - dil * (KH - 1) - 1) / stride + 1,
            wo = (WI + 2 * pad - dil * (KW - 1) - 1) / stride + 1;
        struct cell *a = rig_tensor(ACL_FLOAT, DIMS(1, CI, HI, WI), x),
                    *f = rig_tensor(ACL_FLOAT, DIMS(CO, CI / groups, KH, KW), w);
        struct cell *y = rig_tensor(ACL_FLOAT, DIMS(1, CO, ho, wo), NULL),
                    *b = rig_tensor(ACL_FLOAT, DIMS(CO), bias);
        convolution(x, w, groups, stride, pad, dil, ho, wo, want);
        for (int j = 0; j < CO * ho * wo; j++)
            want[j] += bias[j / (ho * wo)];
        RUN(Convolution, a->t, f->t, b->t, INTS(stride, stride), INTS(pad, pad), INTS(dil, dil),
            false, INTS(0, 0), groups, y->t, 0);
        rig_compare(y, want, 0, "convolution", __LINE__);
        REFUSED(161002, Convolution, a->t, f->t, b->t, INTS(stride, stride), INTS(pad, pad),
                INTS(dil, dil), false, INTS(0, 0), 3, y->t, 0);
    }
}

static void convolutions_of_sound_and_transposed_ones_are_right(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT16, DIMS(1, 1, 4), VALUES(1, 2, 3, 4)),
                *w = rig_tensor(ACL_FLOAT16, DIMS(1, 1, 2), VALUES(10, 1));
    struct cell *y = rig_tensor(ACL_FLOAT16, DIMS(1, 1, 3), NULL),
                *t = rig_tensor(ACL_FLOAT16, DIMS(1, 1, 8), NULL);
    RUN(Convolution, x->t, w->t, NULL, INTS(1), INTS(0), INTS(1), false, INTS(0), 1, y->t, 0);
    SAME(y, 0, 12, 23, 34);
    RUN(Convolution, x->t, w->t, NULL, INTS(2), INTS(0), INTS(1), true, INTS(0), 1, t->t, 0);
    SAME(t, 0, 10, 1, 20, 2, 30, 3, 40, 4);
    REFUSED(161002, Convolution, x->t, w->t, NULL, INTS(1), INTS(0), INTS(1), false, INTS(0), 1,
            t->t, 0);
}

static void windows_become_columns_and_pools(void **state)
{
    (void)state;
    struct cell *x = rig_tensor(ACL_FLOAT, DIMS(1, 1, 3, 3), VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9));
    struct cell *columns = rig_tensor(ACL_FLOAT, DIMS(1, 4, 4), NULL),
                *y = rig_tensor(ACL_FLOAT, DIMS(1, 1, 2, 2), NULL);
    RUN(Im2col, x->t, INTS(2, 2), INTS(1, 1), INTS(0, 0), INTS(1, 1), columns->t);
    SAME(columns, 0, 1, 2, 4, 5, 2, 3, 5, 6, 4, 5, 7, 8, 5, 6, 8, 9);
    RUN(AvgPool2d, x->t, INTS(2, 2), INTS(1, 1), INTS(0, 0), false, true, 0, 0, y->t);
    SAME(y, 0, 3, 4, 6, 7);
    RUN(AvgPool2d, x->t, INTS(2, 2), INTS(2, 2), INTS(1, 1), false, true, 0, 0, y->t);
    SAME(y, 0, 0.25, 1.25, 2.75, 7);
    RUN(AvgPool2d, x->t, INTS(2, 2), INTS(2, 2), INTS(1, 1), false, false, 0, 0, y->t);
    SAME(y, 0, 1, 2.5, 5.5, 7);
    RUN(MaxPool, x->t, INTS(2, 2), INTS(2, 2), 0, INTS(0, 0, 1, 1), INTS(1, 1), 0, y->t);
    SAME(y, 0, 5, 6, 8, 9);
    REFUSED(161002, MaxPool, x->t, INTS(2, 2), INTS(2, 2), 1, INTS(0, 0), INTS(1, 1), 0, y->t);
    REFUSED(161002, Im2col, x->t, INTS(2, 2), INTS(1, 1), INTS(1, 1), INTS(1, 1), columns->t);
}

int main(void)
{
#define T(f)     cmocka_unit_test_setup_teardown(f, rig_on_910b, rig_off)
#define T_310(f) cmocka_unit_test_setup_teardown(f, rig_on_310p, rig_off)
    const struct CMUnitTest tests[] = {
        T(rms_norm_gives_known_values),
        T_310(the_310p_wants_gamma_in_the_type_of_x_and_32_bytes),
        T(a_fused_sum_comes_before_the_norm),
        T(centred_norms_give_known_values),
        T(softmax_works_along_any_axis_and_hides_minus_infinity),
        T(gates_activate_one_half),
        T(rotation_turns_halves_or_pairs),
        T_310(the_310p_turns_halves_of_32_and_more),
        T(convolutions_follow_their_definition),
        T(convolutions_of_sound_and_transposed_ones_are_right),
        T(windows_become_columns_and_pools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
