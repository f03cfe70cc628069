/*
 * solver_price.c - from a plan back to the placement that a solver would price.
 */
#include "tests/solver/solver_price.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
// clang-format on

struct price solver_price(const struct model *m, const struct profile *p, const struct plan *plan)
{
    struct oato_error err;
    struct problem *problem;
    int32_t *place;
    if (problem_of_plan(m, p, plan, &problem, &place, &err))
        fail_msg("%s", err.text);
    const struct price price = instance_price(&problem->instance, place);
    problem_free(problem);
    return price;
}
