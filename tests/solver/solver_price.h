/* solver_price.h - what the solver counts of a plan. */
#ifndef OATO_SOLVER_PRICE_H
#define OATO_SOLVER_PRICE_H

#include "solver/solver.h"

/* The sums of the plan's placement, with the profile. */
struct price solver_price(const struct model *m, const struct profile *p, const struct plan *plan);

#endif
