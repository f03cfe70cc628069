/*
 * test_estimates.c - what estimates are said to be off by is what they are off by: rows of matrices
 * and attention are left out of the measured machines of docs/hardware, by shape, by type and by
 * kind, and estimated from what is left.
 */
#include "solver/cost_internal.h"
#include "solver/solver.h"

// clang-format off
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

enum left_out { SHAPE, TYPE, KIND, WAYS };
enum { CASES_MOST = 512 };

struct cases {
    double off[CASES_MOST], said;
    int n;
};

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static bool is_left_out(const struct profile_row *r, const struct profile_row *of,
                        enum left_out how)
{
    char key[2][OP_KEY_SIZE];
    if (r->device != of->device || r->op.kind != of->op.kind)
        return false;
    return how == KIND || (how == TYPE && r->op.dtype == of->op.dtype) ||
           !strcmp(oato_op_key(&r->op, NULL, key[0]), oato_op_key(&of->op, NULL, key[1]));
}

/* What the estimate is scaled from; KIND: from nothing. */
static enum left_out way_of(const struct op_cost *c, const struct oato_op *op)
{
    struct oato_op from;
    struct op_size size;
    if (!c->from)
        return KIND;
    assert_true(oato_op_parse(c->from, &from, &size));
    return from.dtype == op->dtype ? SHAPE : TYPE;
}

static void leave_out(const struct profile *p, int32_t row, enum left_out how,
                      struct cases all[WAYS][2])
{
    const struct profile_row *of = &p->rows[row];
    struct profile rest = *p;
    struct cost_source *c;
    struct oato_error err;
    rest.n_rows = 0;
    rest.rows = calloc((size_t)p->n_rows, sizeof *rest.rows);
    assert_non_null(rest.rows);
    for (int32_t i = 0; i < p->n_rows; i++)
        if (!is_left_out(&p->rows[i], of, how))
            rest.rows[rest.n_rows++] = p->rows[i];
    assert_int_equal(cost_create(&rest, NULL, &c, &err), OATO_OK);
    for (int32_t i = row; i < p->n_rows && is_left_out(&p->rows[i], of, SHAPE); i++) {
        const struct profile_row *r = &p->rows[i];
        const struct op_cost cost = cost_of_op(c, r->device, &r->op, &r->size);
        struct cases *x = &all[how][r->size.rows > NUMERICS_DECODE_ROWS];
        assert_true(cost.estimate && cost.off > 0);
        if (way_of(&cost, &r->op) != how)
            continue;
        assert_true(x->n < CASES_MOST);
        x->off[x->n++] = fabs(r->median_ns / cost.ns - 1);
        x->said = cost.off;
    }
    cost_free(c);
    free(rest.rows);
}

static void nine_in_ten_are_off_by_what_is_said(void **state)
{
    (void)state;
    static const char *const machines[] = {"h200", "h100-80gb-hbm3", "epyc-zen5-2cores"};
    static struct cases all[WAYS][2];
    struct oato_error err;
    for (size_t m = 0; m < ARRAY_LEN(machines); m++) {
        struct profile p;
        if (hardware_load(machines[m], &p, NULL, NULL, &err))
            fail_msg("%s", err.text);
        for (int32_t i = 0; i < p.n_rows; i++) {
            const struct oato_op *op = &p.rows[i].op;
            const bool first = !i || !is_left_out(&p.rows[i - 1], &p.rows[i], SHAPE);
            for (int how = 0; how < WAYS && first; how++)
                if (op_weight_use(op) == WEIGHT_MATRIX || op->kind == OP_ATTENTION)
                    leave_out(&p, i, (enum left_out)how, all);
        }
        profile_free(&p);
    }
    for (int how = 0; how < WAYS; how++)
        for (int many = 0; many < 2; many++) {
            struct cases *x = &all[how][many];
            qsort(x->off, (size_t)x->n, sizeof *x->off, by_size);
            const double most = x->off[(9 * x->n + 9) / 10 - 1];
            print_message("%s, %s rows: %d estimates, 90 %% off by at most %.3f, said %.2f\n",
                          how == SHAPE  ? "another shape"
                          : how == TYPE ? "another type"
                                        : "no row of the kind",
                          many ? "many" : "few", x->n, most, x->said);
            assert_true(x->n > 30 && most <= x->said && most > x->said - 0.05);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nine_in_ten_are_off_by_what_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
